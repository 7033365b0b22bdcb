package placement

import (
	"math"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/autoscale"
)

// Want is how many replicas f should have. Every plan computes it anew, so waiting
// requests count without the delay of an averaging window.
func (p Policy) Want(f *Function, now Instant) int {
	if f.Gone {
		return 0
	}
	return f.wantFor(f.activeRequests(), f.Queued, f.Needed, now)
}

// wantFor is Want for so many requests of f. Waiting ones count at once and in full.
// A panic and the rate down only keep existing replicas.
func (f *Function) wantFor(active, queued, needed int, now Instant) int {
	want := 0
	if active+queued > 0 {
		want = max(1, needed)
	}
	if queued > 0 {
		want = max(want, autoscale.AtOnce(active+queued, f.ready(), f.Scale.Target))
	}
	if f.Lease > now {
		want = max(want, 1)
	}
	return min(max(want, f.Scale.Min), max(f.Scale.Max, f.Scale.Min))
}

// activeRequests excludes requests on replicas that a user stopped; they must not
// trigger a new start.
func (f *Function) activeRequests() int {
	n := f.Active
	for i := range f.Replicas {
		if f.Replicas[i].StoppedByUser {
			n -= f.Replicas[i].InFlight
		}
	}
	return max(n, 0)
}

// unattributed counts active requests whose replica is not known: they bypassed the
// activators, or their replica is new. Each is assumed to be on a replica that has no
// other requests.
func (f *Function) unattributed() int {
	n := f.Active
	for i := range f.Replicas {
		n -= f.Replicas[i].InFlight
	}
	return max(n, 0)
}

// ready counts the replicas that serve.
func (f *Function) ready() (n int) {
	for i := range f.Replicas {
		if r := &f.Replicas[i]; r.State == functions.Ready && !r.Stopping && !r.GoingToSleep {
			n++
		}
	}
	return n
}

// scaleFunction scales one function: surplus replicas stop, it returns how
// many are missing, and the need for each.
func (d *decision) scaleFunction(f *Function) (what need, missing int) {
	want := d.policy.Want(f, d.plan.now)
	d.plan.dueAt(f.Lease)
	if f.onlyForeseen(d.plan.now) {
		d.plan.dueAt(f.Prewarm)
		want = max(want, 1)
	}
	d.drainOverBudget(f)
	var ready, starting, stale, freshReady int
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := d.world.index[r.Node]; !ok || r.Stopping || r.State.Over() || d.plan.hasAction(r) {
			continue
		}
		switch {
		case f.Gone:
			d.stopReplica(f, r, "removed")
		case d.world.onUnhealthyGPU(r):
			d.stopReplica(f, r, "gpu_unhealthy")
		case r.Stale:
			stale++
		case r.GoingToSleep, r.Asleep():
		case r.State == functions.Ready:
			ready++
			freshReady++
		case r.Cancelled:
		default:
			starting++
		}
	}
	if f.Gone {
		return what, 0
	}
	if stale > 0 {
		// The old recipe serves until the new one can, unless there is no demand.
		for i := range f.Replicas {
			r := &f.Replicas[i]
			if _, ok := d.world.index[r.Node]; ok && r.Stale && !r.Stopping &&
				(freshReady > 0 || want == 0 && r.InFlight == 0 || r.State != functions.Ready) {
				d.stopReplica(f, r, "changed")
			}
		}
	}
	d.scaleDown(f, want, ready, starting)
	d.unloadSleepers(f, want)

	live := ready + starting
	if live >= want {
		return what, 0
	}
	if f.RetryAt > d.plan.now {
		d.plan.dueAt(f.RetryAt)
		return what, 0
	}
	if ready == 0 && starting > 0 {
		return what, 0 // a function without READY replicas gets one start at a time
	}
	missing, what = want-live, d.needOf(f, live)
	if others := d.policy.wantWithoutLow(f, d.plan.now) - live; others > 0 {
		missing = min(missing, others) // those for requests of priority low follow
	}
	if ready == 0 {
		missing = 1
	}
	return what, missing
}

// needOf is the need for one replica of f more than the live ones.
func (d *decision) needOf(f *Function, live int) need {
	reason, since := "min", Instant(math.MaxInt64)
	switch {
	case f.LowActive+f.LowQueued > 0 && d.policy.wantWithoutLow(f, d.plan.now) <= live:
		reason, since = reasonLow, max(f.Oldest, f.LastEnd)
	case f.waits():
		// The wait counts from the last served request: otherwise an endless queue would
		// regain the room that it was evicted from.
		reason, since = "demand", max(f.Oldest, f.LastEnd)
	case f.Active+f.Queued > 0 && !f.OnlyLow():
		reason, since = "demand", math.MaxInt64-2
	case f.Lease > d.plan.now:
		reason, since = "lease", math.MaxInt64-1
	case f.onlyForeseen(d.plan.now):
		reason, since = reasonPrewarm, sincePrewarm
	}
	return need{f: f, reason: reason, since: since}
}

