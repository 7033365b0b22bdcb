package placement

import (
	"math"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Team is what a team is owed, and what it has had.
type Team struct {
	functions.TeamGPUs

	// What its busy replicas held lately, decayed. Teams with lower use are placed
	// first.
	Used   float64 // GPU-seconds
	Hosted float64 // seconds of replicas without GPUs

	// OverBudget: none of its functions is given GPUs before this moment, with the
	// verdict that says why. What it holds is not renewed: idle ones end as ever.
	// 0: it is free.
	OverBudget Instant
	Verdict    Verdict
}

// UseDecay is the time constant of Team.Used and Team.Hosted: after ten minutes
// a second of use counts for a third of one.
const UseDecay = 10 * time.Minute

// weight of a team: what it is guaranteed counts as bought.
func (t Team) weight() float64 { return float64(max(t.Guaranteed, 1)) }

// recentUse of a team lately, over its weight: of GPUs, or of hosts without.
func (t Team) recentUse(gpus bool) float64 {
	if gpus {
		return t.Used / t.weight()
	}
	return t.Hosted / t.weight()
}

// belowShare reports whether team a has had less than team b lately.
func (d *decision) belowShare(a, b string, gpus bool) bool {
	return d.world.Teams[a].recentUse(gpus) < d.world.Teams[b].recentUse(gpus)
}

// atMaximum reports whether so many more GPUs exceed the team's maximum, or take what
// another of its functions waits for.
func (d *decision) atMaximum(team string, gpus int) bool {
	most := d.world.Teams[team].Max
	if most <= 0 || gpus == 0 {
		return false
	}
	held := d.held[team]
	return held+gpus > most || held-d.leaving[team]+d.claimed[team]+gpus > most
}

// claimsGuarantee reports whether f's team asks for no more than it is guaranteed.
func (d *decision) claimsGuarantee(f *Function) bool {
	if c := &d.check; c.f != f || c.acts != len(d.actions) {
		*c = guaranteeCheck{f, len(d.actions), d.computeClaim(f)}
	}
	return d.check.is
}

func (d *decision) computeClaim(f *Function) bool {
	team := f.Name.Team
	return d.held[team]-d.leaving[team]+d.claimed[team]+f.Resources.GPUs <= d.world.Teams[team].Guaranteed
}

// overShare reports whether v, though in use, must leave for f at once: its team used
// more than its share and f's team less, or f's team claims its guarantee from a
// borrower. So a team with a long queue delays another by the requests in flight and
// one switch, and by no more.
//
// Two teams with constant demand do not switch faster than a switch is worth: a
// replica is moved back at once only if the other team used twice as much; otherwise
// the time slice of the holder must end first.
func (d *decision) overShare(v *victim, f *Function, taken int) bool {
	owner, asker := v.f.Name.Team, f.Name.Team
	if owner == asker || f.Queued == 0 {
		return false
	}
	o, a, gpus := d.world.Teams[owner], d.world.Teams[asker], v.r.Reserved.GPUs > 0
	if gpus {
		keeps := d.held[owner] - d.leaving[owner] - d.pledged[owner] - taken
		if f.Resources.GPUs > 0 && d.claimsGuarantee(f) && keeps-v.r.Reserved.GPUs >= o.Guaranteed {
			return true
		}
		has := d.held[asker] - d.leaving[asker]
		if float64(has)/a.weight() >= float64(keeps)/o.weight() {
			return false // its share is what it holds already
		}
	}
	gives := 0
	if gpus {
		gives = taken + v.r.Reserved.GPUs
	}
	if d.shareOf(asker, 0) >= d.shareOf(owner, gives) {
		return false // it would be given back
	}
	mine, theirs := a.recentUse(gpus), o.recentUse(gpus)
	return mine < theirs/2 || v.sliceOver && mine < theirs
}

// hasRivals reports whether another team may have used more than its share, or may
// borrow what f's team is guaranteed.
func (d *decision) hasRivals(f *Function) bool {
	if f.Queued == 0 || f.Oldest == 0 {
		return false
	}
	gpus := f.Resources.GPUs > 0
	mine := d.world.Teams[f.Name.Team].recentUse(gpus)
	if gpus && d.claimsGuarantee(f) {
		return true
	}
	for name, t := range d.world.Teams {
		if name != f.Name.Team && t.recentUse(gpus) > mine {
			return true
		}
	}
	return false
}

// CodeBudget is the code of a team that has used up what it may use.
const CodeBudget = "insufficient_quota"

// refusedByBudget reports whether f's team is over its budget, and sets the verdict.
func (d *decision) refusedByBudget(f *Function) bool {
	t := d.world.Teams[f.Name.Team]
	if t.OverBudget <= d.now || f.Resources.GPUs == 0 {
		return false
	}
	d.dueAt(t.OverBudget)
	d.verdict = t.Verdict
	return true
}

// drainOverBudget stops what a team over its budget holds; requests in flight finish.
func (d *decision) drainOverBudget(f *Function) {
	t := d.world.Teams[f.Name.Team]
	if t.OverBudget <= d.now {
		return
	}
	d.dueAt(t.OverBudget)
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := d.index[r.Node]; !ok || r.Reserved.GPUs == 0 || r.asleep() || r.GoingToSleep || r.Stopping || r.Cancelled || r.State.Over() {
			continue
		}
		d.stopReplica(f, r, "budget")
	}
}

// urgencyOf is the class of a need: demand, leases, minimums, prewarms.
func urgencyOf(since Instant) int {
	switch since {
	case math.MaxInt64:
		return 2
	case math.MaxInt64 - 1:
		return 1
	case sincePrewarm:
		return 3
	}
	return 0
}

// shareOf weighs the next GPU of a team against other teams: its recent use and what
// it holds now, over its weight. Use decays, so each team gets its turn. gives is what
// it would hold less.
func (d *decision) shareOf(team string, gives int) float64 {
	t := d.world.Teams[team]
	return (t.recentUse(true)+t.recentUse(false))/UseDecay.Seconds() + float64(d.held[team]-d.leaving[team]+d.claimed[team]-gives)/t.weight()
}
