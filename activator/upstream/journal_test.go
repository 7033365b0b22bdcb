package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var updateJournals = flag.Bool("update", false, "write testdata/journals.txt anew: read what changed in it")

// wire is an engine whose connections are in memory, with all that a Client does to them and gets
// of them, and when. It has no file descriptors: nothing can be looked at.
type wire struct {
	t       *testing.T
	began   time.Time
	client  *Client
	answers map[string][]any // by path, and before by "path#connection"
	dialled int
	refuses error         // of the next dials
	slow    time.Duration // of dials
	over    chan struct{} // the end of the scene
	plain   bool          // contexts of requests have no hooks of their own
	secure  *tls.Config   // of the engine, over TLS; nil: without

	mu    sync.Mutex
	lines []string
	open  int // connections that the client has not closed
	hooks int // of contexts
}

func (w *wire) add(n *int, by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*n += by
}

// hookContext is a context with hooks of its own, as httpserver's. They are counted.
type hookContext struct {
	context.Context
	w *wire
}

func (c hookContext) AfterFunc(f func()) func() bool {
	c.w.add(&c.w.hooks, 1)
	ends := sync.OnceFunc(func() { c.w.add(&c.w.hooks, -1) })
	stop := context.AfterFunc(c.Context, func() { defer ends(); f() })
	return func() bool { defer ends(); return stop() }
}

// ends is a part of an answer that closes its connection; reads reads the rest of a request.
type (
	ends  struct{}
	reads struct{}
)

func (w *wire) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprint(w.since(time.Now()), " ", fmt.Sprintf(format, args...)))
}

func (w *wire) since(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return at.Sub(w.began).Round(time.Millisecond).String()
}

// wireConn is the client's end of a connection.
type wireConn struct {
	net.Conn
	w    *wire
	n    int
	once sync.Once
}

func (c *wireConn) Close() error {
	c.once.Do(func() {
		c.w.note("connection %d is closed", c.n)
		c.w.add(&c.w.open, -1)
	})
	return c.Conn.Close()
}

func (c *wireConn) SetReadDeadline(at time.Time) error {
	c.w.note("connection %d is read until %s", c.n, c.w.since(at))
	return c.Conn.SetReadDeadline(at)
}

func (c *wireConn) SetWriteDeadline(at time.Time) error {
	c.w.note("connection %d is written until %s", c.n, c.w.since(at))
	return c.Conn.SetWriteDeadline(at)
}

func (w *wire) dial(ctx context.Context, addr string) (net.Conn, error) {
	w.dialled++
	n := w.dialled
	w.note("dial %s", addr)
	select {
	case <-time.After(w.slow):
	case <-ctx.Done():
		w.note("dial ends: %v", context.Cause(ctx))
		return nil, ctx.Err()
	}
	if w.refuses != nil {
		return nil, w.refuses
	}
	w.add(&w.open, 1)
	local, remote := net.Pipe()
	go w.serve(remote, n)
	return &wireConn{Conn: local, w: w, n: n}, nil
}

// serve is the engine's end of connection n.
func (w *wire) serve(c net.Conn, n int) {
	defer c.Close()
	if w.secure != nil {
		c = tls.Server(c, w.secure)
	}
	for br := bufio.NewReader(c); ; {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		parts, ok := w.answers[fmt.Sprint(r.URL.Path, "#", n)]
		if !ok {
			parts = w.answers[r.URL.Path]
		}
		if len(parts) > 0 && parts[0] == "unread" {
			parts = parts[1:]
		} else {
			b, _ := io.ReadAll(r.Body)
			w.note("connection %d: %s %s, %d bytes", n, r.Method, r.URL.Path, len(b))
		}
		for _, part := range parts {
			switch part := part.(type) {
			case time.Duration:
				select {
				case <-time.After(part):
				case <-w.over:
					return
				}
			case string:
				if _, err := io.WriteString(c, part); err != nil {
					return
				}
			case reads:
				b, _ := io.ReadAll(r.Body)
				w.note("connection %d: %s %s, %d bytes in the end", n, r.Method, r.URL.Path, len(b))
			case ends:
				return
			}
		}
	}
}

