package upstream

import (
	"net"
	"syscall"
	"testing"
)

// TestKeepalives: a machine without power or network is found in twenty seconds.
func TestKeepalives(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := New(Options{}).o.Dial(t.Context(), ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		for option, want := range map[[2]int]int{{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE}: 1, {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE}: 5,
			{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL}: 5, {syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT}: 3} {
			if got, err := syscall.GetsockoptInt(int(fd), option[0], option[1]); got != want || err != nil {
				t.Errorf("option %v is %d, want %d: %v", option, got, want, err)
			}
		}
	})
}
