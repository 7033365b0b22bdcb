package orchestrator

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/placement"
)

// Foresight is what an Orchestrator needs to prewarm. It owns the value from New on.
type Foresight struct {
	History    *forecast.History // what was; never nil
	StartAhead bool              // start what it foresees; hints are followed in any case

	// Budget is the GPU time that starts ahead may take in an hour, for one team;
	// all teams together may take Teams times as much. A replica without GPUs
	// counts as one. 0: an hour, and four times that.
	Budget time.Duration
	Teams  int

	// File is where the history and the times of starts are kept, see OpenForesight;
	// empty: nowhere.
	File string

	// Next, if not nil, is believed instead of History about when a function is
	// used next after now; zero never. It is for a simulator, which knows.
	Next func(name functions.Name, now time.Time) time.Time

	starts map[functions.Name]forecast.SavedStarts

	// Prefetch brings the bytes of a model near: to a disk, or with memory also
	// into the host's memory. It is called in a goroutine and ends with ctx. nil:
	// hints of these tiers are refused.
	Prefetch func(ctx context.Context, m *functions.Model, memory bool) error
}

const (
	byHistory       = "history"
	maxHints        = 1000
	prefetchTimeout = 2 * time.Hour // a prefetch ahead is called off after
	maxPrefetches   = 4
	reforecastEvery = 15 * time.Second // an idle function gets a new forecast, less often the longer it is idle
)

// forecaster is the state of prewarming.
type forecaster struct {
	Foresight
	idleFunctions orderedSet[*functionState] // idle with replicas: their next use is told anew now and then
	leases        orderedSet[*prewarm]       // in the order in which they came
	budgets       *forecast.Budgets
	nextAsk       time.Time // when history wants to be asked; zero: when there is news
	asked         bool      // it was asked since there was news
	prefetches    int       // prefetches under way

	restored map[functions.Name]forecast.SavedStarts // starts measured in an earlier life, until their function comes
	saved    placement.Instant
	saving   bool
	writing  sync.Mutex
	written  placement.Instant // of what is in the file; under writing
}

// usageHistory is what forecasts need of one function.
type usageHistory struct {
	inUse        bool
	lastUse      placement.Instant // of the last use that history knows
	nextForecast placement.Instant // when its next use is told anew
	prewarm      *prewarm          // of tier gpu
}

// prewarm is a lease on a start ahead of demand.
type prewarm struct {
	functions.Prewarm
	function *functionState
	until    placement.Instant
	gpus     int
	granted  time.Duration // taken from the pots when it was granted
	charged  placement.Instant
	started  bool
	ready    bool
	held     time.Duration // GPU time held so far
}

func (p *prewarm) record() functions.Prewarm {
	r := p.Prewarm
	r.Held = p.held.Seconds()
	return r
}

func newForecaster(o *Foresight) *forecaster {
	if o == nil {
		return nil
	}
	a := &forecaster{Foresight: *o, restored: o.starts}
	a.Budget = cmp.Or(max(a.Budget, 0), time.Hour)
	a.Teams = cmp.Or(max(a.Teams, 0), 4)
	a.budgets = forecast.NewBudgets(a.Budget, a.Teams)
	return a
}

// recordUse enters begins and ends of uses of f into the history. It is called for
// every function with news, before planning.
func (s *Orchestrator) recordUse(f *functionState, now placement.Instant) {
	p := &f.usage
	in := f.Active+f.Queued > 0
	missed := !in && !p.inUse && f.LastEnd > p.lastUse // it came and went between two looks
	if in && !p.inUse || missed {
		at := now
		if in && f.Oldest > 0 {
			at = f.Oldest
		} else if missed {
			at = f.LastEnd
		}
		f.Uses, f.UsesAt = decayedUses(f, at)+1, at
		if s.forecaster != nil {
			s.forecaster.History.Begin(f.Name, s.wallTime(at))
			f.Uses = max(f.Uses, s.forecaster.History.Uses(f.Name, s.wallTime(at))) // it may know of an earlier life
			s.onForeseenUse(f, now)
		}
		p.inUse = true
	}
	if !in && p.inUse {
		p.inUse = false
		p.lastUse = max(f.LastEnd, p.lastUse)
		if s.forecaster != nil {
			s.forecaster.History.End(f.Name, s.wallTime(p.lastUse))
			s.forecaster.asked = false
			s.updateForecast(f, now)
		}
	}
	if s.forecaster == nil {
		return
	}
	if !p.inUse && len(f.replicas) > 0 && !f.Gone {
		s.forecaster.idleFunctions.add(f)
	}
}

