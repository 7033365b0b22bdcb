package httpserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/httpservertest"
)

// net/http keeps a connection half a second longer than its server where a body was not read.
func TestMain(m *testing.M) {
	testkit.ShortenExits()
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// Everything here holds for both bodies.
var bodies = []struct {
	name string
	make func(Options) Server
}{{"fiber", NewFiberServer}, {"http", newNetHTTPServer}}

func forEachServer(t *testing.T, f func(t *testing.T, serve func(Options) *testServer)) {
	for _, b := range bodies {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			f(t, func(o Options) *testServer { return startTestServer(t, b.make(o), nil) })
		})
	}
}

// testServer is a server that runs, on TCP.
type testServer struct {
	t    *testing.T
	srv  Server
	addr string
	once sync.Once
	tls  bool
}

func startTestServer(t *testing.T, srv Server, tc *tls.Config) *testServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{t: t, srv: srv, addr: ln.Addr().String(), tls: tc != nil}
	if tc != nil {
		ln = tls.NewListener(ln, tc)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		s.shutdown(testTimeout)
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

// testTimeout bounds the wait for what must happen, on whatever machine.
const testTimeout = 30 * time.Second

// await waits until some connection is as f wants it.
func (s *testServer) await(f func(*conn) bool) {
	s.t.Helper()
	var all *server
	switch x := s.srv.(type) {
	case *fiberServer:
		all = x.server
	case *netHTTPServer:
		all = x.server
	case *wrappedServer:
		(&testServer{t: s.t, srv: x.Server}).await(f)
		return
	}
	end := time.After(testTimeout)
	for found := false; !found; {
		all.each(func(c *conn) {
			c.state.mu.Lock()
			defer c.state.mu.Unlock()
			found = found || f(c)
		})
		select {
		case <-end:
			s.t.Fatal("it never came")
		case <-time.After(time.Millisecond):
		}
	}
}

func (s *testServer) shutdown(d time.Duration) (err error) {
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		err = s.srv.Shutdown(ctx)
	})
	return err
}

type client struct {
	net.Conn
	br *bufio.Reader
	t  *testing.T
}

func (s *testServer) dial() *client {
	s.t.Helper()
	c, err := s.tryDial()
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// tryDial is dial for other goroutines than the test's own.
func (s *testServer) tryDial() (*client, error) {
	var c net.Conn
	var err error
	if s.tls {
		c, err = tls.Dial("tcp", s.addr, &tls.Config{InsecureSkipVerify: true})
	} else {
		c, err = net.Dial("tcp", s.addr)
	}
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(testTimeout))
	s.t.Cleanup(func() { c.Close() })
	return &client{c, bufio.NewReader(c), s.t}, nil
}

func (c *client) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) answer(method string) (*http.Response, string, error) {
	c.t.Helper()
	r, err := http.ReadResponse(c.br, &http.Request{Method: method})
	if err != nil {
		c.t.Fatal(err)
	}
	b, err := io.ReadAll(r.Body)
	return r, string(b), err
}

func (c *client) ok(method string) (*http.Response, string) {
	c.t.Helper()
	r, b, err := c.answer(method)
	if err != nil {
		c.t.Fatal(err)
	}
	return r, b
}

func (c *client) ended() bool {
	_, err := c.br.ReadByte()
	return err != nil && !errors.Is(err, context.DeadlineExceeded)
}

func postRequest(body string) string {
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

const get = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"

// funcStream is a Stream made of functions.
type funcStream struct {
	read   func(p []byte) (int, error)
	closed atomic.Int32
	done   chan struct{}
}

func newStream(read func(p []byte) (int, error)) *funcStream {
	return &funcStream{read: read, done: make(chan struct{})}
}
func (s *funcStream) Read(p []byte) (int, error) {
	if s.closed.Load() > 0 {
		panic("read after close")
	}
	return s.read(p)
}
func (s *funcStream) Close() error {
	if s.closed.Add(1) == 1 {
		close(s.done)
	}
	return nil
}

func scriptedStream(parts ...any) *funcStream {
	return newStream(func(p []byte) (int, error) {
		if len(parts) == 0 {
			return 0, io.EOF
		}
		x := parts[0]
		parts = parts[1:]
		switch x := x.(type) {
		case string:
			return copy(p, x), nil
		case func():
			x()
			return 0, nil
		case error:
			return 0, x
		}
		panic("script")
	})
}

func echoHandler(r *Request, w *Response) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s?%s host=%s body=%d:%08x", r.Method, r.Path, r.Query, r.Host, len(r.Body), crc32.ChecksumIEEE(r.Body))
	for f := range r.Fields {
		fmt.Fprintf(&b, "\n%s=%s", f.Name, f.Value)
	}
	w.Set("content-type", "text/plain")
	w.Body = []byte(b.String())
}

