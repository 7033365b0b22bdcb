package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// fakePath is a small working activator: it queues requests, sends them to READY replicas
// and requeues them.
type fakePath struct {
	s         *Orchestrator // that demand is reported to; guarded by mu
	mu        sync.Mutex
	snapshots map[functions.Name]snapshot.Snapshot
	queued    map[functions.Name]int
	since     map[functions.Name]time.Time
	active    map[string]int // by replica
	of        map[string]functions.Name
	last      map[functions.Name]time.Time
	slots     int
	readyAt   map[functions.Name]time.Time // a READY replica was published
	failed    map[functions.Name]string    // errors of waiters
	cut       []string                     // URLs of agents
	ready     chan functions.Name
}

func newFakePath() *fakePath {
	return &fakePath{snapshots: map[functions.Name]snapshot.Snapshot{}, queued: map[functions.Name]int{},
		since:  map[functions.Name]time.Time{},
		active: map[string]int{}, of: map[string]functions.Name{}, last: map[functions.Name]time.Time{}, slots: 8,
		readyAt: map[functions.Name]time.Time{}, failed: map[functions.Name]string{}, ready: make(chan functions.Name, 64)}
}

func (p *fakePath) Publish(fs ...snapshot.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range fs {
		if len(f.Replicas) > len(p.snapshots[f.Name].Replicas) {
			p.readyAt[f.Name] = time.Now()
			select {
			case p.ready <- f.Name:
			default:
			}
		}
		p.snapshots[f.Name] = f
		if f.Failure != nil && time.Now().Before(f.Failure.Until) && p.queued[f.Name] > 0 {
			p.failed[f.Name] = f.Failure.Reason
			p.queued[f.Name] = 0
		}
		p.release(f.Name)
		p.report(f.Name)
	}
}

// report reports the demand for a function to the loop; mu must be held.
func (p *fakePath) report(n functions.Name) {
	if p.s == nil {
		return
	}
	x := Demand{Name: n, Queued: p.queued[n], Oldest: p.since[n], LastEnd: p.last[n], InFlight: map[string]int{}}
	for id, a := range p.active {
		if p.of[id] == n && a > 0 {
			x.Active += a
			x.InFlight[id] = a
		}
	}
	p.s.Demand(x)
}

func (p *fakePath) release(name functions.Name) {
	for _, r := range p.snapshots[name].Replicas {
		for p.queued[name] > 0 && p.active[r.ID] < p.slots {
			p.queued[name]--
			p.active[r.ID]++
			p.of[r.ID] = name
		}
	}
}

func (p *fakePath) Remove(names ...functions.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range names {
		delete(p.snapshots, n)
		p.queued[n] = 0
		p.report(n)
	}
}

func (p *fakePath) AbortThrough(agent string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = append(p.cut, agent)
}

func (p *fakePath) inFlightOf(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.active[id]
}

// ask adds n requests and reports them to the loop as the activator does.
func (p *fakePath) ask(s *Orchestrator, name functions.Name, n int) string {
	p.mu.Lock()
	if p.queued[name] == 0 {
		p.since[name] = time.Now()
	}
	p.queued[name] += n
	p.release(name)
	p.report(name)
	left := p.queued[name]
	cold := len(p.snapshots[name].Replicas) == 0
	p.mu.Unlock()
	switch {
	case cold:
		return s.Wake(name)
	case left > 0:
		s.Nudge(name)
	}
	return ""
}

// done ends every request of a function; leave removes its waiters.
func (p *fakePath) done(name functions.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.active {
		if p.of[id] == name && p.active[id] > 0 {
			p.active[id] = 0
			p.last[name] = time.Now()
		}
	}
	p.release(name)
	p.report(name)
}

func (p *fakePath) leave(s *Orchestrator, name functions.Name) {
	p.mu.Lock()
	p.queued[name] = 0
	p.report(name)
	p.mu.Unlock()
	s.Nudge(name)
}

// setLoop sets the loop that demand is reported to.
func (p *fakePath) setLoop(s *Orchestrator) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.s = s
}

func (p *fakePath) snapshot(name functions.Name) snapshot.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.snapshots[name]
}

