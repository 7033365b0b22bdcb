//go:build !linux

package httpsource

import "syscall"

// bound leaves the system's own.
func bound(string, string, syscall.RawConn) error { return nil }
