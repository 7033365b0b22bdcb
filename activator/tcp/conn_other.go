//go:build !linux

package tcp

import "net"

// Wrap returns c.
func Wrap(c net.Conn) net.Conn { return c }
