package socket

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/browser"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = 60 * time.Second

// rig is a front, a data path and engines on TCP, and a platform that does what the test
// says.
type rig struct {
	pings   atomic.Int32 // that clients got
	t       testing.TB
	addr    string
	keys    *auth.KeyStore
	act     *activator.Activator
	server  *Server
	front   httpserver.Server
	limits  ratelimit.Limits
	stop    func(time.Duration) error
	engine  string           // address
	left    chan string      // prompts whose client left the engine
	counted chan string      // counters
	loads   chan string      // adapters
	starts  chan string      // prewarms, and their ends
	bodies  chan string      // what engines were sent
	heads   chan http.Header // and with which head
	wakes   chan functions.Name
	logs    logBuffer
}

// logBuffer is what the server and the data path log.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type waker struct{ r *rig }

func (w waker) Wake(n functions.Name) string {
	select {
	case w.r.wakes <- n:
	default:
	}
	return "cs-1"
}
func (waker) Demand(...activator.Demand)                   {}
func (waker) Nudge(functions.Name)                         {}
func (waker) ReportFailure(functions.Name, string, string) {}

func newRig(t testing.TB, change func(*Options)) *rig {
	return newRigWithin(t, 30*time.Second, change)
}

// newRigWithin bounds the writes to clients.
func newRigWithin(t testing.TB, writes time.Duration, change func(*Options)) *rig {
	r := &rig{t: t, left: make(chan string, 100), counted: make(chan string, 100), loads: make(chan string, 100),
		starts: make(chan string, 100),
		bodies: make(chan string, 100), heads: make(chan http.Header, 100), wakes: make(chan functions.Name, 100)}
	var err error
	if r.keys, err = auth.Open(filepath.Join(t.TempDir(), "keys.json")); err != nil {
		t.Fatal(err)
	}
	engine := httptest.NewServer(http.HandlerFunc(r.answer))
	r.engine = engine.Listener.Addr().String()
	engines := upstream.New(upstream.Options{})
	log := slog.New(slog.NewTextHandler(&r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r.act = activator.New(activator.Options{Waker: waker{r}, Keys: r.keys, Engines: engines, Open: true, Limits: &r.limits, Log: log})
	o := Options{Log: log, Generate: r.act.Serve, Caller: r.act.Caller, Decide: r.act.DryRouteTyped, Ahead: &Ahead{
		Find: func(id auth.Identity, rec *functions.RouteRecord) (o Outlook) {
			x := r.act.Foresee(id, rec)
			if x.Snapshot == nil {
				return o
			}
			o = Outlook{Sure: x.Conditional, Function: x.Function, Cold: len(x.Snapshot.Replicas) == 0}
			if x.Function.Adapter != "" && !o.Cold && len(x.Snapshot.Replicas[0].Adapters) == 0 {
				o.Replica = x.Snapshot.Replicas[0].ID
			}
			return o
		},
		LoadAdapter: func(_ context.Context, name functions.Name, replica string) error {
			r.loads <- name.String() + " at " + replica
			return nil
		},
		Prewarm: func(name functions.Name, _ time.Time, by string) error {
			r.starts <- "start " + name.String() + " by " + by
			return nil
		},
		EndPrewarm: func(name functions.Name, by string) { r.starts <- "end " + name.String() + " by " + by },
		Count: func(metric string, value float64, labels ...string) {
			if metric == "thaw_speculation_total" {
				r.counted <- strings.Join(labels, " ")
			}
		},
		Now: time.Now,
	}}
	if change != nil {
		change(&o)
	}
	r.server = New(o)
	guard := browser.New(true, nil, []string{"http://localhost:3000", "app://*"})
	data, sockets := guard.Wrap(r.act.Serve), guard.Wrap(r.server.Serve)
	r.front = httpserver.NewFiberServer(httpserver.Options{Upgrades: Upgrades, WriteTimeout: writes, Logger: log,
		Handler: func(req *httpserver.Request, res *httpserver.Response) {
			if ServesPath(req.Path) {
				sockets(req, res)
				return
			}
			data(req, res)
		}})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- r.front.Serve(ln) }()
	var once sync.Once
	r.stop = func(d time.Duration) (err error) {
		once.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), d)
			defer cancel()
			err = r.front.Shutdown(ctx)
			<-served
		})
		return err
	}
	t.Cleanup(func() {
		r.stop(testTimeout)
		engines.Close()
		engine.CloseClientConnections()
		engine.Close()
		http.DefaultClient.CloseIdleConnections()
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		if n := r.server.all; n != 0 {
			t.Errorf("%d sockets are still counted", n)
		}
	})
	r.route(functions.Rule{Name: "general", To: []string{"tiny"}})
	r.publish("tiny", true)
	return r
}

