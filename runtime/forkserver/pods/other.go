//go:build !linux

package pods

import (
	"context"
	"errors"
	"net"
	"os"

	"github.com/thaw-dev/thaw/runtime/forkserver"
)

var errLinux = errors.New("it takes Linux's namespaces")

type parent struct {
	facts forkserver.Facts
	pid   int
	over  chan struct{}
}

func able() error                                              { return errLinux }
func own(string, string) (*os.File, error)                     { return nil, errLinux }
func (h *Host) light(context.Context, string) (*parent, error) { return nil, errLinux }
func (p *parent) end()                                         {}
func (p *parent) look() (forkserver.Facts, error)              { return forkserver.Facts{}, errLinux }
func (p *parent) lend(*net.UnixConn) (int, error)              { return 0, errLinux }
