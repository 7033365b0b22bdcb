package orchestrator

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/orderedset"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/placement"
)

const (
	maxHints        = 1000
	prefetchTimeout = 2 * time.Hour // bound of a prefetch
	maxPrefetches   = 4
)

// prewarmer holds the leases on starts ahead of demand, and the budgets of GPU time that
// they draw on.
type prewarmer struct {
	leases     orderedset.Set[*prewarm] // in the order of their grants
	budgets    *forecast.Budgets
	prefetches int // running prefetches
	prefetch   func(ctx context.Context, m *functions.Model, memory bool) error

	mu       *sync.Mutex // of the Orchestrator
	registry *registry
	clock    *clock
	events   *eventLog
	counts   *counts
	commands *commander
	log      *slog.Logger
	newID    func(prefix string) string
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

// grant makes or renews a lease, within the budget.
func (w *prewarmer) grant(f *functionState, h functions.Prewarm, now placement.Instant) (*prewarm, error) {
	until := w.clock.instant(h.Until)
	gpus := max(f.Resources.GPUs, 1)
	asked := time.Duration(gpus) * max(until-now, 0)
	if h.Tier != functions.PrewarmGPU {
		gpus, asked = 0, 0 // bytes on a disk cost no GPU
	}
	old := f.usage.prewarm
	if old != nil && h.Tier == functions.PrewarmGPU {
		w.refund(old, now) // the new grant replaces the old one
	}
	if err := w.budgets.Check(f.Name.Team, asked, now); err != nil {
		if old != nil && h.Tier == functions.PrewarmGPU {
			w.reserve(old, old.until, now) // restore the old reservation
		}
		return nil, err
	}
	p := old
	if p == nil || h.Tier != functions.PrewarmGPU {
		if len(w.leases.List) >= maxHints {
			return nil, functions.ErrTooManyPrewarms
		}
		p = &prewarm{function: f, Prewarm: functions.Prewarm{ID: w.newID("pw"), Function: f.Name.String(), State: "planned"}, charged: now}
		w.leases.Add(p)
	}
	p.Tier, p.By, p.Why, p.Until, p.until, p.gpus = h.Tier, h.By, h.Why, h.Until, until, gpus
	w.reserve(p, until, now)
	if h.Tier == functions.PrewarmGPU {
		f.usage.prewarm = p
		f.Prewarm = until
		w.registry.enqueue(f)
	}
	w.events.event("prewarm", f.Name, "", "", cmp.Or(h.Why, h.By), h.Tier)
	return p, nil
}

// reserve reserves GPU time for p until then.
func (w *prewarmer) reserve(p *prewarm, until, now placement.Instant) {
	p.granted = time.Duration(p.gpus) * max(until-now, 0)
	w.budgets.Reserve(p.function.Name.Team, p.granted)
}

// refund returns the GPU time that p will not use to the budgets.
func (w *prewarmer) refund(p *prewarm, now placement.Instant) {
	back := min(time.Duration(p.gpus)*max(p.until-now, 0), p.granted)
	if !p.started {
		back = p.granted // it never held a GPU
	}
	p.granted -= back
	w.budgets.Refund(p.function.Name.Team, back)
}

// check adds up the GPU time of p, and ends p when its time is over.
func (w *prewarmer) check(ctx context.Context, p *prewarm, now placement.Instant) {
	f := p.function
	if p.Tier != functions.PrewarmGPU {
		w.startPrefetch(ctx, p, now)
		if now >= p.until || f.Gone {
			w.leases.Drop(p)
		}
		return
	}
	alive, ready := slices.ContainsFunc(f.replicas, isStartedAhead), slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return isStartedAhead(r) && r.serves() })
	if p.started { // accurate to a tick: too short at the begin, too long at the end
		p.held += time.Duration(p.gpus) * max(now-p.charged, 0)
	}
	p.charged = now
	switch {
	case f.Gone, f.usage.prewarm != p:
		w.end(p, "called_off", now)
	case now >= p.until && !p.started && !alive:
		w.end(p, "no_room", now)
	case now >= p.until:
		w.end(p, "unused", now)
	case p.started && !alive:
		w.end(p, "evicted", now)
	case !p.started && alive:
		p.started, p.State = true, "starting"
		fallthrough
	default:
		if p.ready = p.ready || ready; p.ready {
			p.State = "ready"
		}
	}
}

// isStartedAhead reports whether r starts or serves, and does not stop or sleep.
func isStartedAhead(r *replicaState) bool {
	return !r.stopping && !r.cancelled && !r.asleep() && !r.sleep.goingToSleep
}