// decayedUses are the uses of f as package placement counts them.
func decayedUses(f *functionState, now placement.Instant) float64 {
	if f.Uses == 0 || now <= f.UsesAt {
		return f.Uses
	}
	return f.Uses * math.Exp(-float64(now-f.UsesAt)/float64(placement.UsesDecay))
}

// updateForecast sets what the history says of f, which is idle.
func (s *Orchestrator) updateForecast(f *functionState, now placement.Instant) {
	h := s.forecaster.History
	f.NextUse = 0
	at, _ := h.NextUse(f.Name, s.wallTime(now))
	if s.forecaster.Next != nil {
		at = s.forecaster.Next(f.Name, s.wallTime(now))
	}
	if !at.IsZero() {
		f.NextUse = max(s.instant(at), 1)
	}
	f.KeepFor = 0
	if w, ok := s.worthHolding(f); ok && s.policy.KeepAlive == placement.Learned {
		w.Ahead = s.forecaster.StartAhead
		if keep, ok := h.KeepFor(f.Name, w); ok {
			f.KeepFor = max(keep, time.Second)
		}
	}
	// A price grows with the time waited in vain: by an eighth of it is soon enough.
	f.usage.nextForecast = now + max(reforecastEvery, (now-f.usage.lastUse)/8)
}

// worthHolding is the worth of keeping f idle; false if it is never kept or never
// leaves.
func (s *Orchestrator) worthHolding(f *functionState) (forecast.Worth, bool) {
	idle := f.Scale.Idle.Std()
	if f.Gone || idle <= 0 || f.Scale.Min > 0 {
		return forecast.Worth{}, false
	}
	start := s.forecastStart(f).P50
	if start <= 0 {
		start = time.Minute
	}
	return forecast.WorthOf(idle, start, true), true
}

// runForecasts runs once a tick: it renews forecasts of idle functions, starts what
// the history asks for, and checks the leases.
func (s *Orchestrator) runForecasts(ctx context.Context, now placement.Instant) {
	a := s.forecaster
	if a == nil {
		return
	}
	a.idleFunctions.each(func(f *functionState) {
		switch {
		case f.usage.inUse || len(f.replicas) == 0 || f.Gone:
			a.idleFunctions.drop(f)
		case f.usage.nextForecast <= now:
			s.updateForecast(f, now)
			s.enqueue(f)
		}
	})
	wall := s.wallTime(now)
	if a.StartAhead && (!a.asked || !a.nextAsk.IsZero() && !a.nextAsk.After(wall)) {
		a.asked = true
		a.nextAsk = a.History.Ahead(wall, func(name functions.Name) (forecast.Worth, bool) {
			f := s.functions[name]
			if f == nil {
				return forecast.Worth{}, false
			}
			return s.worthHolding(f)
		}, func(x forecast.Foreseen) {
			if f := s.functions[x.Name]; f != nil && !f.Gone && f.usage.prewarm == nil && !f.usage.inUse {
				// What the budget does not allow is not done, and counted.
				if _, err := s.grantPrewarm(f, functions.Prewarm{Until: x.Until, Tier: functions.PrewarmGPU, By: byHistory, Why: x.Why}, now); err != nil {
					s.counts.prewarms.WithLabelValues("over_budget").Inc()
				}
			}
		})
	}
	a.leases.each(func(p *prewarm) { s.checkPrewarm(ctx, p, now) })
}

