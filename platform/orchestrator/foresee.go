package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/placement"
)

// Foresee is what a Steer needs to look ahead. The Steer owns it from New on.
type Foresee struct {
	History *forecast.History // what was; never nil
	Ahead   bool              // start what it foresees; hints are followed in any case

	// Budget is the GPU time that starts ahead may take in an hour, for one team;
	// all teams together may take Teams times as much. A replica without GPUs
	// counts as one. 0: an hour, and four times that.
	Budget time.Duration
	Teams  int

	// File is where the history and the times of starts are kept, see OpenForesee;
	// empty: nowhere.
	File string

	// Next, if not nil, is believed instead of History about when a function is
	// used next after now; zero never. It is for a simulator, which knows.
	Next func(name functions.Name, now time.Time) time.Time

	starts map[functions.Name]recollection

	// Prefetch brings the bytes of a model near: to a disk, or with memory also
	// into the host's memory. It is called in a goroutine and ends with ctx. nil:
	// hints of these tiers are refused.
	Prefetch func(ctx context.Context, m *functions.Model, memory bool) error
}

// The tiers a hint may ask for.
const (
	AheadGPU    = "gpu"    // READY
	AheadMemory = "memory" // its bytes in host memory of a node
	AheadDisk   = "nvme"   // its bytes on the disk of a node
)

// Hint is somebody's word that a function will be asked for.
type Hint struct {
	Name  functions.Name
	Until time.Time // the lease: it is held until then though nobody asks
	Tier  string
	By    string // whose word; a label of metrics, so one of few
}

// Prewarm is a hint that holds, or a start ahead that history asked for.
type Prewarm struct {
	ID       string
	Function functions.Name
	Tier     string
	By       string // of a hint, or "history"
	Why      string // of history: rhythm, daily or follows
	Until    time.Time
	State    string        // planned, starting, ready, fetching or fetched
	Held     time.Duration // GPU time it has held so far
}

// Why a hint is refused.
var (
	ErrNoFunction = errors.New("there is no such function")
	ErrNoPrefetch = errors.New("nothing here brings bytes ahead")
	ErrHints      = errors.New("too many hints hold")
)

// BudgetError refuses a hint for which the team's budget of starts ahead, or
// that of all, does not suffice.
type BudgetError struct {
	Team        string // "" of all teams
	Asked, Left time.Duration
	In          time.Duration // until it may suffice; 0 never
}

func (e *BudgetError) Error() string {
	whose := "of all teams together"
	if e.Team != "" {
		whose = "of team " + e.Team
	}
	s := fmt.Sprintf("the prewarm would take %s of GPU time and the budget %s has %s left", e.Asked.Round(time.Second), whose, e.Left.Round(time.Second))
	if e.In > 0 {
		s += "; in " + e.In.Round(time.Second).String() + " it suffices"
	}
	return s
}

const (
	byHistory   = "history"
	manyHints   = 1000
	fetchFor    = 2 * time.Hour // a prefetch ahead is called off after
	fetchesWide = 4
	lookEvery   = 15 * time.Second // who is idle is looked at again, and later the longer it is
)

// seer is the loop's look ahead.
type seer struct {
	Foresee
	idle  crowd[*fn]      // idle with replicas: their next use is told anew now and then
	live  crowd[*prewarm] // in the order in which they came
	teams map[string]*pot
	all   pot
	due   time.Time // when history wants to be asked; zero: when there is news
	asked bool      // it was asked since there was news
	fetch int       // prefetches under way

	recalled map[functions.Name]recollection // starts measured in an earlier life, until their function comes
	saved    placement.Instant
	saving   bool
	writing  sync.Mutex
	written  placement.Instant // of what is in the file; under writing
}

// prospect is what is kept of one function for the look ahead.
type prospect struct {
	using   bool
	end     placement.Instant // of the last use that history knows
	look    placement.Instant // when its next use is told anew
	prewarm *prewarm          // of tier gpu
}

// prewarm is a lease on the future.
type prewarm struct {
	Prewarm
	f       *fn
	until   placement.Instant
	gpus    int
	granted time.Duration // taken from the pots when it was granted
	charged placement.Instant
	started bool
	ready   bool
}

// pot is a budget that fills up again within an hour.
type pot struct {
	spent time.Duration
	at    placement.Instant
}

