package upstream

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine is a server that answers each request as answer says; conns counts
// its connections. answer returns false to close.
type engine struct {
	addr  string
	conns atomic.Int32
}

func newEngine(t testing.TB, answer func(c net.Conn, r *http.Request, body []byte, n int) bool) *engine {
	t.Helper()
	return newWrappedEngine(t, func(c net.Conn) net.Conn { return c }, answer)
}

func newWrappedEngine(t testing.TB, wrap func(net.Conn) net.Conn,
	answer func(c net.Conn, r *http.Request, body []byte, n int) bool) *engine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{addr: ln.Addr().String()}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []net.Conn
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			e.conns.Add(1)
			c = wrap(c)
			mu.Lock()
			all = append(all, c)
			mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				br := bufio.NewReader(c)
				for n := 0; ; n++ {
					r, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					body, err := io.ReadAll(r.Body)
					if err != nil || !answer(c, r, body, n) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, c := range all {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return e
}

// assertAnswer answers every request with raw.
func assertAnswer(t testing.TB, raw string) *engine {
	return newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, _ int) bool {
		_, err := io.WriteString(c, raw)
		return err == nil
	})
}

// client makes a Client of which nothing is left at the test's end, see expectEnd. A test that
// waits for ever fails after a minute.
func client(t testing.TB, o Options) *Client {
	c := New(o)
	var mu sync.Mutex
	var opened []net.Conn
	dial := c.o.Dial
	c.o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		nc, err := dial(ctx, addr)
		if _, test := nc.(*loop); err == nil && !test {
			mu.Lock()
			opened = append(opened, nc)
			mu.Unlock()
		}
		return nc, err
	}
	stuck := time.AfterFunc(time.Minute, func() { panic(t.Name() + " does not end") })
	t.Cleanup(func() {
		c.Close()
		mu.Lock()
		defer mu.Unlock()
		expectEnd(t, c, opened)
		stuck.Stop()
	})
	return c
}

