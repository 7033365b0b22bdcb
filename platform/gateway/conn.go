package gateway

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// writeWait bounds each write to a client: a reader that stops is ended.
const writeWait = 30 * time.Second

// conn is one connection of a client.
type conn struct {
	net.Conn
	last  atomic.Bool // no request is read after this one
	until time.Time   // the write deadline; writers take turns, as net/http's do
}

// connKey finds the connection of a request; net/http offers no other way.
type connKey struct{}

func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// Read reads until the last answer.
func (c *conn) Read(p []byte) (int, error) {
	if c.last.Load() {
		return 0, io.EOF
	}
	return c.Conn.Read(p)
}

// Write sends p under a deadline of its own.
func (c *conn) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if now := time.Now(); c.until.Sub(now) < writeWait {
			c.until = now.Add(writeWait + writeWait/8) // not per write
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

// SetWriteDeadline does nothing: every write has a deadline of its own.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the one for reads.
func (c *conn) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

// CloseWrite ends the sending side.
func (c *conn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// wires are the connections to what is behind us, by address, so that those to a
// machine that is known to be gone can be cut.
type wires struct {
	mu   sync.Mutex
	open map[string]map[*wire]struct{}
}

type wire struct {
	net.Conn
	of   *wires
	addr string
	once sync.Once
}

func (w *wire) Close() error {
	w.once.Do(func() {
		w.of.mu.Lock()
		defer w.of.mu.Unlock()
		delete(w.of.open[w.addr], w)
		if len(w.of.open[w.addr]) == 0 {
			delete(w.of.open, w.addr)
		}
	})
	return w.Conn.Close()
}

func (ws *wires) add(addr string, c net.Conn) net.Conn {
	w := &wire{Conn: c, of: ws, addr: addr}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.open[addr] == nil {
		ws.open[addr] = map[*wire]struct{}{}
	}
	ws.open[addr][w] = struct{}{}
	return w
}

func (ws *wires) cut(addr string) {
	ws.mu.Lock()
	var all []*wire
	for w := range ws.open[addr] {
		all = append(all, w)
	}
	ws.mu.Unlock()
	for _, w := range all {
		w.Close()
	}
}