// do sends a request; "" is an answer that is to be read.
func (w *wire) do(ctx context.Context, r Request) *Response {
	r.Addr, r.Method, r.Secure = "e:1", http.MethodGet, w.secure != nil
	if len(r.Body) > 0 {
		r.Method = http.MethodPost
	}
	if !w.plain {
		ctx = hookContext{ctx, w}
	}
	res, err := w.client.Do(ctx, &r)
	if err != nil {
		w.failed(r.Path, err)
		return nil
	}
	w.note("%s: status %d, length %d, fields %v, unsolicited %q", r.Path, res.Status, res.Length, res.Fields, res.UnsolicitedValue())
	return res
}

func (w *wire) failed(what string, err error) {
	var e *Error
	if !errors.As(err, &e) {
		w.t.Errorf("%s: %v is no *Error", what, err)
		return
	}
	w.note("%s: %v; resent %v, cut %v", what, err, e.Resent, errors.Is(err, ErrCut))
}

// read reads an answer to its end, and closes it.
func (w *wire) read(r *Response) {
	if r == nil {
		return
	}
	for p := make([]byte, 100); ; {
		n, err := r.Read(p)
		if n > 0 {
			w.note("got %q", p[:n])
		}
		if err == io.EOF {
			w.note("its end")
			break
		}
		if err != nil {
			w.failed("body", err)
			break
		}
	}
	r.Close()
}

// get is do and read of a path.
func (w *wire) get(path string, bound time.Duration) {
	w.read(w.do(context.Background(), Request{Path: path, Bound: bound}))
}

func (w *wire) traffic() {
	t := w.client.Traffic("e:1")
	w.note("traffic: %d in flight, waiting since %s, last byte %s", t.InFlight, w.since(t.Waiting), w.since(t.LastByte))
}

// peer notes what the client knows of the engine.
func (w *wire) peer() {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	p := w.client.peers["e:1"]
	what := "nothing is known of it; "
	if p != nil {
		what = fmt.Sprintf("%d connections, %d answers, rest %v, starved %d, full for %v; %d of ", len(p.conns), p.answers,
			p.rest.Round(time.Microsecond), p.starved, p.fullFor, len(p.idle))
		if p.single || p.found > 0 {
			what = fmt.Sprintf("marked %v, %d found, the first %v; ", p.single, p.found, p.first) + what
		}
	}
	w.mu.Lock()
	open, hooks := w.open, w.hooks
	w.mu.Unlock()
	w.note("%s%d idle, %d open, %d hooks, %d marked, %d unreported", what, w.client.count, open, hooks, w.client.marked,
		w.client.unreported.Load())
}

// TestJournals: what a Client does to its connections and what its caller gets, and when, in each
// of journals. testdata/journals.txt has all of it.
func TestJournals(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	certified.Close()
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(journals)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wire{t: t, began: time.Now(), answers: journalAnswers, over: make(chan struct{})}
				w.client = New(Options{Dial: w.dial, MaxIdle: 3, TLS: func(string) *tls.Config {
					return &tls.Config{RootCAs: certified.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, ServerName: "example.com"}
				}})
				if strings.HasSuffix(name, ", over TLS") {
					w.secure = certified.TLS.Clone()
				}
				journals[name](w)
				w.peer()
				w.client.Close()
				close(w.over)
				synctest.Wait()
				w.peer()
				fmt.Fprintf(&all, "=== %s\n%s\n", name, strings.Join(w.lines, "\n"))
			})
		})
	}
	file := filepath.Join("testdata", "journals.txt")
	if *updateJournals {
		if err := errors.Join(os.MkdirAll("testdata", 0o777), os.WriteFile(file, []byte(all.String()), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, want := strings.Split(all.String(), "\n"), strings.Split(string(b), "\n")
	for i := range max(len(got), len(want)) {
		g, w := strings.Join(got[min(i, len(got)):min(i+1, len(got))], ""), strings.Join(want[min(i, len(want)):min(i+1, len(want))], "")
		if g != w {
			t.Fatalf("line %d:\n%s\nwant\n%s", i+1, g, w)
		}
	}
}
