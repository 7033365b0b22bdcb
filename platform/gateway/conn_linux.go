package gateway

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

const canWatch = true

// departed reports whether the other side of a connection has closed it, or it is
// broken. It reads nothing: what lies unread in the socket stays there.
func departed(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	const established = 1 // TCP_ESTABLISHED; those of the handshake are never seen here
	gone := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err == nil && info.State != established
	})
	return gone || err != nil
}
