package simulate

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// faults are what is broken now.
type faults struct {
	breaks  map[functions.Name]string // starts of a function fail with this cause
	stalled time.Duration             // the orchestrator stands still until then

	// Late, if not nil, is how much longer a command takes. Heard, if not nil, is
	// after how long, and how often, a heartbeat of a node arrives: none is lost,
	// two are a double. Unanswered, if not nil, reports whether the answer to a
	// command that was obeyed is lost.
	Late       func() time.Duration
	Heard      func(node string) []time.Duration
	Unanswered func() bool
	// Fated, if not nil, is told the end of every request.
	Fated func(Fate)
}

func (f *faults) init() { f.breaks = map[functions.Name]string{} }

func (f *faults) dropAnswer() bool { return f.Unanswered != nil && f.Unanswered() }

func (st *State) failing(r *replica) string { return st.breaks[r.f.name] }

// Fate is the end of a request.
type Fate struct {
	ID       uint64 // in the order of their arrivals, from 1
	Function functions.Name
	Team     string
	Came     time.Duration
	// Code is "" for one that was answered, Broke, Left or Lost, or why it was
	// refused.
	Code    openai.Code
	Message string
	Cold    bool
	Retried bool
	First   time.Duration // its first token; 0 there was none
	Replica string        // the last that failed it; "" none did
}

// Ends of a request that are no refusal.
const (
	Broke openai.Code = "broken" // its replica died after the first token
	Left  openai.Code = "left"   // its client went
	Lost  openai.Code = "lost"   // the orchestrator it was at died
)

// Now is the virtual time since the trace's begin.
func (st *State) Now() time.Duration { return st.clock.now }

// Loop is the orchestrator's, of its present life.
func (st *State) Loop() *orchestrator.Orchestrator { return st.steer }

// Epoch of the present life.
func (st *State) Epoch() int64 { return st.epoch }

// At has f called at a time.
func (st *State) At(at time.Duration, f func()) { st.clock.set(at, deed(f), 0, 0) }

// After has f called in a while.
func (st *State) After(d time.Duration, f func()) { st.At(st.clock.now+d, f) }

type deed func()

func (d deed) act(uint8)   { d() }
func (d deed) age() uint32 { return 0 }

// Deploy replaces the catalogue.
func (st *State) Deploy(models ...*functions.Model) {
	st.deploy(models)
	st.steer.Changed()
}

// Kill takes a node's power: its replicas are gone, and what was asked of them
// hangs until its connection is cut. Return starts it again, its store as it was.
func (st *State) Kill(node string) {
	n := st.byID[node]
	if n == nil || n.dead {
		return
	}
	n.dead = true
	for _, r := range slices.Clone(n.reps) {
		for _, q := range slices.Clone(r.here) {
			r.part(q)
			q.gen++
			q.to = n
			if q.first > st.clock.now {
				q.first = 0
			}
			q.last = 0
			st.away = append(st.away, q)
			st.hangs(q)
		}
		r.over(functions.Failed, "its node is gone")
		n.forget(r)
	}
	for _, b := range n.shelf.order {
		b.memory = false
	}
	n.shelf.version++
	n.staging, n.pushing = 0, false
}

// hangs sets the bounds of a request whose node does not answer.
func (st *State) hangs(q *request) {
	if q.first == 0 {
		st.clock.set(st.clock.now+q.f.firstToken(), q, reqSilent, q.gen)
		q.arm()
	} else {
		st.clock.set(st.clock.now+streamIdle, q, reqFails, q.gen)
	}
}

// Partition cuts a node off: nothing gets to it or from it, and its engines go
// on.
func (st *State) Partition(node string) {
	if n := st.byID[node]; n != nil {
		n.mute = true
	}
}

