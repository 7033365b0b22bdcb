package foresight

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
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

	loop Loop
	log  *slog.Logger
}

// prewarm is a lease on a start ahead of demand.
type prewarm struct {
	functions.Prewarm
	function Function
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
func (p *prewarmer) grant(x Function, h functions.Prewarm, now placement.Instant) (*prewarm, error) {
	f, usage := x.Planned(), x.Usage()
	until := p.loop.Instant(h.Until)
	var planned *prewarm
	gpus := 0 // bytes on a disk cost no GPU
	if h.Tier == functions.PrewarmGPU {
		planned, gpus = usage.prewarm, max(f.Resources.GPUs, 1)
	}
	if planned != nil {
		p.refund(planned, now) // the new grant replaces the old one
	}
	if err := p.budgets.Check(f.Name.Team, time.Duration(gpus)*max(until-now, 0), now); err != nil {
		if planned != nil {
			p.reserve(planned, planned.until, now) // restore the old reservation
		}
		return nil, err
	}
	if h.Tier != functions.PrewarmGPU {
		if held := p.stagingLease(x, h); held != nil {
			held.Until, held.until = h.Until, max(held.until, until)
			return held, nil
		}
	}
	if planned == nil {
		if len(p.leases.List) >= maxHints {
			return nil, functions.ErrTooManyPrewarms
		}
		planned = &prewarm{function: x, Prewarm: functions.Prewarm{ID: p.loop.NewID("pw"), Function: f.Name.String(), State: "planned"},
			charged: now}
		p.leases.Add(planned)
	}
	planned.Tier, planned.By, planned.Why, planned.Until, planned.until, planned.gpus = h.Tier, h.By, h.Why, h.Until, until, gpus
	p.reserve(planned, until, now)
	if h.Tier == functions.PrewarmGPU {
		usage.prewarm = planned
		f.Prewarm = until
		p.loop.FunctionChanged(x)
	}
	p.loop.Event("prewarm", f.Name, cmp.Or(h.Why, h.By), h.Tier)
	return planned, nil
}

// stagingLease returns the lease by which the same holder has staged a function's bytes in the
// same tier, or is about to; nil where there is none, or it failed.
func (p *prewarmer) stagingLease(x Function, h functions.Prewarm) *prewarm {
	for _, l := range p.leases.List {
		if l.function == x && l.Tier == h.Tier && l.By == h.By && l.State != "failed" {
			return l
		}
	}
	return nil
}

// reserve reserves GPU time for a lease until then.
func (p *prewarmer) reserve(planned *prewarm, until, now placement.Instant) {
	planned.granted = time.Duration(planned.gpus) * max(until-now, 0)
	p.budgets.Reserve(planned.function.Planned().Name.Team, planned.granted)
}

// refund returns the GPU time that a lease will not use to the budgets.
func (p *prewarmer) refund(planned *prewarm, now placement.Instant) {
	back := min(time.Duration(planned.gpus)*max(planned.until-now, 0), planned.granted)
	if !planned.started {
		back = planned.granted // it never held a GPU
	}
	planned.granted -= back
	p.budgets.Reserve(planned.function.Planned().Name.Team, -back)
}

// settle adds up the GPU time of a lease, and ends it when its time is over.
func (p *prewarmer) settle(ctx context.Context, planned *prewarm, now placement.Instant) {
	f := planned.function.Planned()
	if planned.Tier != functions.PrewarmGPU {
		p.startPrefetch(ctx, planned, now)
		if now >= planned.until || f.Gone {
			p.leases.Drop(planned)
		}
		return
	}
	_, alive, ready := planned.function.Ahead()
	if planned.started { // accurate to a tick: too short at the begin, too long at the end
		planned.held += time.Duration(planned.gpus) * max(now-planned.charged, 0)
	}
	planned.charged = now
	switch {
	case f.Gone, planned.function.Usage().prewarm != planned:
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

// onUse ends a function's prewarm, because the predicted use has begun.
func (p *prewarmer) onUse(x Function, now placement.Instant) {
	planned := x.Usage().prewarm
	if planned == nil {
		return
	}
	switch _, started, ready := x.Ahead(); {
	case ready:
		p.end(planned, "hit", now)
	case planned.started, started: // settle may not have run since
		p.end(planned, "late", now) // starting: the wait is shorter
	default:
		p.end(planned, "no_room", now)
	}
}

func (p *prewarmer) end(planned *prewarm, result string, now placement.Instant) {
	f, usage := planned.function.Planned(), planned.function.Usage()
	p.refund(planned, now)
	p.leases.Drop(planned)
	p.loop.Count("thaw_prewarms_total", 1, result)
	switch result {
	case "hit", "late":
	default:
		if planned.held > 0 {
			p.loop.Count("thaw_prewarm_wasted_gpu_seconds_total", planned.held.Seconds(), planned.function.Planned().Name.Team, planned.By)
		}
	}
	if usage.prewarm == planned {
		usage.prewarm = nil
		// An unused replica stops with the lease; a used one has its idle time.
		f.Prewarm = 0
		if result == "unused" {
			f.Prewarm = now
		}
		p.loop.FunctionChanged(planned.function)
	}
	p.loop.Event("prewarm_over", f.Name, result, planned.By)
}

// startPrefetch starts staging the bytes of a lease's model, once.
func (p *prewarmer) startPrefetch(ctx context.Context, planned *prewarm, now placement.Instant) {
	if planned.started || p.prefetches >= maxPrefetches || now >= planned.until || planned.function.Model() == nil {
		return
	}
	planned.started, planned.State = true, "fetching"
	p.prefetches++
	m, memory, limit := planned.function.Model(), planned.Tier == functions.PrewarmMemory, min(prefetchTimeout, planned.until-now)
	p.loop.Run(ctx, limit, func(ctx context.Context) {
		err := p.prefetch(ctx, m, memory)
		p.loop.Lock()
		defer p.loop.Unlock()
		p.prefetches--
		result := "fetched"
		if planned.State = "fetched"; err != nil {
			planned.State, result = "failed", "fetch_failed"
			p.log.Warn("a prefetch ahead failed", "function", planned.Function, "error", err)
		}
		p.loop.Count("thaw_prewarms_total", 1, result)
	})
}

// Prewarm starts a function ahead of demand, or stages its bytes in a tier, and keeps
// that until a time. by names the caller.
func (f *Forecaster) Prewarm(x Function, until time.Time, tier, by string) (functions.Prewarm, error) {
	if f == nil || tier != functions.PrewarmGPU && f.Prefetch == nil {
		return functions.Prewarm{}, functions.ErrPrewarmTier
	}
	p, err := f.prewarmer.grant(x, functions.Prewarm{Until: until, Tier: tier, By: by}, f.loop.Now())
	if err != nil {
		return functions.Prewarm{}, err
	}
	if _, _, ready := x.Ahead(); ready && p.Tier == functions.PrewarmGPU {
		p.State = "ready"
	}
	return p.record(), nil
}

// HeldByOther reports whether a lease of another holder than by keeps the start of a
// function as long as until.
func (u *Usage) HeldByOther(until time.Time, by string) bool {
	return u.prewarm != nil && u.prewarm.By != by && !u.prewarm.Until.Before(until)
}

// End ends the lease that by, or with "" any caller, holds on the start of a function, and reports
// whether there was one.
func (f *Forecaster) End(x Function, by string) bool {
	p := x.Usage().prewarm
	if p == nil || by != "" && p.By != by {
		return false
	}
	f.prewarmer.end(p, "unused", f.loop.Now())
	return true
}

// Left is the GPU time that a team may still use for prewarms.
func (f *Forecaster) Left(team string) time.Duration {
	if f == nil {
		return 0
	}
	return f.prewarmer.budgets.Left(team, f.loop.Now())
}

// Leases lists the leases in the order of their ends.
func (f *Forecaster) Leases() []functions.Prewarm {
	if f == nil {
		return nil
	}
	out := functions.ConvertAll(f.prewarmer.leases.List, func(p *prewarm) functions.Prewarm { return p.record() })
	slices.SortFunc(out, func(a, b functions.Prewarm) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.ID, b.ID))
	})
	return out
}