// fakeAgent is a small working agent: replicas stage, load and become READY by timers.
type fakeAgent struct {
	id    string
	s     *Orchestrator
	gpus  int
	stage time.Duration
	boot  time.Duration

	mu     sync.Mutex
	epoch  int64
	reps   map[string]*functions.ReplicaStatus
	timers map[string]*time.Timer
	since  map[string]time.Time
	loads  []string
	unload []string
	fail   map[string]string          // model: cause
	holds  map[string]functions.Bytes // model: GPU memory that its READY replicas hold
	needs  map[string]string          // model: it finds too little memory while this other one is here
	refuse error                      // of every command
	mute   bool                       // no heartbeats
	awake  bool                       // its replicas cannot sleep
}

func newFakeAgent(id string, gpus int) *fakeAgent {
	return &fakeAgent{id: id, gpus: gpus, stage: 2 * time.Second, boot: 3 * time.Second, reps: map[string]*functions.ReplicaStatus{},
		timers: map[string]*time.Timer{}, since: map[string]time.Time{}, fail: map[string]string{}}
}

func (a *fakeAgent) Load(ctx context.Context, req functions.LoadRequest) (functions.LoadReply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse != nil {
		return functions.LoadReply{}, a.refuse
	}
	if req.Epoch < a.epoch {
		return functions.LoadReply{}, functions.ErrStaleEpoch
	}
	a.epoch = req.Epoch
	if r := a.reps[req.ID]; r != nil {
		return functions.LoadReply{ID: req.ID, State: r.State}, nil
	}
	a.loads = append(a.loads, req.Team+"/"+req.Model)
	spec := req.Spec
	a.reps[req.ID] = &functions.ReplicaStatus{ID: req.ID, Team: req.Team, Model: req.Model, Spec: &spec, GPUs: req.GPUs, TotalBytes: 1000}
	a.to(req.ID, functions.Downloading)
	return functions.LoadReply{ID: req.ID, State: functions.Downloading}, nil
}

// to sets the state of a replica; the lock is held.
func (a *fakeAgent) to(id string, st functions.State) {
	r := a.reps[id]
	r.State = st
	a.since[id] = time.Now()
	next := func(after time.Duration, st functions.State) {
		a.timers[id] = time.AfterFunc(after, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.reps[id] == r && !r.State.Over() {
				a.to(id, st)
			}
		})
	}
	switch st {
	case functions.Downloading:
		next(a.stage, functions.Loading)
	case functions.Loading:
		r.Bytes = r.TotalBytes
		r.Phases = []functions.Span{
			{Phase: functions.PhaseStage, Start: 0, Duration: a.stage.Seconds()},
			{Phase: functions.PhaseSpawn, Start: a.stage.Seconds(), Duration: 0.1,
				Parts: []functions.Part{{Name: "imports", Start: a.stage.Seconds(), Duration: 0.1}}}}
		r.Start, r.StartNote = functions.StartPlain, "no warm interpreter yet"
		if other := a.needs[r.Model]; other != "" {
			a.timers[id] = time.AfterFunc(a.boot, func() {
				if a.has(other) {
					a.die(id, "vllm ended while loading: out of GPU memory: CUDA out of memory.")
					return
				}
				a.mu.Lock()
				defer a.mu.Unlock()
				a.to(id, functions.Ready)
			})
			break
		}
		if cause := a.fail[r.Model]; cause != "" {
			a.timers[id] = time.AfterFunc(a.boot, func() { a.die(id, cause) })
			break
		}
		next(a.boot, functions.Ready)
	case functions.Ready:
		r.Endpoint = "http://127.0.0.1:1/" + id
		r.Phases = append(r.Phases, functions.Span{Phase: functions.PhaseLoad, Start: a.stage.Seconds(), Duration: a.boot.Seconds()})
	}
	a.push()
}

func (a *fakeAgent) die(id, cause string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.reps[id]; r != nil {
		if r.State == functions.Loading {
			r.ShortOf = engine.ShortOf(cause)
		}
		r.State, r.Error = functions.Failed, cause
		a.push()
	}
}