// onUse ends f's prewarm, because the predicted use has begun.
func (w *prewarmer) onUse(f *functionState, now placement.Instant) {
	p := f.usage.prewarm
	if p == nil {
		return
	}
	ready := slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.serves() })
	switch {
	case ready:
		w.end(p, "hit", now)
	case p.started, slices.ContainsFunc(f.replicas, isStartedAhead): // check may not have run since
		w.end(p, "late", now) // starting: the wait is shorter
	default:
		w.end(p, "no_room", now)
	}
}

// end ends p and counts its result.
func (w *prewarmer) end(p *prewarm, result string, now placement.Instant) {
	f := p.function
	w.refund(p, now)
	w.leases.Drop(p)
	w.counts.add("thaw_prewarms_total", 1, result)
	switch result {
	case "hit", "late":
	default:
		if p.held > 0 {
			w.counts.add("thaw_prewarm_wasted_gpu_seconds_total", p.held.Seconds(), p.function.Name.Team, p.By)
		}
	}
	if f.usage.prewarm == p {
		f.usage.prewarm = nil
		// An unused replica stops with the lease; a used one has its idle time.
		f.Prewarm = 0
		if result == "unused" {
			f.Prewarm = now
		}
		w.registry.enqueue(f)
	}
	w.events.event("prewarm_over", f.Name, "", "", result, p.By)
}

// startPrefetch starts staging the bytes of p's model, once.
func (w *prewarmer) startPrefetch(ctx context.Context, p *prewarm, now placement.Instant) {
	if p.started || w.prefetches >= maxPrefetches || now >= p.until || p.function.model == nil {
		return
	}
	p.started, p.State = true, "fetching"
	w.prefetches++
	m, memory, limit := p.function.model, p.Tier == functions.PrewarmMemory, min(prefetchTimeout, p.until-now)
	w.commands.runWithin(ctx, limit, func(ctx context.Context) {
		err := w.prefetch(ctx, m, memory)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.prefetches--
		result := "fetched"
		if p.State = "fetched"; err != nil {
			p.State, result = "failed", "fetch_failed"
			w.log.Warn("a prefetch ahead failed", "function", p.Function, "error", err)
		}
		w.counts.add("thaw_prewarms_total", 1, result)
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
	p, err := s.forecaster.prewarmer.grant(f, functions.Prewarm{Until: until, Tier: tier, By: by}, now)
	if err != nil {
		return functions.Prewarm{}, err
	}
	if slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.serves() }) && p.Tier == functions.PrewarmGPU {
		p.State = "ready"
	}
	s.signal()
	return p.record(), nil
}

// PrewarmBriefly starts a function ahead of demand, unless another lease holds it as long
// already. EndPrewarm ends the lease.
func (s *Orchestrator) PrewarmBriefly(name functions.Name, until time.Time, by string) error {
	s.mu.Lock()
	f := s.functions[name.WithoutAdapter()]
	held := f != nil && f.usage.prewarm != nil && f.usage.prewarm.By != by && !f.usage.prewarm.Until.Before(until)
	s.mu.Unlock()
	if held {
		return nil
	}
	_, err := s.Prewarm(name, until, functions.PrewarmGPU, by)
	return err
}

// EndPrewarm ends the lease that by holds on the start of a function, where it holds one: a
// replica that no request has used stops.
func (s *Orchestrator) EndPrewarm(name functions.Name, by string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.functions[name.WithoutAdapter()]
	if f == nil || f.usage.prewarm == nil || f.usage.prewarm.By != by {
		return
	}
	s.forecaster.prewarmer.end(f.usage.prewarm, "unused", s.now())
	s.signal()
}

// PrewarmLeft is the GPU time that a team may still use for prewarms.
func (s *Orchestrator) PrewarmLeft(team string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forecaster == nil {
		return 0
	}
	return s.forecaster.prewarmer.budgets.Left(team, s.now())
}

// Prewarms lists the leases in the order of their ends.
func (s *Orchestrator) Prewarms() []functions.Prewarm {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forecaster == nil {
		return nil
	}
	out := make([]functions.Prewarm, 0, len(s.forecaster.prewarmer.leases.List))
	for _, p := range s.forecaster.prewarmer.leases.List {
		out = append(out, p.record())
	}
	slices.SortFunc(out, func(a, b functions.Prewarm) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.ID, b.ID))
	})
	return out
}
