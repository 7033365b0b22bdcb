package placement

import (
	"iter"
	"math"
	"slices"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/explain"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
	"github.com/thaw-dev/thaw/platform/placement/victims"
)

// Decide plans the actions for the world w at now. The same world and the same time
// give the same plan.
func (p Policy) Decide(w World, now Instant) Plan {
	planner := p.Planner()
	planner.decision.log = nil
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
	return len(f.Replicas) == 0 && f.Queued == 0 && f.Active == 0 && (f.Scale.Min == 0 || f.Gone) && f.Lease <= now && f.Desired == 0 &&
		f.Prewarm <= now
}

// decision is what the steps of a plan share: the policy, the world and its teams, and
// the plan itself.
type decision struct {
	policy    Policy
	log       *explain.Log // source of Explain; nil: decisions are not recorded
	world     world
	counts    teamCounts
	plan      plan
	estimates roomEstimates
	living    []*functionEntry  // functions with replicas or demand, in the order of their first report
	owners    map[string]*owner // by team
	helpCount uint64            // incremented by every change that may unblock a function
	attempt   *attempt          // at the need that is being placed; nil while functions are scaled

	// Buffers.
	search            victims.Search
	candidates        evictionList
	spareReservations []reservation
}

// plan is what one plan has decided so far. It is replaced when the next one begins;
// until then MayRetry reads it.
type plan struct {
	number      uint64
	now, next   Instant
	actions     []Action
	acted       map[string]struct{}         // ids of replicas that it has an action for
	slept       map[functions.Name]struct{} // functions with a Sleep action
	actedBefore bool                        // it had actions before the first need was placed
	tried       bool                        // it tried to place something
	changed     []functions.Name            // functions whose verdict it changed
}

// attempt is one try to find room for a need: what was freed for it and promised to it.
type attempt struct {
	*decision
	low          bool                // it is for requests of priority low
	freed        functions.Resources // by the replicas evicted for it; GPUMemory is the sum over GPUs
	freeingTeams []string            // the teams of these replicas
	reserved     bool                // freed room was reserved for the need
	verdict      Verdict
	sum          uint64 // fingerprint of what the need was promised
	timeSlice    bool   // eviction of replicas past their time slice applies, now or after Patience
}

type need struct {
	f      *Function
	reason string
	since  Instant // arrival of its oldest waiter; later is less urgent
}

type victim struct {
	f             *Function
	r             *Replica
	owner         *owner
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

// following returns the empty plan that follows p, in the buffers of p.
func (p *plan) following(now Instant) plan {
	clear(p.acted)
	clear(p.slept)
	return plan{number: p.number + 1, now: now, next: math.MaxInt64, acted: p.acted, slept: p.slept, changed: p.changed[:0]}
}

func (p *plan) dueAt(t Instant) {
	if t > p.now && t < p.next {
		p.next = t
	}
}

func (d *decision) addAction(a Action) {
	d.plan.actions = append(d.plan.actions, a)
	d.counts.check = guaranteeCheck{}
	if d.attempt != nil {
		d.attempt.mixPromise(a.Node)
		d.attempt.mixPromise(a.Replica)
	}
	switch a.Kind {
	case Sleep, Stop:
		d.log.Begin(d.plan.now, a.Function, explain.Cold, a.Reason).Choose(a.Replica, a.For)
		if d.attempt == nil {
			d.helpCount++
		}
		if a.Kind == Sleep {
			d.plan.slept[a.Function] = struct{}{}
		}
		fallthrough
	case WakeUp:
		d.plan.acted[a.Replica] = struct{}{}
	case CancelStart:
		d.helpCount++
	}
}

// reserves returns the resources that r holds on its node now, and its GPUs.
func (r *Replica) reserves() (functions.Resources, []int) {
	res, gpus := r.Reserved, r.GPUs
	if r.GoingToSleep || r.WakingUp || r.State == functions.Sleeping || r.Asleep() {
		res.Memory += r.SleepMemory
	}
	if r.Asleep() {
		res, gpus = res.OffGPUs(), nil
	}
	return res, gpus
}

func (p *plan) hasAction(r *Replica) bool {
	_, ok := p.acted[r.ID]
	return ok
}

// isLeaving reports whether this plan has an action for v already. Once placing has
// begun, only sleepers and stale replicas get actions other than by eviction.
func (p *plan) isLeaving(v *victim) bool {
	return v.evictedInPlan == p.number || (p.actedBefore || v.r.Stale || v.r.Asleep()) && p.hasAction(v.r)
}

func (w *world) onUnhealthyGPU(r *Replica) bool {
	if len(r.GPUs) == 0 {
		return false
	}
	gpus := w.rooms[w.index[r.Node]].node.GPUs
	return slices.ContainsFunc(gpus, func(g rooms.GPU) bool { return g.Unhealthy && slices.Contains(r.GPUs, g.Index) })
}

func (d *decision) stopReplica(f *Function, r *Replica, reason string) {
	d.addAction(Action{Kind: Stop, Function: f.Name, Node: r.Node, Replica: r.ID, Drain: f.Drain, Reason: reason})
	d.noteLeaving(f, r)
}

// addFreed adds res of f's replica to the resources freed for the need, if there is one.
func (a *attempt) addFreed(f *Function, res functions.Resources) {
	if a == nil {
		return
	}
	a.freed.GPUs += res.GPUs
	a.freed.GPUMemory += res.GPUMemory * functions.Bytes(res.GPUs)
	a.freed.Memory += res.Memory
	a.freed.CPU += res.CPU
	a.freed.Pods += res.Pods
	a.freeingTeams = append(a.freeingTeams, f.Name.Team)
}

// freedTooMuch reports whether the evictions for f free more than f needs.
func (a *attempt) freedTooMuch(f *Function) bool {
	res, g := f.Resources, a.freed
	shared := res.GPUMemory > 0 && (g.GPUMemory == 0 || g.GPUMemory > res.GPUMemory*functions.Bytes(res.GPUs))
	more := g.GPUs > res.GPUs || g.Memory > res.Memory || g.CPU > res.CPU || g.Pods > res.Pods
	return !a.reserved || more || g.GPUs > 0 && shared
}

// noteLeaving adds r's resources to those that become free once r has stopped.
func (d *decision) noteLeaving(f *Function, r *Replica) {
	if r.Cancelled {
		return // already counted when it was cancelled
	}
	res, gpus := r.reserves()
	d.attempt.addFreed(f, res)
	if !r.GoingToSleep {
		d.counts.leaving[f.Name.Team] += res.GPUs
	}
	if at, ok := d.world.index[r.Node]; ok {
		m := &d.world.rooms[at]
		if r.GoingToSleep { // its GPUs were added when the sleep began
			res, gpus = res.OffGPUs(), nil
		}
		m.soon.Give(res, gpus)
		m.waiting = true
	}
}