func (p *pot) left(now placement.Instant, size time.Duration) time.Duration {
	if p.at > 0 && now > p.at {
		p.spent -= time.Duration(float64(now-p.at) / float64(time.Hour) * float64(size))
	}
	p.spent, p.at = max(p.spent, 0), now
	return size - p.spent
}

func newSeer(o *Foresee) *seer {
	if o == nil {
		return nil
	}
	a := &seer{Foresee: *o, teams: map[string]*pot{}, recalled: o.starts}
	a.Budget = cmp.Or(max(a.Budget, 0), time.Hour)
	a.Teams = cmp.Or(max(a.Teams, 0), 4)
	return a
}

// noticed takes what is asked of f now into its history: begins and ends of
// uses. It is called for every function with news, before the core is told.
func (s *Steer) noticed(f *fn, now placement.Instant) {
	p := &f.prospect
	in := f.Active+f.Queued > 0
	missed := !in && !p.using && f.LastEnd > p.end // it came and went between two looks
	if in && !p.using || missed {
		at := now
		if in && f.Oldest > 0 {
			at = f.Oldest
		} else if missed {
			at = f.LastEnd
		}
		f.Uses, f.UsesAt = decayed(f, at)+1, at
		if s.seer != nil {
			s.seer.History.Begin(f.Name, s.wall(at))
			f.Uses = max(f.Uses, s.seer.History.Uses(f.Name, s.wall(at))) // it may know of an earlier life
			s.came(f, now)
		}
		p.using = true
	}
	if !in && p.using {
		p.using = false
		p.end = max(f.LastEnd, p.end)
		if s.seer != nil {
			s.seer.History.End(f.Name, s.wall(p.end))
			s.seer.asked = false
			s.known(f, now)
		}
	}
	if s.seer == nil {
		return
	}
	if !p.using && len(f.reps) > 0 && !f.Gone {
		s.seer.idle.add(f)
	}
}

// decayed uses of f, as the core counts them.
func decayed(f *fn, now placement.Instant) float64 {
	if f.Uses == 0 || now <= f.UsesAt {
		return f.Uses
	}
	return f.Uses * math.Exp(-float64(now-f.UsesAt)/float64(placement.UsesDecay))
}

// known notes for the core what history says of f, which is idle.
func (s *Steer) known(f *fn, now placement.Instant) {
	h := s.seer.History
	f.NextUse = 0
	at, _ := h.NextUse(f.Name, s.wall(now))
	if s.seer.Next != nil {
		at = s.seer.Next(f.Name, s.wall(now))
	}
	if !at.IsZero() {
		f.NextUse = max(s.instant(at), 1)
	}
	f.KeepFor = 0
	if w, ok := s.worth(f); ok && s.policy.KeepAlive == placement.Learned {
		w.Ahead = s.seer.Ahead
		if keep, ok := h.KeepFor(f.Name, w); ok {
			f.KeepFor = max(keep, time.Second)
		}
	}
	// A price grows with the time waited in vain: by an eighth of it is soon enough.
	f.prospect.look = now + max(lookEvery, (now-f.prospect.end)/8)
}

// worth of holding f idle; false where it is never held or never leaves.
func (s *Steer) worth(f *fn) (forecast.Worth, bool) {
	idle := f.Scale.Idle.Std()
	if f.Gone || idle <= 0 || f.Scale.Min > 0 {
		return forecast.Worth{}, false
	}
	start := s.forecast(f).P50
	if start <= 0 {
		start = time.Minute
	}
	return forecast.WorthOf(idle, start, true), true
}

// foresee is done once a tick: who is idle is looked at again, what history wants
// started is asked for, and what holds is accounted.
func (s *Steer) foresee(ctx context.Context, now placement.Instant) {
	a := s.seer
	if a == nil {
		return
	}
	a.idle.each(func(f *fn) {
		switch {
		case f.prospect.using || len(f.reps) == 0 || f.Gone:
			a.idle.drop(f)
		case f.prospect.look <= now:
			s.known(f, now)
			s.stir(f)
		}
	})
	wall := s.wall(now)
	if a.Ahead && (!a.asked || !a.due.IsZero() && !a.due.After(wall)) {
		a.asked = true
		a.due = a.History.Ahead(wall, func(name functions.Name) (forecast.Worth, bool) {
			f := s.fns[name]
			if f == nil {
				return forecast.Worth{}, false
			}
			return s.worth(f)
		}, func(x forecast.Foreseen) {
			if f := s.fns[x.Name]; f != nil && !f.Gone && f.prospect.prewarm == nil && !f.prospect.using {
				// What the budget does not allow is not done, and counted.
				if _, err := s.grant(f, Hint{Name: x.Name, Until: x.Until, Tier: AheadGPU, By: byHistory}, x.Why, now); err != nil {
					s.counts.prewarms.WithLabelValues("over_budget").Inc()
				}
			}
		})
	}
	a.live.each(func(p *prewarm) { s.hold(ctx, p, now) })
}

