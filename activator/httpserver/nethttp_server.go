package httpserver

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"
)

// NewNetHTTPServer makes the twin of [NewFiberServer] on net/http; it starts nothing. It runs
// in testing/synctest bubbles on in-memory connections.
func NewNetHTTPServer(o Options) Server {
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
				c.(*conn).setPhase(idle)
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
	c.netHTTP = true
	return c, nil
}

func (h *netHTTPServer) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*conn)
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
	s := &responseStream{conn: c, in: res.Stream}
	defer s.Close()
	writeResponse(rw, r.Method, res, s.next, make([]byte, firstBuffer))
}

// writeResponse writes an answer to net/http. It writes the head with the stream's first
// bytes, read by next, and flushes each piece. It ends with the clean end of the stream,
// and panics with http.ErrAbortHandler where the stream or the client breaks.
func writeResponse(rw http.ResponseWriter, method string, res *Response, next func([]byte) (int, error), buf []byte) {
	if res.Status == StatusClientLeft && res.Stream == nil {
		panic(http.ErrAbortHandler)
	}
	h := rw.Header()
	h["Content-Type"] = nil // net/http does not guess one
	for _, x := range res.Fields {
		if !isOwnField(x.Name) {
			h.Add(x.Name, cleanValue(x.Value))
		}
	}
	if res.Close {
		h.Set("Connection", "close")
	}
	switch {
	case res.Stream == nil:
		if method != http.MethodHead || len(res.Body) > 0 {
			h.Set("Content-Length", strconv.Itoa(len(res.Body)))
		}
		rw.WriteHeader(res.Status)
		rw.Write(res.Body)
		return
	case res.Length > 0:
		h.Set("Content-Length", strconv.FormatInt(res.Length, 10))
	}
	if method == http.MethodHead {
		rw.WriteHeader(res.Status)
		return
	}
	control := http.NewResponseController(rw)
	for wrote := false; ; {
		n, err := next(buf)
		if !wrote && (n > 0 || err == io.EOF) {
			wrote = true
			rw.WriteHeader(res.Status)
		}
		if n > 0 {
			if _, werr := rw.Write(buf[:n]); werr != nil {
				panic(http.ErrAbortHandler)
			}
			if err != io.EOF { // else the end goes out with the last bytes
				control.Flush()
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}