// unloadSleepers stops replicas that have slept for the idle time, and all but one if
// there is no demand: one is enough to wake.
func (d *decision) unloadSleepers(f *Function, want int) {
	idle, kept := f.Scale.Idle.Std(), 0
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := d.world.index[r.Node]; !ok || !r.Asleep() || r.Stopping || d.plan.hasAction(r) || want > 0 {
			continue
		}
		due := max(f.LastEnd, r.SleptAt, f.Lease) + idle
		switch {
		case kept > 0:
			d.stopReplica(f, r, "surplus")
		case due > d.plan.now:
			kept++
			d.plan.dueAt(due)
		default:
			d.stopReplica(f, r, "idle")
		}
	}
}

// sleepReplica puts r to sleep if its engine and its node can: with its weights in host memory if
// there is room, else without them if waking is still faster than a cold start. It
// returns false if r cannot sleep.
func (d *decision) sleepReplica(f *Function, r *Replica, drain time.Duration, reason, whom string) bool {
	at, ok := d.world.index[r.Node]
	if !ok || d.world.rooms[at].node.NoSleep || !f.Sleeps || f.Gone || r.Stale || f.Scale.Idle <= 0 {
		return false
	}
	if _, ok := d.plan.slept[f.Name]; ok || f.sleepers() > 0 {
		return false // one sleeper per function is enough
	}
	level, held := 1, f.SleepMemory
	if min(d.world.rooms[at].now.Memory, d.world.rooms[at].soon.Memory) < held || !d.sleepMemoryFits(&d.world.rooms[at], held) {
		if !f.sleepsDeep() || d.world.rooms[at].soon.Memory < 0 {
			return false
		}
		level, held = 2, 0
	}
	if s := &d.world.rooms[at].soon; s.CPU < 0 || s.Pods < 0 {
		return false // a sleeper keeps its processors and its pod
	}
	d.addAction(Action{Kind: Sleep, Function: f.Name, Node: r.Node, Replica: r.ID, Drain: drain, Level: level, Reason: reason, For: whom})
	d.counts.leaving[f.Name.Team] += r.Reserved.GPUs
	d.attempt.addFreed(f, r.Reserved.OnGPUs())
	m := &d.world.rooms[at]
	m.soon.Give(r.Reserved.OnGPUs(), r.GPUs)
	m.soon.Memory -= held
	m.now.Memory -= held
	m.slept += held
	m.waiting = true
	return true
}

// scaleDown stops idle and surplus replicas, and cancels starts without demand.
func (d *decision) scaleDown(f *Function, want, ready, starting int) {
	for i := len(f.Replicas) - 1; i >= 0 && ready+starting > want && starting > 0; i-- {
		r := &f.Replicas[i]
		if r.ReadyAt == 0 && !r.Spawned && !r.Stopping && !r.Cancelled && !r.Stale && !r.State.Over() && r.State != functions.Ready {
			d.addAction(Action{Kind: CancelStart, Function: f.Name, Node: r.Node, Replica: r.ID, Reason: "called_off"})
			d.noteLeaving(f, r)
			starting--
		}
	}
	if ready == 0 {
		return
	}
	idle := d.policy.idle(f)
	keep := max(want, 1, f.Desired)
	for ready > want {
		r := d.leastUsed(f)
		if r == nil {
			return
		}
		due := max(f.LastEnd, r.ReadyAt, f.Lease) + idle
		reason := "idle"
		if f.neverUsed(r) {
			due, reason = max(f.Prewarm, f.Lease), "unused"
		}
		if ready > keep {
			if s := r.ReadyAt + d.policy.Surplus; s < due {
				due, reason = s, "surplus"
			}
		}
		if due > d.plan.now {
			d.plan.dueAt(due)
			return
		}
		if want > 0 && reason == "idle" {
			return // an active function keeps f.Desired replicas
		}
		// The last idle replica sleeps before it stops.
		if reason != "idle" || ready > 1 || !d.sleepReplica(f, r, f.Drain, reason, "") {
			d.stopReplica(f, r, reason)
		}
		ready--
	}
}

// sleepers counts the replicas of f that sleep or are falling asleep.
func (f *Function) sleepers() (n int) {
	for i := range f.Replicas {
		if r := &f.Replicas[i]; (r.Asleep() || r.GoingToSleep) && !r.Stopping {
			n++
		}
	}
	return n
}

// leastUsed is the replica of f that has been READY for longest without requests in
// flight now, nil if none.
func (d *decision) leastUsed(f *Function) *Replica {
	var best *Replica
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := d.world.index[r.Node]; !ok || r.State != functions.Ready || r.InFlight > 0 || r.Stopping || r.GoingToSleep || r.Stale ||
			d.plan.hasAction(r) {
			continue
		}
		if best == nil || r.ReadyAt < best.ReadyAt {
			best = r
		}
	}
	return best
}