// grant takes a hint on, within the budget.
func (s *Steer) grant(f *fn, h Hint, why string, now placement.Instant) (*prewarm, error) {
	a := s.seer
	until := s.instant(h.Until)
	gpus := max(f.Resources.GPUs, 1)
	asked := time.Duration(gpus) * max(until-now, 0)
	if h.Tier != AheadGPU {
		gpus, asked = 0, 0 // bytes on a disk cost no GPU
	}
	old := f.prospect.prewarm
	if old != nil && h.Tier == AheadGPU {
		s.refund(old, now) // it is renewed, not added
	}
	team := a.teams[f.Name.Team]
	if team == nil {
		team = &pot{}
		a.teams[f.Name.Team] = team
	}
	for _, b := range []struct {
		pot  *pot
		size time.Duration
		team string
	}{{team, a.Budget, f.Name.Team}, {&a.all, a.Budget * time.Duration(a.Teams), ""}} {
		if left := b.pot.left(now, b.size); asked > left {
			e := &BudgetError{Team: b.team, Asked: asked, Left: left}
			if asked <= b.size {
				e.In = time.Duration(float64(asked-left) / float64(b.size) * float64(time.Hour))
			}
			if old != nil && h.Tier == AheadGPU {
				s.take(old, old.until, now) // as it was
			}
			return nil, e
		}
	}
	p := old
	if p == nil || h.Tier != AheadGPU {
		if len(a.live.list) >= manyHints {
			return nil, ErrHints
		}
		p = &prewarm{f: f, Prewarm: Prewarm{ID: s.newID("pw"), Function: f.Name, State: "planned"}, charged: now}
		a.live.add(p)
	}
	p.Tier, p.By, p.Why, p.Until, p.until, p.gpus = h.Tier, h.By, why, h.Until, until, gpus
	s.take(p, until, now)
	if h.Tier == AheadGPU {
		f.prospect.prewarm = p
		f.Prewarm = until
		s.stir(f)
	}
	s.event("prewarm", f.Name, "", "", cmp.Or(why, h.By), h.Tier)
	return p, nil
}

// take has p's share of the budgets set aside until then.
func (s *Steer) take(p *prewarm, until, now placement.Instant) {
	p.granted = time.Duration(p.gpus) * max(until-now, 0)
	s.seer.all.spent += p.granted
	if t := s.seer.teams[p.Function.Team]; t != nil {
		t.spent += p.granted
	}
}

// refund gives back what p will not hold.
func (s *Steer) refund(p *prewarm, now placement.Instant) {
	back := min(time.Duration(p.gpus)*max(p.until-now, 0), p.granted)
	if !p.started {
		back = p.granted // it never held anything
	}
	p.granted -= back
	s.seer.all.spent = max(s.seer.all.spent-back, 0)
	if t := s.seer.teams[p.Function.Team]; t != nil {
		t.spent = max(t.spent-back, 0)
	}
}

// hold accounts what p holds, and ends it when its time is over.
func (s *Steer) hold(ctx context.Context, p *prewarm, now placement.Instant) {
	f := p.f
	if p.Tier != AheadGPU {
		s.bring(ctx, p, now)
		if now >= p.until || f.Gone {
			s.seer.live.drop(p)
		}
		return
	}
	alive, ready := false, false
	for _, r := range f.reps {
		if !r.stopping && !r.calledOff && !r.asleep() && !r.nap.sinking {
			alive, ready = true, ready || r.serves()
		}
	}
	if p.started { // to a tick: what is missed at its begin is counted at its end
		p.Held += time.Duration(p.gpus) * max(now-p.charged, 0)
	}
	p.charged = now
	switch {
	case f.Gone, f.prospect.prewarm != p:
		s.over(p, "called_off", now)
	case now >= p.until && !p.started:
		s.over(p, "no_room", now)
	case now >= p.until:
		s.over(p, "unused", now)
	case p.started && !alive:
		s.over(p, "evicted", now)
	case !p.started && alive:
		p.started, p.State = true, "starting"
		fallthrough
	default:
		if p.ready = p.ready || ready; p.ready {
			p.State = "ready"
		}
	}
}