// has reports whether the agent has a replica of a model.
func (a *fakeAgent) has(model string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.reps {
		if r.Model == model && !r.State.Over() {
			return true
		}
	}
	return false
}

func (a *fakeAgent) Unload(ctx context.Context, req functions.UnloadRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse != nil {
		return a.refuse
	}
	if req.Epoch < a.epoch {
		return functions.ErrStaleEpoch
	}
	a.epoch = req.Epoch
	r := a.reps[req.ID]
	if r == nil {
		return nil
	}
	if req.Reason == functions.ReasonCalledOff && r.State != functions.Downloading {
		return nil
	}
	a.unload = append(a.unload, r.Model+" "+req.Reason)
	if t := a.timers[req.ID]; t != nil {
		t.Stop()
	}
	delete(a.reps, req.ID)
	a.push()
	return nil
}

// push sends a heartbeat; the lock is held.
func (a *fakeAgent) push() {
	if a.mute {
		return
	}
	hb := functions.Heartbeat{AgentID: a.id, Epoch: a.epoch, Machine: "m-" + a.id}
	hb.Memory.Total = 64 << 30
	for i := range a.gpus {
		hb.GPUs = append(hb.GPUs, functions.GPU{Index: i, MemoryTotal: 80 << 30, Health: "ok"})
	}
	for id, r := range a.reps {
		c := *r
		c.Phases = slices.Clone(r.Phases)
		c.Since = time.Since(a.since[id]).Milliseconds()
		if c.State == functions.Ready {
			c.GPUMemory = a.holds[c.Model]
		}
		hb.Models = append(hb.Models, c)
	}
	if a.awake {
		a.s.Heartbeat(hb, struct{ Node }{a})
		return
	}
	a.s.Heartbeat(hb, a)
}

func (a *fakeAgent) beat(ctx context.Context) {
	t := time.NewTicker(2 * time.Second)
	defer t.Stop()
	for {
		a.mu.Lock()
		a.push()
		a.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (a *fakeAgent) did() (loads, unloads []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.loads), slices.Clone(a.unload)
}

type fakeCatalog struct {
	mu     sync.Mutex
	models []*functions.Model
	teams  []*functions.Team
}

func (c *fakeCatalog) Models() []*functions.Model {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.models)
}
func (c *fakeCatalog) Teams() []*functions.Team { return c.teams }

func (c *fakeCatalog) set(ms ...*functions.Model) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.models = ms
}

func model(name string, edit ...func(*functions.ModelSpec)) *functions.Model {
	m := functions.NewModel()
	m.Metadata.Name = name
	m.Spec.Source, m.Spec.Engine = "az://a/c/"+name, functions.EngineCommand
	m.Spec.Resources = functions.Resources{GPUs: 1}
	for _, e := range edit {
		e(&m.Spec)
	}
	return m
}

func fname(s string) functions.Name { return functions.Name{Team: "default", Name: s} }

type testRig struct {
	t    *testing.T
	s    *Orchestrator
	d    *fakePath
	c    *fakeCatalog
	ctx  context.Context
	stop func()
}

// ended returns the cold starts that have ended, the newest first.
func (r *testRig) ended() []functions.Timeline {
	return functions.Filter(r.s.ColdStarts(0), func(t functions.Timeline) bool { return t.State == functions.Ready || t.State.Over() })
}

func (r *testRig) coldStarts() int { return len(r.ended()) }

func newRig(t *testing.T, epoch int64, ms ...*functions.Model) *testRig {
	r := &testRig{t: t, d: newFakePath(), c: &fakeCatalog{models: ms}}
	r.boot(epoch)
	return r
}

// boot starts a new server process; agents and activator stay.
func (r *testRig) boot(epoch int64) {
	r.s = New(Options{Epoch: epoch, Path: r.d, Catalog: r.c, Machine: "m-here", Here: "here"})
	r.d.setLoop(r.s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.s.Run(ctx) }()
	r.ctx = ctx
	r.stop = func() { cancel(); <-done }
}

