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
	return &fakePath{snapshots: map[functions.Name]snapshot.Snapshot{}, queued: map[functions.Name]int{}, since: map[functions.Name]time.Time{},
		active: map[string]int{}, of: map[string]functions.Name{}, last: map[functions.Name]time.Time{}, slots: 8,
		readyAt: map[functions.Name]time.Time{}, failed: map[functions.Name]string{}, ready: make(chan functions.Name, 64)}
}

func (d *fakePath) Publish(fs ...snapshot.Snapshot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range fs {
		if len(f.Replicas) > len(d.snapshots[f.Name].Replicas) {
			d.readyAt[f.Name] = time.Now()
			select {
			case d.ready <- f.Name:
			default:
			}
		}
		d.snapshots[f.Name] = f
		if f.Failure != nil && time.Now().Before(f.Failure.Until) && d.queued[f.Name] > 0 {
			d.failed[f.Name] = f.Failure.Reason
			d.queued[f.Name] = 0
		}
		d.release(f.Name)
	}
}

func (d *fakePath) release(name functions.Name) {
	for _, r := range d.snapshots[name].Replicas {
		for d.queued[name] > 0 && d.active[r.ID] < d.slots {
			d.queued[name]--
			d.active[r.ID]++
			d.of[r.ID] = name
		}
	}
}

func (d *fakePath) Remove(names ...functions.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range names {
		delete(d.snapshots, n)
		d.queued[n] = 0
	}
}

func (d *fakePath) Demand(all bool, yield func(Demand) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := range d.snapshots {
		x := Demand{Name: n, Queued: d.queued[n], Oldest: d.since[n], LastEnd: d.last[n]}
		for id, a := range d.active {
			if d.of[id] == n {
				x.Active += a
			}
		}
		if !yield(x) { // unchanged demand may be yielded again
			return
		}
	}
}

func (d *fakePath) Cut(agent string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = append(d.cut, agent)
}

func (d *fakePath) InFlightOf(_ functions.Name, id string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.active[id]
}

// ask adds n requests and reports them to the loop as the activator does.
func (d *fakePath) ask(s *Orchestrator, name functions.Name, n int) string {
	d.mu.Lock()
	if d.queued[name] == 0 {
		d.since[name] = time.Now()
	}
	d.queued[name] += n
	d.release(name)
	left := d.queued[name]
	cold := len(d.snapshots[name].Replicas) == 0
	d.mu.Unlock()
	switch {
	case cold:
		return s.Wake(name, name.Team)
	case left > 0:
		s.Nudge(name)
	}
	return ""
}

// done ends every request of a function; leave removes its waiters.
func (d *fakePath) done(name functions.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.active {
		if d.of[id] == name && d.active[id] > 0 {
			d.active[id] = 0
			d.last[name] = time.Now()
		}
	}
	d.release(name)
}

func (d *fakePath) leave(s *Orchestrator, name functions.Name) {
	d.mu.Lock()
	d.queued[name] = 0
	d.mu.Unlock()
	s.Nudge(name)
}

func (d *fakePath) snapshot(name functions.Name) snapshot.Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.snapshots[name]
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

func (h *fakeAgent) Load(ctx context.Context, req functions.LoadRequest) (functions.LoadReply, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return functions.LoadReply{}, h.refuse
	}
	if req.Epoch < h.epoch {
		return functions.LoadReply{}, functions.ErrStaleEpoch
	}
	h.epoch = req.Epoch
	if r := h.reps[req.ID]; r != nil {
		return functions.LoadReply{ID: req.ID, State: r.State}, nil
	}
	h.loads = append(h.loads, req.Team+"/"+req.Model)
	spec := req.Spec
	h.reps[req.ID] = &functions.ReplicaStatus{ID: req.ID, Team: req.Team, Model: req.Model, Spec: &spec, GPUs: req.GPUs, TotalBytes: 1000}
	h.to(req.ID, functions.Downloading)
	return functions.LoadReply{ID: req.ID, State: functions.Downloading}, nil
}

