package activator

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

// testEnv is a whole data path in memory: server, activator, upstream client,
// engines, and a platform that does what the test says.
type testEnv struct {
	t       testing.TB
	act     *Activator
	keys    *auth.KeyStore
	limits  ratelimit.Limits
	reg     *telemetry.Registry
	logs    *bytes.Buffer
	client  *http.Client
	ln      *memoryListener
	engines *upstream.Client

	remotes      map[functions.Name]*functions.Remote
	mu           sync.Mutex
	up           map[string]*engine // by address
	wakes        int
	nudges       int
	engineBodies []string
	onWake       func()
	silentWake   bool              // Wake does not know the id of the cold start
	reported     map[string]Demand // since takeDemand, by name
	atWake       Demand            // reported of the function before the last Wake
	firstTokens  int
	born         time.Time
	calls        []moment // of the platform
	known        map[string]Demand
}

// called notes a call of the platform, with what was reported of the function before. mu is held.
func (e *testEnv) called(what string, name functions.Name) {
	at := time.Since(e.born)
	e.calls = append(e.calls, moment{at, fmt.Sprintf("%s %s", what, e.demandOf(e.known[name.Name]))})
}

func (e *testEnv) demandOf(d Demand) string {
	text := d.Name.String() + ":"
	add := func(what string, n any, is bool) {
		if is {
			text += fmt.Sprintf(" %s %v", what, n)
		}
	}
	since := func(at time.Time) time.Duration { return at.Sub(e.born).Round(time.Millisecond) }
	add("active", d.Active, d.Active != 0)
	add("queued", d.Queued, d.Queued != 0)
	add("oldest", since(d.Oldest), !d.Oldest.IsZero())
	add("ended", since(d.LastEnd), !d.LastEnd.IsZero())
	add("low active", d.Low.Active, d.Low.Active != 0)
	add("low queued", d.Low.Queued, d.Low.Queued != 0)
	add("low ended", since(d.Low.LastUse), !d.Low.LastUse.IsZero())
	add("in flight", d.InFlight, len(d.InFlight) > 0)
	return text
}

func (e *testEnv) Wake(name functions.Name) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wakes++
	e.called("wake", name)
	e.atWake = e.reported[name.Name]
	if e.onWake != nil {
		go e.onWake()
	}
	if e.silentWake {
		return ""
	}
	return fmt.Sprintf("cs-%d", e.wakes)
}

func (e *testEnv) Demand(ds ...Demand) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range ds {
		if e.reported == nil {
			e.reported = map[string]Demand{}
		}
		e.reported[d.Name.Name] = d
		if e.known == nil {
			e.known = map[string]Demand{}
		}
		e.known[d.Name.Name] = d
	}
}

// takeDemand has the demand reported and returns what was reported since the last call, by name.
func (e *testEnv) takeDemand() map[string]Demand {
	e.act.reportDemand()
	e.mu.Lock()
	defer e.mu.Unlock()
	ds := e.reported
	e.reported = nil
	return ds
}

func (e *testEnv) Nudge(name functions.Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.nudges++
	e.called("nudge", name)
}

func (e *testEnv) ReportFailure(_ functions.Name, replica, problem string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.engineBodies = append(e.engineBodies, replica+": "+problem)
}

func (e *testEnv) engineRequests() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.engineBodies...)
}

func (e *testEnv) count(description *int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return *description
}

// newTestEnv must be called in a bubble; it ends with the test.
func newTestEnv(t testing.TB, change func(*Options)) *testEnv {
	w := &testEnv{t: t, born: time.Now(), up: map[string]*engine{}, reg: telemetry.New(), logs: &bytes.Buffer{}, ln: newMemoryListener()}
	keys, err := auth.Open(filepath.Join(t.TempDir(), "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	w.keys = keys
	w.engines = upstream.New(upstream.Options{Dial: w.dialEngine})
	o := Options{
		Waker: w, Keys: keys, Limits: &w.limits, Engines: w.engines, Open: true, Metrics: w.reg,
		Log: slog.New(slog.NewTextHandler(&lockedWriter{w: w.logs}, nil)),
		OnFirstByte: func(name functions.Name, coldStart string, took time.Duration) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.firstTokens++
			// the demand that the platform knows then depends on chance
			w.calls = append(w.calls, moment{time.Since(w.born), fmt.Sprintf("first byte of %s of %s after %v", coldStart, name, took)})
		},
	}
	if change != nil {
		change(&o)
	}
	if o.Remotes == nil {
		o.Remotes = remote.New(remote.Options{Dial: w.dialEngine, Getenv: func(string) string { return "*" }, Metrics: w.reg})
	}
	w.act = New(o)
	o.Remotes.Attach(w.act)
	w.reg.Add(w.act.Samples)
	srv := &http.Server{Handler: httpserver.NewNetHTTPHandler(httpserver.Options{Handler: w.act.Serve})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(w.ln) }()
	w.client = &http.Client{Timeout: 3 * time.Hour, Transport: &http.Transport{ // an answer without end fails its test
		DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.ln.dial(ctx) },
		MaxIdleConns:    -1,
		IdleConnTimeout: time.Second,
	}}
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		srv.Shutdown(ctx)
		<-served
		w.engines.Close()
		o.Remotes.Close()
		w.mu.Lock()
		for _, e := range w.up {
			e.kill()
		}
		w.mu.Unlock()
		synctestWait()
		if l := w.act.buffered.Load(); l != 0 {
			t.Errorf("%d bytes are still counted as buffered", l)
		}
		for _, e := range w.act.names.table.All() {
			if l := e.Data.queue.Load(time.Now()); l.Active != 0 || l.Queued != 0 {
				t.Errorf("%s: the queue still holds %+v", e.Name, l)
			}
		}
	})
	return w
}