func TestPlainRequests(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{Handler: echoHandler})
		c := s.dial()
		big := strings.Repeat("x", 200_000)
		for range 2 { // the same connection
			c.send("POST /a/%2f/b?q=1&r=2 HTTP/1.1\r\nHost: example.com:80\r\nX-B: 1\r\nx-a:  two \r\nX-B: 3\r\nContent-Length: 5\r\n\r\nhello")
			r, b := c.ok("POST")
			want := fmt.Sprintf("POST /a/%%2f/b?q=1&r=2 host=example.com:80 "+
				"body=5:%08x\nHost=example.com:80\nX-B=1\nx-a=two\nX-B=3\nContent-Length=5", crc32.ChecksumIEEE([]byte("hello")))
			if b != want || r.StatusCode != 200 || r.Header.Get("Content-Type") != "text/plain" {
				t.Errorf("got %d %q\nwant %q", r.StatusCode, b, want)
			}
			if _, err := http.ParseTime(r.Header.Get("Date")); err != nil {
				t.Errorf("Date: %v", err)
			}
			c.send(postRequest(big))
			if _, b := c.ok("POST"); !strings.Contains(b, fmt.Sprintf("body=200000:%08x", crc32.ChecksumIEEE([]byte(big)))) {
				t.Errorf("big body: %.100q", b)
			}
			c.send("\r\nPOST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" +
				"3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: no\r\n\r\n")
			if _, b := c.ok("POST"); !strings.Contains(b, fmt.Sprintf("body=13:%08x", crc32.ChecksumIEEE([]byte("abc0123456789")))) ||
				strings.Contains(b, "Trailer") {
				t.Errorf("chunked body: %.100q", b)
			}
			c.send("HEAD /x HTTP/1.1\r\nHost: h\r\n\r\n")
			if r, b := c.ok("HEAD"); b != "" || !strings.Contains(r.Header.Get("Content-Length"), "3") {
				t.Errorf("HEAD: %q %v", b, r.Header)
			}
			c.send("PROPFIND /x HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n")
			if _, b := c.ok("PROPFIND"); !strings.HasPrefix(b, "PROPFIND /x?") {
				t.Errorf("method: %q", b)
			}
		}
		c.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		if r, _ := c.ok("GET"); !r.Close || !c.ended() {
			t.Error("Connection: close was not heeded")
		}
		c = s.dial()
		c.send("GET / HTTP/1.0\r\nHost: h\r\n\r\n")
		if _, _ = c.ok("GET"); !c.ended() {
			t.Error("HTTP/1.0 was kept alive")
		}
		c = s.dial()
		for range 2 {
			c.send("GET / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\n\r\n")
			c.ok("GET")
		}
	})
}

func TestByteByByteAndExpect(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{Handler: echoHandler})
		c := s.dial()
		for _, b := range []byte(postRequest("hello") + "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n") {
			c.send(string(b))
		}
		if _, b := c.ok("POST"); !strings.Contains(b, "body=5") {
			t.Error(b)
		}
		if _, b := c.ok("POST"); !strings.Contains(b, "body=2") {
			t.Error(b)
		}
		c.send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
		if l, _ := c.br.ReadString('\n'); l != "HTTP/1.1 100 Continue\r\n" {
			t.Fatalf("got %q", l)
		}
		c.br.ReadString('\n')
		c.send("hello")
		if _, b := c.ok("POST"); !strings.Contains(b, "body=5") {
			t.Error(b)
		}
	})
}

