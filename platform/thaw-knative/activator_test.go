package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/orchestrator"
	"github.com/thaw-dev/thaw/platform/telemetry"
	"github.com/thaw-dev/thaw/testkit"
)

// TestMain lets the test be the program it tests, in a process of its own that can
// be killed.
func TestMain(m *testing.M) {
	if os.Getenv("THAW_KNATIVE_TEST_PROGRAM") != "" {
		main()
	}
	os.Exit(m.Run())
}

const linkToken = "a-token-of-the-cluster-0123456789"

// testController is a controller without a Kubernetes: the true hub and the true loop, and a
// node whose replicas are READY when the test says so.
type testController struct {
	bank    *ratelimit.Coordinator
	t       *testing.T
	addr    string
	key     string
	token   string // file
	stop    func()
	steer   *orchestrator.Orchestrator
	reports *reports
	hub     *controlstream.Hub
	node    *node
}

// node is a small true agent.
type node struct {
	engine string // URL of the engine that all replicas are

	mu    sync.Mutex
	steer *orchestrator.Orchestrator
	reps  map[string]*functions.ReplicaStatus
	loads []string
	ended []string
	auto  bool // a replica is READY as soon as it was asked for
	paths bool // each replica has a path of its own
	end   func(id string)
}

// endpoint of a replica.
func (n *node) endpoint(id string) string {
	if n.paths {
		return n.engine + "/replicas/" + id
	}
	return n.engine
}

func (n *node) Load(_ context.Context, req functions.LoadRequest) (functions.LoadReply, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reps[req.ID] == nil {
		n.loads = append(n.loads, req.Model)
		st := &functions.ReplicaStatus{ID: req.ID, Team: req.Team, Model: req.Model, State: functions.Loading, Spec: &req.Spec, GPUs: req.GPUs,
			Percent: -1}
		n.reps[req.ID] = st
		if n.auto {
			st.State, st.Endpoint = functions.Ready, n.endpoint(st.ID)
		}
		n.push()
	}
	return functions.LoadReply{ID: req.ID, State: n.reps[req.ID].State}, nil
}

func (n *node) Unload(_ context.Context, req functions.UnloadRequest) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reps[req.ID] != nil {
		if n.end != nil {
			n.end(req.ID)
		}
		n.ended = append(n.ended, req.ID)
		delete(n.reps, req.ID)
		n.push()
	}
	return nil
}

// push sends a heartbeat; the lock is held.
func (n *node) push() {
	hb := functions.Heartbeat{AgentID: "node", State: functions.NodeIdle, GPUs: []functions.GPU{{MemoryTotal: 80 << 30, Health: "ok"}}}
	hb.Memory.Total = 64 << 30
	for _, r := range n.reps {
		hb.Models = append(hb.Models, *r)
	}
	n.steer.Heartbeat(hb, n)
}

// ready makes all replicas READY.
func (n *node) ready() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.reps {
		r.State, r.Endpoint = functions.Ready, n.endpoint(r.ID)
	}
	n.push()
}

func (n *node) counts() (loads, ended int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.loads), len(n.ended)
}

func (n *node) replica() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.reps {
		return id
	}
	return ""
}

