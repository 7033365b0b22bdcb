//go:build linux || darwin

package upstream

import (
	"io"
	"net"
	"os"
	"syscall"
)

// socket reads a connection's file descriptor without waiting. It belongs to the
// goroutine of its exchange.
type socket struct {
	raw     syscall.RawConn
	receive func(fd uintptr) // s.recv, made once
	buf     []byte
	flags   int
	n       int
	err     error
	head    [16]byte // what peek found
}

// newSocket returns nil where nc has no file descriptor.
func newSocket(nc net.Conn) *socket {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	s := &socket{raw: raw}
	s.receive = s.recv
	return s
}

// peek returns the first bytes that are there, and leaves them.
func (s *socket) peek() ([]byte, error) {
	n, err := s.get(s.head[:], syscall.MSG_PEEK)
	return s.head[:n], err
}

func (s *socket) read(b []byte) (int, error) { return s.get(b, 0) }

func (s *socket) get(b []byte, flags int) (int, error) {
	s.buf, s.flags = b, flags|syscall.MSG_DONTWAIT
	err := s.raw.Control(s.receive) // Read would fail at a deadline that is over
	s.buf = nil
	switch {
	case err != nil:
		return 0, err
	case s.err == syscall.EAGAIN:
		return 0, os.ErrDeadlineExceeded
	case s.err != nil:
		return 0, s.err
	case s.n == 0:
		return 0, io.EOF
	}
	return s.n, nil
}

func (s *socket) recv(fd uintptr) {
	for {
		if s.n, _, s.err = syscall.Recvfrom(int(fd), s.buf, s.flags); s.err != syscall.EINTR {
			return
		}
	}
}
