package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// After AbortThrough of an address, requests that wait for a head, read a body or reuse an idle
// connection fail at once as if the engine had died; later requests dial anew, and other
// addresses are unaffected.
func TestAbortRequests(t *testing.T) {
	reached := make(chan struct{}, 8)
	silent := func(c net.Conn, _ *http.Request, body []byte, _ int) bool {
		switch string(body) {
		case "ok":
			io.WriteString(c, okHello)
			return true
		case "stream":
			io.WriteString(c, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
		}
		reached <- struct{}{}
		c.Read(make([]byte, 1))
		return false
	}
	cutEngine, other := newEngine(t, silent), newEngine(t, silent)
	c := client(t, Options{})
	expectBody := func(addr string) {
		t.Helper()
		r, err := c.Do(t.Context(), postRequest(addr, "ok"))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); string(b) != "hello" || err != nil {
			t.Errorf("%q %v", b, err)
		}
		r.Close()
	}
	expectBody(cutEngine.addr) // leaves an idle connection, which "wait" gets
	expectBody(other.addr)
	var r *Response
	ended := make(chan error, 3)
	go func() {
		_, err := c.Do(t.Context(), postRequest(cutEngine.addr, "wait"))
		ended <- err
	}()
	<-reached
	if s, err := c.Do(t.Context(), postRequest(cutEngine.addr, "stream")); err != nil {
		t.Fatal(err)
	} else {
		r = s
	}
	r.Read(make([]byte, 10))
	go func() {
		_, err := r.Read(make([]byte, 10))
		r.Close()
		ended <- err
	}()
	<-reached
	otherStream, err := c.Do(t.Context(), postRequest(other.addr, "stream"))
	if err != nil {
		t.Fatal(err)
	}
	otherStream.Read(make([]byte, 10))
	c.AbortThrough(cutEngine.addr)
	for range 2 {
		if err := <-ended; !errors.Is(err, ErrCut) || !errors.Is(err, ErrNoAnswer) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
	}
	before := cutEngine.conns.Load()
	expectBody(cutEngine.addr)
	if cutEngine.conns.Load() != before+1 {
		t.Error("a connection outlived the cut")
	}
	otherStream.LimitSilence(1)
	if _, err := otherStream.Read(make([]byte, 10)); !errors.Is(err, ErrSilent) {
		t.Errorf("another address was cut too: %v", err)
	}
	otherStream.Close()
	c.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.peers) != 0 {
		t.Errorf("closed connections are kept in the books: %v", c.peers)
	}
}

// TestKindOfDeath: an engine that goes away, and refuses connections from then on, is only a
// failed dial where it cannot have read the request.
func TestKindOfDeath(t *testing.T) {
	for _, test := range []struct {
		name           string
		served, closes bool // before the request: it answers one, and closes the idle connection
		want           error
	}{
		{"at the first request of a connection", false, false, ErrNoAnswer},
		{"at a later one", true, false, ErrNoAnswer},
		{"while the connection was idle", true, true, ErrDial},
	} {
		t.Run(test.name, func(t *testing.T) {
			var gone atomic.Bool
			closed := make(chan struct{})
			e := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, n int) bool {
				if n == 0 && test.served {
					io.WriteString(c, okHello)
					if test.closes {
						gone.Store(true)
						c.Close()
						close(closed)
					}
					return !test.closes
				}
				gone.Store(true)
				return false
			})
			d := net.Dialer{}
			c := client(t, Options{IdleTimeout: time.Hour, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				if gone.Load() {
					return nil, syscall.ECONNREFUSED
				}
				return d.DialContext(ctx, "tcp", addr)
			}})
			if test.served {
				r, err := c.Do(t.Context(), postRequest(e.addr, "{}"))
				if err != nil {
					t.Fatal(err)
				}
				io.ReadAll(r)
				r.Close()
				if test.closes {
					<-closed
				}
			}
			_, err := c.Do(t.Context(), postRequest(e.addr, "{}"))
			if x, ok := errors.AsType[*Error](err); !ok || x.Kind != test.want {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
}

// TestBoundAfterAnother: each request of a connection, and each LimitSilence within an answer,
// has its own bound, whichever was before.
func TestBoundAfterAnother(t *testing.T) {
	bounds := []time.Duration{time.Second, time.Minute, time.Hour}
	for _, before := range append(bounds, 0) {
		for _, bound := range bounds {
			for _, inside := range []bool{false, true} {
				t.Run(fmt.Sprint(bound, " after ", before, ", in one answer: ", inside), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { testBoundAfterAnother(t, before, bound, inside) })
				})
			}
		}
	}
}

func testBoundAfterAnother(t *testing.T, before, bound time.Duration, inside bool) {
	const begun = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na"
	dials := 0
	c := New(Options{IdleTimeout: time.Hour, Dial: func(context.Context, string) (net.Conn, error) {
		dials++
		local, remote := net.Pipe()
		go func() {
			defer remote.Close()
			for br := bufio.NewReader(remote); ; {
				r, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				switch r.URL.Path {
				case "/answer":
					io.WriteString(remote, okHello)
				case "/begin":
					io.WriteString(remote, begun)
				}
			}
		}()
		return local, nil
	}})
	defer c.Close()
	do := func(path string, bound time.Duration) (*Response, error) {
		return c.Do(t.Context(), &Request{Addr: "e", Method: "GET", Path: path, Bound: bound})
	}
	r, err := do(map[bool]string{true: "/begin", false: "/answer"}[inside], before)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	began := time.Now()
	if inside {
		if before > 0 {
			r.LimitSilence(before)
		}
		r.Read(make([]byte, 1))
		r.LimitSilence(bound)
		_, err = r.Read(make([]byte, 1))
	} else {
		io.ReadAll(r)
		r.Close()
		_, err = do("/silence", bound)
	}
	if d := time.Since(began); !errors.Is(err, ErrSilent) || d < bound || d > bound+bound/8 || dials != 1 {
		t.Errorf("%v after %s of %s, %d connections", err, d, bound, dials)
	}
}

// TestUsedAgain: which answers leave their connection to the next request.
func TestUsedAgain(t *testing.T) {
	for answer, again := range map[string]bool{
		"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx":                              true,
		"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n":   true,
		"HTTP/1.1 204 No Content\r\n\r\n":                                            true,
		"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n":     true,
		"HTTP/1.1 200 OK\r\ncontent-length: 1\r\nConnection: Close\r\n\r\nx":         false,
		"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx":                              false,
		"HTTP/1.0 204 No Content\r\n\r\n":                                            false,
		"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxy":                             false, // bytes behind its end
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx": true,
	} {
		e := assertAnswer(t, answer)
		c := client(t, Options{IdleTimeout: time.Hour})
		for range 2 {
			r, err := c.Do(t.Context(), postRequest(e.addr, "{}"))
			if err != nil {
				t.Fatalf("%q: %v", answer, err)
			}
			io.ReadAll(r)
			r.Close()
		}
		if n := e.conns.Load(); (n == 1) != again || n > 2 {
			t.Errorf("%q: %d connections for two requests", answer, n)
		}
	}
}