func (r *testRig) host(h *fakeAgent) *fakeAgent {
	h.s = r.s
	go h.beat(r.ctx)
	synctest.Wait()
	return h
}

func (r *testRig) pass(d time.Duration) {
	time.Sleep(d) // the bubble's clock
	synctest.Wait()
}

func (r *testRig) states(name string) string {
	var out []string
	for _, x := range r.s.Replicas() {
		if x.Function == fname(name).String() {
			out = append(out, string(x.State)+"@"+x.Node)
		}
	}
	return fmt.Sprint(out)
}

func (r *testRig) want(what, got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: got %s, want %s", what, got, want)
		for _, e := range r.s.Events(0) {
			r.t.Logf("  %s %s %s %s %s %s", e.Kind, e.Function, e.Replica, e.Node, e.Reason, e.Message)
		}
		r.t.FailNow()
	}
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func TestColdToReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, model("x"))
		defer r.stop()
		h := r.host(newFakeAgent("here", 1))
		id := r.d.ask(r.s, fname("x"), 100)
		for range 50 {
			if again := r.s.Wake(fname("x")); again != id {
				t.Fatalf("a second cold start %s beside %s", again, id)
			}
		}
		r.pass(time.Second)
		r.want("while staging", r.states("x"), "[DOWNLOADING@here]")
		if p := r.d.snapshot(fname("x")); p.ColdStart == nil || p.ColdStart.ID != id || p.State != functions.Downloading {
			t.Fatalf("picture %+v", p)
		}
		r.pass(4 * time.Second)
		r.want("then", r.states("x"), "[READY@here]")
		loads, _ := h.did()
		r.want("loads", fmt.Sprint(loads), "[default/x]")
		line, ok := r.s.ColdStart(id)
		if !ok || line.State != functions.Ready || line.Total < 5 || line.Total > 5.1 || len(line.Phases) < 5 {
			t.Fatalf("timeline %+v", line)
		}
		if line.Start != functions.StartPlain || line.StartNote == "" {
			t.Errorf("started %q, %q", line.Start, line.StartNote)
		}
		for _, p := range line.Phases {
			for _, part := range p.Parts {
				if part.Start < p.Start || part.Start > p.Start+p.Duration {
					t.Errorf("a part at %v of %+v", part.Start, p)
				}
			}
		}
		// The next start finds the bytes on the node: its forecast excludes staging.
		if f := r.d.snapshot(fname("x")).Forecast; r.coldStarts() != 1 || f.P50 < 3*time.Second || f.P50 > 3200*time.Millisecond {
			t.Fatalf("%d cold starts in the books, forecast %v", r.coldStarts(), r.d.snapshot(fname("x")).Forecast)
		}
		if took := r.d.readyAt[fname("x")].Sub(line.Began); took > 5001*time.Millisecond {
			t.Fatalf("waiters released after %v", took)
		}
		if r.d.inFlightOf(r.s.Replicas()[0].ID) != 8 {
			t.Fatal("waiters were not released")
		}
	})
}

func TestCallOffBeforeSpawn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, model("x"))
		defer r.stop()
		h := r.host(newFakeAgent("here", 1))
		id := r.d.ask(r.s, fname("x"), 3)
		r.pass(time.Second)
		r.d.leave(r.s, fname("x"))
		r.pass(50 * time.Millisecond)
		r.want("after all left", r.states("x"), "[]")
		_, un := h.did()
		r.want("unloads", fmt.Sprint(un), "[x called_off]")
		if l, _ := r.s.ColdStart(id); l.State != functions.Unloaded {
			t.Fatalf("timeline %+v", l)
		}
		// After the spawn it is not cancelled and stays for its idle time.
		r.d.ask(r.s, fname("x"), 1)
		r.pass(3 * time.Second)
		r.d.leave(r.s, fname("x"))
		r.pass(5 * time.Second)
		r.want("with a process", r.states("x"), "[READY@here]")
		r.pass(5 * time.Minute)
		r.want("idle is over", r.states("x"), "[]")
	})
}

