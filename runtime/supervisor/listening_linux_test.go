package supervisor

import (
	"net"
	"slices"
	"syscall"
	"testing"
)

// TestListening: the addresses of this process's own listeners, and none that it has closed.
func TestListening(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "127.0.0.2:0", "[::]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Logf("%s: %v", at, err) // a machine may have no IPv6
			continue
		}
		address := l.Addr().String()
		if got := Listening(syscall.Getpgrp()); !slices.Contains(got, address) {
			t.Errorf("%s is not in %q", address, got)
		}
		l.Close()
		if got := Listening(syscall.Getpgrp()); slices.Contains(got, address) {
			t.Errorf("%s, closed, is in %q", address, got)
		}
	}
}