// heads that must never reach a handler, and what they are answered.
var refused = []struct {
	name, raw string
	status    int
	code      string
}{
	{"two lengths that differ", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400, "invalid_request"},
	{"two lengths alike", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400, "invalid_request"},
	{"length list", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 5\r\n\r\nhello", 400, "invalid_request"},
	{"signed length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhello", 400, "invalid_request"},
	{"hex length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x5\r\n\r\nhello", 400, "invalid_request"},
	{"empty length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", 400, "invalid_request"},
	{"long length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9999999999999999999\r\n\r\n", 400, "invalid_request"},
	{"both framings", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_request"},
	{"both framings, other order", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400, "invalid_request"},
	{"xchunked", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400, "invalid_request"},
	{"chunked, identity", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400, "invalid_request"},
	{"gzip, chunked", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, "invalid_request"},
	{"chunked twice", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_request"},
	{"chunked on 1.0", "POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "invalid_request"},
	{"vertical tab in coding", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400, "invalid_request"},
	{"no host", "GET / HTTP/1.1\r\nX: y\r\n\r\n", 400, "invalid_request"},
	{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "invalid_request"},
	{"empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400, "invalid_request"},
	{"host with user", "GET / HTTP/1.1\r\nHost: u@h\r\n\r\n", 400, "invalid_request"},
	{"host with path", "GET / HTTP/1.1\r\nHost: h/x\r\n\r\n", 400, "invalid_request"},
	{"host list", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400, "invalid_request"},
	{"NUL in value", "GET / HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n", 400, "invalid_request"},
	{"CR in value", "GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n", 400, "invalid_request"},
	{"DEL in value", "GET / HTTP/1.1\r\nHost: h\r\nX: a\x7f\r\n\r\n", 400, "invalid_request"},
	{"bare LF", "GET / HTTP/1.1\nHost: h\n\n", 400, "invalid_request"},
	{"one bare LF", "GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n", 400, "invalid_request"},
	{"folded line", "GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 400, "invalid_request"},
	{"folded first line", "GET / HTTP/1.1\r\n Host: h\r\n\r\n", 400, "invalid_request"},
	{"space before colon", "GET / HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\n", 400, "invalid_request"},
	{"space in name", "GET / HTTP/1.1\r\nHost: h\r\nX Y: 5\r\n\r\n", 400, "invalid_request"},
	{"empty name", "GET / HTTP/1.1\r\nHost: h\r\n: 5\r\n\r\n", 400, "invalid_request"},
	{"no colon", "GET / HTTP/1.1\r\nHost: h\r\nXY\r\n\r\n", 400, "invalid_request"},
	{"non-ASCII name", "GET / HTTP/1.1\r\nHost: h\r\nX\xc3\xa9: y\r\n\r\n", 400, "invalid_request"},
	{"HTTP/2.0", "GET / HTTP/2.0\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"HTTP/1.2", "GET / HTTP/1.2\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"http/1.1", "GET / http/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"HTTP/0.9", "GET /\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"h2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_request"},
	{"PROXY protocol", "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"TLS hello", "\x16\x03\x01\x02\x00\x01\x00\n", 400, "invalid_request"},
	{"TLS hello without a line end", "\x16\x03\x01\x02\x00\x01\x00", 400, "invalid_request"},
	{"two spaces", "GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"tab", "GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"space in target", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"fragment", "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"non-ASCII target", "GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"absolute target of another host", "GET http://h/ HTTP/1.1\r\nHost: g\r\n\r\n", 400, "invalid_request"},
	{"absolute target of another port", "GET http://h:80/ HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"absolute target in capitals", "GET http://H/ HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"absolute target with a user", "GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"absolute target, user in both", "GET http://u@h/ HTTP/1.1\r\nHost: u@h\r\n\r\n", 400, "invalid_request"},
	{"absolute target of another scheme", "GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"absolute target without a path", "GET http://h HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"absolute target with a query alone", "GET http://h?/ HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"absolute target without a host", "GET http:/// HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"absolute target, no Host", "GET http://h/ HTTP/1.0\r\n\r\n", 400, "invalid_request"},
	{"absolute target, Host empty", "GET http://h/ HTTP/1.0\r\nHost:\r\n\r\n", 400, "invalid_request"},
	{"two hosts on 1.0", "GET / HTTP/1.0\r\nHost: h\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"asterisk", "GET * HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"target without slash", "GET v1 HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"method not a token", "G(T / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"two empty lines first", "\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", 400, "invalid_request"},
	{"expect other", "POST / HTTP/1.1\r\nHost: h\r\nExpect: 200-ok\r\nContent-Length: 5\r\n\r\n", 400, "invalid_request"},
	{"CONNECT", "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n", 405, "method_not_allowed"},
	{"websocket", "GET /v1/responses HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 400, "invalid_request"},
	{"gzip body", "POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", 415, "unsupported_encoding"},
	{"too large", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\n\r\n", 413, "request_too_large"},
	{"too large, expects", "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 100001\r\n\r\n", 413, "request_too_large"},
	{"too large in chunks", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n186a1\r\nx", 413, "request_too_large"},
	{"large head", "GET / HTTP/1.1\r\nHost: h\r\nX: " + strings.Repeat("x", 9000) + "\r\n\r\n", 431, "request_header_fields_too_large"},
	{"many fields", "GET / HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("X: y\r\n", 101) + "\r\n", 431, "request_header_fields_too_large"},
	{"chunk size not hex", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", 400, "invalid_request"},
	{"chunk size signed", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", 400, "invalid_request"},
	{"chunk longer than said", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n", 400, "invalid_request"},
	{"chunk size bare LF", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", 400, "invalid_request"},
	{"chunk extension with bare CR", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a\rb\r\nabc\r\n0\r\n\r\n", 400, "invalid_request"},
}

func TestRefused(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		var called atomic.Int32
		s := serve(Options{MaxBody: 100_000, Handler: func(*Request, *Response) { called.Add(1) }})
		for _, x := range refused {
			// Behind a good request it must be refused as well.
			for _, before := range []string{"", get} {
				c := s.dial()
				c.send(before + x.raw)
				if before != "" {
					c.ok("GET")
				}
				r, b := c.ok("GET")
				if r.StatusCode != x.status || !strings.Contains(b, `"code":"`+x.code+`"`) || !r.Close ||
					r.Header.Get("Content-Type") != "application/json" || r.Header.Get("X-Should-Retry") != "false" {
					t.Errorf("%s: %d %s %v", x.name, r.StatusCode, b, r.Header)
				}
				if !c.ended() {
					t.Errorf("%s: the connection lives on", x.name)
				}
				c.Close()
			}
		}
		if n := called.Load(); n != int32(len(refused)) {
			t.Errorf("the handler was called %d times, %d requests were good", n, len(refused))
		}
	})
}

// The answer to a body that is too large is not lost while the client writes on.
func TestTooLargeWhileWriting(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{MaxBody: 1 << 20, Handler: echoHandler})
		c := s.dial()
		c.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8388608\r\n\r\n")
		for range 128 {
			if _, err := c.Write(make([]byte, 64<<10)); err != nil {
				t.Fatalf("the client was cut off: %v", err)
			}
		}
		if r, _ := c.ok("POST"); r.StatusCode != 413 {
			t.Error(r.StatusCode)
		}
	})
}

func TestSlowHeadAndBody(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{Handler: echoHandler, HeadTimeout: 100 * time.Millisecond, BodyGrace: 100 * time.Millisecond})
		for _, part := range []string{"GET / HT", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhell", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"} {
			c := s.dial()
			c.send(part)
			if r, b := c.ok("POST"); r.StatusCode != 408 || !c.ended() {
				t.Errorf("%q: %d %s", part, r.StatusCode, b)
			}
		}
	})
}

// blockedConn is a connection that declares much and sends nothing.
type blockedConn struct {
	net.Conn
	head string
	most int
}

func (c *blockedConn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

func (c *blockedConn) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	c.most = max(c.most, len(p))
	return 0, io.EOF
}
func (*blockedConn) SetReadDeadline(time.Time) error { return nil }

func TestDeclaredLengthIsNotAllocated(t *testing.T) {
	c := &blockedConn{head: "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 30000000\r\n\r\n"}
	w := newConn(newServer(Options{}), c, &Slot{all: unboundedConnections()})
	if _, err := w.readRequest(); err == nil {
		t.Fatal("no error")
	}
	if c.most > firstBody {
		t.Errorf("it made room for %d bytes", c.most)
	}
}

// departures is how a client goes.
var departures = map[string]func(*client){
	"close": func(c *client) { c.Conn.Close() },
	"half-close": func(c *client) {
		raw := c.Conn
		if t, ok := raw.(*tls.Conn); ok { // its own CloseWrite only sends an alert
			raw = t.NetConn()
		}
		raw.(*net.TCPConn).CloseWrite()
	},
	"reset": func(c *client) {
		if tc, ok := c.Conn.(*net.TCPConn); ok {
			tc.SetLinger(0)
		}
		c.Conn.Close()
	},
}

func testDeparture(t *testing.T, s *testServer, gone chan error, mark string) {
	for name, how := range departures {
		for _, pipelined := range []string{"", get} { // a second request waits in the pipeline
			late := pipelined == "" // else it leaves before the watch is armed
			c := s.dial()
			c.send(postRequest(mark) + pipelined)
			if mark == "stream" {
				if b, err := c.br.Peek(20); err != nil {
					t.Fatal(err, b)
				}
			}
			if late {
				s.await(func(w *conn) bool { return w.state.ctx != nil && (w.state.token != 0 || w.state.ahead != nil) })
			}
			how(c)
			select {
			case err := <-gone:
				if err != ErrGone {
					t.Errorf("%s: %v", name, err)
				}
			case <-time.After(testTimeout): // the promise is one second, where nothing else runs
				t.Errorf("%s: not noticed", name)
			}
			c.Close()
		}
	}
}

func departureHandler(gone chan error) Handler {
	return func(r *Request, w *Response) {
		if string(r.Body) == "stream" {
			ctx := r.Context()
			first := true
			w.Stream = newStream(func(p []byte) (int, error) {
				if first {
					first = false
					return copy(p, "data: 1\n\n"), nil
				}
				<-ctx.Done()
				gone <- context.Cause(ctx)
				return 0, io.ErrUnexpectedEOF
			})
			return
		}
		if string(r.Body) == "wait" {
			<-r.Context().Done()
			gone <- context.Cause(r.Context())
		}
	}
}

func TestClientDisconnect(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		gone := make(chan error, 1)
		s := serve(Options{Handler: departureHandler(gone)})
		testDeparture(t, s, gone, "wait")
		testDeparture(t, s, gone, "stream")
	})
}

// bareListener has no descriptor to watch, as on other systems.
type bareListener struct{ net.Listener }

func (l bareListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return struct{ net.Conn }{c}, nil
}

func TestClientDisconnectByReadAhead(t *testing.T) {
	for _, b := range bodies {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			gone := make(chan error, 1)
			srv := b.make(Options{Handler: departureHandler(gone)})
			s := startTestServer(t, &wrappedServer{srv}, nil)
			testDeparture(t, s, gone, "wait")
			testDeparture(t, s, gone, "stream")
			// What was read ahead is the next request.
			c := s.dial()
			c.send(postRequest("x"))
			c.ok("POST")
			c.send(postRequest("x") + postRequest("y"))
			c.ok("POST")
			c.ok("POST")
		})
	}
}

type wrappedServer struct{ Server }

func (w *wrappedServer) Serve(ln net.Listener) error { return w.Server.Serve(bareListener{ln}) }

// A request answered after the look-ahead began leaves the connection usable.
func TestReadAheadHandsOver(t *testing.T) {
	for _, b := range bodies {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			srv := b.make(Options{WatchAfter: time.Millisecond, Handler: func(r *Request, w *Response) {
				r.Context()
				if string(r.Body) == "hold" {
					<-release
				}
				w.Body = append([]byte(nil), r.Body...)
			}})
			s := startTestServer(t, &wrappedServer{srv}, nil)
			c := s.dial()
			for i := range 50 {
				c.send(postRequest("hold"))
				s.await(func(w *conn) bool { return w.state.ahead != nil })
				next := postRequest(fmt.Sprint("next", i))
				c.send(next[:30])
				release <- struct{}{}
				if _, b := c.ok("POST"); b != "hold" {
					t.Fatal(b)
				}
				c.send(next[30:])
				if _, b := c.ok("POST"); b != fmt.Sprint("next", i) {
					t.Fatal(b)
				}
			}
		})
	}
}

func TestClientDisconnectUnderTLS(t *testing.T) {
	ts := httptest.NewUnstartedServer(nil)
	ts.StartTLS()
	config := &tls.Config{Certificates: ts.TLS.Certificates}
	ts.Close()
	for _, b := range bodies {
		t.Run(b.name, func(t *testing.T) {
			gone := make(chan error, 1)
			s := startTestServer(t, b.make(Options{Handler: departureHandler(gone)}), config)
			c := s.dial()
			c.send(postRequest("x") + postRequest("x"))
			c.ok("POST")
			c.ok("POST")
			testDeparture(t, s, gone, "wait")
			testDeparture(t, s, gone, "stream")
		})
	}
}

// TestHeaderTwice: of a field that stands twice the first value holds, but our own are all
// given, so that a reader refuses what contradicts itself.
func TestHeaderTwice(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{Handler: func(r *Request, w *Response) {
			w.Body = []byte(r.Header("x-a") + "|" + r.Header("thaw-data") + "|" + r.Header("thaw-cold") + "|" + r.Header("thaw-none"))
		}})
		c := s.dial()
		c.send("GET / HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nThaw-Data: public\r\nthaw-cold: wait\r\nX-A: 2\r\nTHAW-DATA:  secret\r\n\r\n")
		if _, b := c.ok("GET"); b != "1|public, secret|wait|" {
			t.Errorf("%q", b)
		}
	})
}

// The handler sees the origin form alone, and no Host where HTTP/1.0 has none.
func TestTargetsAndHosts(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{Handler: func(r *Request, w *Response) { w.Body = []byte(r.Host + " " + r.Path + " " + r.Query) }})
		for head, want := range map[string]string{
			"GET http://localhost:8080/v1/models?a=http://b/ HTTP/1.1\r\nHost: localhost:8080\r\n\r\n": "localhost:8080 /v1/models a=http://b/",
			"GET HTTPS://[::1]:8080//x HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n":                           "[::1]:8080 //x ",
			"GET http://h/ HTTP/1.0\r\nHost: h\r\n\r\n":                                                "h / ",
			"GET /readyz HTTP/1.0\r\n\r\n":                                                             " /readyz ",
			"GET /http://h/ HTTP/1.1\r\nHost: h\r\n\r\n":                                               "h /http://h/ ",
		} {
			c := s.dial()
			c.send("GET /before HTTP/1.1\r\nHost: before\r\n\r\n" + head) // nothing of the one before is kept
			c.ok("GET")
			if r, b := c.ok("GET"); r.StatusCode != 200 || string(b) != want {
				t.Errorf("%q: %d %q, want %q", head, r.StatusCode, b, want)
			}
			c.Close()
		}
	})
}

