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

// Foresight configures prewarming. The Orchestrator owns the value from New on.
type Foresight struct {
	History    *forecast.History // uses so far; never nil
	StartAhead bool              // start predicted uses ahead; hints are followed in any case

	// Budget is the GPU time that prewarms may take in an hour, for one team; all
	// teams together may take Teams times as much. A replica without GPUs counts as
	// one GPU. 0: Budget is an hour, and Teams 4.
	Budget time.Duration
	Teams  int

	// File is the path of the saved history and start times, see OpenForesight; empty:
	// they are not saved.
	File string

	// Next, if not nil, replaces History for the next use of a function after now;
	// zero means never. It is for simulators, which know the future.
	Next func(name functions.Name, now time.Time) time.Time

	starts map[functions.Name]forecast.SavedStarts

	// Prefetch stages the bytes of a model on a disk, or with memory also in host
	// memory. It is called in a goroutine and ends with ctx. nil: hints of these
	// tiers are refused.
	Prefetch func(ctx context.Context, m *functions.Model, memory bool) error
}

const (
	byHistory       = "history"
	maxHints        = 1000
	prefetchTimeout = 2 * time.Hour // bound of a prefetch
	maxPrefetches   = 4
	reforecastEvery = 15 * time.Second // shortest time between forecasts of an idle function
)

// forecaster is the state of prewarming.
type forecaster struct {
	Foresight
	idleFunctions orderedSet[*functionState] // idle functions with replicas, whose forecasts are renewed
	leases        orderedSet[*prewarm]       // in the order of their grants
	budgets       *forecast.Budgets
	nextAsk       time.Time // next call of History.Ahead; zero: after the next use
	asked         bool      // History.Ahead was called since the last use
	prefetches    int       // running prefetches

	restored map[functions.Name]forecast.SavedStarts // starts of an earlier process, until their function is in the catalogue
	saved    placement.Instant
	saving   bool
	writing  sync.Mutex
	written  placement.Instant // time of the snapshot in the file; protected by writing
}

// usageHistory is the forecasting state of one function.
type usageHistory struct {
	inUse        bool
	lastUse      placement.Instant // the last use recorded in the history
	nextForecast placement.Instant // time of its next forecast
	prewarm      *prewarm          // its lease of tier gpu
}

