package control

import (
	"maps"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// dataPath is the activators as the orchestrator sees them. Snapshots go out with the name
// that engines know, and requests that bypass our activators are added to their demand.
type dataPath struct {
	activatorHub
	serviceOf func(functions.Name) (name string, plain bool) // the Knative Service of a revision; plain: it runs without thaw's shim
	published func(functions.Name)
	notReady  func(*snapshot.Snapshot) []snapshot.Replica // a revision's replicas that accept requests before READY; nil: none do

	mu      sync.Mutex
	outside map[functions.Name]outsideDemand
	dirty   map[functions.Name]bool
	queued  map[functions.Name]bool // requests for it waited when the orchestrator last read the demand
	wake    func(functions.Name)
	now     func() time.Time
}

// activatorHub is a controlstream.Hub.
type activatorHub interface {
	orchestrator.DataPath
	DemandOf(name functions.Name) orchestrator.Demand
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
	p.activatorHub.Publish(fs...)
	for i := range fs {
		p.published(fs[i].Name)
	}
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
	changed := !known && active+queued > 0 || known && (was.active != active || was.queued != queued)
	if changed {
		p.dirty[name] = true
	}
	p.mu.Unlock()
	if changed {
		p.wake(name)
	}
}

// Demand yields the activators' demand plus that which bypasses them.
func (p *dataPath) Demand(all bool, yield func(orchestrator.Demand)) {
	p.mu.Lock()
	changed := p.dirty
	p.dirty = map[functions.Name]bool{}
	add := make(map[functions.Name]outsideDemand, len(p.outside))
	for n, o := range p.outside {
		add[n] = o
		if all && o.active+o.queued > 0 {
			changed[n] = true
		}
	}
	var rest map[functions.Name]bool // revisions with queued requests that are not yielded in this round
	if all {
		rest = maps.Clone(p.queued)
	}
	p.mu.Unlock()
	deliver := func(d orchestrator.Demand) {
		d = add[d.Name].addTo(d)
		yield(d)
		p.noteRead(d)
		delete(rest, d.Name)
	}
	p.activatorHub.Demand(all, func(d orchestrator.Demand) {
		delete(changed, d.Name)
		deliver(d)
	})
	for n := range changed { // unchanged at our activators, and still counted
		deliver(p.activatorHub.DemandOf(n))
	}
	for n := range rest { // the activators that held these requests are gone
		p.noteRead(orchestrator.Demand{Name: n})
	}
}

// noteRead records d as known to the orchestrator: whether requests wait is part of a
// revision's status.
func (p *dataPath) noteRead(d orchestrator.Demand) {
	p.mu.Lock()
	was := p.queued[d.Name]
	if d.Queued > 0 {
		p.queued[d.Name] = true
	} else {
		delete(p.queued, d.Name)
	}
	p.mu.Unlock()
	if was != (d.Queued > 0) {
		p.published(d.Name)
	}
}

// hasQueued reports whether requests waited when the orchestrator last read the demand.
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