// expectEnd checks a Client that was closed and whose answers were: every connection it
// opened is closed, and its counts are those of its peers.
func expectEnd(t testing.TB, c *Client, opened []net.Conn) {
	t.Helper()
	for _, nc := range opened {
		if err := nc.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("a connection of %d is open: %v", len(opened), err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	marked, unreported := 0, 0
	for addr, p := range c.peers {
		if p.single {
			marked++
		} else {
			t.Errorf("%s is kept: %+v", addr, p)
		}
		if p.found > 0 {
			unreported++
		}
		if len(p.conns) > 0 || len(p.idle) > 0 || p.starved != 0 {
			t.Errorf("%s: %d connections, %d idle, %d starved", addr, len(p.conns), len(p.idle), p.starved)
		}
	}
	if c.count != 0 || c.marked != marked || int(c.unreported.Load()) != unreported {
		t.Errorf("%d idle, %d marked of %d, %d unreported of %d", c.count, c.marked, marked, c.unreported.Load(), unreported)
	}
}

// postRequest is a request whose engine may be silent for no longer than a test should wait.
func postRequest(addr, body string) *Request {
	return &Request{Addr: addr, Method: "POST", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}, Bound: 20 * time.Second}
}

const okHello = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"

func TestAnswers(t *testing.T) {
	chunked := "HTTP/1.1 200 OK\r\nDate: today\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: Chunked\r\n\r\n"
	for _, x := range []struct {
		name, raw string
		closes    bool // the engine closes behind it
		status    int
		length    int64
		body      string
		err       error // of Do or of reading
		reused    bool
	}{
		{"length", okHello, false, 200, 5, "hello", nil, true},
		{"empty", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false, 200, 0, "", nil, true},
		{"204", "HTTP/1.1 204 No Content\r\n\r\n", false, 204, 0, "", nil, true},
		{"bare LF", "HTTP/1.1 200 OK\ncontent-length: 5\n\nhello", false, 200, 5, "hello", nil, true},
		{"chunks", chunked + "5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\n", false, 200, -1, "hello!", nil, true},
		{"trailers", chunked + "5\r\nhello\r\n0\r\nx-sum: 1\r\ny: 2\r\n\r\n", false, 200, -1, "hello", nil, true},
		{"304", "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", false, 304, 0, "", nil, true},
		{"1xx", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: x\r\n\r\n" + okHello, false, 200, 5, "hello", nil, true},
		{"close", "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello", true, 200, 5, "hello", nil, false},
		{"1.0", "HTTP/1.0 200 OK\r\n\r\nhello", true, 200, -1, "hello", nil, false},
		{"until close", "HTTP/1.1 500 Oh\r\n\r\nhello", true, 500, -1, "hello", nil, false},
		{"too much", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello, and more", false, 200, 5, "hello", nil, false},
		{"nothing", "", true, 0, 0, "", ErrNoAnswer, false},
		{"half a head", "HTTP/1.1 200 OK\r\nconte", true, 0, 0, "", ErrNoAnswer, false},
		{"short", "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello", true, 200, 6, "hello", io.ErrUnexpectedEOF, false},
		{"short chunk", chunked + "6\r\nhello", true, 200, -1, "hello", io.ErrUnexpectedEOF, false},
		{"no last chunk", chunked + "5\r\nhello\r\n", true, 200, -1, "hello", io.ErrUnexpectedEOF, false},
		{"no end of trailers", chunked + "5\r\nhello\r\n0\r\n", true, 200, -1, "hello", io.ErrUnexpectedEOF, false},
		{"endless trailers", chunked + "5\r\nhello\r\n0\r\n" + strings.Repeat("x: y\r\n", 65), true, 200, -1, "hello", ErrProtocol, false},
		{"chunk too long", chunked + "4\r\nhello\r\n0\r\n\r\n", false, 200, -1, "hell", ErrProtocol, false},
		{"padded chunk size", chunked + "5  \r\nhello\r\n0 \t\r\n\r\n", false, 200, -1, "hello", nil, true},
		{"chunk size", chunked + "5x\r\nhello\r\n", false, 200, -1, "", ErrProtocol, false},
		{"huge chunk", chunked + "fffffffff\r\n", false, 200, -1, "", ErrProtocol, false},
		{"not http", "SSH-2.0-x\r\n", false, 0, 0, "", ErrProtocol, false},
		{"http/2", "HTTP/2.0 200 OK\r\n\r\n", false, 0, 0, "", ErrProtocol, false},
		{"101", "HTTP/1.1 101 Switch\r\n\r\n", false, 0, 0, "", ErrProtocol, false},
		{"both framings", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", false, 0, 0, "", ErrProtocol, false},
		{"two lengths", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", false, 0, 0, "", ErrProtocol, false},
		{"two lengths in one", "HTTP/1.1 200 OK\r\ncontent-length: 5, 6\r\n\r\n", false, 0, 0, "", ErrProtocol, false},
		{"a length and nothing", "HTTP/1.1 200 OK\r\ncontent-length: 5,\r\n\r\n", false, 0, 0, "", ErrProtocol, false},
		{"one length twice", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nContent-Length: 5\r\n\r\nhello", false, 200, 5, "hello", nil, true},
		{"one length thrice in one", "HTTP/1.1 200 OK\r\ncontent-length: 5, 5,5\r\n\r\nhello", false, 200, 5, "hello", nil, true},
		{"no body twice", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n", false, 200, 0, "", nil, true},
		{"bad length", "HTTP/1.1 200 OK\r\ncontent-length: 5x\r\n\r\n", false, 0, 0, "", ErrProtocol, false},
		{"bad coding", "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", false, 0, 0, "", ErrProtocol, false},
		{"large head", "HTTP/1.1 200 OK\r\n" + strings.Repeat("x: "+strings.Repeat("y", 1000)+"\r\n", 40) + "\r\n", false, 0, 0, "", ErrProtocol, false},
		{"line of 9 KB", "HTTP/1.1 200 OK\r\nx: " + strings.Repeat("y", 9000) + "\r\ncontent-length: 5\r\n\r\nhello", false, 200, 5, "hello", nil, true},
		{"line of 31 KB", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx: " + strings.Repeat("y", 31000) + "\r\n\r\nhello", false, 200, 5, "hello", nil, true},
		{"line of 33 KB", "HTTP/1.1 200 OK\r\nx: " + strings.Repeat("y", 33000) + "\r\n\r\n", false, 0, 0, "", ErrProtocol, false},
		{"endless line", "HTTP/1.1 200 OK\r\nx: " + strings.Repeat("y", 100000), false, 0, 0, "", ErrProtocol, false},
		{"control in value", "HTTP/1.1 200 OK\r\nx: a\x00b\r\n\r\n", false, 0, 0, "", ErrProtocol, false},
		{"endless 1xx", strings.Repeat("HTTP/1.1 102 P\r\n\r\n", 40), false, 0, 0, "", ErrProtocol, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			e := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, _ int) bool {
				_, err := io.WriteString(c, x.raw)
				return err == nil && !x.closes
			})
			c := client(t, Options{})
			for range 2 {
				q := postRequest(e.addr, "{}")
				q.Bound = 20 * time.Second // a fault that waits for ever ends here
				r, err := c.Do(t.Context(), q)
				if err == nil {
					if r.Status != x.status || r.Length != x.length {
						t.Errorf("status %d length %d", r.Status, r.Length)
					}
					var b []byte
					b, err = io.ReadAll(r)
					if string(b) != x.body {
						t.Errorf("body %q", b)
					}
					r.Close()
					r.Close()
				} else if x.status != 0 {
					t.Errorf("Do: %v", err)
				}
				if !errors.Is(err, x.err) {
					t.Errorf("error %v, want %v", err, x.err)
				}
			}
			if n := e.conns.Load(); x.reused != (n == 1) {
				t.Errorf("%d connections", n)
			}
		})
	}
}

func TestRequestOnTheWire(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	type seen struct {
		r    *http.Request
		body []byte
	}
	requests := make(chan seen, 1)
	e := newEngine(t, func(c net.Conn, r *http.Request, b []byte, _ int) bool {
		requests <- seen{r, b}
		io.WriteString(c, okHello)
		return true
	})
	c := client(t, Options{})
	for _, pieces := range [][][]byte{{[]byte(`{"model":`), []byte(`"x"`), []byte(`}`)}, {big, []byte("tail")}, nil} {
		r, err := c.Do(t.Context(), &Request{Addr: e.addr, Prefix: "/replicas/7", Method: "POST", Path: "/v1/x?y=z", Body: pieces,
			Fields: []Field{{"content-type", "application/json"}, {"X-A", "1\r\nEvil: 2"}, {"Connection", "close"}, {"Host", "other"}, {"Transfer-Encoding", "chunked"}}})
		if err != nil {
			t.Fatal(err)
		}
		io.ReadAll(r)
		r.Close()
		x := <-requests
		got, body := x.r, x.body
		if !bytes.Equal(body, bytes.Join(pieces, nil)) || got.RequestURI != "/replicas/7/v1/x?y=z" || got.Host != e.addr ||
			got.Header.Get("X-A") != "1  Evil: 2" || got.Header.Get("Evil") != "" || got.Close || got.ContentLength != int64(len(body)) {
			t.Errorf("%v, %d bytes", got, len(body))
		}
	}
	if e.conns.Load() != 1 {
		t.Error("not reused")
	}
}

func TestFieldsOfAnAnswer(t *testing.T) {
	e := assertAnswer(t, "HTTP/1.1 200 OK\r\nDate: today\r\nX-B:  1 \r\nKeep-Alive: 5\r\nx-a: 2\r\nX-B: 3\r\nContent-Length: 0\r\n\r\n")
	r, err := client(t, Options{}).Do(t.Context(), postRequest(e.addr, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if s := fmt.Sprint(r.Fields); s != "[{date today} {x-b 1} {x-a 2} {x-b 3}]" || r.Header("x-b") != "1" || r.Header("no") != "" {
		t.Error(s)
	}
}

// What has come is read at once, across chunks; what has not is not waited for.
func TestChunksCoalesce(t *testing.T) {
	testChunksCoalesce(t, 100)
	testChunksCoalesce(t, len("data: [DONE]\n\n")) // the end comes with bytes that fill all
}

func testChunksCoalesce(t *testing.T, size int) {
	step := make(chan string)
	e := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, _ int) bool {
		for s := range step {
			io.WriteString(c, s)
		}
		return true
	})
	r, err := func() (*Response, error) {
		go func() { step <- "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n4\r\nf" }()
		return client(t, Options{}).Do(t.Context(), postRequest(e.addr, ""))
	}()
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, size)
	read := func() string {
		n, err := r.Read(p)
		return fmt.Sprintf("%s %v", p[:n], err)
	}
	if s := read(); s != "abcdef <nil>" {
		t.Error(s)
	}
	step <- "ghi\r\n"
	if s := read(); s != "ghi <nil>" {
		t.Error(s)
	}
	step <- "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
	if s := read(); s != "data: [DONE]\n\n EOF" {
		t.Error(s)
	}
	close(step)
	r.Close()
}

func TestAbandonedStreamIsNotReused(t *testing.T) {
	e := assertAnswer(t, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nold\r\n3\r\nold\r\n0\r\n\r\n")
	c := client(t, Options{})
	for range 3 {
		r, err := c.Do(t.Context(), postRequest(e.addr, ""))
		if err != nil {
			t.Fatal(err)
		}
		r.Read(make([]byte, 2))
		r.Close()
		if _, err := r.Read(make([]byte, 1)); err == nil {
			t.Error("read after Close")
		}
	}
	if n := e.conns.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
}

func TestRetryOnDeadReusedConnection(t *testing.T) {
	var seen atomic.Int32
	e := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, n int) bool {
		if seen.Add(1); n == 1 {
			return false // it had closed the connection just then
		}
		io.WriteString(c, okHello)
		return true
	})
	c := client(t, Options{})
	for range 2 {
		r, err := c.Do(t.Context(), postRequest(e.addr, "{}"))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadAll(r)
		r.Close()
	}
	if e.conns.Load() != 2 || seen.Load() != 3 {
		t.Errorf("%d connections, %d requests", e.conns.Load(), seen.Load())
	}
	// Once only, and never after a byte of the answer.
	var tries atomic.Int32
	e = newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, n int) bool {
		if tries.Add(1) == 1 {
			io.WriteString(c, okHello)
			return true
		}
		if tries.Load() == 4 {
			io.WriteString(c, "HTTP/1.1 2")
		}
		return false
	})
	for i := range 3 {
		r, err := c.Do(t.Context(), postRequest(e.addr, "{}"))
		if err == nil {
			io.ReadAll(r)
			r.Close()
		}
		if i == 0 != (err == nil) || i > 0 && !errors.Is(err, ErrNoAnswer) {
			t.Error(i, err)
		}
	}
	if tries.Load() != 4 {
		t.Errorf("%d tries", tries.Load())
	}
}

func TestDialFails(t *testing.T) {
	const addr = "127.0.0.1:1" // which no test is given
	_, err := client(t, Options{}).Do(t.Context(), postRequest(addr, ""))
	if !errors.Is(err, ErrDial) {
		t.Error(err)
	}
	c := New(Options{})
	c.Close()
	if _, err := c.Do(t.Context(), postRequest(addr, "")); !errors.Is(err, ErrDial) || !errors.Is(err, errClosed) {
		t.Error(err)
	}
	hang := client(t, Options{DialTimeout: 10 * time.Millisecond, Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	if _, err := hang.Do(t.Context(), postRequest(addr, "")); !errors.Is(err, ErrDial) {
		t.Error(err)
	}
}

// TestSecure: a request that is to go over TLS goes over TLS or not at all, also where a plain
// connection to the address is idle.
func TestSecure(t *testing.T) {
	served := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
	defer served.Close()
	known := served.Listener.Addr().String()
	config := func(addr string) *tls.Config {
		if addr != known {
			return nil
		}
		c := served.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		c.ServerName = "example.com"
		return c
	}
	var requests atomic.Int32
	plain := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, _ int) bool {
		requests.Add(1)
		_, err := io.WriteString(c, okHello)
		return err == nil
	})
	c := client(t, Options{TLS: config})
	do := func(c *Client, addr string, secure bool) error {
		r := postRequest(addr, "x")
		r.Secure = secure
		res, err := c.Do(t.Context(), r)
		if err != nil {
			return err
		}
		defer res.Close()
		_, err = io.Copy(io.Discard, res)
		return err
	}
	for range 2 {
		if err := do(c, known, true); err != nil {
			t.Error("over TLS:", err)
		}
	}
	if err := do(c, plain.addr, false); err != nil {
		t.Error("without:", err)
	}
	for _, c := range []*Client{c, client(t, Options{})} {
		if err := do(c, plain.addr, true); !errors.Is(err, ErrDial) || !strings.Contains(err.Error(), "TLS") {
			t.Error("no certificate of the address is known:", err)
		}
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d plain requests, want 1", n)
	}

	// A certificate that does not match: the connection is closed.
	var closed atomic.Int32
	wrong := client(t, Options{
		TLS: func(string) *tls.Config { return &tls.Config{ServerName: "example.com"} },
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			return &countedClose{nc, &closed}, err
		},
	})
	if err := do(wrong, known, true); !errors.Is(err, ErrDial) || closed.Load() == 0 {
		t.Errorf("an unknown certificate: %v, %d closed", err, closed.Load())
	}
}

