//go:build !linux

package confine

import (
	"errors"
	"os"
)

// Unavailable is why no engine can be confined on this machine.
func Unavailable() string { return "it needs Linux" }

// OwnUsers reports whether engines can have users of their own.
func OwnUsers() bool { return false }

// Opened is a plan whose ruleset was made; there is none on this system.
type Opened struct{}

func (p Plan) Open() (*Opened, error) { return nil, errors.New("confine: " + Unavailable()) }

func (o *Opened) File() *os.File { return nil }

// Groups are the groups of the devices that the plan's user needs.
func (o *Opened) Groups() []int { return nil }

func (o *Opened) Close() {}

func (o *Opened) Apply() error { return errors.New("confine: " + Unavailable()) }

func (p Plan) Check(int) error { return errors.New("confine: " + Unavailable()) }
