package placement

import (
	"math"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
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

// teamCounts is what the teams may hold and hold, in GPUs.
type teamCounts struct {
	teams   map[string]Team
	count   map[string]teamCount // without the promises of this plan
	held    map[string]int       // those of stopping replicas included
	leaving map[string]int       // of held: of replicas that stop or go to sleep
	pledged map[string]int       // of held: promised to a sleeper but still in use
	claimed map[string]int       // of a team at its maximum, promised once its own evicted replicas stop
	check   guaranteeCheck
}

// teamCount is how many GPUs a team holds, and how many of them its stopping or
// falling-asleep replicas hold.
type teamCount struct{ held, leaving int }

// guaranteeCheck caches whether f keeps its team within its guarantee. It is valid
// until the plan has another action.
type guaranteeCheck struct {
	f  *Function
	is bool
}

func newTeamCounts() teamCounts {
	return teamCounts{count: map[string]teamCount{}, held: map[string]int{}, leaving: map[string]int{}, pledged: map[string]int{},
		claimed: map[string]int{}}
}

// add adds the GPUs of a team's reservation, or with sign -1 subtracts them.
func (t *teamCounts) add(team string, gpus teamCount, sign int) {
	c := t.count[team]
	c.held += sign * gpus.held
	c.leaving += sign * gpus.leaving
	t.count[team] = c
	t.restore(team)
}

// restore reverts this plan's promises to a team.
func (t *teamCounts) restore(team string) {
	c := t.count[team]
	t.held[team], t.leaving[team] = c.held, c.leaving
}

// reset forgets the reservations of all teams.
func (t *teamCounts) reset() {
	clear(t.count)
	clear(t.held)
	clear(t.leaving)
}

// staying is how many GPUs the team holds once those that leave are gone, with those
// claimed for it.
func (t *teamCounts) staying(team string) int {
	return t.held[team] - t.leaving[team] + t.claimed[team]
}

// keeps is how many GPUs the team has left to give, apart from those pledged to it.
func (t *teamCounts) keeps(team string) int { return t.held[team] - t.leaving[team] - t.pledged[team] }

// belowShare reports whether team a used less than team b lately.
func (t *teamCounts) belowShare(a, b string, gpus bool) bool {
	return t.teams[a].recentUse(gpus) < t.teams[b].recentUse(gpus)
}

// atMaximum reports whether gpus more would exceed the team's maximum, GPUs claimed
// for its other waiting functions included.
func (t *teamCounts) atMaximum(team string, gpus int) bool {
	most := t.teams[team].Max
	return most > 0 && gpus > 0 && (t.held[team]+gpus > most || t.staying(team)+gpus > most)
}

// claimsGuarantee reports whether f's team stays within its guarantee with f, cached.
func (t *teamCounts) claimsGuarantee(f *Function) bool {
	if t.check.f != f {
		t.check = guaranteeCheck{f, t.computeClaim(f)}
	}
	return t.check.is
}

func (t *teamCounts) computeClaim(f *Function) bool {
	team := f.Name.Team
	return t.staying(team)+f.Resources.GPUs <= t.teams[team].Guaranteed
}

// overShare reports whether v, though busy, is evicted for f at once: its team used
// more than its share and f's team less, or f's team claims its guarantee from a
// borrower. So a team with a long queue delays another by the requests in flight and
// one switch only.
//
// This also limits how often two teams with constant demand switch: a team gets room
// back at once only if the other team used twice as much; otherwise the time slice of
// the holder must end first.
func (t *teamCounts) overShare(v *victim, f *Function, taken int) bool {
	owner, asker := v.f.Name.Team, f.Name.Team
	if owner == asker || f.Queued == 0 || f.OnlyLow() {
		return false
	}
	o, a, gpus := t.teams[owner], t.teams[asker], v.r.Reserved.GPUs > 0
	if gpus {
		keeps := t.keeps(owner) - taken
		if f.Resources.GPUs > 0 && t.claimsGuarantee(f) && keeps-v.r.Reserved.GPUs >= o.Guaranteed {
			return true
		}
		has := t.held[asker] - t.leaving[asker]
		if float64(has)/a.weight() >= float64(keeps)/o.weight() {
			return false // f's team already holds its share
		}
	}
	gives := 0
	if gpus {
		gives = taken + v.r.Reserved.GPUs
	}
	if t.shareOf(asker, 0) >= t.shareOf(owner, gives) {
		return false // a later plan would return the room to its holder
	}
	mine, theirs := a.recentUse(gpus), o.recentUse(gpus)
	return mine < theirs/2 || v.sliceOver && mine < theirs
}

// hasRivals reports whether another team used more than f's lately, or may borrow
// GPUs that f's team is guaranteed.
func (t *teamCounts) hasRivals(f *Function) bool {
	if !f.waits() {
		return false
	}
	gpus := f.Resources.GPUs > 0
	mine := t.teams[f.Name.Team].recentUse(gpus)
	if gpus && t.claimsGuarantee(f) {
		return true
	}
	for name, x := range t.teams {
		if name != f.Name.Team && x.recentUse(gpus) > mine {
			return true
		}
	}
	return false
}

// CodeBudget is the verdict code of a team that is over its budget.
const CodeBudget = string(openai.InsufficientQuota)

// refusedByBudget reports whether f's team is over its budget; if so it sets the
// verdict.
func (a *attempt) refusedByBudget(f *Function) bool {
	t := a.counts.teams[f.Name.Team]
	if t.OverBudget <= a.plan.now || f.Resources.GPUs == 0 {
		return false
	}
	a.plan.dueAt(t.OverBudget)
	a.verdict = t.Verdict
	return true
}

// drainOverBudget stops f's replicas on GPUs if its team is over its budget; requests
// in flight finish.
func (d *decision) drainOverBudget(f *Function) {
	t := d.counts.teams[f.Name.Team]
	if t.OverBudget <= d.plan.now {
		return
	}
	d.plan.dueAt(t.OverBudget)
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := d.world.index[r.Node]; !ok || r.Reserved.GPUs == 0 || r.Asleep() || r.GoingToSleep || r.Stopping || r.Cancelled ||
			r.State.Over() {
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
func (t *teamCounts) shareOf(team string, gives int) float64 {
	x := t.teams[team]
	return (x.recentUse(true)+x.recentUse(false))/UseDecay.Seconds() + float64(t.staying(team)-gives)/x.weight()
}