// countedClose is a connection whose closes are counted.
type countedClose struct {
	net.Conn
	n *atomic.Int32
}

func (c *countedClose) Close() error {
	c.n.Add(1)
	return c.Conn.Close()
}

// An engine that refuses a body early is heard.
func TestEarlyAnswer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		http.ReadRequest(bufio.NewReader(c))
		io.WriteString(c, "HTTP/1.1 413 Large\r\ncontent-length: 0\r\n\r\n")
		io.Copy(io.Discard, c)
		c.Close()
	}()
	c := client(t, Options{})
	r, err := c.Do(t.Context(), postRequest(ln.Addr().String(), strings.Repeat("x", 4<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != 413 {
		t.Error(r.Status)
	}
	r.Close()
	c.Close()
	<-done
}

func TestCancel(t *testing.T) {
	arrived, left := make(chan struct{}, 1), make(chan struct{}, 4)
	e := newEngine(t, func(c net.Conn, r *http.Request, body []byte, _ int) bool {
		switch string(body) {
		case "wait":
			arrived <- struct{}{}
		case "stream":
			io.WriteString(c, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
		}
		if string(body) == "ok" {
			io.WriteString(c, okHello)
			return true
		}
		c.Read(make([]byte, 1)) // until the client leaves
		left <- struct{}{}
		return false
	})
	c := client(t, Options{})
	reason := errors.New("why")
	for _, body := range []string{"wait", "stream"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		if body == "wait" {
			go func() {
				<-arrived
				cancel(reason)
			}()
		}
		r, err := c.Do(ctx, postRequest(e.addr, body))
		if body == "stream" {
			if err != nil {
				t.Fatal(err)
			}
			r.Read(make([]byte, 10))
			time.AfterFunc(20*time.Millisecond, func() { cancel(reason) })
			_, err = r.Read(make([]byte, 10))
			r.Close()
		}
		if !errors.Is(err, ErrCancelled) || !errors.Is(err, reason) {
			t.Errorf("%s: %v", body, err)
		}
		select {
		case <-left:
		case <-time.After(20 * time.Second):
			t.Errorf("%s: the engine saw no client leave", body)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := c.Do(ctx, postRequest(e.addr, "ok"))
	if err != nil {
		t.Fatal(err)
	}
	io.ReadAll(r)
	r.Close()
	cancel() // late: the connection is in the pool
	n := e.conns.Load()
	if r, err = c.Do(t.Context(), postRequest(e.addr, "ok")); err != nil {
		t.Fatal(err)
	}
	io.ReadAll(r)
	r.Close()
	if e.conns.Load() != n {
		t.Error("a late cancel closed the connection")
	}
	if _, err = c.Do(ctx, postRequest(e.addr, "ok")); !errors.Is(err, ErrCancelled) {
		t.Error(err)
	}
}

// Thousands leave at the worst moments beside healthy requests: none of these
// may fail.
func TestDisconnectsKeepOthers(t *testing.T) {
	e := newEngine(t, func(c net.Conn, r *http.Request, body []byte, _ int) bool {
		if bytes.HasPrefix(body, []byte("s")) {
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"); err != nil {
				return false
			}
			for range 3 {
				fmt.Fprintf(c, "%x\r\n%s\r\n", len(body), body)
			}
			_, err := io.WriteString(c, "0\r\n\r\n")
			return err == nil
		}
		_, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s", len(body), body)
		return err == nil
	})
	c := client(t, Options{})
	var healthy, disconnected atomic.Int32
	var wg sync.WaitGroup
	for k := range 32 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(k), 1))
			for i := range 250 {
				kind := "n"
				times := 1
				if rng.IntN(2) == 0 {
					kind, times = "s", 3
				}
				body := fmt.Sprintf("%s-%d-%d", kind, k, i)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				disconnects := k%2 == 0
				if disconnects {
					d := time.Duration(rng.IntN(300)) * time.Microsecond
					wg.Go(func() {
						<-time.After(d) // beside the request, and behind it
						cancel()
					})
				}
				r, err := c.Do(ctx, postRequest(e.addr, body))
				var b []byte
				if err == nil {
					b, err = io.ReadAll(r)
					r.Close()
				}
				switch {
				case err == nil && string(b) != strings.Repeat(body, times):
					t.Errorf("another's answer: %q for %q", b, body)
				case err != nil && !disconnects:
					t.Errorf("a healthy request failed: %v", err)
				case err != nil && !errors.Is(err, ErrCancelled):
					t.Errorf("a leaver failed otherwise: %v", err)
				case disconnects:
					disconnected.Add(1)
				default:
					healthy.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d healthy, %d leavers, %d connections", healthy.Load(), disconnected.Load(), e.conns.Load())
}

func TestIdleConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials, ends atomic.Int32
		c := New(Options{Dial: func(context.Context, string) (net.Conn, error) {
			dials.Add(1)
			local, remote := net.Pipe()
			go func() {
				br := bufio.NewReader(remote)
				for {
					if _, err := http.ReadRequest(br); err != nil {
						ends.Add(1)
						return
					}
					io.WriteString(remote, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
				}
			}()
			return local, nil
		}})
		defer c.Close()
		one := func() *Response {
			r, err := c.Do(t.Context(), &Request{Addr: "e", Method: "GET", Path: "/"})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		one().Close()
		time.Sleep(3 * time.Second)
		a, b := one(), one()
		a.Close()
		time.Sleep(2 * time.Second)
		b.Close()
		if dials.Load() != 2 || ends.Load() != 0 {
			t.Error(dials.Load(), ends.Load())
		}
		time.Sleep(2500 * time.Millisecond) // a is 4.5 s idle, b 2.5
		synctest.Wait()
		if ends.Load() != 1 {
			t.Error("at 4.5 s:", ends.Load())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if ends.Load() != 2 {
			t.Error("at 6.5 s:", ends.Load())
		}
		one().Close()
		c.CloseIdle()
		synctest.Wait()
		if ends.Load() != 3 {
			t.Error("after CloseIdle:", ends.Load())
		}
		one().Close() // the timer runs again
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if ends.Load() != 4 {
			t.Error("at the end:", ends.Load())
		}
	})
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(okHello), 3)
	f.Add([]byte("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), 1)
	f.Add([]byte("HTTP/1.1 100 C\r\n\r\nHTTP/1.1 204 N\r\nx: y\r\n\r\n"), 100)
	f.Fuzz(func(t *testing.T, raw []byte, size int) {
		k := newConn(New(Options{}), "e", &fixedResponse{r: bytes.NewReader(raw)})
		res := &Response{k: k}
		if err := k.readHead(res, false); err != nil {
			return
		}
		var got []byte
		p := make([]byte, 1+min(max(size, 0), 1000))
		var err error
		for range len(raw) + 2 {
			var n int
			n, err = k.Read(p)
			got = append(got, p[:n]...)
			if err != nil {
				break
			}
		}
		if err == nil {
			t.Fatal("it reads on for ever")
		}
		// What we take for whole, net/http takes for the same.
		r, herr := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), nil)
		for herr == nil && r.StatusCode < 200 {
			return // it does not skip them
		}
		if err == io.EOF && herr == nil && res.Status != 304 {
			want, werr := io.ReadAll(r.Body)
			if werr == nil && !bytes.Equal(got, want) && res.Status == r.StatusCode {
				t.Errorf("%q, net/http reads %q", got, want)
			}
		}
	})
}

type fixedResponse struct {
	net.Conn
	r io.Reader
}

func (r *fixedResponse) Read(p []byte) (int, error) { return r.r.Read(p) }
func (r *fixedResponse) Close() error               { return nil }

func BenchmarkDo(b *testing.B) {
	for _, ctx := range []string{"plain", "cancellable"} {
		b.Run(ctx, func(b *testing.B) {
			body := strings.Repeat("x", 1500)
			raw := []byte("HTTP/1.1 200 OK\r\ndate: Fri, 20 Nov 2026 10:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 1500\r\ncontent-type: " +
				"application/json\r\n\r\n" + body)
			c := client(b, Options{Dial: func(context.Context, string) (net.Conn, error) { return &loop{answer: raw}, nil }})
			req := postRequest("e", strings.Repeat("y", 1200))
			req.Bound = 0
			req.Fields = []Field{{"content-type", "application/json"}, {"accept", "application/json"}, {"x-request-id", "0123456789abcdef"}}
			x := context.Background()
			if ctx != "plain" {
				var cancel func()
				x, cancel = context.WithCancel(x)
				defer cancel()
			}
			p := make([]byte, 4096)
			b.ReportAllocs()
			for b.Loop() {
				r, err := c.Do(x, req)
				if err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = r.Read(p)
				}
				r.Close()
			}
		})
	}
}

// loop answers every write at once, without a kernel.
type loop struct {
	net.Conn
	answer, left []byte
}

func (l *loop) Write(p []byte) (int, error) { l.left = l.answer; return len(p), nil }
func (l *loop) Read(p []byte) (int, error) {
	n := copy(p, l.left)
	l.left = l.left[n:]
	return n, nil
}
func (l *loop) Close() error                     { return nil }
func (l *loop) SetWriteDeadline(time.Time) error { return nil }

// An engine that says nothing is given up when its bound is over, before its
// head and inside its body; a connection that goes back to the pool has none.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
		pause := []time.Duration{time.Second, time.Second, time.Second}
		dials := 0
		c := New(Options{Dial: func(context.Context, string) (net.Conn, error) {
			dials++
			local, remote := net.Pipe()
			go func() {
				defer remote.Close()
				br := bufio.NewReader(remote)
				for {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					for i, s := range []string{head, "a", "b"} {
						time.Sleep(pause[i])
						if _, err := io.WriteString(remote, s); err != nil {
							return
						}
					}
				}
			}()
			return local, nil
		}})
		defer c.Close()
		unbounded := func() (string, time.Duration, error) {
			began := time.Now()
			r, err := c.Do(t.Context(), &Request{Addr: "e", Method: "GET", Path: "/"})
			if err != nil {
				return "", time.Since(began), err
			}
			defer r.Close()
			b, err := io.ReadAll(r)
			return string(b), time.Since(began), err
		}
		ask := func() (string, time.Duration, error) {
			began := time.Now()
			r, err := c.Do(t.Context(), &Request{Addr: "e", Method: "GET", Path: "/", Bound: 1500 * time.Millisecond})
			if err != nil {
				return "", time.Since(began), err
			}
			defer r.Close()
			var b []byte
			for p := make([]byte, 10); err == nil; {
				var n int
				r.LimitSilence(1500 * time.Millisecond)
				n, err = r.Read(p)
				b = append(b, p[:n]...)
			}
			if err == io.EOF {
				err = nil
			}
			return string(b), time.Since(began), err
		}
		for range 2 { // longer than the bound in all, and the connection is used again
			if b, d, err := ask(); b != "ab" || d != 3*time.Second || err != nil {
				t.Error(b, d, err)
			}
			time.Sleep(2 * time.Second)
		}
		// A request without a bound has none on that connection either.
		if b, d, err := unbounded(); b != "ab" || d != 3*time.Second || err != nil || dials != 1 {
			t.Error(b, d, err, dials)
		}
		pause[2] = time.Minute
		// At most an eighth of the bound late.
		if b, d, err := ask(); b != "a" || d < 3500*time.Millisecond || d > 3700*time.Millisecond || !errors.Is(err, ErrSilent) {
			t.Error(b, d, err)
		}
		pause[0] = time.Minute
		if b, d, err := ask(); b != "" || d != 1500*time.Millisecond || !errors.Is(err, ErrSilent) {
			t.Error(b, d, err)
		}
		time.Sleep(2 * time.Minute)
	})
}