// A client that shuts down its sending half has left: its request is cancelled, and the
// connection ends without a status that has no name.
func TestHalfClosedClientGetsNoStatus(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{WatchAfter: time.Millisecond, Handler: func(r *Request, w *Response) {
			select {
			case <-r.Context().Done():
				w.Status = StatusClientLeft
			case <-time.After(testTimeout):
			}
		}})
		for _, request := range []string{get, postRequest("hello"), "GET / HTTP/1.0\r\n\r\n"} {
			c := s.dial()
			c.send(request)
			if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(testTimeout))
			if answer, err := io.ReadAll(c.br); err != nil || len(answer) > 0 {
				t.Errorf("%.20q: %q %v", request, answer, err)
			}
			c.Close()
		}
	})
}

func TestIsHTTP10(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{Handler: func(r *Request, w *Response) { w.Body = strconv.AppendBool(nil, r.IsHTTP10()) }})
		for proto, want := range map[string]string{"1.0": "true", "1.1": "false"} {
			c := s.dial()
			c.send("GET / HTTP/" + proto + "\r\nHost: h\r\n\r\n")
			r, err := http.ReadResponse(c.br, nil)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(r.Body); err != nil || string(b) != want {
				t.Errorf("HTTP/%s: %q %v", proto, b, err)
			}
		}
	})
}

