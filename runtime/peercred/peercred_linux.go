package peercred

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Peer is the process that dialled a unix socket. Close it.
type Peer struct {
	PID  int // 0 where the process is in a process namespace that is not seen from here
	fd   int // a pidfd; -1 where the kernel has none
	conn syscall.RawConn
}

// ErrEnded means that the peer ended before it was looked at.
var ErrEnded = errors.New("the process at the other end has ended")

// Of is the process that dialled a connection.
func Of(conn syscall.Conn) (Peer, error) {
	p := Peer{fd: -1}
	raw, err := conn.SyscallConn()
	if err != nil {
		return p, err
	}
	p.conn = raw
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failed = fmt.Errorf("its credentials: %w", err)
			return
		}
		p.PID = int(cred.Pid)
		switch got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD); {
		case err == nil:
			p.fd = got
			unix.CloseOnExec(got)
		case err != unix.ENOPROTOOPT: // the kernel has pidfds, and none for this process any more
			failed = fmt.Errorf("process %d: %w", p.PID, ErrEnded)
		}
	}); err != nil {
		return p, err
	}
	return p, failed
}

// Held reports whether the peer's process id cannot be reused unnoticed: a pidfd
// refers to it.
func (p Peer) Held() bool { return p.fd >= 0 }

// Alive reports whether the peer still runs, and so whether PID is still its. Without
// a pidfd it reports whether the connection has not been hung up.
func (p Peer) Alive() bool {
	if p.fd >= 0 {
		return Alive(p.fd)
	}
	up := false
	err := p.conn.Control(func(fd uintptr) { up = !hasEvents(int(fd), unix.POLLRDHUP) })
	return err == nil && up
}

// Close releases the reference to the process.
func (p Peer) Close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}

// Alive reports whether the process of a pidfd still runs.
func Alive(pidfd int) bool { return !hasEvents(pidfd, unix.POLLIN) } // readable once it has ended

// hasEvents reports whether a descriptor has one of the events, or an error.
func hasEvents(fd int, events int16) bool {
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: events}}
		n, err := unix.Poll(p, 0)
		if err == unix.EINTR {
			continue
		}
		return err != nil || n > 0
	}
}