// A long bound is not set anew for each request, and holds all the same.
func TestLongBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = time.Hour
		c := New(Options{IdleTimeout: bound, Dial: func(context.Context, string) (net.Conn, error) {
			local, remote := net.Pipe()
			go func() {
				defer remote.Close()
				br := bufio.NewReader(remote)
				for {
					r, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					if r.URL.Path == "/answer" {
						io.WriteString(remote, okHello)
					}
				}
			}()
			return local, nil
		}})
		defer c.Close()
		ask := func(path string) (time.Duration, error) {
			began := time.Now()
			r, err := c.Do(t.Context(), &Request{Addr: "e", Method: "GET", Path: path, Bound: bound})
			if err == nil {
				io.ReadAll(r)
				r.Close()
			}
			return time.Since(began), err
		}
		for range 50 {
			if _, err := ask("/answer"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(30 * time.Second)
		}
		if d, err := ask("/silence"); d < bound || d > bound+bound/64 || !errors.Is(err, ErrSilent) {
			t.Error(d, err)
		}
	})
}

// A request is not sent a second time once its answer has begun, on a connection that was
// used before as little as on a new one: the engine would generate twice.
func TestNoRetryAfterTheFirstByte(t *testing.T) {
	var seen atomic.Int32
	e := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, n int) bool {
		seen.Add(1)
		if n == 0 {
			io.WriteString(c, okHello)
			return true
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-ty")
		return false
	})
	c := client(t, Options{})
	r, err := c.Do(t.Context(), postRequest(e.addr, "{}"))
	if err != nil {
		t.Fatal(err)
	}
	io.ReadAll(r)
	r.Close()
	if r, err = c.Do(t.Context(), postRequest(e.addr, "{}")); !errors.Is(err, ErrNoAnswer) || seen.Load() != 2 {
		t.Errorf("%v %v, %d requests for 2", r, err, seen.Load())
	}
}

