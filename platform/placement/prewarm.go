package placement

import (
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/platform/placement/eviction"
	"github.com/thaw-dev/thaw/platform/placement/explain"
)

// reasonPrewarm marks a start ahead of demand (Function.Prewarm). It is placed last,
// only if no demand is blocked, into free room or the room of a replica that the
// eviction policy scores lower. Like an idle replica it is evicted for any demand, and
// it stops at the end of the prewarm if it was never used.
const reasonPrewarm = "prewarm"

// sincePrewarm is the need.since of a prewarm.
const sincePrewarm Instant = math.MaxInt64 - 3

// maxKeepFactor bounds a learned keep-alive, in idle times of the function.
const maxKeepFactor = 6

// idle is how long f's replicas stay READY after the last request.
func (p Policy) idle(f *Function) time.Duration {
	idle := f.Scale.Idle.Std()
	if p.KeepAlive == Learned && f.KeepFor > 0 && idle > 0 {
		return min(f.KeepFor, maxKeepFactor*idle)
	}
	return idle
}

// IdleEnd is when a replica of f, READY since readyAt, has been idle for long enough to stop;
// 0: requests or the model file's minimum keep it.
func (p Policy) IdleEnd(f *Function, readyAt Instant) Instant {
	switch {
	case f.Active+f.Queued > 0 || f.Scale.Min > 0 || readyAt == 0:
		return 0
	case f.Prewarm > 0 && readyAt > f.LastEnd:
		return max(f.Prewarm, f.Lease)
	}
	return max(f.LastEnd, readyAt, f.Lease) + p.idle(f)
}

// onlyForeseen reports whether a prewarm is the only reason to run f.
func (f *Function) onlyForeseen(now Instant) bool {
	return f.Prewarm > now && !f.Gone && f.Active+f.Queued == 0 && f.Lease <= now && f.Scale.Min == 0
}

// neverUsed reports whether r was started ahead of demand and has served no request.
func (f *Function) neverUsed(r *Replica) bool {
	return f.Prewarm > 0 && r.ReadyAt > f.LastEnd && f.Active+f.Queued == 0 && r.InFlight == 0
}

// placeAhead places a prewarm if there is spare room. It reports whether it did.
func (a *attempt) placeAhead(n need) bool {
	f, res, team := n.f, n.f.Resources, n.f.Name.Team
	if a.counts.atMaximum(team, res.GPUs) || res.GPUs > 0 && a.counts.teams[team].OverBudget > a.plan.now {
		return false
	}
	for i := range f.Replicas {
		if r := &f.Replicas[i]; r.GoingToSleep && !r.Stopping {
			return false
		}
	}
	if z := a.sleeper(f); z != nil {
		if a.sleeperFits(z) {
			a.wakeReplica(f, z, n.reason)
			return true
		}
		return false
	}
	if at := a.bestRoom(f, false); at >= 0 {
		a.startOn(&a.world.rooms[at], f, n.reason)
		return true
	}
	if a.bestRoom(f, true) >= 0 {
		return false // room is being freed: wait for it
	}
	return a.makeRoom(f, false, reasonPrewarm)
}

// bestRoom is the index of the best node for f, with room now, or with soon once
// stopping replicas are gone; -1 for none.
func (a *attempt) bestRoom(f *Function, soon bool) int {
	at, _ := a.choose(f, soon, a.log.Begin(a.plan.now, f.Name, explain.Place, reasonPrewarm))
	return at
}

// worthLess reports whether the eviction policy scores v lower than f.
func (d *decision) worthLess(v *victim, f *Function) bool {
	if v.busy() {
		return false
	}
	k := eviction.Kept{Used: f.LastEnd, Uses: f.Uses, UsesAt: f.UsesAt, Next: f.NextUse, Bytes: freedBytes(f.Resources),
		WayBack: f.coldStartTime()}
	score, _ := d.policy.Eviction.Score(k, d.plan.now)
	return v.key < score
}

// demandBlocked reports whether this plan found no room for some waiting request.
func (q *pendingQueue) demandBlocked() bool {
	return slices.ContainsFunc(q.classList, func(c *pendingClass) bool {
		return (c.waits || c.reason == "demand") && c.reason != reasonLow && c.cursor < len(c.items)
	})
}