func (n *node) heartbeat(ctx context.Context) {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		n.mu.Lock()
		n.push()
		n.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

type fixedCatalog struct{ models []*functions.Model }

func (c fixedCatalog) Models() []*functions.Model { return c.models }
func (c fixedCatalog) Teams() []*functions.Team   { return nil }

var revision = functions.Name{Team: "ml", Name: "qwen-00001"}

// newTestController starts a controller, and an engine behind its node.
func newTestController(t *testing.T, engine http.Handler) *testController {
	t.Helper()
	secret := "sk-thaw-" + strings.Repeat("x", 43)
	sum := sha256.Sum256([]byte(secret))
	r := &testController{t: t, key: secret, token: write(t, "token", linkToken+"\n")}
	e := httptest.NewServer(engine)
	t.Cleanup(e.Close)
	r.node = &node{engine: e.URL, reps: map[string]*functions.ReplicaStatus{}}
	r.startController(1, "127.0.0.1:0", hex.EncodeToString(sum[:]))
	t.Cleanup(func() { r.stop() })
	return r
}

// reports is a loop that keeps the last demand for the revision that the hub reported.
type reports struct {
	*orchestrator.Orchestrator
	mu   sync.Mutex
	last orchestrator.Demand
}

func (r *reports) Demand(ds ...orchestrator.Demand) {
	r.mu.Lock()
	for _, d := range ds {
		if d.Name == revision {
			r.last = d
		}
	}
	r.mu.Unlock()
	r.Orchestrator.Demand(ds...)
}

func (r *reports) demand() orchestrator.Demand {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// startController is one life of the controller.
func (c *testController) startController(epoch int64, addr, hash string) {
	c.t.Helper()
	m := functions.NewModel()
	m.Metadata.Namespace, m.Metadata.Name = revision.Team, revision.Name
	m.Spec.Engine, m.Spec.Source = functions.EngineVLLM, "hf://a/b"
	m.Spec.Resources.GPUs = 1
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	c.steer = orchestrator.New(orchestrator.Options{Epoch: epoch, Catalog: fixedCatalog{[]*functions.Model{m}}, Log: log})
	c.reports = &reports{Orchestrator: c.steer}
	bank := ratelimit.NewCoordinator(ratelimit.CoordinatorOptions{Send: func(id string, g ratelimit.Allotments) { c.hub.Grant(id, g) }})
	c.bank = bank
	c.hub = controlstream.NewHub(controlstream.HubOptions{Tokens: func() []string { return []string{linkToken} }, Waker: c.reports, Coordinator: bank, Log: log, Quiet: true})
	c.steer.Attach(c.hub)
	c.hub.SetKeys(controlstream.Keys{Keys: []auth.StoredKey{{Key: auth.Key{ID: "k", Team: "ml"}, Hash: hash}}})
	splits := []controlstream.Split{{Percent: 100, Function: revision}}
	c.hub.SetTable(&controlstream.Table{
		Version: uint64(epoch),
		Hosts:   []controlstream.Host{{Name: "qwen.ml.example", Paths: []controlstream.Path{{Splits: splits}}}},
		Models:  []controlstream.Model{{Name: functions.Name{Team: "ml", Name: "qwen"}, Splits: splits}},
	})
	c.node.mu.Lock()
	c.node.steer = c.steer
	c.node.mu.Unlock()
	mux := http.NewServeMux()
	mux.Handle(controlstream.Endpoint, c.hub)
	mux.HandleFunc("/api/v1/", func(w http.ResponseWriter, q *http.Request) {
		fmt.Fprint(w, q.URL.Path, " ", q.Header.Get("Authorization"))
	})
	var l net.Listener
	var err error
	testkit.Eventually(c.t, "the controller's address is free", func() bool { // another connection may have used it
		l, err = net.Listen("tcp", addr)
		return !errors.Is(err, syscall.EADDRINUSE)
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.addr = l.Addr().String()
	server := &http.Server{Handler: mux}
	controlstream.Configure(server)
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { server.Serve(l) })
	parts.Go(func() { c.steer.Run(ctx) })
	parts.Go(func() { c.node.heartbeat(ctx) })
	c.stop = sync.OnceFunc(func() {
		cancel()
		server.Close()
		c.hub.Close()
		parts.Wait()
	})
	c.hub.StartSending()
}

// again ends the controller and begins another life of it at the same address.
func (c *testController) again(epoch int64) {
	c.t.Helper()
	sum := sha256.Sum256([]byte(c.key))
	c.stop()
	c.startController(epoch, c.addr, hex.EncodeToString(sum[:]))
}

// gate is one activator, a process of its own.
type gate struct {
	t                        *testing.T
	cmd                      *exec.Cmd
	public, private, metrics string
	ended                    chan error
	mu                       sync.Mutex
	log                      bytes.Buffer
}

func (c *testController) gate(id string) *gate {
	c.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	g := &gate{t: c.t, ended: make(chan error, 1)}
	g.cmd = exec.Command(exe, "activator", "--addr", "127.0.0.1:0", "--private-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0",
		"--controller", c.addr, "--token-file", c.token, "--id", id, "--shutdown-delay", "100ms")
	g.cmd.Env = append(os.Environ(), "THAW_KNATIVE_TEST_PROGRAM=1")
	out, err := g.cmd.StderrPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := g.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	said := make(chan struct{})
	go func() {
		in := bufio.NewScanner(out)
		for in.Scan() {
			var line struct{ Msg, Addr, Private, Metrics string }
			g.mu.Lock()
			g.log.Write(append(in.Bytes(), '\n'))
			g.mu.Unlock()
			if json.Unmarshal(in.Bytes(), &line) == nil && line.Msg == "serving" {
				g.public, g.private, g.metrics = line.Addr, line.Private, line.Metrics
				close(said)
			}
		}
		g.ended <- g.cmd.Wait()
	}()
	c.t.Cleanup(func() {
		g.cmd.Process.Kill()
		<-g.ended
		if c.t.Failed() {
			g.mu.Lock()
			defer g.mu.Unlock()
			c.t.Logf("the activator %s said:\n%s", id, g.log.String())
		}
	})
	select {
	case <-said:
	case <-time.After(60 * time.Second):
		c.t.Fatal("the activator does not begin")
	}
	testkit.Eventually(c.t, "the activator is ready", func() bool { return g.get("/readyz") == http.StatusOK })
	return g
}

// TestMetricsToken: /metrics of an activator wants the token of its file, as it is now;
// probes want none.
func TestMetricsToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metrics-token")
	registry := telemetry.New()
	o := activatorSettings{MetricsToken: file}
	guarded := sideHandler(o.metrics(registry), func() []string { return nil })
	open := sideHandler(new(activatorSettings).metrics(registry), func() []string { return nil })
	const first, second = "first-token-0123456789", "second-token-0123456789"
	for _, row := range []struct {
		name, inFile, path, header string
		handler                    http.Handler
		want                       int
	}{
		{"no setting", "", "/metrics", "", open, 200},
		{"no file yet", "", "/metrics", "Bearer ", guarded, 401},
		{"an empty token", "\n", "/metrics", "Bearer ", guarded, 401},
		{"none", first, "/metrics", "", guarded, 401},
		{"another", first, "/metrics", "Bearer " + second, guarded, 401},
		{"without Bearer", first, "/metrics", first, guarded, 401},
		{"the token", first, "/metrics", "Bearer " + first, guarded, 200},
		{"a new one", second, "/metrics", "Bearer " + second, guarded, 200},
		{"the former", second, "/metrics", "Bearer " + first, guarded, 401},
		{"a probe", first, "/readyz", "", guarded, 200},
		{"another probe", first, "/healthz", "", guarded, 200},
	} {
		if row.inFile != "" {
			if err := os.WriteFile(file, []byte(row.inFile), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, w := httptest.NewRequest("GET", row.path, nil), httptest.NewRecorder()
		if row.header != "" {
			r.Header.Set("Authorization", row.header)
		}
		row.handler.ServeHTTP(w, r)
		if w.Code != row.want || w.Code == 401 && w.Header().Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: %d %s, want %d", row.name, w.Code, w.Body, row.want)
		}
	}
}

func (g *gate) get(path string) int {
	res, err := http.Get("http://" + g.metrics + path)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

// answer is what a client got.
type answer struct {
	status int
	body   string
	err    error
}

// chat asks for a model at an activator, streaming or not; what comes meanwhile is
// told to lines.
func (c *testController) chat(g *gate, stream bool, lines func(string)) answer {
	body := fmt.Sprintf(`{"model":"qwen","stream":%v,"messages":[{"role":"user","content":"hello"}]}`, stream)
	req, _ := http.NewRequest("POST", "http://"+g.public+"/v1/chat/completions", strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+c.key)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	var all strings.Builder
	in := bufio.NewScanner(res.Body)
	for in.Scan() {
		all.WriteString(in.Text() + "\n")
		if lines != nil {
			lines(in.Text())
		}
	}
	return answer{res.StatusCode, all.String(), in.Err()}
}

// chatAsync is chat in the background.
func (c *testController) chatAsync(g *gate, stream bool, lines func(string)) <-chan answer {
	out := make(chan answer, 1)
	go func() { out <- c.chat(g, stream, lines) }()
	return out
}

func await[T any](t *testing.T, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(60 * time.Second):
		t.Fatal("never: " + what)
	}
	return v
}

// talker is an engine whose streams say a word and wait for the test to let go.
type talker struct{ goOn chan struct{} }

func (t *talker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	if !bytes.Contains(b, []byte(`"stream":true`)) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	io.WriteString(w, `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"first"},"finish_reason":null}]}`+"\n\n")
	w.(http.Flusher).Flush()
	select {
	case <-t.goOn:
	case <-r.Context().Done():
		return
	}
	io.WriteString(w, `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"last"},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
}

// TestTwoActivators: requests for one cold model are held at both, one replica is
// started for all of them, what is in flight at both counts, and the one that is
// killed with requests held affects no other: its clients may retry.
func TestTwoActivators(t *testing.T) {
	t.Parallel()
	e := &talker{make(chan struct{})}
	r := newTestController(t, e)
	one, two := r.gate("one"), r.gate("two")

	first := make(chan struct{}, 2)
	heard := func(line string) {
		if strings.Contains(line, "first") {
			first <- struct{}{}
		}
	}
	a, b := r.chatAsync(one, true, heard), r.chatAsync(two, true, heard)
	doomed := r.chatAsync(one, false, nil)
	testkit.Eventually(t, "three wait", func() bool { return r.reports.demand().Queued == 3 })
	if d := r.reports.demand(); d.Oldest.IsZero() {
		t.Errorf("demand %+v", d)
	}
	testkit.Eventually(t, "a replica is asked for", func() bool { n, _ := r.node.counts(); return n > 0 })

	// kill -9 with requests held: they break off at once, and the other's go on.
	one.cmd.Process.Kill()
	if x := await(t, "the held request of the dead breaks off", doomed); x.err == nil {
		t.Errorf("a plain request of the dead was answered: %+v", x)
	}
	if x := await(t, "the held stream of the dead breaks off", a); x.err == nil && strings.Contains(x.body, "[DONE]") {
		t.Errorf("a stream of the dead ended well: %+v", x)
	}
	testkit.Eventually(t, "its demand is gone", func() bool { return r.reports.demand().Queued == 1 })

	three := r.gate("one") // as a Deployment would: the same work, another process
	c := r.chatAsync(three, true, heard)
	testkit.Eventually(t, "two wait", func() bool { return r.reports.demand().Queued == 2 })
	r.node.ready()
	await(t, "the first word", first)
	await(t, "the first word of the other", first)
	id := r.node.replica()
	testkit.Eventually(t, "both are in flight", func() bool { return r.reports.demand().InFlight[id] == 2 })
	close(e.goOn)
	for _, x := range []answer{await(t, "the end", b), await(t, "the end", c)} {
		if x.status != 200 || x.err != nil || !strings.Contains(x.body, "[DONE]") {
			t.Errorf("%+v", x)
		}
	}
	testkit.Eventually(t, "nothing is in flight", func() bool {
		d := r.reports.demand()
		return r.reports.demand().InFlight[id] == 0 && d.Active == 0 && !d.LastEnd.IsZero()
	})
	if n, _ := r.node.counts(); n != 1 {
		t.Errorf("%d replicas were started for one model", n)
	}
	if x := r.chat(two, false, nil); x.status != 200 {
		t.Errorf("warm: %+v", x)
	}
}

// TestControllerAway: streams go on and warm requests are served without a
// controller; the next one, of a later epoch, adopts what runs and is told at once
// who waits.
func TestControllerAway(t *testing.T) {
	t.Parallel()
	e := &talker{make(chan struct{})}
	r := newTestController(t, e)
	r.node.auto = true
	g := r.gate("one")
	first := make(chan struct{}, 1)
	stream := r.chatAsync(g, true, func(line string) {
		if strings.Contains(line, "first") {
			first <- struct{}{}
		}
	})
	await(t, "the first word", first)
	id := r.node.replica()
	r.stop()
	for range 3 {
		if x := r.chat(g, false, nil); x.status != 200 {
			t.Errorf("warm, with no controller: %+v", x)
		}
	}
	if code := g.get("/readyz"); code != 200 {
		t.Errorf("not ready without a controller: %d", code)
	}
	r.again(2)
	testkit.Eventually(t, "the stream is known to the next controller", func() bool {
		return r.reports.demand().InFlight[id] == 1 && r.reports.demand().Active == 1
	})
	close(e.goOn)
	if x := await(t, "the stream ends", stream); x.err != nil || !strings.Contains(x.body, "[DONE]") {
		t.Errorf("%+v", x)
	}
	if n, ended := r.node.counts(); n != 1 || ended != 0 {
		t.Errorf("%d replicas started, %d ended", n, ended)
	}
	// What is asked while it is away is asked again.
	r.node.mu.Lock()
	r.node.auto = false
	r.node.mu.Unlock()
	r.steer.Stop(revision)
	testkit.Eventually(t, "the replica is gone", func() bool { _, ended := r.node.counts(); return ended == 1 })
	r.stop()
	cold := r.chatAsync(g, false, nil)
	r.again(3)
	testkit.Eventually(t, "it is woken", func() bool { n, _ := r.node.counts(); return n > 1 })
	r.node.ready()
	if x := await(t, "an answer", cold); x.status != 200 {
		t.Errorf("%+v", x)
	}
}

// TestActivatorEnds: told to end, it tells who is held, lets streams end, and says
// meanwhile that no request is routed to it.
func TestActivatorEnds(t *testing.T) {
	t.Parallel()
	e := &talker{make(chan struct{})}
	r := newTestController(t, e)
	r.node.auto = true
	g := r.gate("one")
	first := make(chan struct{}, 1)
	stream := r.chatAsync(g, true, func(line string) {
		if strings.Contains(line, "first") {
			first <- struct{}{}
		}
	})
	await(t, "the first word", first)

	res, err := http.Get("http://" + g.private + "/api/v1/functions")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if string(b) != "/api/v1/functions " {
		t.Errorf("the controller's API answers %q", b)
	}

	g.cmd.Process.Signal(syscall.SIGTERM)
	testkit.Eventually(t, "it is not ready", func() bool { return g.get("/readyz") == http.StatusServiceUnavailable })
	close(e.goOn)
	if x := await(t, "the stream ends", stream); x.err != nil || !strings.Contains(x.body, "[DONE]") {
		t.Errorf("%+v", x)
	}
	err = await(t, "it ends", g.ended)
	g.ended <- err
	if err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// TestActivatorWrong: every way to start it wrong has its exit code and a way out.
func TestActivatorWrong(t *testing.T) {
	token := write(t, "token", linkToken)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, x := range []struct {
		args string
		exit int
		want string
	}{
		{"", 2, "--controller is missing"},
		{"--controller x", 2, "no HOST:PORT"},
		{"--controller x:1", 2, "--token-file is missing"},
		{"--controller x:1 --token-file /nowhere", 1, "no such file"},
		{"--controller x:1 --token-file " + write(t, "short", "abc"), 1, "holds no token: it takes one word of 16 to 512"},
		{"--controller x:1 --hold maybe --token-file " + token, 2, `"maybe" is not one of hold, pad, 503`},
		{"--controller x:1 --max-body -1 --token-file " + token, 2, `invalid argument "-1" for "--max-body"`},
		{"--controller x:1 --drain 0s --token-file " + token, 2, "--drain"},
		{"--controller x:1 --log-format xml --token-file " + token, 2, `"xml" is not one of text, json`},
		{"--controller x:1 --log-level loud --token-file " + token, 2, `"loud" is not one of debug, info, warn, error`},
		{"--controller x:1 --token-file " + token + " x", 2, "more than thaw-knative activator takes"},
		{"--timeout 1m", 2, "unknown flag: --timeout"},
		{"--controller x:1 --addr " + taken.Addr().String() + " --token-file " + token, 1, "cannot listen on"},
	} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("it runs"))
		var out, errs bytes.Buffer
		exit := run(ctx, append([]string{"activator"}, strings.Fields(x.args)...), func(string) string { return "" }, &out, &errs)
		cancel()
		if exit != x.exit || !strings.Contains(errs.String(), x.want) {
			t.Errorf("activator %s: exit %d, %s", x.args, exit, errs.String())
		}
	}
	out, _, exit := thaw(t, nil, "activator", "--help")
	if exit != 0 || !strings.Contains(out, "--token-file") || !strings.Contains(out, "Examples:") || strings.Contains(out, "--timeout") {
		t.Errorf("help: %d\n%s", exit, out)
	}
}
