package simulate

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// streamIdle is the timeout between tokens after the first.
const streamIdle = 5 * time.Minute

// Epoch returns the epoch of the current orchestrator.
func (s *State) Epoch() int64 { return s.epoch }

// Deploy replaces the catalogue.
func (s *State) Deploy(models ...*functions.Model) {
	s.deploy(models)
	s.loop.orchestrator.Changed()
}

// Kill powers a node off: its replicas are gone, and its requests hang until the
// connection is cut. Return boots it with its store unchanged.
func (s *State) Kill(node string) {
	n := s.byID[node]
	if n == nil || n.dead {
		return
	}
	n.dead = true
	for _, r := range slices.Clone(n.reps) {
		for _, q := range slices.Clone(r.work.requests) {
			r.removeRequest(q)
			q.gen++
			q.to = n
			if q.first > s.clock.now {
				q.first = 0
			}
			q.last = 0
			s.traffic.stranded = append(s.traffic.stranded, q)
			s.hangs(q)
		}
		r.finish(functions.Failed, "its node is gone")
		n.forget(r)
	}
	for _, b := range n.store.order {
		b.memory = false
	}
	n.store.version++
	n.staging, n.pushing = 0, false
}

// hangs sets the timeouts of a request whose node does not answer.
func (s *State) hangs(q *request) {
	if q.first == 0 {
		s.clock.set(s.clock.now+q.f.firstToken(), q, reqSilent, q.gen)
		q.arm()
	} else {
		s.clock.set(s.clock.now+streamIdle, q, reqFails, q.gen)
	}
}

// Partition drops all messages to and from a node; its engines keep running.
func (s *State) Partition(node string) {
	if n := s.byID[node]; n != nil {
		n.mute = true
	}
}

// Return undoes Kill or Partition.
func (s *State) Return(node string) {
	n := s.byID[node]
	if n == nil || !n.dead && !n.mute {
		return
	}
	if n.dead {
		n.boots++
		n.heartbeats, n.changes = 0, 0
	}
	n.dead, n.mute, n.changed = false, false, true
	for _, q := range slices.Clone(s.traffic.stranded) { // their connections are reset
		if q.to == n {
			q.fail("its connection was reset")
		}
	}
	for _, r := range n.reps {
		for _, q := range slices.Clone(r.work.requests) {
			if q.replyLost {
				q.done()
			}
		}
	}
	n.push()
	s.traffic.handleDecided()
}

// Slow divides the rates of a node's link and disk by a factor; 1 restores them.
func (s *State) Slow(node string, by float64) {
	n := s.byID[node]
	if n == nil || by <= 0 {
		return
	}
	n.link.rate, n.disk.rate = float64(n.kind.Link)/by, float64(n.kind.Disk)/by
	s.reflow(n.link)
	s.reflow(n.disk)
}

// FailStarts makes every start of a function fail with cause once its engine has booted;
// "" ends the fault.
func (s *State) FailStarts(name functions.Name, cause string) {
	if cause == "" {
		delete(s.Faults.breaks, name)
	} else {
		s.Faults.breaks[name] = cause
	}
}

// Crash ends the engine of a replica, in any state, with a cause such as out of memory.
// It reports whether the replica exists.
func (s *State) Crash(replica, cause string) bool {
	r := s.reps[replica]
	if r == nil || r.state.Over() || !r.process {
		return false
	}
	r.finish(functions.Failed, cause)
	s.traffic.handleDecided()
	return true
}

// Hang stops the output of a replica's engine; its node notices after the model's
// deadline.
func (s *State) Hang(replica string) bool {
	r := s.reps[replica]
	if r == nil || r.state.Over() || !r.process || r.hung {
		return false
	}
	r.hung = true
	for _, q := range r.work.requests {
		if q.first > s.clock.now {
			q.first = 0
			s.clock.set(s.clock.now+q.f.firstToken(), q, reqSilent, q.gen)
		}
	}
	if len(r.work.requests) > 0 {
		r.after(r.spec.Deadlines.Hang.Std()+hangProbeDelay, repHang)
	}
	return true
}

// SetGPUUnhealthy marks a GPU of a node unhealthy, or healthy again.
func (s *State) SetGPUUnhealthy(node string, gpu int, unhealthy bool) {
	n := s.byID[node]
	if n == nil || gpu < 0 || gpu >= len(n.gpus) {
		return
	}
	n.gpus = slices.Clone(n.gpus)
	n.gpus[gpu].Health = "ok"
	if unhealthy {
		n.gpus[gpu].Health = "xid 79"
	}
	n.push()
}

