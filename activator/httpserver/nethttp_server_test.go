package httpserver

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/thaw-dev/thaw/functions/newest"
)

// newNetHTTPServer makes the twin of [NewFiberServer] on net/http; it starts nothing. It runs
// in testing/synctest bubbles on in-memory connections.
func newNetHTTPServer(o Options) Server {
	t := &netHTTPServer{server: newServer(o)}
	t.http = &http.Server{
		Handler:                      t,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(io.Discard, "", 0), // the front has logged it
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateIdle { // the answer is out
				c := c.(*netHTTPConn)
				c.slot.SetIdle(true)
				c.state.setPhase(idle)
			}
		},
	}
	return t
}

// connKey finds the connection of a request; net/http offers no other way.
type connKey struct{}

type netHTTPServer struct {
	*server
	http *http.Server
}

func (h *netHTTPServer) Serve(ln net.Listener) error {
	if !h.open(ln) {
		ln.Close()
		return nil
	}
	return h.ended(ln, h.http.Serve(&netHTTPListener{ln, h.server}))
}

type netHTTPListener struct {
	net.Listener
	s *server
}

func (l *netHTTPListener) Accept() (net.Conn, error) {
	c, err := l.s.accept(l.Listener)
	if err != nil {
		return nil, err
	}
	return &netHTTPConn{conn: c, poke: newest.NewSignal()}, nil
}

// netHTTPConn lets net/http read while a handler runs: it looks for a client that leaves,
// which the front does itself.
type netHTTPConn struct {
	*conn
	poke newest.Signal // ends such a Read
}

func (c *netHTTPConn) Read(p []byte) (int, error) {
	if len(c.requestLine) == 0 {
		if c.isBusy() {
			<-c.poke
			return 0, os.ErrDeadlineExceeded
		}
		select {
		case <-c.poke: // of an earlier exchange
		default:
		}
	}
	return c.conn.Read(p)
}

func (c *netHTTPConn) isBusy() bool {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	return c.state.phase == busy
}

// SetReadDeadline ends a pending Read.
func (c *netHTTPConn) SetReadDeadline(t time.Time) error {
	if !t.IsZero() {
		c.poke.Set()
	}
	return nil
}

func (c *netHTTPConn) Close() error {
	defer c.poke.Set()
	return c.conn.Close()
}

func (h *netHTTPServer) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*netHTTPConn)
	res := c.call()
	if res.Upgrade != nil && c.head.upgrade {
		if _, _, err := http.NewResponseController(rw).Hijack(); err == nil {
			defer c.Close()
			c.upgrade(res.Upgrade)
		}
		return
	}
	rw.Header()["Date"] = []string{h.date.now(time.Now())}
	if res.Stream == nil {
		writeResponse(rw, r.Method, res, nil, nil)
		return
	}
	s := &responseStream{conn: c.conn, in: res.Stream}
	defer s.Close()
	writeResponse(rw, r.Method, res, s.next, make([]byte, firstBuffer))
}
