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
func (p *prewarmer) grant(f *functionState, h functions.Prewarm, now placement.Instant) (*prewarm, error) {
	until := p.clock.instant(h.Until)
	gpus := max(f.Resources.GPUs, 1)
	asked := time.Duration(gpus) * max(until-now, 0)
	if h.Tier != functions.PrewarmGPU {
		gpus, asked = 0, 0 // bytes on a disk cost no GPU
	}
	old := f.usage.prewarm
	if old != nil && h.Tier == functions.PrewarmGPU {
		p.refund(old, now) // the new grant replaces the old one
	}
	if err := p.budgets.Check(f.Name.Team, asked, now); err != nil {
		if old != nil && h.Tier == functions.PrewarmGPU {
			p.reserve(old, old.until, now) // restore the old reservation
		}
		return nil, err
	}
	planned := old
	if planned == nil || h.Tier != functions.PrewarmGPU {
		if len(p.leases.List) >= maxHints {
			return nil, functions.ErrTooManyPrewarms
		}
		planned = &prewarm{function: f, Prewarm: functions.Prewarm{ID: p.newID("pw"), Function: f.Name.String(), State: "planned"}, charged: now}
		p.leases.Add(planned)
	}
	planned.Tier, planned.By, planned.Why, planned.Until, planned.until, planned.gpus = h.Tier, h.By, h.Why, h.Until, until, gpus
	p.reserve(planned, until, now)
	if h.Tier == functions.PrewarmGPU {
		f.usage.prewarm = planned
		f.Prewarm = until
		p.registry.enqueue(f)
	}
	p.events.event("prewarm", f.Name, "", "", cmp.Or(h.Why, h.By), h.Tier)
	return planned, nil
}

// reserve reserves GPU time for a lease until then.
func (p *prewarmer) reserve(planned *prewarm, until, now placement.Instant) {
	planned.granted = time.Duration(planned.gpus) * max(until-now, 0)
	p.budgets.Reserve(planned.function.Name.Team, planned.granted)
}

// refund returns the GPU time that a lease will not use to the budgets.
func (p *prewarmer) refund(planned *prewarm, now placement.Instant) {
	back := min(time.Duration(planned.gpus)*max(planned.until-now, 0), planned.granted)
	if !planned.started {
		back = planned.granted // it never held a GPU
	}
	planned.granted -= back
	p.budgets.Refund(planned.function.Name.Team, back)
}

// settle adds up the GPU time of a lease, and ends it when its time is over.
func (p *prewarmer) settle(ctx context.Context, planned *prewarm, now placement.Instant) {
	f := planned.function
	if planned.Tier != functions.PrewarmGPU {
		p.startPrefetch(ctx, planned, now)
		if now >= planned.until || f.Gone {
			p.leases.Drop(planned)
		}
		return
	}
	alive, ready := slices.ContainsFunc(f.replicas, isStartedAhead), slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return isStartedAhead(r) && r.serves() })
	if planned.started { // accurate to a tick: too short at the begin, too long at the end
		planned.held += time.Duration(planned.gpus) * max(now-planned.charged, 0)
	}
	planned.charged = now
	switch {
	case f.Gone, f.usage.prewarm != planned:
		p.end(planned, "called_off", now)
	case now >= planned.until && !planned.started && !alive:
		p.end(planned, "no_room", now)
	case now >= planned.until:
		p.end(planned, "unused", now)
	case planned.started && !alive:
		p.end(planned, "evicted", now)
	case !planned.started && alive:
		planned.started, planned.State = true, "starting"
		fallthrough
	default:
		if planned.ready = planned.ready || ready; planned.ready {
			planned.State = "ready"
		}
	}
}

// isStartedAhead reports whether r starts or serves, and does not stop or sleep.
func isStartedAhead(r *replicaState) bool {
	return !r.stopping && !r.cancelled && !r.asleep() && !r.sleep.goingToSleep
}

// onUse ends f's prewarm, because the predicted use has begun.
func (p *prewarmer) onUse(f *functionState, now placement.Instant) {
	planned := f.usage.prewarm
	if planned == nil {
		return
	}
	ready := slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.serves() })
	switch {
	case ready:
		p.end(planned, "hit", now)
	case planned.started, slices.ContainsFunc(f.replicas, isStartedAhead): // settle may not have run since
		p.end(planned, "late", now) // starting: the wait is shorter
	default:
		p.end(planned, "no_room", now)
	}
}