// Stall suspends the orchestrator for a duration.
func (s *State) Stall(d time.Duration) { s.Faults.stalled = max(s.Faults.stalled, s.clock.now+d) }

// Jump shifts the orchestrator's wall clock forward, or back if d is negative.
func (s *State) Jump(d time.Duration) { s.skew += d }

// Replace starts another orchestrator with a higher epoch and moves the requests to it.
// The old one does not know and keeps acting on its own state for the duration.
func (s *State) Replace(while time.Duration) {
	old := s.loop
	for _, f := range s.list { // the activators report to the new one
		if d := f.demand(); d.Active+d.Queued > 0 {
			if d.Active > 0 {
				d.LastEnd = s.wall()
			}
			old.orchestrator.Demand(orchestrator.Demand{Name: d.Name, LastEnd: d.LastEnd, InFlight: d.InFlight})
		}
	}
	s.begin()
	s.After(while, func() { old.dead = true })
}

// Restart kills the orchestrator and its requests, as kill -9 does, and starts a new
// one.
func (s *State) Restart() {
	s.loop.dead = true
	for _, q := range slices.Clone(s.traffic.active) {
		if q.rep != nil {
			q.rep.removeRequest(q)
		}
		s.tally.Broken++
		q.end(EndOrchestratorLost, "")
	}
	s.traffic.stranded, s.traffic.decided = nil, nil
	s.demandChanged = nil
	for _, f := range s.list {
		f.snapshot = nil
		f.queue = &admission.Queue{Demand: f}
	}
	s.begin()
}

// NodeView is the true state of a node, whatever the orchestrator believes.
type NodeView struct {
	Dead, Mute bool
	Taken      []float64 // share of each GPU in use
	Memory     functions.Capacity
	Store      functions.StoreUse
	Replicas   []ReplicaView
}

// ReplicaView is the true state of a replica.
type ReplicaView struct {
	ID       string
	Node     string
	Function functions.Name
	State    functions.State
	GPUs     []int
	Share    float64 // GPUs that it holds now, fractions included
	InFlight int
	Hung     bool
	Since    time.Duration // start of the state
}

// Node returns the view of a node; false if it does not exist.
func (s *State) Node(id string) (NodeView, bool) {
	n := s.byID[id]
	if n == nil {
		return NodeView{}, false
	}
	v := NodeView{
		Dead: n.dead, Mute: n.mute, Taken: slices.Clone(n.taken),
		Memory: functions.Capacity{Total: n.kind.Memory}, Store: functions.StoreUse{Bytes: n.kind.Store, Used: n.store.used},
	}
	for _, r := range n.reps {
		v.Memory.Used += r.hostMemory()
		v.Replicas = append(v.Replicas, r.view())
	}
	return v, true
}

// Nodes returns the ids of all nodes in order.
func (s *State) Nodes() (out []string) {
	for _, n := range s.nodes {
		out = append(out, n.id)
	}
	return out
}

// Replica returns the view of a replica; false if it does not exist.
func (s *State) Replica(id string) (ReplicaView, bool) {
	r := s.reps[id]
	if r == nil {
		return ReplicaView{}, false
	}
	return r.view(), true
}

func (r *replica) view() ReplicaView {
	return ReplicaView{
		ID: r.id, Node: r.n.id, Function: r.f.name, State: r.state, GPUs: r.use.gpus, Share: r.use.hold, InFlight: len(r.work.requests),
		Hung: r.hung, Since: r.since,
	}
}

// RequestView is the state of an active request.
type RequestView struct {
	ID       uint64
	Function functions.Name
	Arrived  time.Duration
	Waits    bool          // in the queue
	Deadline time.Duration // end of its wait; 0 if it never waited
}

// Requests yields the active requests.
func (s *State) Requests(yield func(RequestView) bool) {
	for _, q := range s.traffic.active {
		if !yield(RequestView{
			ID: q.id, Function: q.f.name, Arrived: q.at, Waits: q.wait, Deadline: q.deadline,
		}) {
			return
		}
	}
}

// RefusedForSpace counts loads and wake-ups that a node refused for lack of memory or GPUs: the
// orchestrator believed they would fit.
func (s *State) RefusedForSpace() int64 { return s.tally.refusedForSpace }