// prewarm is a lease on a start ahead of demand.
type prewarm struct {
	functions.Prewarm
	function *functionState
	until    placement.Instant
	gpus     int
	granted  time.Duration // reserved from the budgets at the grant
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

// recordUse records begins and ends of uses of f in the history. It is called for every
// changed function, before planning.
func (s *Orchestrator) recordUse(f *functionState, now placement.Instant) {
	p := &f.usage
	in := f.Active+f.Queued > 0
	missed := !in && !p.inUse && f.LastEnd > p.lastUse // a use began and ended since the last call
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
			f.Uses = max(f.Uses, s.forecaster.History.Uses(f.Name, s.wallTime(at))) // the history may include an earlier process
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

// decayedUses is the count of f's uses in the form that package placement reads.
func decayedUses(f *functionState, now placement.Instant) float64 {
	if f.Uses == 0 || now <= f.UsesAt {
		return f.Uses
	}
	return f.Uses * math.Exp(-float64(now-f.UsesAt)/float64(placement.UsesDecay))
}

// updateForecast sets the forecast of f, which is idle.
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
	// The price grows with the idle time: renew it when that has grown by an eighth.
	f.usage.nextForecast = now + max(reforecastEvery, (now-f.usage.lastUse)/8)
}

// worthHolding returns the Worth of keeping f idle; false if f is never kept idle or
// never stops.
func (s *Orchestrator) worthHolding(f *functionState) (forecast.Worth, bool) {
	idle := f.Scale.Idle.Std()
	if f.Gone || idle <= 0 || f.Scale.Min > 0 {
		return forecast.Worth{}, false
	}
	start := f.forecastStart(s.bytesAtHand(f)).P50
	if start <= 0 {
		start = time.Minute
	}
	return forecast.WorthOf(idle, start, true), true
}

// runForecasts runs once a tick: it renews the forecasts of idle functions, grants the
// prewarms that the history predicts, and checks the leases.
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
				// A prewarm beyond the budget is dropped and counted.
				if _, err := s.grantPrewarm(f, functions.Prewarm{Until: x.Until, Tier: functions.PrewarmGPU, By: byHistory, Why: x.Why}, now); err != nil {
					s.counts.add("thaw_prewarms_total", 1, "over_budget")
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
		s.refundBudget(old, now) // the new grant replaces the old one
	}
	if err := a.budgets.Check(f.Name.Team, asked, now); err != nil {
		if old != nil && h.Tier == functions.PrewarmGPU {
			s.reserveBudget(old, old.until, now) // restore the old reservation
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

// refundBudget returns the GPU time that p will not use to the budgets.
func (s *Orchestrator) refundBudget(p *prewarm, now placement.Instant) {
	back := min(time.Duration(p.gpus)*max(p.until-now, 0), p.granted)
	if !p.started {
		back = p.granted // it never held a GPU
	}
	p.granted -= back
	s.forecaster.budgets.Refund(p.function.Name.Team, back)
}

// checkPrewarm adds up the GPU time of p, and ends p when its time is over.
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
	if p.started { // accurate to a tick: too short at the begin, too long at the end
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

// onForeseenUse ends f's prewarm, because the predicted use has begun.
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
		s.endPrewarm(p, "late", now) // starting: the wait is shorter
	default:
		s.endPrewarm(p, "no_room", now)
	}
}

// endPrewarm ends p and counts its result.
func (s *Orchestrator) endPrewarm(p *prewarm, result string, now placement.Instant) {
	a, f := s.forecaster, p.function
	s.refundBudget(p, now)
	a.leases.drop(p)
	s.counts.add("thaw_prewarms_total", 1, result)
	switch result {
	case "hit", "late":
	default:
		if p.held > 0 {
			s.counts.add("thaw_prewarm_wasted_gpu_seconds_total", p.held.Seconds(), p.function.Name.Team, p.By)
		}
	}
	if f.usage.prewarm == p {
		f.usage.prewarm = nil
		// An unused replica stops with the lease; a used one has its idle time.
		f.Prewarm = 0
		if result == "unused" {
			f.Prewarm = now
		}
		s.enqueue(f)
	}
	s.event("prewarm_over", f.Name, "", "", result, p.By)
}

// startPrefetch starts staging the bytes of p's model, once.
func (s *Orchestrator) startPrefetch(ctx context.Context, p *prewarm, now placement.Instant) {
	a := s.forecaster
	if p.started || a.prefetches >= maxPrefetches || now >= p.until || p.function.model == nil {
		return
	}
	p.started, p.State = true, "fetching"
	a.prefetches++
	m, memory, limit := p.function.model, p.Tier == functions.PrewarmMemory, min(prefetchTimeout, p.until-now)
	s.commands.runWithin(ctx, limit, func(ctx context.Context) {
		err := a.Prefetch(ctx, m, memory)
		s.mu.Lock()
		defer s.mu.Unlock()
		a.prefetches--
		result := "fetched"
		if p.State = "fetched"; err != nil {
			p.State, result = "failed", "fetch_failed"
			s.log.Warn("a prefetch ahead failed", "function", p.Function, "error", err)
		}
		s.counts.add("thaw_prewarms_total", 1, result)
	})
}

// Prewarm starts a function ahead of demand, or stages its bytes in a tier, and keeps
// that until a time. by names the caller; it is a label of metrics.
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

// PrewarmLeft is the GPU time that a team may still use for prewarms.
func (s *Orchestrator) PrewarmLeft(team string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forecaster == nil {
		return 0
	}
	return s.forecaster.budgets.Left(team, s.now())
}

// Prewarms lists the leases in the order of their ends.
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

// forgetHistory drops the history of a deleted function.
func (s *Orchestrator) forgetHistory(f *functionState) {
	if s.forecaster != nil {
		s.forecaster.History.Forget(f.Name)
		s.forecaster.idleFunctions.drop(f)
	}
}