// answer is the engine: it says the last word of the prompt twice, or never ends.
func (r *rig) answer(w http.ResponseWriter, req *http.Request) {
	b, _ := io.ReadAll(req.Body)
	r.bodies <- string(b)
	r.heads <- req.Header
	if strings.Contains(string(b), "refuse") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(400)
		fmt.Fprint(w, `{"error":{"message":"no such thing","type":"invalid_request_error","param":null,"code":"invalid_value"}}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(text string) {
		fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\","+
			"\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", text)
		w.(http.Flusher).Flush()
	}
	event("one ")
	switch {
	case strings.Contains(string(b), "endless"):
		<-req.Context().Done()
		r.left <- "endless"
		return
	case strings.Contains(string(b), "flood"):
		for req.Context().Err() == nil {
			event(strings.Repeat("x", 32<<10))
		}
		r.left <- "flood"
		return
	case strings.Contains(string(b), "break"):
		panic(http.ErrAbortHandler)
	}
	event("two")
	fmt.Fprint(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\","+
		"\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n")
	fmt.Fprint(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\","+
		"\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n")
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// route makes these the rules of the Router auto.
func (r *rig) route(rules ...functions.Rule) {
	r.act.SetRouters([]*functions.Router{{Kind: functions.KindRouter,
		Metadata: functions.Metadata{Name: "auto", Namespace: functions.DefaultTeam},
		Spec:     functions.RouterSpec{Rules: rules, Data: functions.DataPublic, Intents: functions.Intents{}}}}, nil)
}

func (r *rig) publish(name string, ready bool, adapters ...string) {
	var replicas []snapshot.Replica
	if ready {
		replicas = []snapshot.Replica{{ID: "r1", Endpoint: "http://" + r.engine, Slots: 4}}
	}
	r.publishAt(name, replicas, adapters...)
}

func (r *rig) publishAt(name string, replicas []snapshot.Replica, adapters ...string) {
	m := &functions.Model{Metadata: functions.Metadata{Name: name, Namespace: functions.DefaultTeam}}
	m.Spec.Scale = functions.Scale{Max: 1, Target: 8, Idle: functions.Duration(5 * time.Minute)}
	m.Spec.Queue = functions.Queue{Requests: 1000, Bytes: 64 << 20, Wait: functions.Duration(5 * time.Minute)}
	m.Spec.Deadlines.FirstToken = functions.Duration(2 * time.Minute)
	for _, a := range adapters {
		m.Spec.Adapters = append(m.Spec.Adapters, functions.Adapter{Name: a})
	}
	f := snapshot.Snapshot{Name: functions.Name{Team: functions.DefaultTeam, Name: name}, Model: m, State: functions.Unloaded,
		Progress: functions.NoProgress, Forecast: functions.NoForecast}
	if len(replicas) > 0 {
		f.State, f.Replicas = functions.Ready, replicas
	}
	r.act.Publish(f)
}

// client is one socket.
type client struct {
	*websocket.Conn
	t testing.TB
	r *rig
}

func (r *rig) dial(path string, head http.Header, protocols ...string) (*client, *http.Response, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), testTimeout)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	c, res, err := websocket.Dial(ctx, "ws://"+r.addr+path, &websocket.DialOptions{HTTPClient: &http.Client{Transport: transport}, HTTPHeader: head, Subprotocols: protocols,
		OnPingReceived: func(context.Context, []byte) bool { r.pings.Add(1); return true }})
	if err != nil {
		return nil, res, err
	}
	c.SetReadLimit(1 << 20)
	r.t.Cleanup(func() { c.CloseNow() })
	return &client{c, r.t, r}, res, nil
}

func (r *rig) connect(path string) *client {
	r.t.Helper()
	c, _, err := r.dial(path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (c *client) say(texts ...string) {
	c.t.Helper()
	for _, text := range texts {
		if err := c.Write(c.t.Context(), websocket.MessageText, []byte(text)); err != nil {
			c.t.Fatalf("%q: %v", text, err)
		}
	}
}

type frame struct {
	Type, Old, New, Rule, Target, Prepares string
	Adapter, Model, State, Content         string
	Code, Message                          string
	Cold                                   bool
	Moved                                  string
	Confidence                             float64
	Percent, Position                      *int
	FinishReason                           string         `json:"finish_reason"`
	ETA                                    *int           `json:"eta_s"`
	Usage                                  map[string]any `json:"usage"`
	Timing                                 map[string]any `json:"timing"`
}

// next is the next frame, or why there is none.
func (c *client) next() (f frame, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	_, b, err := c.Read(ctx)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(b, &f, json.MatchCaseInsensitiveNames(true)); err != nil {
		c.t.Fatalf("%s: %v", b, err)
	}
	return f, nil
}

// until returns the frame of this type, and the contents of tokens before it.
func (c *client) until(kind string) (f frame, text string) {
	c.t.Helper()
	for {
		f, err := c.next()
		if err != nil {
			c.t.Fatalf("waiting for %s: %v", kind, err)
		}
		if f.Type == kind {
			return f, text
		}
		if f.Type == "error" {
			c.t.Fatalf("waiting for %s: %+v", kind, f)
		}
		text += f.Content
	}
}

func (c *client) wantClose(code websocket.StatusCode) {
	c.t.Helper()
	for {
		if _, err := c.next(); err != nil {
			if got := websocket.CloseStatus(err); got != code {
				c.t.Fatalf("closed by %v (%v), want %d", got, err, code)
			}
			return
		}
	}
}

func expect(t *testing.T, c chan string, want string) {
	t.Helper()
	select {
	case got := <-c:
		if got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	case <-time.After(testTimeout):
		t.Fatalf("no %q", want)
	}
}