// No more than MaxIdle connections are kept for an address.
func TestMaxIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open, most atomic.Int32
		c := New(Options{MaxIdle: 2, IdleTimeout: time.Hour, Dial: func(context.Context, string) (net.Conn, error) {
			local, remote := net.Pipe()
			most.Store(max(most.Load(), open.Add(1)))
			go func() {
				defer open.Add(-1)
				for br := bufio.NewReader(remote); ; {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					io.WriteString(remote, "HTTP/1.1 204 No Content\r\n\r\n")
				}
			}()
			return local, nil
		}})
		defer c.Close()
		var all []*Response
		for range 5 {
			r, err := c.Do(t.Context(), &Request{Addr: "e", Method: "GET", Path: "/"})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, r)
		}
		for _, r := range all {
			r.Close()
		}
		synctest.Wait()
		if open.Load() != 2 || most.Load() != 5 {
			t.Errorf("%d of %d connections are kept", open.Load(), most.Load())
		}
	})
}

// The host field is the request's own where it has one.
func TestHostField(t *testing.T) {
	hosts := make(chan string, 1)
	e := newEngine(t, func(c net.Conn, r *http.Request, _ []byte, _ int) bool {
		hosts <- r.Host
		_, err := io.WriteString(c, okHello)
		return err == nil
	})
	c := client(t, Options{})
	for host, want := range map[string]string{"": e.addr, "api.example.com": "api.example.com"} {
		q := postRequest(e.addr, "{}")
		q.Host = host
		r, err := c.Do(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		if got := <-hosts; got != want {
			t.Errorf("host %q, want %q", got, want)
		}
	}
}

// lateContext has a client whose departure is noticed when the test says so.
type lateContext struct {
	context.Context
	leave func()
}

func (c *lateContext) AfterFunc(f func()) func() bool {
	c.leave = f
	return func() bool { return false } // f has begun
}

// The departure of a client that is noticed after its answer cuts no later request on the
// connection.
func TestLateCancel(t *testing.T) {
	left := &lateContext{Context: t.Context()}
	e := newEngine(t, func(c net.Conn, _ *http.Request, _ []byte, n int) bool {
		if n == 1 {
			left.leave()
		}
		_, err := io.WriteString(c, okHello)
		return err == nil
	})
	c := client(t, Options{})
	for _, ctx := range []context.Context{left, t.Context()} {
		r, err := c.Do(ctx, postRequest(e.addr, "{}"))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(r); string(b) != "hello" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		r.Close()
	}
	if n := e.conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A connection that is in use for longer than an engine may take to read a request is used on.
func TestLongUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		c := New(Options{Dial: func(context.Context, string) (net.Conn, error) {
			dials++
			local, remote := net.Pipe()
			go func() {
				defer remote.Close()
				for br := bufio.NewReader(remote); ; {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					io.WriteString(remote, okHello)
				}
			}()
			return local, nil
		}})
		defer c.Close()
		for range 60 {
			r, err := c.Do(t.Context(), &Request{Addr: "e", Method: "GET", Path: "/"})
			if err != nil {
				t.Fatal(err)
			}
			io.ReadAll(r)
			r.Close()
			time.Sleep(2 * time.Second)
		}
		if dials != 1 {
			t.Errorf("%d connections", dials)
		}
	})
}