func synctestWait() {
	defer func() { recover() }() // outside of a bubble
	synctest.Wait()
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// memoryListener is a listener of net.Pipes.
type memoryListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (m *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}
func (m *memoryListener) Close() error   { m.once.Do(func() { close(m.closed) }); return nil }
func (m *memoryListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080} }
func (m *memoryListener) dial(ctx context.Context) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case m.conns <- b:
		return a, nil
	case <-m.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// engine is a scripted engine in memory. answer writes a raw response; when it
// returns false the connection dies.
type engine struct {
	mu     sync.Mutex
	conns  map[net.Conn]bool
	dead   bool
	seen   []seen
	answer func(c net.Conn, r *http.Request, body string) bool
}

type seen struct {
	path string
	head http.Header
	body string
}

func (e *testEnv) dialEngine(ctx context.Context, addr string) (net.Conn, error) {
	e.mu.Lock()
	eng := e.up[addr]
	e.mu.Unlock()
	if eng == nil {
		return nil, syscall.ECONNREFUSED
	}
	return eng.dial()
}

func (e *engine) dial() (net.Conn, error) {
	a, b := net.Pipe()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return nil, syscall.ECONNREFUSED
	}
	e.conns[b] = true
	go e.serve(b)
	return a, nil
}

func (e *engine) serve(c net.Conn) {
	defer func() {
		c.Close()
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
	}()
	br := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		e.mu.Lock()
		e.seen = append(e.seen, seen{r.URL.Path, r.Header, string(body)})
		e.mu.Unlock()
		if !e.answer(c, r, string(body)) {
			return
		}
	}
}

func (e *engine) kill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dead = true
	for c := range e.conns {
		c.Close()
	}
}

func (e *engine) requests() []seen {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]seen(nil), e.seen...)
}

// engineAt starts an engine at an address.
func (e *testEnv) engineAt(addr string, answer func(c net.Conn, r *http.Request, body string) bool) *engine {
	eng := &engine{conns: map[net.Conn]bool{}, answer: answer}
	e.mu.Lock()
	e.up[addr] = eng
	e.mu.Unlock()
	return eng
}

const chunkHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"

func writeString(c net.Conn, s string) bool {
	_, err := io.WriteString(c, s)
	return err == nil
}

func chunk(c net.Conn, s string) bool { return writeString(c, fmt.Sprintf("%x\r\n%s\r\n", len(s), s)) }

func replyComplete(c net.Conn, body string) bool {
	return writeString(c, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
}

const (
	jsonAnswer = `{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`
	event1     = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"h"},"finish_reason":null}]}` + "\n\n"
	event2     = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"i"},"finish_reason":null}]}` + "\n\n"
	event3     = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	eventUsage = `data: {"id":"c","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}` + "\n\n"
	eventDone  = "data: [DONE]\n\n"
	streamed   = event1 + event2 + event3 + eventDone
)

// goodAnswer answers as a healthy engine does.
func goodAnswer(c net.Conn, r *http.Request, body string) bool {
	if !strings.Contains(body, `"stream":true`) {
		return replyComplete(c, jsonAnswer)
	}
	events := []string{event1, event2, event3}
	if strings.Contains(body, `"include_usage":true`) {
		events = append(events, eventUsage)
	}
	if !writeString(c, chunkHead) {
		return false
	}
	for _, e := range append(events, eventDone) {
		if !chunk(c, e) {
			return false
		}
	}
	return writeString(c, "0\r\n\r\n")
}