func TestStreams(t *testing.T) {
	broken := errors.New("engine died")
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		var last atomic.Pointer[funcStream]
		s := serve(Options{Handler: func(r *Request, w *Response) {
			var st *funcStream
			switch r.Path {
			case "/ok":
				st = scriptedStream(": thaw\n", "data: 1\n\n", "data: [DONE]\n\n")
			case "/broken":
				st = scriptedStream("data: 1\n\n", broken)
			case "/last":
				st = scriptedStream("data: 1\n\n", "data: {\"error\":{}}\n\n", ErrFailureSent)
			case "/broken-at-once":
				st = scriptedStream(broken)
			case "/sized":
				st, w.Length = scriptedStream("12345", "67890"), 10
			case "/short":
				st, w.Length = scriptedStream("12345", broken), 10
			case "/panics":
				st = newStream(func([]byte) (int, error) { panic("boom") })
			}
			last.Store(st)
			w.Set("Content-Type", "text/event-stream")
			w.Set("Transfer-Encoding", "gzip") // not the handler's to say
			w.Set("X-Evil", "a\r\nInjected: yes")
			w.Stream = st
		}})
		for _, x := range []struct {
			path, proto string
			body        string
			breaks      bool
			ends        bool // the connection
		}{
			{"/ok", "1.1", ": thaw\ndata: 1\n\ndata: [DONE]\n\n", false, false},
			{"/ok", "1.0", ": thaw\ndata: 1\n\ndata: [DONE]\n\n", false, true},
			{"/broken", "1.1", "data: 1\n\n", true, true},
			{"/broken", "1.0", "", true, true}, // a reset may overtake the data
			{"/last", "1.1", "data: 1\n\ndata: {\"error\":{}}\n\n", true, true},
			{"/last", "1.0", "data: 1\n\ndata: {\"error\":{}}\n\n", false, true},
			{"/sized", "1.1", "1234567890", false, false},
			{"/short", "1.1", "", true, true}, // what was buffered may be lost
		} {
			c := s.dial()
			c.send("GET " + x.path + " HTTP/" + x.proto + "\r\nHost: h\r\n\r\n")
			r, err := http.ReadResponse(c.br, nil)
			var b []byte
			if err == nil {
				if r.Header.Get("Injected") != "" {
					t.Error("a value broke its line")
				}
				b, err = io.ReadAll(r.Body)
			}
			if string(b) != x.body && x.body != "" || x.breaks != (err != nil) {
				t.Errorf("%s %s: %q %v", x.path, x.proto, b, err)
			}
			if !x.ends {
				c.send("GET " + x.path + " HTTP/1.1\r\nHost: h\r\n\r\n")
				c.ok("GET")
			} else if !c.ended() {
				t.Errorf("%s %s: the connection lives on", x.path, x.proto)
			}
			st := last.Load()
			<-st.done
			if n := st.closed.Load(); n != 1 {
				t.Errorf("%s: closed %d times", x.path, n)
			}
		}
		for _, path := range []string{"/broken-at-once", "/panics"} {
			c := s.dial()
			c.send("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n")
			if r, err := http.ReadResponse(c.br, nil); err == nil {
				if _, err = io.ReadAll(r.Body); err == nil {
					t.Errorf("%s: a clean end", path)
				}
			}
			<-last.Load().done
		}
		c := s.dial()
		c.send("HEAD /ok HTTP/1.1\r\nHost: h\r\n\r\n")
		c.ok("HEAD")
		<-last.Load().done
	})
}

