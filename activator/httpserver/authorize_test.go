package httpserver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/httpservertest"
)

// fronts are all servers, NetHTTPHandler among them. drain bounds what each reads of a
// body that was refused by its head: net/http's own bound for the handler.
var fronts = []struct {
	name  string
	drain int64
	serve func(o Options, ln net.Listener) (stop func())
}{
	{"fiber", rejectDrainBytes, serveOn(NewFiberServer)},
	{"http", rejectDrainBytes, serveOn(newNetHTTPServer)},
	{"handler", 256 << 10, func(o Options, ln net.Listener) func() {
		s := &http.Server{Handler: NewNetHTTPHandler(o)}
		go s.Serve(ln)
		return func() { s.Close() }
	}},
}

func serveOn(make func(Options) Server) func(Options, net.Listener) func() {
	return func(o Options, ln net.Listener) func() {
		s := make(o)
		go s.Serve(ln)
		return func() { s.Shutdown(context.Background()) }
	}
}

// meteredListener counts the bytes that its connections' server reads.
type meteredListener struct {
	net.Listener
	read atomic.Int64
}

func (l *meteredListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &meteredConn{c.(*net.TCPConn), l}, nil
}

type meteredConn struct {
	*net.TCPConn
	l *meteredListener
}

func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.l.read.Add(int64(n))
	return n, err
}

func (c *meteredConn) WriteTo(io.Writer) (int64, error) { panic("not used") }

// wantKey is an Authorize that knows one key.
func wantKey(req *Request, res *Response) (string, bool) {
	if req.Header("Authorization") == "Bearer right" {
		return "right", true
	}
	setRefusal(res, openai.New(openai.InvalidAPIKey, ""))
	return "", false
}

// H4: the key is checked when the head is whole. A body behind a wrong key is not asked
// for, not read beyond a small bound, and does not hide the answer.
func TestKeyIsCheckedBeforeTheBody(t *testing.T) {
	const size = 32 << 20
	framings := map[string]string{
		"length":    fmt.Sprintf("Content-Length: %d\r\n\r\n", size),
		"chunked":   fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", size),
		"too large": fmt.Sprintf("Content-Length: %d\r\n\r\n", 4*size),
	}
	for _, f := range fronts {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			var called atomic.Int32
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ln := &meteredListener{Listener: tcp}
			defer f.serve(Options{Authorize: wantKey, Handler: func(req *Request, res *Response) {
				called.Add(1)
				echoHandler(req, res)
			}}, ln)()
			s := &testServer{t: t, addr: tcp.Addr().String()}
			for name, framing := range framings {
				ln.read.Store(0)
				c := s.dial()
				c.send("POST /v1/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer wrong\r\n" + framing)
				sent := make(chan struct{})
				go func() { // as clients do that send all before they read
					defer close(sent)
					piece := bytes.Repeat([]byte("x"), 64<<10)
					for range size / len(piece) {
						if _, err := c.Write(piece); err != nil {
							return
						}
					}
				}()
				r, b := c.ok("POST")
				if r.StatusCode != 401 || !r.Close || !strings.Contains(b, "invalid_api_key") {
					t.Errorf("%s: %d %s %v", name, r.StatusCode, b, r.Header)
				}
				<-sent
				c.Close()
				if got := ln.read.Load(); got > f.drain+8<<10 {
					t.Errorf("%s: %d bytes were read, want at most %d", name, got, f.drain)
				}
			}
			for _, key := range []string{"wrong", "right"} {
				c := s.dial()
				c.send("POST /v1/x HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + key + "\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
				l, _ := c.br.ReadString('\n')
				if key == "wrong" {
					if !strings.HasPrefix(l, "HTTP/1.1 401 ") {
						t.Errorf("a wrong key that expects 100-continue was answered %q", l)
					}
					continue
				}
				if l != "HTTP/1.1 100 Continue\r\n" {
					t.Fatalf("a right key that expects 100-continue was answered %q", l)
				}
				c.br.ReadString('\n')
				c.send("hello")
				if r, b := c.ok("POST"); r.StatusCode != 200 || !strings.Contains(b, "body=5:") {
					t.Errorf("the right key: %d %s", r.StatusCode, b)
				}
			}
			if n := called.Load(); n != 1 {
				t.Errorf("the handler was called %d times, want once: for the right key", n)
			}
		})
	}
}