// came: f is asked for, so whoever said so was right.
func (s *Steer) came(f *fn, now placement.Instant) {
	p := f.prospect.prewarm
	if p == nil {
		return
	}
	ready := slices.ContainsFunc(f.reps, func(r *rep) bool { return r.serves() })
	switch {
	case ready:
		s.over(p, "hit", now)
	case p.started:
		s.over(p, "late", now) // on its way: the wait is shorter
	default:
		s.over(p, "no_room", now)
	}
}

// over ends p with its result.
func (s *Steer) over(p *prewarm, result string, now placement.Instant) {
	a, f := s.seer, p.f
	s.refund(p, now)
	a.live.drop(p)
	s.counts.prewarms.WithLabelValues(result).Inc()
	switch result {
	case "hit", "late":
	default:
		if p.Held > 0 {
			s.counts.wasted.WithLabelValues(p.Function.Team, p.By).Add(p.Held.Seconds())
		}
	}
	if f.prospect.prewarm == p {
		f.prospect.prewarm = nil
		// One that nobody used ends with the lease; a use makes it like any other.
		f.Prewarm = 0
		if result == "unused" {
			f.Prewarm = now
		}
		s.stir(f)
	}
	s.event("prewarm_over", f.Name, "", "", result, p.By)
}

// bring has the bytes of p's model brought near, once.
func (s *Steer) bring(ctx context.Context, p *prewarm, now placement.Instant) {
	a := s.seer
	if p.started || a.fetch >= fetchesWide || now >= p.until || p.f.model == nil {
		return
	}
	p.started, p.State = true, "fetching"
	a.fetch++
	m, memory, limit := p.f.model, p.Tier == AheadMemory, min(fetchFor, p.until-now)
	s.within(ctx, limit, func(ctx context.Context) {
		err := a.Prefetch(ctx, m, memory)
		s.mu.Lock()
		defer s.mu.Unlock()
		a.fetch--
		result := "fetched"
		if p.State = "fetched"; err != nil {
			p.State, result = "failed", "fetch_failed"
			s.log.Warn("a prefetch ahead failed", "function", p.Function.String(), "error", err)
		}
		s.counts.prewarms.WithLabelValues(result).Inc()
	})
}

// Prewarm takes a hint. It says what holds now, and how much GPU time the team
// may still have started ahead.
func (s *Steer) Prewarm(h Hint) (Prewarm, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.fns[h.Name.Base()]
	switch {
	case f == nil || f.Gone:
		return Prewarm{}, 0, ErrNoFunction
	case s.seer == nil, h.Tier != AheadGPU && s.seer.Prefetch == nil:
		return Prewarm{}, 0, ErrNoPrefetch
	}
	now := s.now()
	p, err := s.grant(f, h, "", now)
	if err != nil {
		return Prewarm{}, s.leftOf(f.Name.Team, now), err
	}
	if slices.ContainsFunc(f.reps, func(r *rep) bool { return r.serves() }) && p.Tier == AheadGPU {
		p.State = "ready"
	}
	s.ring()
	return p.Prewarm, s.leftOf(f.Name.Team, now), nil
}

func (s *Steer) leftOf(team string, now placement.Instant) time.Duration {
	a := s.seer
	left := a.Budget
	if t := a.teams[team]; t != nil {
		left = t.left(now, a.Budget)
	}
	return max(min(left, a.all.left(now, a.Budget*time.Duration(a.Teams))), 0)
}

// PrewarmLeft is how much GPU time a team may still have started ahead.
func (s *Steer) PrewarmLeft(team string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seer == nil {
		return 0
	}
	return s.leftOf(team, s.now())
}

// Prewarms are those that hold, the oldest first.
func (s *Steer) Prewarms() []Prewarm {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seer == nil {
		return nil
	}
	out := make([]Prewarm, 0, len(s.seer.live.list))
	for _, p := range s.seer.live.list {
		out = append(out, p.Prewarm)
	}
	slices.SortFunc(out, func(a, b Prewarm) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// unlearn forgets a function that has left for good.
func (s *Steer) unlearn(f *fn) {
	if s.seer != nil {
		s.seer.History.Forget(f.Name)
		s.seer.idle.drop(f)
	}
}

// wall is the time of an instant.
func (s *Steer) wall(t placement.Instant) time.Time { return s.began.Add(t) }