// Return ends what Kill or Partition began.
func (st *State) Return(node string) {
	n := st.byID[node]
	if n == nil || !n.dead && !n.mute {
		return
	}
	if n.dead {
		n.life++
		n.said, n.changes = 0, 0
	}
	n.dead, n.mute, n.changed = false, false, true
	for _, q := range slices.Clone(st.away) { // their connections are reset
		if q.to == n {
			q.fail("its connection was reset")
		}
	}
	for _, r := range n.reps {
		for _, q := range slices.Clone(r.here) {
			if q.stuck {
				q.done()
			}
		}
	}
	n.push()
	st.settle()
}

// Slow divides the rates of a node's link and disk; 1 is what its kind says.
func (st *State) Slow(node string, by float64) {
	n := st.byID[node]
	if n == nil || by <= 0 {
		return
	}
	n.link.rate, n.disk.rate = float64(n.kind.Link)/by, float64(n.kind.Disk)/by
	st.reflow([]*pipe{n.link, n.disk})
}

// FailStarts has every start of a function fail with cause, once its engine has
// booted; "" mends it.
func (st *State) FailStarts(name functions.Name, cause string) {
	if cause == "" {
		delete(st.breaks, name)
	} else {
		st.breaks[name] = cause
	}
}

// Crash ends the engine of a replica, whatever it does: a fault of its own, or
// memory that ran out. It reports whether there was one.
func (st *State) Crash(replica, cause string) bool {
	r := st.reps[replica]
	if r == nil || r.state.Over() || !r.process {
		return false
	}
	r.over(functions.Failed, cause)
	st.settle()
	return true
}

// Hang has the engine of a replica say nothing any more; its node notices after
// the deadline of its model.
func (st *State) Hang(replica string) bool {
	r := st.reps[replica]
	if r == nil || r.state.Over() || !r.process || r.hung {
		return false
	}
	r.hung = true
	for _, q := range r.here {
		if q.first > st.clock.now {
			q.first = 0
			st.clock.set(st.clock.now+q.f.firstToken(), q, reqSilent, q.gen)
		}
	}
	if len(r.here) > 0 {
		r.after(r.spec.Deadlines.Hang.Std()+hangLooks, repHang)
	}
	return true
}

// Sicken has a GPU of a node fall ill, or mends it.
func (st *State) Sicken(node string, gpu int, sick bool) {
	n := st.byID[node]
	if n == nil || gpu < 0 || gpu >= len(n.gpus) {
		return
	}
	n.gpus = slices.Clone(n.gpus)
	n.gpus[gpu].Health = "ok"
	if sick {
		n.gpus[gpu].Health = "xid 79"
	}
	n.push()
}

// Stall has the orchestrator stand still, as a suspended machine does.
func (st *State) Stall(d time.Duration) { st.stalled = max(st.stalled, st.clock.now+d) }

// Jump puts the clock of the orchestrator's machine forward, or back.
func (st *State) Jump(d time.Duration) { st.skew += d }

// Replace has another orchestrator take over: it has the requests, and an epoch
// higher than the one before, which does not know it and goes on for a while
// with what it believes.
func (st *State) Replace(while time.Duration) {
	old := st.loop
	st.begin()
	st.After(while, func() { old.dead = true })
}

// Restart ends the orchestrator as kill -9 does, the requests it has with it,
// and starts another life of it.
func (st *State) Restart() {
	st.loop.dead = true
	for _, q := range slices.Clone(st.live) {
		if q.rep != nil {
			q.rep.part(q)
		}
		st.tally.broken++
		q.end(Lost, "")
	}
	st.away, st.told = nil, nil
	st.stirred, st.busy = nil, nil
	for _, f := range st.list {
		f.pic, f.busy = nil, false
		f.queue = &admission.Queue{Demand: f}
	}
	st.begin()
}

// NodeView is a node as it is, whatever the loop believes.
type NodeView struct {
	ID         string
	Dead, Mute bool
	Epoch      int64
	Taken      []float64 // share of each GPU that is held
	Sick       []bool
	Memory     functions.Capacity
	Store      functions.StoreUse
	Replicas   []ReplicaView
}

