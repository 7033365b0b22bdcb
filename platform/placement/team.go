package placement

import (
	"math"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Team is a team's guarantee and maximum, and its recent use.
type Team struct {
	functions.TeamGPUs

	// Resources that its busy replicas held lately, decayed. Teams with lower use are
	// placed first.
	Used   float64 // GPU-seconds
	Hosted float64 // seconds of replicas without GPUs

	// OverBudget: before this moment none of its functions gets GPUs, and those it holds
	// are drained. Verdict is returned for its starts. 0: within the budget.
	OverBudget Instant
	Verdict    Verdict
}

// UseDecay is the time constant of Team.Used and Team.Hosted: after ten minutes a
// second of use counts a third.
const UseDecay = 10 * time.Minute

// weight is the team's guaranteed GPUs, at least 1.
func (t Team) weight() float64 { return float64(max(t.Guaranteed, 1)) }

// recentUse is the team's recent use over its weight, of replicas with or without GPUs.
func (t Team) recentUse(gpus bool) float64 {
	if gpus {
		return t.Used / t.weight()
	}
	return t.Hosted / t.weight()
}

// belowShare reports whether team a used less than team b lately.
func (d *decision) belowShare(a, b string, gpus bool) bool {
	return d.world.Teams[a].recentUse(gpus) < d.world.Teams[b].recentUse(gpus)
}

// atMaximum reports whether gpus more would exceed the team's maximum, GPUs claimed
// for its other waiting functions included.
func (d *decision) atMaximum(team string, gpus int) bool {
	most := d.world.Teams[team].Max
	if most <= 0 || gpus == 0 {
		return false
	}
	held := d.held[team]
	return held+gpus > most || held-d.leaving[team]+d.claimed[team]+gpus > most
}

// claimsGuarantee reports whether f's team stays within its guarantee with f, cached.
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

// overShare reports whether v, though busy, is evicted for f at once: its team used
// more than its share and f's team less, or f's team claims its guarantee from a
// borrower. So a team with a long queue delays another by the requests in flight and
// one switch only.
//
// This also limits how often two teams with constant demand switch: a team gets room
// back at once only if the other team used twice as much; otherwise the time slice of
// the holder must end first.
func (d *decision) overShare(v *victim, f *Function, taken int) bool {
	owner, asker := v.f.Name.Team, f.Name.Team
	if owner == asker || f.Queued == 0 || f.OnlyLow() {
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
			return false // f's team already holds its share
		}
	}
	gives := 0
	if gpus {
		gives = taken + v.r.Reserved.GPUs
	}
	if d.shareOf(asker, 0) >= d.shareOf(owner, gives) {
		return false // a later plan would return the room to its holder
	}
	mine, theirs := a.recentUse(gpus), o.recentUse(gpus)
	return mine < theirs/2 || v.sliceOver && mine < theirs
}

// hasRivals reports whether another team used more than f's lately, or may borrow
// GPUs that f's team is guaranteed.
func (d *decision) hasRivals(f *Function) bool {
	if !f.waits() {
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

// CodeBudget is the verdict code of a team that is over its budget.
const CodeBudget = "insufficient_quota"

// refusedByBudget reports whether f's team is over its budget; if so it sets the
// verdict.
func (d *decision) refusedByBudget(f *Function) bool {
	t := d.world.Teams[f.Name.Team]
	if t.OverBudget <= d.now || f.Resources.GPUs == 0 {
		return false
	}
	d.dueAt(t.OverBudget)
	d.verdict = t.Verdict
	return true
}

// drainOverBudget stops f's replicas on GPUs if its team is over its budget; requests
// in flight finish.
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

// urgencyOf is the class of a need: 0 demand, 1 lease, 2 minimum, 3 prewarm, 4 requests of
// priority low.
func urgencyOf(n need) int {
	if n.reason == reasonLow {
		return 4
	}
	switch n.since {
	case math.MaxInt64:
		return 2
	case math.MaxInt64 - 1:
		return 1
	case sincePrewarm:
		return 3
	}
	return 0
}

// shareOf orders teams for the next GPU, the lowest first: recent use plus GPUs held,
// over the weight. Use decays, so no team stays last. gives is subtracted from held.
func (d *decision) shareOf(team string, gives int) float64 {
	t := d.world.Teams[team]
	return (t.recentUse(true)+t.recentUse(false))/UseDecay.Seconds() + float64(d.held[team]-d.leaving[team]+d.claimed[team]-gives)/t.weight()
}
