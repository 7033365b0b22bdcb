package httpserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// startHandler runs a NetHTTPHandler in a server of HTTP/1.1 and HTTP/2 without TLS, and
// gives a client for each.
func startHandler(t *testing.T, o Options) (g *NetHTTPHandler, url string, clients map[string]*http.Client, cut context.CancelCauseFunc) {
	t.Helper()
	g = NewNetHTTPHandler(o)
	s := httptest.NewUnstartedServer(g)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	base, cut := context.WithCancelCause(context.Background())
	s.Config.BaseContext = func(net.Listener) context.Context { return base }
	s.Start()
	clients = map[string]*http.Client{}
	for _, two := range []bool{false, true} {
		p := new(http.Protocols)
		p.SetHTTP1(!two)
		p.SetUnencryptedHTTP2(two)
		tr := &http.Transport{Protocols: p}
		t.Cleanup(tr.CloseIdleConnections)
		clients[map[bool]string{false: "HTTP/1.1", true: "HTTP/2"}[two]] = &http.Client{Transport: tr}
	}
	t.Cleanup(func() {
		for _, c := range clients {
			c.CloseIdleConnections()
		}
		cut(nil)
		s.Close()
		waitUncounted(t, g)
	})
	return g, s.URL, clients, cut
}

// waitUncounted waits until no body is counted: each is for a moment after its answer.
func waitUncounted(t *testing.T, g *NetHTTPHandler) {
	t.Helper()
	testkit.Eventually(t, "no body is counted", func() (bool, string) {
		n := g.o.Bodies.Used()
		return n == 0, fmt.Sprint(n, " bytes")
	})
}

func TestNetHTTPHandler(t *testing.T) {
	_, url, clients, _ := startHandler(t, Options{MaxBody: 1 << 20, Handler: func(req *Request, res *Response) {
		switch req.Path {
		case "/panic":
			panic("no")
		case "/empty":
			return
		case "/stream":
			res.Status = 201
			res.Stream = &requestLog{"one ", "two ", "three"}
			return
		case "/breaks":
			res.Stream = &requestLog{"one ", "\x00"}
			return
		}
		n := 0
		for range req.Fields {
			n++
		}
		res.Set("X-One", "1\r\nX-Evil: 1")
		res.Set("Connection", "close") // not the handler's to say
		res.Body = fmt.Appendf(nil, "%s %s?%s %s %s %s %d %d", req.Method, req.Path, req.Query, req.Host, req.Header("x-mine"),
			req.Header("X-None"), len(req.Body), n)
	}})
	for proto, c := range clients {
		do := func(method, path string, body io.Reader, head ...string) (int, string, http.Header, error) {
			r, _ := http.NewRequest(method, url+path, body)
			r.Host = "a.b"
			r.Header.Set("X-Mine", "m")
			for i := 0; i+1 < len(head); i += 2 {
				r.Header.Set(head[i], head[i+1])
			}
			res, err := c.Do(r)
			if err != nil {
				return 0, "", nil, err
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			return res.StatusCode, string(b), res.Header, err
		}
		for _, size := range []int{0, 5, 4 << 10, 100 << 10, 1 << 20} {
			for _, sized := range []bool{true, false} {
				var body io.Reader = strings.NewReader(strings.Repeat("x", size))
				if !sized {
					body = struct{ io.Reader }{body}
				}
				status, got, head, err := do("POST", "/a%2Fb?x=1&y", body)
				want := fmt.Sprintf("POST /a%%2Fb?x=1&y a.b m  %d ", size)
				if err != nil || status != 200 || !strings.HasPrefix(got, want) || head.Get("X-Evil") != "" || head.Get("Content-Type") != "" {
					t.Errorf("%s: %d %q %v %v", proto, status, got, head, err)
				}
			}
		}
		for _, row := range []struct {
			method, path string
			body         io.Reader
			head         []string
			status       int
			want         string
		}{
			{"POST", "/", strings.NewReader(strings.Repeat("x", 1<<20+1)), nil, 413, "request_too_large"},
			{"POST", "/", struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 2<<20))}, nil, 413, "request_too_large"},
			{"POST", "/", strings.NewReader("x"), []string{"Content-Encoding", "gzip"}, 415, "unsupported_encoding"},
			{"POST", "/", strings.NewReader("x"), []string{"Content-Encoding", "identity"}, 200, "POST"},
			{"GET", "/panic", nil, nil, 500, "internal_error"},
			{"GET", "/empty", nil, nil, 200, ""},
			{"HEAD", "/stream", nil, nil, 201, ""},
			{"GET", "/stream", nil, nil, 201, "one two three"},
		} {
			status, got, head, err := do(row.method, row.path, row.body, row.head...)
			if err != nil || status != row.status || !strings.Contains(got, row.want) || row.want == "" && got != "" {
				t.Errorf("%s %s%s: %d %q %v", proto, row.method, row.path, status, got, err)
			}
			if row.status >= 400 && (head.Get("Content-Type") != "application/json" || head.Get("X-Request-Id") == "") {
				t.Error(head)
			}
		}
		if _, got, _, err := do("GET", "/breaks", nil); err == nil || got != "one " {
			t.Errorf("%s: a stream that broke: %q %v", proto, got, err)
		}
	}
}

// requestLog is a stream, a piece each time; "\x00" breaks it.
type requestLog []string

func (l *requestLog) Read(p []byte) (int, error) {
	if len(*l) == 0 {
		return 0, io.EOF
	}
	if (*l)[0] == "\x00" {
		return 0, errors.New("broken")
	}
	n := copy(p, (*l)[0])
	*l = (*l)[1:]
	return n, nil
}

func (l *requestLog) Close() error { *l = nil; return nil }

