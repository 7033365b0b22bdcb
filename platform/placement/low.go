package placement

import (
	"math"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// reasonLow marks a start for requests of priority low. It is placed after everything else,
// into free room or the room of a replica that served only such requests and has finished
// them.
const reasonLow = "low"

// reasonPriority is the reason for an eviction of a replica that serves requests of
// priority low only, or that no other request has used for its idle time or since it was READY.
const reasonPriority = "priority"

// lowGap is how long a replica without requests stays for the next ones of priority low,
// before others of that priority get its room.
const lowGap = 2 * time.Second

// lowUse says whose replica a victim is, if requests of priority low only hold it.
type lowUse uint8

const (
	notLow  lowUse = iota
	lowIdle        // without requests; see idleAfterLow
	lowBusy        // in use or starting
	lowOver        // lowBusy, and its share of time beside others of that priority is over
)

// OnlyLow reports whether f has requests and all of them are of priority low.
func (f *Function) OnlyLow() bool {
	return f.Active+f.Queued > 0 && f.LowActive >= f.Active && f.LowQueued >= f.Queued
}

// waits reports whether requests wait for f that are not of priority low.
func (f *Function) waits() bool { return f.Queued > 0 && f.Oldest > 0 && !f.OnlyLow() }

// wantWithoutLow is how many replicas f should have for its requests that are not of
// priority low.
func (p Policy) wantWithoutLow(f *Function, now Instant) int {
	if f.LowActive+f.LowQueued == 0 {
		return p.Want(f, now)
	}
	if f.OnlyLow() || f.Gone {
		return f.wantFor(0, 0, 0, now)
	}
	return f.wantFor(max(f.activeRequests()-f.LowActive, 0), max(f.Queued-f.LowQueued, 0), 0, now)
}

// yielding is the index of the first replica of f that any request but one of priority low
// may evict, though it is in use or starting: the ones before it are enough for the others.
func (d *decision) yielding(f *Function) int {
	if f.LowActive+f.LowQueued == 0 {
		return len(f.Replicas)
	}
	keep := d.policy.wantWithoutLow(f, d.plan.now)
	for i := range f.Replicas {
		if r := &f.Replicas[i]; !r.Stopping && !r.Cancelled && !r.GoingToSleep && !r.State.Over() && !r.Asleep() {
			if keep--; keep < 0 {
				return i
			}
		}
	}
	return len(f.Replicas)
}

// lowUseOf is the use of a busy or starting replica that yields.
func (d *decision) lowUseOf(r *Replica) lowUse {
	end := r.ReadyAt + d.policy.LowSlice
	if d.policy.LowSlice <= 0 || r.State != functions.Ready {
		return lowBusy
	}
	if end > d.plan.now {
		d.plan.dueAt(end)
		return lowBusy
	}
	return lowOver
}

// idleAfterLow reports whether only requests of priority low have used the idle replica r
// since it became READY, or for its idle time, and none for a moment. The idle time after
// other requests is kept by the replica that served them: one that was loaded later is there
// for those of priority low alone.
func (d *decision) idleAfterLow(f *Function, r *Replica) bool {
	if f.LowSince == 0 || f.LastEnd < r.ReadyAt || f.Prewarm > d.plan.now {
		return false
	}
	due := f.LastEnd + lowGap
	if f.LowSince > 1 && f.LowSince >= r.ReadyAt {
		due = max(due, f.LowSince+d.policy.idle(f))
	}
	d.plan.dueAt(due)
	return due <= d.plan.now
}

// order puts victims that hold room for requests of priority low before all others.
func (u lowUse) order(v *victim) {
	v.low = u
	switch u {
	case lowIdle:
		v.key = -2
	case lowBusy, lowOver:
		v.key, v.lastUse = -1, math.MaxInt64/2
		if v.r.State == functions.Ready {
			v.lastUse = v.r.ReadyAt
		}
	}
}

// cost is the part of its usual cost that the eviction of such a victim counts for.
func (u lowUse) cost() float64 {
	switch u {
	case lowIdle:
		return 1e-9
	case lowBusy, lowOver:
		return 1e-6
	}
	return 1
}

// refuseLow sets the verdict of a start that waits for free room.
func (a *attempt) refuseLow(f *Function) bool {
	what := "a free GPU"
	if f.Resources.GPUs == 0 {
		what = "free host memory"
	} else if f.Resources.GPUs > 1 {
		what = "free GPUs"
	}
	a.verdict = Verdict{Code: CodeCapacity, Message: "it waits for " + what + ": its priority is low", ETA: -1}
	return false
}
