package control

import (
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// dataPath is the activators as the orchestrator sees them, and the orchestrator as they see it.
// Snapshots go out with the name that engines know, and requests that bypass our activators are
// added to their demand.
type dataPath struct {
	orchestrator.DataPath // the hub
	activator.Waker       // the orchestrator

	// serviceOf is the Knative Service of a revision; plain: it runs without thaw's shim
	serviceOf func(functions.Name) (name string, plain bool)
	published func(functions.Name)
	// notReady returns a revision's replicas that accept requests before READY; nil: none do
	notReady func(*snapshot.Snapshot) []snapshot.Replica

	mu      sync.Mutex
	inside  map[functions.Name]orchestrator.Demand // at our activators
	outside map[functions.Name]outsideDemand
	queued  map[functions.Name]bool // requests for it wait, as last reported
	now     func() time.Time
}

// outsideDemand is the demand for one revision that bypasses our activators.
type outsideDemand struct {
	active, queued int
	queuedSince    time.Time // since when requests wait
	endedAt        time.Time // when the last request ended
}

// Publish sends snapshots of revisions to the activators.
func (p *dataPath) Publish(fs ...snapshot.Snapshot) {
	for i := range fs {
		fs[i].Hidden = true
		service, plain := p.serviceOf(fs[i].Name)
		if service != "" {
			fs[i].ServedModelName = service
		}
		fs[i].External = plain
		if p.notReady != nil {
			fs[i].EarlyReplicas = p.notReady(&fs[i])
		}
	}
	p.DataPath.Publish(fs...)
	for i := range fs {
		p.published(fs[i].Name)
	}
}

// Demand passes on the demand at our activators, with what bypasses them.
func (p *dataPath) Demand(ds ...orchestrator.Demand) {
	p.mu.Lock()
	for _, d := range ds {
		if p.inside[d.Name] = d; d.Active+d.Queued+len(d.InFlight) == 0 && d.LastEnd.IsZero() {
			delete(p.inside, d.Name)
		}
	}
	moved := p.report(ds...)
	p.mu.Unlock()
	p.publishAll(moved)
}

// SetOutsideDemand sets how many requests for a revision wait in Knative's own activators or were
// forwarded by them.
func (p *dataPath) SetOutsideDemand(name functions.Name, active, queued int) {
	now := p.now()
	p.mu.Lock()
	was, known := p.outside[name]
	next := outsideDemand{active: active, queued: queued, queuedSince: was.queuedSince, endedAt: was.endedAt}
	if queued > 0 && was.queued == 0 {
		next.queuedSince = now
	} else if queued == 0 {
		next.queuedSince = time.Time{}
	}
	if active+queued == 0 && was.active+was.queued > 0 {
		next.endedAt = now
	}
	p.outside[name] = next
	if !known && active+queued == 0 || was.active == active && was.queued == queued {
		p.mu.Unlock()
		return
	}
	d := p.inside[name]
	d.Name = name
	moved := p.report(d)
	p.mu.Unlock()
	p.publishAll(moved)
	p.Nudge(name)
}

// report reports the demand for revisions, with what bypasses our activators. It returns those
// whose status changes: whether requests wait is part of it. mu must be held.
func (p *dataPath) report(ds ...orchestrator.Demand) (moved []functions.Name) {
	all := make([]orchestrator.Demand, 0, len(ds))
	for _, d := range ds {
		d = p.outside[d.Name].addTo(d)
		all = append(all, d)
		if p.queued[d.Name] == (d.Queued > 0) {
			continue
		}
		moved = append(moved, d.Name)
		if d.Queued > 0 {
			p.queued[d.Name] = true
		} else {
			delete(p.queued, d.Name)
		}
	}
	p.Waker.Demand(all...)
	return moved
}

func (p *dataPath) publishAll(names []functions.Name) {
	for _, name := range names {
		p.published(name)
	}
}

// demandOf returns the demand for a revision at our activators, as last reported.
func (p *dataPath) demandOf(name functions.Name) orchestrator.Demand {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inside[name]
}

// hasQueued reports whether requests wait, as last reported to the orchestrator.
func (p *dataPath) hasQueued(name functions.Name) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queued[name]
}

func (o outsideDemand) addTo(d orchestrator.Demand) orchestrator.Demand {
	if o.queued > 0 && (d.Queued == d.Low.Queued || o.queuedSince.Before(d.Oldest)) {
		d.Oldest = o.queuedSince
	}
	d.Active += o.active
	d.Queued += o.queued
	if o.endedAt.After(d.LastEnd) {
		d.LastEnd, d.Low.LastUse = o.endedAt, time.Time{}
	} else if !d.Low.LastUse.IsZero() && o.endedAt.After(d.Low.LastUse) {
		d.Low.LastUse = o.endedAt
	}
	return d
}
