//go:build !linux

package httpsource

import "syscall"

// limitReceiveBuffer keeps the system default.
func limitReceiveBuffer(string, string, syscall.RawConn) error { return nil }