// Refused may add fields to what no handler sees, by the head, where that is whole.
func TestRefusedSeesTheHead(t *testing.T) {
	for _, f := range fronts {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer f.serve(Options{MaxBody: 10, Handler: echoHandler, Refused: func(req *Request, res *Response) {
				res.Set("x-seen", fmt.Sprint(res.Status, " ", req.Method, " ", req.Path, " ", req.Header("Origin")))
			}}, tcp)()
			s := &testServer{t: t, addr: tcp.Addr().String()}
			for _, c := range []struct {
				request string
				status  int
				seen    string
			}{
				{"Origin: https://a.example\r\nContent-Length: 11\r\n\r\n", 413, "413 POST /v1/x https://a.example"},
				{"Origin: https://a.example\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n", 413, "413 POST /v1/x https://a.example"},
				{"Content-Encoding: gzip\r\nContent-Length: 1\r\nOrigin: https://b.example\r\n\r\nx", 415, "415 POST /v1/x https://b.example"},
				{"Origin: https://a.example\r\nContent-Length: x\r\n\r\n", 400, ""},
				{"Origin: https://a.example\r\nCookie: " + strings.Repeat("a", 20<<10) + "\r\n\r\n", 431, "431 POST /v1/x https://a.example"},
				{"Origin: https://a.example\r\nCookie: " + strings.Repeat("a", 8150), 431, "431 POST /v1/x https://a.example"},
				{"Origin: https://a.example\r\n" + strings.Repeat("X: y\r\n", 101) + "\r\n", 431, "431 POST /v1/x https://a.example"},
				{"Cookie: " + strings.Repeat("a", 20<<10) + "\r\nOrigin: https://a.example\r\n\r\n", 431, "431 POST /v1/x"},
			} {
				if f.name == "handler" && c.status == 431 {
					continue // net/http answers these, and no handler of ours sees them
				}
				conn := s.dial()
				if f.name != "handler" { // an earlier request leaves nothing behind
					conn.send("GET /v1/earlier HTTP/1.1\r\nHost: h\r\nOrigin: https://earlier.example\r\n\r\n")
					conn.ok("GET")
				}
				conn.send("POST /v1/x HTTP/1.1\r\nHost: h\r\n" + c.request)
				r, b := conn.ok("POST")
				if r.StatusCode != c.status || r.Header.Get("X-Seen") != c.seen {
					t.Errorf("%q: %d %q %s", c.request, r.StatusCode, r.Header.Get("X-Seen"), b)
				}
				conn.Close()
			}
		})
	}
}

// A stream of HTTP/2 that is refused leaves its connection to the others, and one without a
// key is refused before its body, however small.
func TestRefusedStreamKeepsTheConnection(t *testing.T) {
	_, url, clients, _ := startHandler(t, Options{Authorize: wantKey, Handler: echoHandler, MaxBody: 1 << 20})
	post := func(key string, body io.Reader, length int64) (status int, reused bool) {
		ctx, cancel := context.WithTimeout(httptrace.WithClientTrace(t.Context(),
			&httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }}), testTimeout)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, "POST", url, body)
		r.ContentLength = length
		r.Header.Set("Authorization", "Bearer "+key)
		res, err := clients["HTTP/2"].Do(r)
		if err != nil {
			t.Errorf("%s, %d bytes: %v", key, length, err)
			return 0, reused
		}
		defer res.Body.Close()
		io.Copy(io.Discard, res.Body)
		return res.StatusCode, reused
	}
	never := func() io.Reader { r, _ := io.Pipe(); return r }
	for i, row := range []struct {
		key    string
		body   io.Reader
		length int64
		want   int
	}{
		{"right", strings.NewReader("hello"), 5, 200},
		{"wrong", never(), 5, 401},
		{"wrong", never(), 1 << 19, 401},
		{"right", never(), 2 << 20, 413},
		{"right", strings.NewReader("hello"), 5, 200},
	} {
		if status, reused := post(row.key, row.body, row.length); status != row.want || reused != (i > 0) {
			t.Errorf("%s, %d bytes: %d, want %d; on the same connection: %v", row.key, row.length, status, row.want, reused)
		}
	}
}

// A connection that was refused for its key makes room for another, while the rest of its
// body is still dropped.
func TestRefusedConnectionMakesRoom(t *testing.T) {
	for _, f := range fronts[:2] {
		t.Run(f.name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer f.serve(Options{Authorize: wantKey, Handler: echoHandler, Connections: NewConnections(10, 1, nil)}, ln)()
			s := &testServer{t: t, addr: ln.Addr().String()}
			first := s.dial()
			first.send("POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n")
			if r, _ := first.ok("POST"); r.StatusCode != 401 {
				t.Fatal(r.StatusCode)
			}
			second := s.dial()
			second.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			if r, b := second.ok("GET"); r.StatusCode != 200 {
				t.Errorf("%d %s", r.StatusCode, b)
			}
		})
	}
}