// An engine that does not read its requests is given up, whatever it may take to answer.
func TestEngineThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int64 // bytes a second; 0: none
		stop := make(chan struct{})
		c := New(Options{Dial: func(context.Context, string) (net.Conn, error) {
			a, b := net.Pipe()
			go func() {
				defer b.Close()
				for p := make([]byte, 1<<20); ; time.Sleep(time.Second) {
					n := reads.Load()
					if n == 0 {
						<-stop
						return
					}
					m, err := b.Read(p[:n])
					if err != nil {
						return
					}
					if bytes.Contains(p[:m], []byte("the end")) {
						io.WriteString(b, okHello)
					}
				}
			}()
			return a, nil
		}})
		defer func() {
			close(stop)
			c.Close()
			time.Sleep(2 * time.Second)
		}()
		for _, size := range []int{10, 4 << 20} {
			q := postRequest("e:1", strings.Repeat("x", size))
			q.Bound = time.Hour
			began := time.Now()
			_, err := c.Do(t.Context(), q)
			if took := time.Since(began); !errors.Is(err, ErrSilent) || took < writeWait || took > 2*writeWait {
				t.Errorf("%d bytes: %v after %v", size, err, took)
			}
		}
		reads.Store(1 << 10) // slow, and it reads
		q := postRequest("e:1", strings.Repeat("x", 20<<10))
		q.Body = append(q.Body, []byte("the end"))
		q.Bound = time.Hour
		r, err := c.Do(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		io.ReadAll(r)
		r.Close()
	})
}