// end ends a lease and counts its result.
func (p *prewarmer) end(planned *prewarm, result string, now placement.Instant) {
	f := planned.function
	p.refund(planned, now)
	p.leases.Drop(planned)
	p.counts.add("thaw_prewarms_total", 1, result)
	switch result {
	case "hit", "late":
	default:
		if planned.held > 0 {
			p.counts.add("thaw_prewarm_wasted_gpu_seconds_total", planned.held.Seconds(), planned.function.Name.Team, planned.By)
		}
	}
	if f.usage.prewarm == planned {
		f.usage.prewarm = nil
		// An unused replica stops with the lease; a used one has its idle time.
		f.Prewarm = 0
		if result == "unused" {
			f.Prewarm = now
		}
		p.registry.enqueue(f)
	}
	p.events.event("prewarm_over", f.Name, "", "", result, planned.By)
}

// startPrefetch starts staging the bytes of a lease's model, once.
func (p *prewarmer) startPrefetch(ctx context.Context, planned *prewarm, now placement.Instant) {
	if planned.started || p.prefetches >= maxPrefetches || now >= planned.until || planned.function.model == nil {
		return
	}
	planned.started, planned.State = true, "fetching"
	p.prefetches++
	m, memory, limit := planned.function.model, planned.Tier == functions.PrewarmMemory, min(prefetchTimeout, planned.until-now)
	p.commands.runWithin(ctx, limit, func(ctx context.Context) {
		err := p.prefetch(ctx, m, memory)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.prefetches--
		result := "fetched"
		if planned.State = "fetched"; err != nil {
			planned.State, result = "failed", "fetch_failed"
			p.log.Warn("a prefetch ahead failed", "function", planned.Function, "error", err)
		}
		p.counts.add("thaw_prewarms_total", 1, result)
	})
}

// Prewarm starts a function ahead of demand, or stages its bytes in a tier, and keeps
// that until a time. by names the caller; it is a label of metrics.
func (o *Orchestrator) Prewarm(name functions.Name, until time.Time, tier, by string) (functions.Prewarm, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.functions[name.WithoutAdapter()]
	switch {
	case f == nil || f.Gone:
		return functions.Prewarm{}, functions.ErrNotFound
	case o.forecaster == nil, tier != functions.PrewarmGPU && o.forecaster.Prefetch == nil:
		return functions.Prewarm{}, functions.ErrPrewarmTier
	}
	now := o.now()
	p, err := o.forecaster.prewarmer.grant(f, functions.Prewarm{Until: until, Tier: tier, By: by}, now)
	if err != nil {
		return functions.Prewarm{}, err
	}
	if slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.serves() }) && p.Tier == functions.PrewarmGPU {
		p.State = "ready"
	}
	o.signal()
	return p.record(), nil
}

// PrewarmBriefly starts a function ahead of demand, unless another lease holds it as long
// already. EndPrewarm ends the lease.
func (o *Orchestrator) PrewarmBriefly(name functions.Name, until time.Time, by string) error {
	o.mu.Lock()
	f := o.functions[name.WithoutAdapter()]
	held := f != nil && f.usage.prewarm != nil && f.usage.prewarm.By != by && !f.usage.prewarm.Until.Before(until)
	o.mu.Unlock()
	if held {
		return nil
	}
	_, err := o.Prewarm(name, until, functions.PrewarmGPU, by)
	return err
}

// EndPrewarm ends the lease that by holds on the start of a function, where it holds one: a
// replica that no request has used stops.
func (o *Orchestrator) EndPrewarm(name functions.Name, by string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.functions[name.WithoutAdapter()]
	if f == nil || f.usage.prewarm == nil || f.usage.prewarm.By != by {
		return
	}
	o.forecaster.prewarmer.end(f.usage.prewarm, "unused", o.now())
	o.signal()
}

// PrewarmLeft is the GPU time that a team may still use for prewarms.
func (o *Orchestrator) PrewarmLeft(team string) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forecaster == nil {
		return 0
	}
	return o.forecaster.prewarmer.budgets.Left(team, o.now())
}

// Prewarms lists the leases in the order of their ends.
func (o *Orchestrator) Prewarms() []functions.Prewarm {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.forecaster == nil {
		return nil
	}
	out := make([]functions.Prewarm, 0, len(o.forecaster.prewarmer.leases.List))
	for _, p := range o.forecaster.prewarmer.leases.List {
		out = append(out, p.record())
	}
	slices.SortFunc(out, func(a, b functions.Prewarm) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.ID, b.ID))
	})
	return out
}
