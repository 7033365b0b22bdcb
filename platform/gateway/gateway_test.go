package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a gateway on loopback, with a platform that the test controls.
type world struct {
	t       testing.TB
	g       *Gateway
	act     *activator.Activator
	book    *auth.KeyStore
	limits  ratelimit.Limits
	public  string
	private string
	client  *http.Client // HTTP/1.1
	stop    func()
	moved   chan struct{} // signals an event

	mu       sync.Mutex
	demanded map[functions.Name]bool // its demand was reported
	wakes    []functions.Name
	asks     []string
	onWake   func(functions.Name)
}

func (w *world) move() {
	select {
	case w.moved <- struct{}{}:
	default:
	}
}

func (w *world) Wake(name functions.Name) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wakes = append(w.wakes, name)
	w.move()
	if w.onWake != nil {
		go w.onWake(name)
	}
	return ""
}

func (w *world) Demand(ds ...activator.Demand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range ds {
		w.demanded[d.Name] = true
	}
	w.move()
}

func (w *world) Nudge(functions.Name) {}
func (w *world) ReportFailure(_ functions.Name, replica, problem string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asks = append(w.asks, replica+": "+problem)
	w.move()
}

func (w *world) woken() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.wakes)
}

func newWorld(t testing.TB, change func(*Options, *activator.Options)) *world {
	w := &world{t: t, moved: make(chan struct{}, 1), demanded: map[functions.Name]bool{}}
	book, err := auth.Open(t.TempDir() + "/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	w.book = book
	engines := upstream.New(upstream.Options{})
	level := slog.Level(100)
	if testing.Verbose() && os.Getenv("GATEWAY_LOG") != "" {
		level = slog.LevelDebug
	}
	logs := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ao := activator.Options{Waker: w, Keys: book, Limits: &w.limits, Engines: engines, Open: true, Log: logs}
	o := Options{Log: logs}
	if change != nil {
		change(&o, &ao)
	}
	w.act = activator.New(ao)
	o.Activator = w.act
	w.g = New(o)
	listen := func() (net.Listener, string) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return ln, ln.Addr().String()
	}
	public, at := listen()
	private, inside := listen()
	w.public, w.private = at, inside
	done := make(chan error, 1)
	go func() { done <- w.g.Serve(public, private) }()
	w.client = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		w.client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.g.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		engines.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		for name := range w.demanded {
			if d, _ := w.act.DemandOf(name); d.Active != 0 || d.Queued != 0 {
				t.Errorf("still held: %+v", d)
			}
		}
	}
	t.Cleanup(w.stop)
	return w
}

// backend starts a server behind the gateway.
func backend(t testing.TB, h http.HandlerFunc) string {
	return testkit.Serve(t, h).Listener.Addr().String()
}

func functionName(s string) functions.Name {
	n, err := functions.ParseName(s, functions.DefaultTeam)
	if err != nil {
		panic(err)
	}
	return n
}

// newModel returns a function with READY replicas at these addresses.
func newModel(n string, serves string, plain bool, addrs ...string) snapshot.Snapshot {
	f := snapshot.Snapshot{Name: functionName(n), ServedModelName: serves, Hidden: serves != "", External: plain, Model: &functions.Model{},
		Forecast: functions.Forecast{P50: -1, P90: -1}}
	f.Model.Spec.Queue = functions.Queue{Wait: functions.Duration(time.Minute), Requests: 1000, Bytes: 64 << 20}
	for i, a := range addrs {
		f.State = functions.Ready
		f.Replicas = append(f.Replicas, snapshot.Replica{ID: fmt.Sprintf("%s-%d", f.Name.Name, i), Endpoint: "http://" + a, Slots: 100})
	}
	return f
}

func hostTable(name string, splits ...controlstream.Split) controlstream.Host {
	return controlstream.Host{Name: name, Paths: []controlstream.Path{{Splits: splits}}}
}

// get requests a path of a host from the public listener.
func (w *world) get(host, path string, change ...func(*http.Request)) (*http.Response, string) {
	return w.do(w.public, host, path, change...)
}

func (w *world) do(at, host, path string, change ...func(*http.Request)) (*http.Response, string) {
	w.t.Helper()
	r, _ := http.NewRequest("GET", "http://"+at+path, nil)
	r.Host = host
	for _, c := range change {
		c(r)
	}
	res, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return res, string(b)
}

func withHeader(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func postRequest(body string) func(*http.Request) {
	return func(r *http.Request) {
		r.Method, r.Body, r.ContentLength = "POST", io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
}

// sayEcho answers with a word and the request that it got.
func sayEcho(word string) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s %s %s %s", word, r.Method, r.Host, r.RequestURI, b)
	}
}