// The context ends when the client leaves, when the server gives up, and at the
// end, and each piece of a stream goes out at once.
func TestNetHTTPHandlerContext(t *testing.T) {
	ends := make(chan error, 1)
	began := make(chan struct{}, 1)
	g, url, clients, cut := startHandler(t, Options{Handler: func(req *Request, res *Response) {
		ctx := req.Context()
		switch req.Path {
		case "/wait":
			began <- struct{}{}
			<-ctx.Done()
			ends <- context.Cause(ctx)
		case "/stream":
			res.Stream = &waits{ctx: ctx, ends: ends}
		default:
			context.AfterFunc(ctx, func() { ends <- context.Cause(ctx) })
			res.Body = []byte("done")
		}
	}})
	for proto, c := range clients {
		ctx, cancel := context.WithCancel(context.Background())
		r, _ := http.NewRequestWithContext(ctx, "POST", url+"/wait", strings.NewReader("hello"))
		go func() { <-began; cancel() }()
		if _, err := c.Do(r); err == nil {
			t.Error("an answer")
		}
		if err := <-ends; err != ErrGone {
			t.Errorf("%s: it ended with %v", proto, err)
		}
		ctx, cancel = context.WithCancel(context.Background())
		r, _ = http.NewRequestWithContext(ctx, "GET", url+"/stream", nil)
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || b != "piece\n" {
			t.Errorf("%q %v", b, err)
		}
		cancel()
		res.Body.Close()
		if err := <-ends; err != ErrGone {
			t.Errorf("%s: the stream's ended with %v", proto, err)
		}
		if res, err = c.Get(url + "/"); err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if err := <-ends; err != errAnswered {
			t.Errorf("%s: after the answer %v", proto, err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := clients["HTTP/1.1"].Post(url+"/wait", "", nil); err == nil {
			res.Body.Close()
		}
	}()
	<-began
	g.Drain()
	cut(ErrDraining)
	if err := <-ends; err != ErrDraining {
		t.Error(err)
	}
	<-done
}

// waits says one thing and then waits for the end of its context.
type waits struct {
	ctx  context.Context
	ends chan error
	said bool
}

func (w *waits) Read(p []byte) (int, error) {
	if !w.said {
		w.said = true
		return copy(p, "piece\n"), nil
	}
	<-w.ctx.Done()
	return 0, context.Cause(w.ctx)
}

func (w *waits) Close() error { w.ends <- context.Cause(w.ctx); return nil }

// A body that comes too slowly is not waited for.
func TestNetHTTPHandlerSlowBody(t *testing.T) {
	_, url, _, _ := startHandler(t,
		Options{BodyGrace: 200 * time.Millisecond, BodyRate: 1 << 40, Handler: func(*Request, *Response) { t.Error("it was served") }})
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx")
	b, _ := io.ReadAll(c)
	if !strings.HasPrefix(string(b), "HTTP/1.1 408") || !strings.Contains(string(b), "request_timeout") {
		t.Errorf("%q", b)
	}
}

// All bodies together are bounded, and a request that ends frees its memory.
func TestNetHTTPHandlerBodies(t *testing.T) {
	inside, release := make(chan struct{}), make(chan struct{})
	g, url, clients, _ := startHandler(t, Options{Bodies: NewBudget(600<<10, 600<<10), Handler: func(_ *Request, res *Response) {
		inside <- struct{}{}
		<-release
		res.Body = []byte("ok")
	}})
	c := clients["HTTP/1.1"]
	body := strings.Repeat("x", 500<<10)
	done := make(chan int, 1)
	go func() {
		res, err := c.Post(url, "", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			done <- 0
			return
		}
		res.Body.Close()
		done <- res.StatusCode
	}()
	<-inside
	res, err := c.Post(url, "", strings.NewReader(body))
	if err == nil {
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 503 || !strings.Contains(string(b), "queue_full") {
			t.Error(res.StatusCode, string(b))
		}
	}
	close(release)
	if s := <-done; s != 200 {
		t.Error(s)
	}
	waitUncounted(t, g)
	after := make(chan struct{})
	go func() { <-inside; close(after) }()
	if res, err = c.Post(url, "", strings.NewReader(body)); err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	res.Body.Close()
	<-after
}

// Behind ErrFailureSent the body is not complete, and all of it arrives.
func TestNetHTTPHandlerFailureSent(t *testing.T) {
	_, url, clients, _ := startHandler(t, Options{Handler: func(_ *Request, res *Response) { res.Stream = lastStream{} }})
	for proto, c := range clients {
		res, err := c.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err == nil || proto == "HTTP/1.1" && err != io.ErrUnexpectedEOF ||
			proto == "HTTP/2" && !strings.Contains(err.Error(), "stream error") || string(b) != "frame" {
			t.Errorf("%s: %q %v", proto, b, err)
		}
	}
	last := 0
	g := NewNetHTTPHandler(Options{Handler: func(_ *Request, res *Response) { res.Stream = lastStream{} }})
	defer func() {
		if recover() != http.ErrAbortHandler || last != 1 {
			t.Errorf("OnFailureSent was called %d times", last)
		}
	}()
	g.ServeHTTP(&lasting{httptest.NewRecorder(), &last}, httptest.NewRequest("GET", "/", nil))
}

type lastStream struct{}

func (lastStream) Read(p []byte) (int, error) { return copy(p, "frame"), ErrFailureSent }
func (lastStream) Close() error               { return nil }

type lasting struct {
	http.ResponseWriter
	last *int
}

func (l *lasting) Unwrap() http.ResponseWriter { return l.ResponseWriter }
func (l *lasting) OnFailureSent()              { *l.last++ }