func testFunction(name string) snapshot.Snapshot {
	n, err := functions.ParseName(name, functions.DefaultTeam)
	if err != nil {
		panic(err)
	}
	m := &functions.Model{Metadata: functions.Metadata{Name: n.Name, Namespace: n.Team}}
	m.Spec.Scale = functions.Scale{Max: 1, Target: 8, Idle: functions.Duration(5 * time.Minute)}
	m.Spec.Queue = functions.Queue{Requests: 1000, Bytes: 64 << 20, Wait: functions.Duration(5 * time.Minute)}
	m.Spec.Deadlines.FirstToken = functions.Duration(2 * time.Minute)
	return snapshot.Snapshot{Name: n, Model: m, State: functions.Unloaded, Progress: functions.NoProgress, Forecast: functions.NoForecast}
}

// publish publishes functions: Remotes as the platform does.
func (e *testEnv) publish(fs ...snapshot.Snapshot) {
	if e.remotes == nil {
		e.remotes = map[functions.Name]*functions.Remote{}
	}
	for _, f := range fs {
		if f.Remote == nil {
			e.act.Publish(f)
			continue
		}
		f.Remote.Spec.URL, f.Remote.Spec.Limits.Concurrent = f.Replicas[0].Endpoint+"/v1", f.Replicas[0].Slots
		e.remotes[f.Name] = f.Remote
	}
	e.act.o.Remotes.Set(slices.Collect(maps.Values(e.remotes)))
}

// readyAt makes the function READY at an engine's address.
func readyAt(f snapshot.Snapshot, slots int, addrs ...string) snapshot.Snapshot {
	f.State = functions.Ready
	f.Replicas = nil
	for _, a := range addrs {
		f.Replicas = append(f.Replicas, snapshot.Replica{ID: a, Endpoint: "http://" + a, Slots: slots})
	}
	return f
}

func loadingAt(f snapshot.Snapshot, s functions.State, percent int, eta time.Duration) snapshot.Snapshot {
	f.State = s
	f.Progress = functions.Progress{State: s, Percent: percent, ETA: eta}
	return f
}

const (
	plainRequest  = `{"model":"tiny","messages":[{"role":"user","content":"hello"}]}`
	streamRequest = `{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hello"}]}`
)

// result is one answer as a client saw it.
type result struct {
	status int
	head   http.Header
	body   string
	err    error // how the body ended, nil for cleanly
	took   time.Duration
}

func (e *testEnv) post(path, body string, head ...string) result {
	return e.do(context.Background(), "POST", path, body, head...)
}

func (e *testEnv) do(ctx context.Context, method, path, body string, head ...string) result {
	began := time.Now()
	r, err := http.NewRequestWithContext(ctx, method, "http://127.0.0.1:8080"+path, strings.NewReader(body))
	if err != nil {
		e.t.Error(err)
		return result{err: err}
	}
	for i := 0; i+1 < len(head); i += 2 {
		r.Header.Add(head[i], head[i+1])
	}
	if body != "" && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	res, err := e.client.Do(r)
	if err != nil {
		return result{err: err, took: time.Since(began)}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return result{res.StatusCode, res.Header, string(b), err, time.Since(began)}
}

func (r result) code() string {
	_, rest, ok := strings.Cut(r.body, `"code":"`)
	if !ok {
		return ""
	}
	c, _, _ := strings.Cut(rest, `"`)
	return c
}

// plainEvents is a stream's body without what thaw adds to it.
func plainEvents(body string) string {
	var out strings.Builder
	for _, l := range strings.SplitAfter(body, "\n") {
		if !strings.HasPrefix(l, ":") {
			out.WriteString(l)
		}
	}
	return out.String()
}

// metric is the exposition of one metric, a line per series.
func metric(t testing.TB, w *testEnv, name string) string {
	t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			var b strings.Builder
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					fmt.Fprintf(&b, "%s=%q ", l.GetName(), l.GetValue())
				}
				fmt.Fprintln(&b, m.GetCounter().GetValue()+m.GetGauge().GetValue()+float64(m.GetHistogram().GetSampleCount()))
			}
			return b.String()
		}
	}
	return ""
}

// wireRules are what real clients need of a stream: a comment is one line, an
// empty line comes only after a data line, and nothing comes after the end.
func wireRules(t testing.TB, body string) {
	t.Helper()
	data := false
	for i, l := range strings.SplitAfter(body, "\n") {
		switch {
		case strings.HasPrefix(l, "data: ") && len(l) > 8:
			data = true
		case l == "\n" && data, l == "":
			data = false
		case strings.HasPrefix(l, ": thaw ") && !data && strings.HasSuffix(l, "\n"):
		default:
			t.Errorf("line %d of a stream is %q, data before: %v", i, l, data)
		}
	}
	if i := strings.Index(body, "[DONE]"); i >= 0 && body[i:] != "[DONE]\n\n" {
		t.Errorf("something follows the end mark: %q", body[i:])
	}
}

func newKeyStore(t testing.TB) *auth.KeyStore {
	t.Helper()
	keys, err := auth.Open(filepath.Join(t.TempDir(), "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
