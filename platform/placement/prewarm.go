package placement

import (
	"math"
	"time"
)

// A start ahead (Function.Prewarm) is for a request that nobody has made yet, so
// it comes after everybody who has: it is placed last, only where nobody waits
// in vain, into room that is free or whose holder the eviction policy values
// less. Until it is READY, and after, it makes way like one that is idle. A
// replica that was never asked for ends with the prewarm.
const reasonPrewarm = "prewarm"

// sincePrewarm is the rank of its need.
const sincePrewarm Instant = math.MaxInt64 - 3

// maxKeepFactor bounds a learned keep-alive, in idle times of the function.
const maxKeepFactor = 6

// idle is how long f's replicas stay after the last request.
func (p Policy) idle(f *Function) time.Duration {
	idle := f.Scale.Idle.Std()
	if p.KeepAlive == Learned && f.KeepFor > 0 && idle > 0 {
		return min(f.KeepFor, maxKeepFactor*idle)
	}
	return idle
}

// onlyForeseen reports whether f is wanted only because somebody foresees a request.
func (f *Function) onlyForeseen(now Instant) bool {
	return f.Prewarm > now && !f.Gone && f.Active+f.Queued == 0 && f.Lease <= now && f.Scale.Min == 0
}

// neverUsed reports whether r was started ahead and nobody has used it so far.
func (f *Function) neverUsed(r *Replica) bool {
	return f.Prewarm > 0 && r.ReadyAt > f.LastEnd && f.Active+f.Queued == 0 && r.InFlight == 0
}

// placeAhead gives n room ahead of any request, if there is some to give.
func (d *decision) placeAhead(n need) bool {
	f, res, team := n.f, n.f.Resources, n.f.Name.Team
	if d.atMaximum(team, res.GPUs) || res.GPUs > 0 && d.world.Teams[team].OverBudget > d.now {
		return false
	}
	for i := range f.Replicas {
		if r := &f.Replicas[i]; r.GoingToSleep && !r.Stopping {
			return false
		}
	}
	if z := d.sleeper(f); z != nil {
		if d.sleeperFits(z) {
			d.wakeReplica(f, z, n.reason)
			return true
		}
		return false
	}
	if at := d.bestRoom(f, false); at >= 0 {
		d.startOn(&d.rooms[at], f, n.reason)
		return true
	}
	if d.bestRoom(f, true) >= 0 {
		return false // room is on its way
	}
	return d.makeRoom(f, false, reasonPrewarm)
}

// bestRoom is the best room for f, now or with soon once who leaves is gone; -1
// for none.
func (d *decision) bestRoom(f *Function, soon bool) int {
	at, _ := d.choose(f, soon, d.log.begin(d.now, f.Name, KindPlace, reasonPrewarm))
	return at
}

// worthLess reports whether the eviction policy values v less than f would be.
func (d *decision) worthLess(v *victim, f *Function) bool {
	if v.busy() {
		return false
	}
	k := Kept{Used: f.LastEnd, Uses: f.Uses, UsesAt: f.UsesAt, Next: f.NextUse, Bytes: freedBytes(f.Resources), WayBack: f.coldStartTime()}
	score, _ := d.policy.Eviction.Score(k, d.now)
	return v.key < score
}

// demandBlocked reports whether somebody who waits has found no room in this plan.
func (c *Planner) demandBlocked() bool {
	for _, k := range c.classList {
		if (k.waits || k.reason == "demand") && k.cursor < len(k.items) {
			return true
		}
	}
	return false
}
