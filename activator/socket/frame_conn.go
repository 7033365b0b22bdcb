package socket

import (
	"io"
	"net"
	"sync"
	"time"
)

// maxHeld bounds the bytes that a frameConn holds.
const maxHeld = 16 << 10

// frameConn is an upgraded connection as a net.Conn. It can hold what is written, so that
// frames that are ready at the same time go out in one write. The library sets no deadlines.
type frameConn struct {
	io.ReadWriteCloser

	mu    sync.Mutex
	holds bool
	held  []byte
}

// hold holds writes until release.
func (c *frameConn) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds = true
}

// release writes what is held. Where that fails the connection ends.
func (c *frameConn) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds = false
	if c.writeHeld() != nil {
		c.Close()
	}
}

// writeHeld writes what is held, and keeps no memory of it. mu must be held.
func (c *frameConn) writeHeld() (err error) {
	if len(c.held) > 0 {
		_, err = c.ReadWriteCloser.Write(c.held)
		c.held = nil
	}
	return err
}

func (c *frameConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds && len(c.held)+len(p) <= maxHeld {
		c.held = append(c.held, p...)
		return len(p), nil
	}
	if err := c.writeHeld(); err != nil {
		return 0, err
	}
	return c.ReadWriteCloser.Write(p)
}

func (*frameConn) LocalAddr() net.Addr              { return noAddr{} }
func (*frameConn) RemoteAddr() net.Addr             { return noAddr{} }
func (*frameConn) SetDeadline(time.Time) error      { return nil }
func (*frameConn) SetReadDeadline(time.Time) error  { return nil }
func (*frameConn) SetWriteDeadline(time.Time) error { return nil }

type noAddr struct{}

func (noAddr) Network() string { return "tcp" }
func (noAddr) String() string  { return "" }