// to sets the state of a replica; the lock is held.
func (h *fakeAgent) to(id string, st functions.State) {
	r := h.reps[id]
	r.State = st
	h.since[id] = time.Now()
	next := func(after time.Duration, st functions.State) {
		h.timers[id] = time.AfterFunc(after, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.reps[id] == r && !r.State.Over() {
				h.to(id, st)
			}
		})
	}
	switch st {
	case functions.Downloading:
		next(h.stage, functions.Loading)
	case functions.Loading:
		r.Bytes = r.TotalBytes
		r.Phases = []functions.Span{
			{Phase: functions.PhaseStage, Start: 0, Duration: h.stage.Seconds()},
			{Phase: functions.PhaseSpawn, Start: h.stage.Seconds(), Duration: 0.1,
				Parts: []functions.Part{{Name: "imports", Start: h.stage.Seconds(), Duration: 0.1}}}}
		r.Start, r.StartNote = functions.StartPlain, "no warm interpreter yet"
		if other := h.needs[r.Model]; other != "" {
			h.timers[id] = time.AfterFunc(h.boot, func() {
				if h.has(other) {
					h.die(id, "vllm ended while loading: out of GPU memory: CUDA out of memory.")
					return
				}
				h.mu.Lock()
				defer h.mu.Unlock()
				h.to(id, functions.Ready)
			})
			break
		}
		if cause := h.fail[r.Model]; cause != "" {
			h.timers[id] = time.AfterFunc(h.boot, func() { h.die(id, cause) })
			break
		}
		next(h.boot, functions.Ready)
	case functions.Ready:
		r.Endpoint = "http://127.0.0.1:1/" + id
		r.Phases = append(r.Phases, functions.Span{Phase: functions.PhaseLoad, Start: h.stage.Seconds(), Duration: h.boot.Seconds()})
	}
	h.push()
}

func (h *fakeAgent) die(id, cause string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.reps[id]; r != nil {
		if r.State == functions.Loading {
			r.ShortOf = engine.ShortOf(cause)
		}
		r.State, r.Error = functions.Failed, cause
		h.push()
	}
}

// has reports whether the agent has a replica of a model.
func (h *fakeAgent) has(model string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.reps {
		if r.Model == model && !r.State.Over() {
			return true
		}
	}
	return false
}

func (h *fakeAgent) Unload(ctx context.Context, req functions.UnloadRequest) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return h.refuse
	}
	if req.Epoch < h.epoch {
		return functions.ErrStaleEpoch
	}
	h.epoch = req.Epoch
	r := h.reps[req.ID]
	if r == nil {
		return nil
	}
	if req.Reason == functions.ReasonCalledOff && r.State != functions.Downloading {
		return nil
	}
	h.unload = append(h.unload, r.Model+" "+req.Reason)
	if t := h.timers[req.ID]; t != nil {
		t.Stop()
	}
	delete(h.reps, req.ID)
	h.push()
	return nil
}

// push sends a heartbeat; the lock is held.
func (h *fakeAgent) push() {
	if h.mute {
		return
	}
	hb := functions.Heartbeat{AgentID: h.id, Epoch: h.epoch, Machine: "m-" + h.id}
	hb.Memory.Total = 64 << 30
	for i := range h.gpus {
		hb.GPUs = append(hb.GPUs, functions.GPU{Index: i, MemoryTotal: 80 << 30, Health: "ok"})
	}
	for id, r := range h.reps {
		c := *r
		c.Phases = slices.Clone(r.Phases)
		c.Since = time.Since(h.since[id]).Milliseconds()
		if c.State == functions.Ready {
			c.GPUMemory = h.holds[c.Model]
		}
		hb.Models = append(hb.Models, c)
	}
	if h.awake {
		h.s.Heartbeat(hb, struct{ Node }{h})
		return
	}
	h.s.Heartbeat(hb, h)
}

func (h *fakeAgent) beat(ctx context.Context) {
	t := time.NewTicker(2 * time.Second)
	defer t.Stop()
	for {
		h.mu.Lock()
		h.push()
		h.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (h *fakeAgent) did() (loads, unloads []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.loads), slices.Clone(h.unload)
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
	t      *testing.T
	s      *Orchestrator
	d      *fakePath
	c      *fakeCatalog
	ctx    context.Context
	stop   func()
	cold   []functions.Timeline
	coldMu sync.Mutex
}

// ended is the hook for cold starts; the loop's goroutine calls it.
func (r *testRig) ended(t functions.Timeline) {
	r.coldMu.Lock()
	defer r.coldMu.Unlock()
	r.cold = append(r.cold, t)
}

func (r *testRig) coldStarts() int {
	r.coldMu.Lock()
	defer r.coldMu.Unlock()
	return len(r.cold)
}

func newRig(t *testing.T, epoch int64, ms ...*functions.Model) *testRig {
	r := &testRig{t: t, d: newFakePath(), c: &fakeCatalog{models: ms}}
	r.boot(epoch)
	return r
}

// boot starts a new server process; agents and activator stay.
func (r *testRig) boot(epoch int64) {
	r.s = New(Options{Epoch: epoch, Path: r.d, Catalog: r.c, Machine: "m-here", Here: "here",
		Hooks: Hooks{ColdStart: r.ended}})
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
			if again := r.s.Wake(fname("x"), ""); again != id {
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
		if r.d.InFlightOf(fname("x"), r.s.Replicas()[0].ID) != 8 {
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