// A stream that reported its failure ends by FIN behind the report, also where bytes of the
// client are unread, and without the chunk that would make the body complete.
func TestFailureEndsByFIN(t *testing.T) {
	const first, frame = "data: 1\n\n", "data: {\"error\":{}}\n\n"
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		sent := make(chan struct{})
		s := serve(Options{Handler: func(_ *Request, w *Response) {
			n := 0
			w.Stream = newStream(func(p []byte) (int, error) {
				if n++; n == 1 {
					return copy(p, first), nil
				}
				<-sent
				return copy(p, frame), ErrFailureSent
			})
		}})
		c := s.dial()
		c.send(get)
		for l := ""; l != "data: 1\n"; {
			var err error
			if l, err = c.br.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		c.send(strings.Repeat(get, 1000))
		close(sent)
		b, err := io.ReadAll(c.br)
		if want := fmt.Sprintf("\n\r\n%x\r\n%s\r\n", len(frame), frame); string(b) != want || err != nil {
			t.Errorf("%q %v", b, err)
		}
	})
}

// Each Read goes out at once, and the last bytes together with the end.
func TestChunksAndEnd(t *testing.T) {
	for _, b := range bodies {
		t.Run(b.name, func(t *testing.T) {
			ln := httpservertest.Listen()
			step := make(chan struct{})
			n := 0
			srv := b.make(Options{Handler: func(r *Request, w *Response) {
				w.Stream = newStream(func(p []byte) (int, error) {
					<-step
					if n++; n == 3 {
						return copy(p, "data: [DONE]\n\n"), io.EOF
					}
					return copy(p, fmt.Sprintf("data: %d\n\n", n)), nil
				})
			}})
			done := make(chan error, 1)
			go func() { done <- srv.Serve(ln) }()
			c, err := ln.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(c, get)
			buf := make([]byte, 8192)
			var got []string
			for range 3 {
				step <- struct{}{}
				k, err := c.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(buf[:k]))
			}
			if !strings.HasPrefix(got[0], "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(got[0], "\r\n9\r\ndata: 1\n\n\r\n") ||
				got[1] != "9\r\ndata: 2\n\n\r\n" || got[2] != "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n" {
				t.Errorf("%q", got)
			}
			c.Close()
			srv.Shutdown(t.Context())
			<-done
		})
	}
}

