package placement

import (
	"math"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Team is what a team is owed, and what it has had.
type Team struct {
	functions.TeamGPUs

	// What its replicas held lately and did not stand idle with, decayed: whose use
	// is lower is placed first.
	Used   float64 // GPU-seconds
	Hosted float64 // seconds of replicas without GPUs

	// Barred: none of its functions is given GPUs before this moment, with the
	// verdict that says why. What it holds is not renewed: idle ones end as ever.
	// 0: it is free.
	Barred  Instant
	Verdict Verdict
}

// UseDecay is the time constant of Team.Used and Team.Hosted: after ten minutes
// a second of use counts for a third of one.
const UseDecay = 10 * time.Minute

// weight of a team: what it is guaranteed counts as bought.
func (t Team) weight() float64 { return float64(max(t.Guaranteed, 1)) }

// use of a team lately, over its weight: of GPUs, or of hosts without.
func (t Team) use(gpus bool) float64 {
	if gpus {
		return t.Used / t.weight()
	}
	return t.Hosted / t.weight()
}

// below reports whether team a has had less than team b lately.
func (d *decision) below(a, b string, gpus bool) bool {
	return d.world.Teams[a].use(gpus) < d.world.Teams[b].use(gpus)
}

// full reports whether a team may not be given so many GPUs more: it would hold
// more than its maximum, or take what one of its own waits for.
func (d *decision) full(team string, gpus int) bool {
	most := d.world.Teams[team].Max
	if most <= 0 || gpus == 0 {
		return false
	}
	held := d.held[team]
	return held+gpus > most || held-d.leaving[team]+d.claimed[team]+gpus > most
}

// claims reports whether f's team asks for no more than it is guaranteed.
func (d *decision) claims(f *Function) bool {
	if c := &d.claim; c.f != f || c.acts != len(d.actions) {
		*c = claim{f, len(d.actions), d.claimsNow(f)}
	}
	return d.claim.is
}

func (d *decision) claimsNow(f *Function) bool {
	team := f.Name.Team
	return d.held[team]-d.leaving[team]+d.claimed[team]+f.Resources.GPUs <= d.world.Teams[team].Guaranteed
}

// over reports whether v, though in use, is to leave at once for f: its team has
// had more than its share and f's less, or f's team claims from a borrower what
// it is guaranteed. So a team with a long queue raises the wait of another by the
// requests in flight and one switch, and by no more.
//
// Nor do two teams that both ask all the time take turns faster than a switch is
// worth. Who was moved is moved back at once only when the other has had twice
// as much; who has had merely less waits until a replica of the other has had
// its Turn.
func (d *decision) over(v *victim, f *Function, taken int) bool {
	owner, asker := v.f.Name.Team, f.Name.Team
	if owner == asker || f.Queued == 0 {
		return false
	}
	o, a, gpus := d.world.Teams[owner], d.world.Teams[asker], v.r.Take.GPUs > 0
	if gpus {
		keeps := d.held[owner] - d.leaving[owner] - d.pledged[owner] - taken
		if f.Resources.GPUs > 0 && d.claims(f) && keeps-v.r.Take.GPUs >= o.Guaranteed {
			return true
		}
		has := d.held[asker] - d.leaving[asker]
		if float64(has)/a.weight() >= float64(keeps)/o.weight() {
			return false // its share is what it holds already
		}
	}
	gives := 0
	if gpus {
		gives = taken + v.r.Take.GPUs
	}
	if d.turnOf(asker, 0) >= d.turnOf(owner, gives) {
		return false // it would be given back
	}
	mine, theirs := a.use(gpus), o.use(gpus)
	return mine < theirs/2 || v.ripe && mine < theirs
}

// rivals reports whether some other team may have had more than its share, or
// borrow what f's is guaranteed.
func (d *decision) rivals(f *Function) bool {
	if f.Queued == 0 || f.Oldest == 0 {
		return false
	}
	gpus := f.Resources.GPUs > 0
	mine := d.world.Teams[f.Name.Team].use(gpus)
	if gpus && d.claims(f) {
		return true
	}
	for name, t := range d.world.Teams {
		if name != f.Name.Team && t.use(gpus) > mine {
			return true
		}
	}
	return false
}

// CodeBudget is the code of a team that has used up what it may use.
const CodeBudget = "insufficient_quota"

// barred reports whether f may not be given GPUs now, and says why.
func (d *decision) barred(f *Function) bool {
	t := d.world.Teams[f.Name.Team]
	if t.Barred <= d.now || f.Resources.GPUs == 0 {
		return false
	}
	d.at(t.Barred)
	d.verdict = t.Verdict
	return true
}

// spent drains what a barred team holds: a budget that is used up is not used
// any further than the requests in flight take.
func (d *decision) spent(f *Function) {
	t := d.world.Teams[f.Name.Team]
	if t.Barred <= d.now {
		return
	}
	d.at(t.Barred)
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := d.index[r.Node]; !ok || r.Take.GPUs == 0 || r.asleep() || r.Sinking || r.Stopping || r.CalledOff || r.State.Over() {
			continue
		}
		d.stop(f, r, "budget")
	}
}

// urgency of a need: demand first, then leases, then minimums, and last what is
// only foreseen.
func urgency(since Instant) int {
	switch since {
	case math.MaxInt64:
		return 2
	case math.MaxInt64 - 1:
		return 1
	case sinceForeseen:
		return 3
	}
	return 0
}

// turnOf is what the next GPU of a team is weighed by against those of others:
// the average it used lately and what it holds now, over its weight. Who starves
// sinks by the decay, so everyone's turn comes. gives is what it would hold less.
func (d *decision) turnOf(team string, gives int) float64 {
	t := d.world.Teams[team]
	return (t.use(true)+t.use(false))/UseDecay.Seconds() + float64(d.held[team]-d.leaving[team]+d.claimed[team]-gives)/t.weight()
}
