package httpsource

import (
	"net"
	"net/http"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReceiveBuffer: each connection has the bound of the kernel's buffer, also one whose
// address is checked.
func TestReceiveBuffer(t *testing.T) {
	if maxReceiveBuffer() < receiveBuffer {
		t.Skip("this machine allows no buffer of that size")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	trust := func(hosts string) *HostTrust {
		return NewHostTrust(func(name string) string { return map[string]string{HostsVariable: hosts}[name] })
	}
	for name, o := range map[string]Options{"any address": {}, "a host": {Trust: trust("localhost")}, "a network": {Trust: trust("127.0.0.0/8")}} {
		addr := l.Addr().String()
		if name == "a host" {
			_, port, _ := net.SplitHostPort(addr)
			addr = net.JoinHostPort("localhost", port)
		}
		conn, err := Client(o).Transport.(*http.Transport).DialContext(t.Context(), "tcp4", addr)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		if err := raw.Control(func(fd uintptr) { size, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF) }); err != nil {
			t.Fatal(err)
		}
		if size != 2*receiveBuffer { // the kernel doubles it
			t.Errorf("%s: a buffer of %d bytes", name, size)
		}
		conn.Close()
	}
}
