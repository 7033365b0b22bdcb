package placement

import (
	"iter"
	"slices"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/explain"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// Decide plans the actions for the world w at now. The same world and the same time
// give the same plan.
func (p Policy) Decide(w World, now Instant) Plan {
	planner := p.Planner()
	planner.log = nil
	planner.slab = make([]functionEntry, len(w.Functions))
	for _, n := range w.Nodes {
		planner.NodeChanged(n)
	}
	planner.Teams(w.Teams)
	for _, f := range w.Functions {
		if !f.resting(now) {
			planner.FunctionChanged(f)
		}
	}
	return planner.Plan(now)
}

// resting reports whether planning can skip f: it has no replicas and no demand. Most
// functions rest, so this must be cheap.
func (f *Function) resting(now Instant) bool {
	return len(f.Replicas) == 0 && f.Queued == 0 && f.Active == 0 && (f.Scale.Min == 0 || f.Gone) && f.Lease <= now && f.Desired == 0 && f.Prewarm <= now
}

// decision is the state of the current plan, on rooms and counts that a Planner keeps.
type decision struct {
	policy    Policy
	log       *explain.Log // source of Explain; nil: decisions are not recorded
	world     struct{ Teams map[string]Team }
	now       Instant
	next      Instant
	living    []*functionEntry // functions with replicas or demand, in the order of their first report
	helpCount uint64           // incremented by every change that may unblock a function

	rooms   []nodeRoom
	index   map[string]int       // node id to room; lost nodes are absent
	count   map[string]teamCount // per team, without the promises of this plan
	held    map[string]int       // GPUs per team, those of stopping replicas included
	leaving map[string]int       // of held: GPUs of replicas that stop or go to sleep
	pledged map[string]int       // of held: GPUs promised to a sleeper but still in use
	claimed map[string]int       // GPUs of a team at its maximum, promised once its own evicted replicas stop
	needy   []need
	actions []Action
	blocked map[functions.Name]Verdict
	acted   map[string]struct{}         // ids of replicas that this plan has an action for
	slept   map[functions.Name]struct{} // functions with a Sleep action in this plan

	plan        uint64 // number of this plan
	actedBefore bool   // the plan had actions before the first need was placed
	check       guaranteeCheck
	waits       map[waitKey]roomEstimate
	trial       rooms.Room

	// State of the need that is being placed.
	placing      bool                // a need is being placed
	low          bool                // it is for requests of priority low
	freed        functions.Resources // by the replicas evicted for it; GPUMemory is the sum over GPUs
	freeingTeams []string            // the teams of these replicas
	reserved     bool                // freed room was reserved for the need
	verdict      Verdict
	sum          uint64 // fingerprint of what the need was promised
	timeSlice    bool   // eviction of replicas past their time slice applies, now or after Patience
}

// teamCount is how many GPUs a team holds, and how many of them its stopping or
// falling-asleep replicas hold.
type teamCount struct{ held, leaving int }

type need struct {
	f      *Function
	reason string
	since  Instant // arrival of its oldest waiter; later is less urgent
}

// guaranteeCheck caches whether f keeps its team within its guarantee. It is valid
// until the plan has another action.
type guaranteeCheck struct {
	f    *Function
	acts int
	is   bool
}

type victim struct {
	f             *Function
	r             *Replica
	room          int
	lastUse       Instant
	evictedInPlan uint64 // number of the plan that evicts it
	residing      bool   // READY for less than Policy.Residency: not evictable yet
	born          uint64

	key       float64         // the lowest is evicted first
	bytes     functions.Bytes // freed by evicting it; 0: no score was computed
	sliceOver bool            // it is busy and its time slice is over
	low       lowUse
}

// aliveFunctions yields the functions that have replicas or demand.
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
		d.log.Begin(d.now, a.Function, explain.Cold, a.Reason).ChooseFor(a.Replica, a.For)
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

// reserves returns the resources that r holds on its node now, and its GPUs.
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

// addFreed adds res of f's replica to the resources freed for the need being placed.
func (d *decision) addFreed(f *Function, res functions.Resources) {
	d.freed.GPUs += res.GPUs
	d.freed.GPUMemory += res.GPUMemory * functions.Bytes(res.GPUs)
	d.freed.Memory += res.Memory
	d.freed.CPU += res.CPU
	d.freed.Pods += res.Pods
	d.freeingTeams = append(d.freeingTeams, f.Name.Team)
}

// freedTooMuch reports whether the evictions for f free more than f needs.
func (d *decision) freedTooMuch(f *Function) bool {
	res, g := f.Resources, d.freed
	shared := res.GPUMemory > 0 && (g.GPUMemory == 0 || g.GPUMemory > res.GPUMemory*functions.Bytes(res.GPUs))
	more := g.GPUs > res.GPUs || g.Memory > res.Memory || g.CPU > res.CPU || g.Pods > res.Pods
	return !d.reserved || more || g.GPUs > 0 && shared
}

// noteLeaving adds r's resources to those that become free once r has stopped.
func (d *decision) noteLeaving(f *Function, r *Replica) {
	if r.Cancelled {
		return // already counted when it was cancelled
	}
	res, gpus := r.reserves()
	d.addFreed(f, res)
	if !r.GoingToSleep {
		d.leaving[f.Name.Team] += res.GPUs
	}
	if at, ok := d.index[r.Node]; ok {
		m := &d.rooms[at]
		if r.GoingToSleep { // its GPUs were added when the sleep began
			res, gpus = res.OffGPUs(), nil
		}
		m.soon.Give(res, gpus)
		m.waiting = true
	}
}