// TestStoppedWhileBusy: requests in flight on a stopped replica start no other one; new
// requests do.
func TestStoppedWhileBusy(t *testing.T) {
	for again, loads := range []int{1, 2} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, 1, model("x"))
			defer r.stop()
			h := newFakeAgent("here", 2)
			r.host(h)
			r.d.ask(r.s, fname("x"), 1)
			r.pass(6 * time.Second)
			r.want("serves", r.states("x"), "[READY@here]")
			r.s.Stop(fname("x"))
			r.pass(2 * time.Second)
			if again > 0 {
				r.d.ask(r.s, fname("x"), again)
			}
			r.pass(4 * time.Second)
			if got, _ := h.did(); len(got) != loads {
				t.Errorf("%d asked while it drained: %d starts, want %d", again, len(got), loads)
			}
			if again == 0 {
				r.d.done(fname("x"))
				r.pass(3 * time.Second)
				r.want("stopped", r.states("x"), "[]")
			}
		})
	}
}

func TestFailureRejectsWaitersAndBacksOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, model("x"))
		defer r.stop()
		h := newFakeAgent("here", 1)
		h.fail["x"] = "weights are truncated"
		r.host(h)
		r.d.ask(r.s, fname("x"), 5)
		r.pass(5100 * time.Millisecond)
		if got := r.d.failed[fname("x")]; got != "weights are truncated" {
			t.Fatalf("waiters got %q", got)
		}
		// No demand: no restart. Constant demand: restarts no faster than the backoff.
		r.pass(time.Minute)
		if loads, _ := h.did(); len(loads) != 1 {
			t.Fatalf("restarted %d times without demand", len(loads)-1)
		}
		for range 600 {
			r.d.ask(r.s, fname("x"), 1)
			r.pass(100 * time.Millisecond)
		}
		loads, _ := h.did()
		if len(loads) != 2 {
			t.Fatalf("%d starts in a minute of asking, after two that failed by one cause", len(loads))
		}
		h.mu.Lock()
		h.fail = map[string]string{}
		h.mu.Unlock()
		r.pass(2 * time.Minute)
		r.d.ask(r.s, fname("x"), 1)
		r.pass(6 * time.Second)
		r.want("after the fix", r.states("x"), "[READY@here]")
		if r.d.snapshot(fname("x")).Failure != nil {
			t.Fatal("the failure is still published")
		}
	})
}

// A client that tries again by itself does not start the engine each time: LangChain-JS
// comes seven times, with these pauses. A changed model file ends the pause at once.
func TestRetriesOfAFailedStart(t *testing.T) {
	for what, edit := range map[string]func(*functions.ModelSpec){
		"nothing":   nil, // but thaw wake
		"arguments": func(s *functions.ModelSpec) { s.Args = []string{"--max-model-len", "1024"} },
		"deadline":  func(s *functions.ModelSpec) { s.Deadlines.Start = functions.Duration(20 * time.Minute) },
	} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, 1, model("x"))
			defer r.stop()
			h := newFakeAgent("here", 1)
			h.stage, h.boot = 0, 5*time.Second // a start of the engine alone
			h.fail["x"] = "ValueError: max_model_len (4096) is too large"
			r.host(h)
			refused := func() bool {
				f := r.d.snapshot(fname("x")).Failure
				return f != nil && time.Now().Before(f.Until)
			}
			for i := range 7 {
				if !refused() {
					r.d.ask(r.s, fname("x"), 1)
					r.pass(5100 * time.Millisecond)
				}
				r.pass(1667 * time.Millisecond << i)
			}
			if loads, _ := h.did(); len(loads) > 2 {
				t.Errorf("%d starts for seven tries", len(loads))
			}
			r.d.ask(r.s, fname("x"), 1)
			r.pass(5100 * time.Millisecond)
			h.mu.Lock()
			h.fail = map[string]string{}
			h.mu.Unlock()
			if !refused() {
				t.Fatal("a start that failed again has no pause")
			}
			if edit == nil {
				r.s.WakeFor(fname("x"), 0)
			} else {
				r.c.set(model("x", edit))
				r.s.Changed()
				r.pass(time.Second)
				r.d.ask(r.s, fname("x"), 1)
			}
			r.pass(6 * time.Second)
			r.want("after a change of its "+what, r.states("x"), "[READY@here]")
		})
	}
}