// ReplicaView is a replica as it is.
type ReplicaView struct {
	ID       string
	Node     string
	Function functions.Name
	State    functions.State
	Take     functions.Resources
	GPUs     []int
	Share    float64 // GPUs that it holds now, parts of them counting as such
	InFlight int
	Level    int // of its sleep
	Hung     bool
	Since    time.Duration // of the state
	Tier     functions.Tier
	Error    string
}

// Node is one as it is.
func (st *State) Node(id string) (NodeView, bool) {
	n := st.byID[id]
	if n == nil {
		return NodeView{}, false
	}
	v := NodeView{
		ID: n.id, Dead: n.dead, Mute: n.mute, Epoch: n.epoch, Taken: slices.Clone(n.taken),
		Memory: functions.Capacity{Total: n.kind.Memory}, Store: functions.StoreUse{Bytes: n.kind.Store, Used: n.shelf.used},
	}
	for _, g := range n.gpus {
		v.Sick = append(v.Sick, g.Health != "ok")
	}
	for _, r := range n.reps {
		v.Memory.Used += r.hostMemory()
		v.Replicas = append(v.Replicas, r.view())
	}
	return v, true
}

// Nodes are the ids of all, in order.
func (st *State) Nodes() (out []string) {
	for _, n := range st.nodes {
		out = append(out, n.id)
	}
	return out
}

// Replica is one as it is.
func (st *State) Replica(id string) (ReplicaView, bool) {
	r := st.reps[id]
	if r == nil {
		return ReplicaView{}, false
	}
	return r.view(), true
}

func (r *replica) view() ReplicaView {
	return ReplicaView{
		ID: r.id, Node: r.n.id, Function: r.f.name, State: r.state, Take: r.take, GPUs: r.gpus, Share: r.hold, InFlight: r.inFlight,
		Level: r.level, Hung: r.hung, Since: r.since, Tier: r.tier, Error: r.err,
	}
}

// RequestView is a request under way.
type RequestView struct {
	ID       uint64
	Function functions.Name
	Team     string
	Came     time.Duration
	Waits    bool          // in the queue
	Since    time.Duration // it waits
	Deadline time.Duration // of its wait; 0 it never waited
	Replica  string        // that it was given to
	Stranded bool          // at a node that does not answer
	First    time.Duration // when its first token came, or is to come; 0 not known
	Cold     bool
	Retried  bool
}

// Requests yields those under way.
func (st *State) Requests(yield func(RequestView) bool) {
	for _, q := range st.live {
		if !yield(RequestView{
			ID: q.id, Function: q.f.name, Team: q.who.name, Came: q.at, Waits: q.wait, Since: q.since, Deadline: q.deadline,
			Replica: q.ReplicaID(), Stranded: q.to != nil || q.stuck, First: q.first, Cold: q.Cold, Retried: q.Retried,
		}) {
			return
		}
	}
}

// FunctionView is a function as the data path has it.
type FunctionView struct {
	Name           functions.Name
	Known          bool // it is in the catalogue
	Active, Queued int  // in its queue
	Ready          int  // replicas in its picture
	State          functions.State
	InFlight       map[string]int // by replica of the picture
}

// Functions yields them in the order in which they were first heard of.
func (st *State) Functions(yield func(FunctionView) bool) {
	for _, f := range st.list {
		l := f.queue.Load(st.wall())
		v := FunctionView{Name: f.name, Known: f.pic != nil, Active: l.Active, Queued: l.Queued}
		if f.pic != nil {
			v.Ready, v.State = len(f.pic.Replicas), f.pic.State
			v.InFlight = make(map[string]int, v.Ready)
			for i := range f.pic.Replicas {
				id := f.pic.Replicas[i].ID
				v.InFlight[id] = f.queue.InFlight(id)
			}
		}
		if !yield(v) {
			return
		}
	}
}

// Crowded counts the loads and rises that found no room on their node: the loop
// had believed that there was some.
func (st *State) Crowded() int64 { return st.crowded }