func TestSlowReaderIsEnded(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		st := newStream(func(p []byte) (int, error) { return len(p), nil })
		s := serve(Options{WriteTimeout: 150 * time.Millisecond, Handler: func(r *Request, w *Response) { w.Stream = st }})
		c := s.dial()
		c.send(get)
		select {
		case <-st.done:
		case <-time.After(testTimeout):
			t.Error("it streams on after the client left")
		}
	})
}

func TestPipelining(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		release := make(chan struct{})
		s := serve(Options{Handler: func(r *Request, w *Response) {
			if string(r.Body) == "cold" {
				<-release
			}
			w.Body = append([]byte(nil), r.Body...)
			if string(r.Body) == "stream" {
				w.Body, w.Stream = nil, scriptedStream("data: 1\n\n")
			}
		}})
		c := s.dial()
		c.send(postRequest("one") + postRequest("stream") + postRequest("cold") + postRequest("four"))
		for _, want := range []string{"one", "data: 1\n\n"} {
			if _, b := c.ok("POST"); b != want {
				t.Errorf("%q, want %q", b, want)
			}
		}
		close(release)
		for _, want := range []string{"cold", "four"} {
			if _, b := c.ok("POST"); b != want {
				t.Errorf("%q, want %q", b, want)
			}
		}
	})
}

func TestDrainWaits(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		step := make(chan struct{})
		s := serve(Options{Handler: func(r *Request, w *Response) {
			if r.Draining() {
				w.Status = 503
				return
			}
			if r.Path == "/stream" {
				w.Stream = scriptedStream("data: 1\n\n", func() { <-step }, "data: 2\n\n")
			}
		}})
		streams, idle, late := s.dial(), s.dial(), s.dial()
		idle.send(get)
		idle.ok("GET")
		late.send(get)
		late.ok("GET")
		late.send("GET / HTTP/1.1\r\n")
		s.await(func(w *conn) bool { return w.state.phase == reading })
		streams.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
		streams.br.Peek(1)
		done := make(chan error, 1)
		go func() { done <- s.shutdown(testTimeout) }()
		if !idle.ended() {
			t.Error("the idle connection lives on")
		}
		if c, err := net.Dial("tcp", s.addr); err == nil {
			c.SetDeadline(time.Now().Add(testTimeout))
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a new connection was served")
			}
			c.Close()
		}
		late.send("Host: h\r\n\r\n")
		if r, _ := late.ok("GET"); r.StatusCode != 503 || !r.Close {
			t.Errorf("late: %d close=%v", r.StatusCode, r.Close)
		}
		select {
		case <-done:
			t.Fatal("it did not wait for the stream")
		case <-time.After(50 * time.Millisecond):
		}
		close(step)
		if _, b := streams.ok("GET"); b != "data: 1\n\ndata: 2\n\n" {
			t.Errorf("the stream was cut: %q", b)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Who heeds the end has time to say so.
func TestDrainDeadline(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		causes := make(chan error, 2)
		s := serve(Options{CutGrace: testTimeout, Handler: func(r *Request, w *Response) {
			ctx := r.Context()
			switch r.Path {
			case "/wait":
				<-ctx.Done()
				causes <- context.Cause(ctx)
				w.Status = 503
			case "/stream":
				n := 0
				w.Stream = newStream(func(p []byte) (int, error) {
					switch n++; n {
					case 1:
						return copy(p, "data: 1\n\n"), nil
					case 2:
						<-ctx.Done()
						causes <- context.Cause(ctx)
						return copy(p, "data: {\"error\":{}}\n\n"), nil
					}
					return 0, io.EOF
				})
			}
		}})
		a, b := s.dial(), s.dial()
		a.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n")
		b.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
		b.br.Peek(1)
		s.await(func(c *conn) bool { return c.state.ctx != nil && c.req.Path == "/wait" })
		if err := s.shutdown(50 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		for range 2 {
			if err := <-causes; err != ErrDraining {
				t.Error(err)
			}
		}
		if r, _ := a.ok("GET"); r.StatusCode != 503 {
			t.Error(r.StatusCode)
		}
		if _, body := b.ok("GET"); !strings.HasSuffix(body, "data: {\"error\":{}}\n\n") {
			t.Errorf("%q", body)
		}
	})
}