// The pause after a failed start is as long as its engine took, however long the weights
// were on their way.
func TestPauseWithoutStaging(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, model("x"))
		defer r.stop()
		h := newFakeAgent("here", 1)
		h.stage, h.boot = 20*time.Minute, 4*time.Second
		h.fail["x"] = "ValueError: max_model_len (4096) is too large"
		r.host(h)
		r.d.ask(r.s, fname("x"), 1)
		r.pass(20*time.Minute + 10*time.Second)
		f := r.d.snapshot(fname("x")).Failure
		if f == nil {
			t.Fatal("the start has not failed")
		}
		if pause := f.Until.Sub(f.At); pause < 4*time.Second || pause > 10*time.Second {
			t.Errorf("a pause of %v", pause)
		}
	})
}

func TestStaleEpochIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 3, model("x"))
		defer r.stop()
		h := newFakeAgent("here", 1)
		h.epoch = 7
		r.host(h)
		r.d.ask(r.s, fname("x"), 1)
		r.pass(30 * time.Second)
		if loads, _ := h.did(); len(loads) != 0 {
			t.Fatalf("a superseded server started %v", loads)
		}
		if !slices.ContainsFunc(r.s.Events(0), func(e functions.Event) bool { return e.Kind == "superseded" }) {
			t.Fatal("it does not know that it is superseded")
		}
	})
}

func TestLoadRefusedGoesElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, model("x"))
		defer r.stop()
		bad, good := newFakeAgent("a", 1), newFakeAgent("b", 1)
		bad.refuse = errors.New("connection refused")
		r.host(bad)
		r.host(good)
		r.d.ask(r.s, fname("x"), 1)
		r.pass(7 * time.Second)
		r.want("placed", r.states("x"), "[READY@b]")
	})
}

func TestRefusedByAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		long := strings.Repeat("x", 63)
		r := newRig(t, 1, model(long))
		defer r.stop()
		bad := newFakeAgent("a", 1)
		bad.refuse = errors.New("bad request")
		r.host(bad)
		r.d.ask(r.s, fname(long), 2)
		r.pass(20 * time.Second)
		if got := r.d.failed[fname(long)]; !strings.Contains(got, "bad request") {
			t.Fatalf("waiters got %q", got)
		}
		if id := randomID(long); !functions.IsLabel(id) || !functions.IsLabel(randomID(strings.Repeat("x", 49)+"-y")) {
			t.Errorf("%s is no label", id)
		}
		bad.mu.Lock()
		bad.refuse = nil
		bad.mu.Unlock()
		r.pass(5 * time.Second)
		r.d.ask(r.s, fname(long), 1)
		r.pass(10 * time.Second)
		r.want("after the fix", r.states(long), "[READY@a]")
	})
}

// TestWakeFor: WakeFor starts a function without waiters; then its idle time
// applies, or the lease.
func TestWakeFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, model("x"))
		defer r.stop()
		r.host(newFakeAgent("here", 1))
		id := r.s.WakeFor(fname("x"), 0)
		r.pass(time.Second)
		r.s.Nudge(fname("x")) // a waiter left
		r.pass(5 * time.Second)
		r.want("woken by hand", r.states("x"), "[READY@here]")
		if l, ok := r.s.ColdStart(id); !ok || l.State != functions.Ready {
			t.Errorf("%+v", l)
		}
		if again := r.s.WakeFor(fname("x"), 0); again != id {
			t.Errorf("READY, and an unknown cold start %s", again)
		}
		r.pass(5 * time.Minute)
		r.want("its idle time is over", r.states("x"), "[]")
		r.s.WakeFor(fname("x"), time.Hour)
		r.pass(59 * time.Minute)
		r.want("within its lease", r.states("x"), "[READY@here]")
		r.s.Stop(fname("x"))
		r.pass(time.Second)
		r.want("stopped by hand", r.states("x"), "[]")
		r.pass(time.Minute)
		r.want("and it stays so", r.states("x"), "[]")
	})
}