// grantPrewarm makes or renews a lease, within the budget.
func (s *Orchestrator) grantPrewarm(f *functionState, h functions.Prewarm, now placement.Instant) (*prewarm, error) {
	a := s.forecaster
	until := s.instant(h.Until)
	gpus := max(f.Resources.GPUs, 1)
	asked := time.Duration(gpus) * max(until-now, 0)
	if h.Tier != functions.PrewarmGPU {
		gpus, asked = 0, 0 // bytes on a disk cost no GPU
	}
	old := f.usage.prewarm
	if old != nil && h.Tier == functions.PrewarmGPU {
		s.refundBudget(old, now) // it is renewed, not added
	}
	if err := a.budgets.Check(f.Name.Team, asked, now); err != nil {
		if old != nil && h.Tier == functions.PrewarmGPU {
			s.reserveBudget(old, old.until, now) // as it was
		}
		return nil, err
	}
	p := old
	if p == nil || h.Tier != functions.PrewarmGPU {
		if len(a.leases.list) >= maxHints {
			return nil, functions.ErrTooManyPrewarms
		}
		p = &prewarm{function: f, Prewarm: functions.Prewarm{ID: s.newID("pw"), Function: f.Name.String(), State: "planned"}, charged: now}
		a.leases.add(p)
	}
	p.Tier, p.By, p.Why, p.Until, p.until, p.gpus = h.Tier, h.By, h.Why, h.Until, until, gpus
	s.reserveBudget(p, until, now)
	if h.Tier == functions.PrewarmGPU {
		f.usage.prewarm = p
		f.Prewarm = until
		s.enqueue(f)
	}
	s.event("prewarm", f.Name, "", "", cmp.Or(h.Why, h.By), h.Tier)
	return p, nil
}

// reserveBudget reserves GPU time for p until then.
func (s *Orchestrator) reserveBudget(p *prewarm, until, now placement.Instant) {
	p.granted = time.Duration(p.gpus) * max(until-now, 0)
	s.forecaster.budgets.Reserve(p.function.Name.Team, p.granted)
}

// refundBudget gives back the GPU time that p will not use.
func (s *Orchestrator) refundBudget(p *prewarm, now placement.Instant) {
	back := min(time.Duration(p.gpus)*max(p.until-now, 0), p.granted)
	if !p.started {
		back = p.granted // it never held anything
	}
	p.granted -= back
	s.forecaster.budgets.Refund(p.function.Name.Team, back)
}

// checkPrewarm counts what p holds, and ends it when its time is over.
func (s *Orchestrator) checkPrewarm(ctx context.Context, p *prewarm, now placement.Instant) {
	f := p.function
	if p.Tier != functions.PrewarmGPU {
		s.startPrefetch(ctx, p, now)
		if now >= p.until || f.Gone {
			s.forecaster.leases.drop(p)
		}
		return
	}
	alive, ready := false, false
	for _, r := range f.replicas {
		if !r.stopping && !r.cancelled && !r.asleep() && !r.sleep.goingToSleep {
			alive, ready = true, ready || r.serves()
		}
	}
	if p.started { // to a tick: what is missed at its begin is counted at its end
		p.held += time.Duration(p.gpus) * max(now-p.charged, 0)
	}
	p.charged = now
	switch {
	case f.Gone, f.usage.prewarm != p:
		s.endPrewarm(p, "called_off", now)
	case now >= p.until && !p.started:
		s.endPrewarm(p, "no_room", now)
	case now >= p.until:
		s.endPrewarm(p, "unused", now)
	case p.started && !alive:
		s.endPrewarm(p, "evicted", now)
	case !p.started && alive:
		p.started, p.State = true, "starting"
		fallthrough
	default:
		if p.ready = p.ready || ready; p.ready {
			p.State = "ready"
		}
	}
}

// onForeseenUse ends f's prewarm: the demand it was for is there.
func (s *Orchestrator) onForeseenUse(f *functionState, now placement.Instant) {
	p := f.usage.prewarm
	if p == nil {
		return
	}
	ready := slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.serves() })
	switch {
	case ready:
		s.endPrewarm(p, "hit", now)
	case p.started:
		s.endPrewarm(p, "late", now) // on its way: the wait is shorter
	default:
		s.endPrewarm(p, "no_room", now)
	}
}

