package placement

import (
	"iter"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// Decide looks at the world at now and says what to do. The same world and the
// same time give the same plan.
func (p Policy) Decide(w World, now Instant) Plan {
	c := p.Planner()
	c.log = nil
	c.slab = make([]functionEntry, len(w.Functions))
	for _, n := range w.Nodes {
		c.Node(n)
	}
	c.Teams(w.Teams)
	for _, f := range w.Functions {
		if !f.resting(now) {
			c.Touch(f)
		}
	}
	return c.Plan(now)
}

// Decide with the default policy.
func Decide(w World, now Instant) Plan { return DefaultPolicy.Decide(w, now) }

// resting reports whether f needs no look. Most functions rest, so this must be cheap.
func (f *Function) resting(now Instant) bool {
	return len(f.Replicas) == 0 && f.Queued == 0 && f.Active == 0 && (f.Scale.Min == 0 || f.Gone) && f.Lease <= now && f.Desired == 0 && f.Prewarm <= now
}

// decision is one plan in the making, on rooms and counts that a Planner keeps.
type decision struct {
	policy    Policy
	log       *decisionLog // what Explain tells; nil: nothing is kept
	world     struct{ Teams map[string]Team }
	now       Instant
	next      Instant
	living    []*functionEntry // with replicas or wanted, in the order in which they came
	helpCount uint64           // moves with every change that may unblock a function

	rooms   []nodeRoom
	index   map[string]int       // node id to room; lost nodes are absent
	count   map[string]teamCount // of each team, as the world has it
	held    map[string]int       // GPUs a team holds now, stopping ones included
	leaving map[string]int       // of those, on their way out
	pledged map[string]int       // of those, promised but not yet free
	claimed map[string]int       // shares of a team's maximum that wait for one of its own to leave
	needy   []need
	actions []Action
	blocked map[functions.Name]Verdict
	acted   map[string]struct{}         // replicas that this plan has told something
	slept   map[functions.Name]struct{} // functions of which it has sent one to sleep

	plan        uint64 // the number of this one
	actedBefore bool   // there were actions before the first need was placed
	check       guaranteeCheck
	waits       map[waitKey]roomEstimate
	trial       freeRoom

	// Of the need that is placed now.
	placing      bool                // one is
	freed        functions.Resources // by the replicas that leave for it; GPUMemory is the sum over GPUs
	freeingTeams []string            // their teams
	reserved     bool                // what it needs of that is kept for it
	verdict      Verdict
	sum          uint64 // of what it was promised
	timeSlice    bool   // replicas past their time slice were or will be evicted for it
}

// teamCount is how many GPUs a team holds and how many of them are on their way out.
type teamCount struct{ held, leaving int }

type need struct {
	f      *Function
	reason string
	since  Instant // of its oldest waiter; later is less urgent
}

// guaranteeCheck caches whether a function's team asks for no more than its guarantee.
// It holds until the plan has another action.
type guaranteeCheck struct {
	f    *Function
	acts int
	is   bool
}

type victim struct {
	f             *Function
	r             *Replica
	room          int
	lastUse       Instant // last use
	evictedInPlan uint64  // the plan that evicts it
	residing      bool    // it has not stayed its residency: it may not go, but soon
	born          uint64

	key       float64         // the lowest is evicted first
	bytes     functions.Bytes // that evicting it frees; 0: the policy was not asked
	sliceOver bool            // a busy one whose time slice is over
}

// aliveFunctions yields the functions that have replicas or are wanted.
func (d *decision) aliveFunctions() iter.Seq[*Function] {
	return func(yield func(*Function) bool) {
		for _, e := range d.living {
			if !yield(e.f) {
				return
			}
		}
	}
}

func (d *decision) dueAt(t Instant) {
	if t > d.now && t < d.next {
		d.next = t
	}
}

func (d *decision) addAction(a Action) {
	d.actions = append(d.actions, a)
	d.mixPromise(a.Node)
	d.mixPromise(a.Replica)
	if a.Kind == Stop || a.Kind == Sleep {
		if p := d.log.begin(d.now, a.Function, KindCold, a.Reason); p != nil {
			p.chosen, p.forFunction = a.Replica, a.For
		}
	}
	switch a.Kind {
	case Sleep:
		d.slept[a.Function] = struct{}{}
		fallthrough
	case Stop:
		d.acted[a.Replica] = struct{}{}
		if !d.placing {
			d.helpCount++
		}
	case WakeUp:
		d.acted[a.Replica] = struct{}{}
	case CancelStart:
		d.helpCount++
	}
}

// reserves returns what r holds of its node now, and on which GPUs.
func (r *Replica) reserves() (functions.Resources, []int) {
	res, gpus := r.Reserved, r.GPUs
	if r.GoingToSleep || r.WakingUp || r.State == functions.Sleeping || r.asleep() {
		res.Memory += r.SleepMemory
	}
	if r.asleep() {
		res, gpus = res.OffGPUs(), nil
	}
	return res, gpus
}

// hasAction reports whether this plan has an action for r already.
func (d *decision) hasAction(r *Replica) bool {
	_, ok := d.acted[r.ID]
	return ok
}

// isLeaving reports whether this plan has an action for v already. Once placing has
// begun, only sleepers and stale replicas get actions other than by eviction.
func (d *decision) isLeaving(v *victim) bool {
	return v.evictedInPlan == d.plan || (d.actedBefore || v.r.Stale || v.r.asleep()) && d.hasAction(v.r)
}

func (d *decision) onUnhealthyGPU(r *Replica) bool {
	if len(r.GPUs) == 0 {
		return false
	}
	n := d.rooms[d.index[r.Node]].node
	for _, g := range n.GPUs {
		if g.Unhealthy && slices.Contains(r.GPUs, g.Index) {
			return true
		}
	}
	return false
}

func (d *decision) stopReplica(f *Function, r *Replica, reason string) {
	d.addAction(Action{Kind: Stop, Function: f.Name, Node: r.Node, Replica: r.ID, Drain: f.Drain, Reason: reason})
	d.noteLeaving(f, r)
}

// addFreed notes what f's replica frees for the need that is placed now.
func (d *decision) addFreed(f *Function, res functions.Resources) {
	d.freed.GPUs += res.GPUs
	d.freed.GPUMemory += res.GPUMemory * functions.Bytes(res.GPUs)
	d.freed.Memory += res.Memory
	d.freed.CPU += res.CPU
	d.freed.Pods += res.Pods
	d.freeingTeams = append(d.freeingTeams, f.Name.Team)
}

// freedTooMuch reports whether the replicas that leave for f free more than f takes.
func (d *decision) freedTooMuch(f *Function) bool {
	res, g := f.Resources, d.freed
	shared := res.GPUMemory > 0 && (g.GPUMemory == 0 || g.GPUMemory > res.GPUMemory*functions.Bytes(res.GPUs))
	more := g.GPUs > res.GPUs || g.Memory > res.Memory || g.CPU > res.CPU || g.Pods > res.Pods
	return !d.reserved || more || g.GPUs > 0 && shared
}

// noteLeaving books that r's room will be free, and is not yet.
func (d *decision) noteLeaving(f *Function, r *Replica) {
	if r.Cancelled {
		return // that has been counted
	}
	res, gpus := r.reserves()
	d.addFreed(f, res)
	if !r.GoingToSleep {
		d.leaving[f.Name.Team] += res.GPUs
	}
	if at, ok := d.index[r.Node]; ok {
		m := &d.rooms[at]
		if r.GoingToSleep { // its GPUs are as good as free already
			res, gpus = res.OffGPUs(), nil
		}
		m.soon.give(m.node, res, gpus)
		m.waiting = true
	}
}