func TestByHost(t *testing.T) {
	w := newWorld(t, nil)
	addr := backend(t, sayEcho("svc"))
	w.act.Publish(newModel("rev-1", "mine", true, backend(t, sayEcho("rev"))))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{
		hostTable("svc.example.com", controlstream.Split{Percent: 100, Address: addr}),
		hostTable("mine.example.com", controlstream.Split{Percent: 100, Function: functionName("rev-1")}),
		{Name: "inside.ns.svc", Internal: true, Paths: []controlstream.Path{{Splits: []controlstream.Split{{Address: addr}}}}},
		{Name: "safe.example.com", Secure: true, Paths: []controlstream.Path{{Splits: []controlstream.Split{{Address: addr}}}}},
	}})
	for _, c := range []struct {
		at, host, path string
		status         int
		want           string
	}{
		{w.public, "svc.example.com", "/a%2Fb?x=1;y", 200, "svc GET svc.example.com /a%2Fb?x=1;y "},
		{w.public, "SVC.example.com.:8080", "/", 200, "svc GET SVC.example.com.:8080 / "},
		{w.public, "mine.example.com", "/any", 200, "rev GET mine.example.com /any "},
		{w.private, "mine.example.com", "/v1/chat/completions", 200, "rev GET mine.example.com /v1/chat/completions "},
		{w.public, "inside.ns.svc", "/", 404, "not_found"},
		{w.private, "inside.ns.svc", "/", 200, "svc GET"},
		{w.public, "unknown.example.com", "/", 404, "No service answers for the host unknown.example.com"},
		{w.public, "unknown.example.com", "/v1/models", 200, `"object":"list"`},
		{w.public, "safe.example.com", "/x?y", 301, ""},
		{w.private, "safe.example.com", "/x?y", 200, "svc GET"},
	} {
		res, body := w.do(c.at, c.host, c.path)
		if res.StatusCode != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s%s: %d %s", c.host, c.path, res.StatusCode, body)
		}
		if c.status == 301 && res.Header.Get("Location") != "https://safe.example.com/x?y" {
			t.Error(res.Header)
		}
	}
}

// TestHeld: a cold function is woken once, by any method and path, and the bodies arrive.
func TestHeld(t *testing.T) {
	w := newWorld(t, nil)
	addr := backend(t, sayEcho("rev"))
	w.act.Publish(newModel("rev-1", "mine", true))
	w.g.SetTable(&controlstream.Table{Hosts: []controlstream.Host{hostTable("mine.example.com", controlstream.Split{Percent: 100, Function: functionName("rev-1")})}})
	var over sync.WaitGroup
	for i := range 20 {
		over.Go(func() {
			body := strings.Repeat("x", i*10_000)
			res, got := w.get("mine.example.com", "/p", postRequest(body))
			if res.StatusCode != 200 || !strings.HasSuffix(got, " "+body) {
				t.Errorf("%d: %d bytes", res.StatusCode, len(got))
			}
		})
	}
	w.await(func() bool { d, _ := w.act.DemandOf(functionName("rev-1")); return d.Queued == 20 })
	w.act.Publish(newModel("rev-1", "mine", true, addr))
	over.Wait()
	if w.woken() < 1 {
		t.Error("no replica was requested")
	}
}

// await waits for a condition that other goroutines make true.
func (w *world) await(f func() bool) {
	w.t.Helper()
	late := time.After(time.Minute)
	for {
		if f() {
			return
		}
		select {
		case <-w.moved:
		case <-late:
			w.t.Fatal("it did not come to that")
		}
	}
}

// rawRequest sends bytes and returns the response's bytes.
func rawRequest(t *testing.T, addr, send string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(c, send)
	b, _ := io.ReadAll(bufio.NewReader(c))
	return string(b)
}

// TestSettling: a request is retried while a service refuses connections for a moment, as
// it does when its pods have just started; if it keeps refusing it is unavailable. A request
// that was sent in part is never sent again.
func TestSettling(t *testing.T) {
	for name, c := range map[string]struct {
		refusals int
		with     error
		dials    int
		status   int
	}{
		"for a moment":     {3, syscall.ECONNREFUSED, 4, 200},
		"for over 2 s":     {7, syscall.ECONNREFUSED, 8, 200},
		"for good":         {100, syscall.ECONNREFUSED, 9, 503},
		"not to be routed": {100, syscall.EHOSTUNREACH, 1, 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var dials atomic.Int64
			w := newWorld(t, func(o *Options, _ *activator.Options) {
				o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
					if dials.Add(1) <= int64(c.refusals) {
						return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", c.with)}
					}
					return new(net.Dialer).DialContext(ctx, "tcp", addr)
				}
			})
			addr := backend(t, sayEcho("svc"))
			w.g.SetTable(&controlstream.Table{Version: 1, Hosts: []controlstream.Host{hostTable("svc.example.com", controlstream.Split{Percent: 100, Address: addr})}})
			res, body := w.do(w.public, "svc.example.com", "/x", postRequest("hello"))
			if res.StatusCode != c.status || c.status == 200 && body != "svc POST svc.example.com /x hello" {
				t.Errorf("%d %s", res.StatusCode, body)
			}
			if n := dials.Load(); n != int64(c.dials) {
				t.Errorf("%d dials, want %d", n, c.dials)
			}
		})
	}
}