// H4: beside the average, the silence within a body and its whole time are bounded; a large
// body that comes slowly but steadily has the time it needs.
func TestBodyTimes(t *testing.T) {
	const piece = 64 << 10
	for _, f := range fronts[1:] { // on a bubble's clock
		for _, row := range []struct {
			name        string
			size, burst int
			every       time.Duration // a piece each; 0: silence
			status      string
			least, most time.Duration
		}{
			{"a burst, then silence", 32 << 20, 1 << 20, 0, "408", 10 * time.Second, 12 * time.Second},
			{"64 KiB every 9 s", 32 << 20, 1 << 20, 9 * time.Second, "408", 150 * time.Second, 155 * time.Second},
			{"48 KiB/s", 32 << 20, 64 << 10, 4 * time.Second / 3, "408", 480 * time.Second, 490 * time.Second},
			{"64 KiB/s", 32 << 20, 64 << 10, time.Second, "200", 511 * time.Second, 512 * time.Second},
			{"200 KiB/s", 32 << 20, 64 << 10, 320 * time.Millisecond, "200", 163 * time.Second, 165 * time.Second},
		} {
			t.Run(f.name+"/"+row.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ln := httpservertest.Listen()
					stop := f.serve(Options{Handler: func(req *Request, _ *Response) {
						if len(req.Body) != row.size {
							t.Errorf("the body has %d bytes", len(req.Body))
						}
					}}, ln)
					defer stop()
					c, err := ln.Dial(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					began, ended := time.Now(), make(chan struct{})
					defer func() { c.Close(); <-ended }()
					go func() {
						defer close(ended)
						fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", row.size)
						c.Write(make([]byte, row.burst))
						for sent := row.burst; row.every > 0 && sent < row.size; sent += piece {
							time.Sleep(row.every)
							if _, err := c.Write(make([]byte, piece)); err != nil {
								return
							}
						}
					}()
					b, _ := io.ReadAll(c)
					if took := time.Since(began); took < row.least || took > row.most || !strings.HasPrefix(string(b), "HTTP/1.1 "+row.status+" ") {
						t.Errorf("answered after %s, want %s after %s to %s: %.200q", took, row.status, row.least, row.most, b)
					}
				})
			})
		}
	}
}

// L1: the bound of a head does not grow over the life of a connection.
func TestHeadBoundStays(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{Handler: echoHandler})
		c := s.dial()
		field := "X: " + strings.Repeat("x", 7<<10) + "\r\n"
		for range 400 {
			c.send("POST / HTTP/1.1\r\nHost: h\r\n" + field + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
			if r, _ := c.ok("POST"); r.StatusCode != 200 {
				t.Fatal(r.StatusCode)
			}
		}
		s.await(func(w *conn) bool {
			if w.state.phase != idle {
				return false
			}
			if len(w.in.buf) > w.s.o.MaxHead+2*firstBuffer {
				t.Errorf("the connection's buffer has grown to %d bytes", len(w.in.buf))
			}
			return true
		})
		c.send("GET / HTTP/1.1\r\nHost: h\r\n" + strings.Repeat(field, 2) + "\r\n")
		if r, _ := c.ok("GET"); r.StatusCode != 431 {
			t.Errorf("a head of 14 KiB on an old connection: %d, want 431", r.StatusCode)
		}
	})
}

// A buffer that has grown for a body of some KiB serves the connection's next requests: they
// come in one read, and their head is not checked twice. It counts for the account.
func TestGrownBufferStays(t *testing.T) {
	var asked atomic.Int32
	bodies := NewBudget(1<<20, 1<<20)
	ln := httpservertest.Listen()
	srv := NewFiberServer(Options{Bodies: bodies, Handler: echoHandler, Authorize: func(req *Request, _ *Response) (string, bool) {
		asked.Add(1)
		return req.Header("X-Key"), true
	}})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	conn, err := ln.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	for i, x := range []struct {
		key         string
		size        int
		asked       int32
		used, share int64
	}{
		{"a", 5 << 10, 1, 4 << 10, 4 << 10},
		{"a", 5 << 10, 1, 4 << 10, 4 << 10},
		{"b", 7 << 10, 1, 4 << 10, 0},
		{"b", 15 << 10, 2, 12 << 10, 12 << 10},
		{"b", 15 << 10, 2, 12 << 10, 12 << 10},
		{"b", 16 << 10, 3, 28 << 10, 28 << 10}, // no place behind its head
	} {
		body := strings.Repeat(x.key, x.size)
		sum := fmt.Sprintf("body=%d:%08x", x.size, crc32.ChecksumIEEE([]byte(body)))
		go fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: h\r\nX-Key: %s\r\nContent-Length: %d\r\n\r\n%s", x.key, x.size, body)
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(i, err)
		}
		if b, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(b), sum) {
			t.Errorf("request %d: %s, %v; want %s", i, b, err, sum)
		}
		bodies.mu.Lock()
		used, share := bodies.used, bodies.accounts[x.key]
		bodies.mu.Unlock()
		if asked.Load() != x.asked || used != x.used || share != x.share {
			t.Errorf("request %d: Authorize was asked %d times, %d bytes count, %d of them for %s; want %d, %d, %d",
				i, asked.Load(), used, share, x.key, x.asked, x.used, x.share)
		}
	}
	conn.Close()
	testkit.Eventually(t, "the bytes of a closed connection do not count", func() bool { return bodies.Used() == 0 })
	srv.Shutdown(t.Context())
	<-done
}