// endPrewarm ends p and counts its result.
func (s *Orchestrator) endPrewarm(p *prewarm, result string, now placement.Instant) {
	a, f := s.forecaster, p.function
	s.refundBudget(p, now)
	a.leases.drop(p)
	s.counts.prewarms.WithLabelValues(result).Inc()
	switch result {
	case "hit", "late":
	default:
		if p.held > 0 {
			s.counts.wasted.WithLabelValues(p.function.Name.Team, p.By).Add(p.held.Seconds())
		}
	}
	if f.usage.prewarm == p {
		f.usage.prewarm = nil
		// An unused replica ends with the lease; a used one is like any other.
		f.Prewarm = 0
		if result == "unused" {
			f.Prewarm = now
		}
		s.enqueue(f)
	}
	s.event("prewarm_over", f.Name, "", "", result, p.By)
}

// startPrefetch has the bytes of p's model staged, once.
func (s *Orchestrator) startPrefetch(ctx context.Context, p *prewarm, now placement.Instant) {
	a := s.forecaster
	if p.started || a.prefetches >= maxPrefetches || now >= p.until || p.function.model == nil {
		return
	}
	p.started, p.State = true, "fetching"
	a.prefetches++
	m, memory, limit := p.function.model, p.Tier == functions.PrewarmMemory, min(prefetchTimeout, p.until-now)
	s.commandWithin(ctx, limit, func(ctx context.Context) {
		err := a.Prefetch(ctx, m, memory)
		s.mu.Lock()
		defer s.mu.Unlock()
		a.prefetches--
		result := "fetched"
		if p.State = "fetched"; err != nil {
			p.State, result = "failed", "fetch_failed"
			s.log.Warn("a prefetch ahead failed", "function", p.Function, "error", err)
		}
		s.counts.prewarms.WithLabelValues(result).Inc()
	})
}

// Prewarm starts a function ahead of demand, or brings its bytes to a tier, and
// holds that until a time. by names the caller; it is a label of metrics.
func (s *Orchestrator) Prewarm(name functions.Name, until time.Time, tier, by string) (functions.Prewarm, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.functions[name.WithoutAdapter()]
	switch {
	case f == nil || f.Gone:
		return functions.Prewarm{}, functions.ErrNotFound
	case s.forecaster == nil, tier != functions.PrewarmGPU && s.forecaster.Prefetch == nil:
		return functions.Prewarm{}, functions.ErrPrewarmTier
	}
	now := s.now()
	p, err := s.grantPrewarm(f, functions.Prewarm{Until: until, Tier: tier, By: by}, now)
	if err != nil {
		return functions.Prewarm{}, err
	}
	if slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.serves() }) && p.Tier == functions.PrewarmGPU {
		p.State = "ready"
	}
	s.signal()
	return p.record(), nil
}

// PrewarmLeft is the GPU time that a team may still have started ahead.
func (s *Orchestrator) PrewarmLeft(team string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forecaster == nil {
		return 0
	}
	return s.forecaster.budgets.Left(team, s.now())
}

// Prewarms lists the leases, the first to end first.
func (s *Orchestrator) Prewarms() []functions.Prewarm {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forecaster == nil {
		return nil
	}
	out := make([]functions.Prewarm, 0, len(s.forecaster.leases.list))
	for _, p := range s.forecaster.leases.list {
		out = append(out, p.record())
	}
	slices.SortFunc(out, func(a, b functions.Prewarm) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// forgetHistory drops a function that has left for good.
func (s *Orchestrator) forgetHistory(f *functionState) {
	if s.forecaster != nil {
		s.forecaster.History.Forget(f.Name)
		s.forecaster.idleFunctions.drop(f)
	}
}

// wallTime is the time of an instant.
func (s *Orchestrator) wallTime(t placement.Instant) time.Time { return s.began.Add(t) }
