package gateway

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
)

// writeWait bounds each write to a client, so a client that stops reading is disconnected.
const writeWait = 30 * time.Second

type clientConn struct {
	net.Conn
	slot  *httpserver.Slot
	last  atomic.Bool // a stream has reported its failure: Close ends the connection by FIN
	until time.Time   // the write deadline; writers take turns, as in net/http
}

// connKey is the context key of a request's connection; net/http offers no other way.
type connKey struct{}

func connOf(ctx context.Context) *clientConn {
	c, _ := ctx.Value(connKey{}).(*clientConn)
	return c
}

// Close closes the connection. A second call ends the wait of the first.
func (c *clientConn) Close() error {
	defer c.slot.Release()
	if c.last.CompareAndSwap(true, false) {
		httpserver.HalfClose(c)
	}
	return c.Conn.Close()
}

// Write writes p with a deadline for each piece.
func (c *clientConn) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if now := time.Now(); c.until.Sub(now) < writeWait {
			c.until = now.Add(writeWait + writeWait/8) // with a margin, so not set for every write
			c.Conn.SetWriteDeadline(c.until)
		}
		m, err := c.Conn.Write(p[:min(len(p), 64<<10)])
		n += m
		if err != nil {
			return n, err
		}
		p = p[m:]
	}
	return n, nil
}

// SetWriteDeadline does nothing: Write sets its own deadlines.
func (c *clientConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the read deadline only.
func (c *clientConn) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

// CloseWrite closes the sending side.
func (c *clientConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

// onState follows a connection between requests.
func onState(c net.Conn, state http.ConnState) {
	if c, ok := c.(*clientConn); ok {
		c.slot.SetIdle(state == http.StateNew || state == http.StateIdle)
	}
}

type clientListener struct {
	net.Listener
	bound *httpserver.Connections
}

func (l clientListener) Accept() (net.Conn, error) {
	c, slot, err := l.bound.Accept(l.Listener)
	if err != nil {
		return nil, err
	}
	return &clientConn{Conn: c, slot: slot}, nil
}

// trackedConns holds the open connections to backends, by address, so that those to a lost
// machine can be closed.
type trackedConns struct {
	mu   sync.Mutex
	open map[string]map[*trackedConn]struct{}
}

type trackedConn struct {
	net.Conn
	owner *trackedConns
	addr  string
	once  sync.Once
}

func (c *trackedConn) Close() error {
	c.once.Do(func() {
		c.owner.mu.Lock()
		defer c.owner.mu.Unlock()
		delete(c.owner.open[c.addr], c)
		if len(c.owner.open[c.addr]) == 0 {
			delete(c.owner.open, c.addr)
		}
	})
	return c.Conn.Close()
}

func (t *trackedConns) add(addr string, c net.Conn) net.Conn {
	w := &trackedConn{Conn: c, owner: t, addr: addr}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[addr] == nil {
		t.open[addr] = map[*trackedConn]struct{}{}
	}
	t.open[addr][w] = struct{}{}
	return w
}

func (t *trackedConns) cut(addr string) {
	t.mu.Lock()
	all := slices.Collect(maps.Keys(t.open[addr]))
	t.mu.Unlock()
	for _, w := range all {
		w.Close()
	}
}