// Who does not is cut.
func TestDrainAborts(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		block, stuck := make(chan struct{}), make(chan struct{})
		s := serve(Options{CutGrace: 100 * time.Millisecond, Handler: func(r *Request, w *Response) {
			close(stuck)
			<-block
		}})
		c := s.dial()
		c.send(get)
		<-stuck
		if err := s.shutdown(50 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if !c.ended() {
			t.Error("the stuck one was not cut")
		}
		close(block)
	})
}

func TestPanic(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		st := scriptedStream("x")
		s := serve(Options{Handler: func(r *Request, w *Response) {
			if r.Path == "/stream" {
				w.Stream = st
			}
			panic("boom")
		}})
		for _, path := range []string{"/", "/stream"} {
			c := s.dial()
			c.send("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n")
			if r, b := c.ok("GET"); r.StatusCode != 500 || !strings.Contains(b, "internal_error") || strings.Contains(b, "boom") || !c.ended() {
				t.Errorf("%d %s", r.StatusCode, b)
			}
		}
		<-st.done
	})
}

// Bodies stay what they are while a handler waits and while its stream runs,
// whatever else arrives; clients that leave disturb no other.
func TestMany(t *testing.T) {
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		var changed atomic.Int32
		s := serve(Options{WatchAfter: time.Millisecond, Handler: func(r *Request, w *Response) {
			sum := crc32.ChecksumIEEE(r.Body)
			ctx := r.Context()
			w.Status = 200
			w.Set("x-sum", fmt.Sprintf("%08x", sum))
			n := 0
			w.Stream = newStream(func(p []byte) (int, error) {
				if n++; n == 4 {
					return 0, io.EOF
				}
				select {
				case <-ctx.Done():
					return 0, context.Cause(ctx)
				case <-time.After(time.Millisecond):
				}
				if crc32.ChecksumIEEE(r.Body) != sum {
					changed.Add(1)
				}
				return copy(p, r.Header("X-Id")), nil
			})
		}})
		var wg sync.WaitGroup
		for k := range 40 {
			wg.Go(func() {
				rounds := 4
				for i := range rounds {
					c, err := s.tryDial()
					if err != nil {
						t.Error(err)
						return
					}
					for j := range 5 {
						body := bytes.Repeat([]byte{byte('a' + (k+i+j)%26)}, 10+(k*i*j*331)%20000)
						id := fmt.Sprintf("%d-%d-%d", k, i, j)
						one := fmt.Sprintf("POST / HTTP/1.1\r\nHost: h\r\nX-Id: %s\r\nContent-Length: %d\r\n\r\n%s", id, len(body), body)
						if _, err := io.WriteString(c, one+one); err != nil {
							t.Error(err)
							return
						}
						if k%2 == 0 && j == i%5 {
							break // leaves with two requests open
						}
						for range 2 {
							r, err := http.ReadResponse(c.br, &http.Request{Method: "POST"})
							if err != nil {
								t.Error(id, err)
								return
							}
							b, err := io.ReadAll(r.Body)
							if err != nil || string(b) != id+id+id || r.Header.Get("x-sum") != fmt.Sprintf("%08x", crc32.ChecksumIEEE(body)) {
								t.Errorf("%s: %q %v", id, b, err)
								return
							}
						}
					}
					c.Close()
				}
			})
		}
		wg.Wait()
		if n := changed.Load(); n > 0 {
			t.Errorf("%d bodies changed under their streams", n)
		}
	})
}
