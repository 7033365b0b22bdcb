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
	facts  forkserver.Facts
	pid    int
	exited chan struct{}
}

func checkPrivileges() error                                   { return errLinux }
func openRootOwnedDir(string, string) (*os.File, error)        { return nil, errLinux }
func (h *Host) start(context.Context, string) (*parent, error) { return nil, errLinux }
func (p *parent) kill()                                        {}
func (p *parent) readFacts() (forkserver.Facts, error)         { return forkserver.Facts{}, errLinux }
func (p *parent) forkInto(*net.UnixConn) (int, error)          { return 0, errLinux }
