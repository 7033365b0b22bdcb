package control

import (
	"maps"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// path is the activators as steer needs them: what it publishes goes out with the
// name that the engines know, and who asks for a revision past our activators is
// added to their demand.
type path struct {
	activators
	service   func(functions.Name) (name string, plain bool) // the Knative Service a revision is of; plain: it runs no engine of ours
	published func(functions.Name)
	coming    func(*snapshot.Function) []snapshot.Replica // of a revision: its replicas that take requests ahead; nil: none does

	mu      sync.Mutex
	outside map[functions.Name]outside
	stirred map[functions.Name]bool
	queued  map[functions.Name]bool // requests for it waited when steer was told last
	ring    func(functions.Name)
	now     func() time.Time
}

// activators are the link.Hub.
type activators interface {
	orchestrator.DataPath
	DemandOf(name functions.Name) orchestrator.Demand
}

// outside is the demand for one revision that does not pass our activators.
type outside struct {
	active, queued int
	since          time.Time // that somebody waits
	end            time.Time // that nobody was there any more
}

// Publish gives pictures of revisions to the activators.
func (p *path) Publish(fs ...snapshot.Function) {
	for i := range fs {
		fs[i].Hidden = true
		service, plain := p.service(fs[i].Name)
		if service != "" {
			fs[i].Serves = service
		}
		fs[i].Plain = plain
		if p.coming != nil {
			fs[i].Coming = p.coming(&fs[i])
		}
	}
	p.activators.Publish(fs...)
	for i := range fs {
		p.published(fs[i].Name)
	}
}

// Outside takes in how many requests for a revision are at Knative's own activator
// (queued, where none of its replicas is ready) or were sent on by it.
func (p *path) Outside(name functions.Name, active, queued int) {
	now := p.now()
	p.mu.Lock()
	was, known := p.outside[name]
	next := outside{active: active, queued: queued, since: was.since, end: was.end}
	if queued > 0 && was.queued == 0 {
		next.since = now
	} else if queued == 0 {
		next.since = time.Time{}
	}
	if active+queued == 0 && was.active+was.queued > 0 {
		next.end = now
	}
	p.outside[name] = next
	changed := !known && active+queued > 0 || known && (was.active != active || was.queued != queued)
	if changed {
		p.stirred[name] = true
	}
	p.mu.Unlock()
	if changed {
		p.ring(name)
	}
}

// Demand yields what the activators say, with what is asked past them.
func (p *path) Demand(all bool, yield func(orchestrator.Demand) bool) {
	p.mu.Lock()
	stirred := p.stirred
	p.stirred = map[functions.Name]bool{}
	add := make(map[functions.Name]outside, len(p.outside))
	for n, o := range p.outside {
		add[n] = o
		if all && o.active+o.queued > 0 {
			stirred[n] = true
		}
	}
	var rest map[functions.Name]bool // of those for which requests waited, who is not told of now
	if all {
		rest = maps.Clone(p.queued)
	}
	p.mu.Unlock()
	stopped := false
	tell := func(d orchestrator.Demand) bool {
		if !yield(d) {
			return false
		}
		p.told(d)
		delete(rest, d.Name)
		return true
	}
	p.activators.Demand(all, func(d orchestrator.Demand) bool {
		delete(stirred, d.Name)
		stopped = !tell(add[d.Name].join(d))
		return !stopped
	})
	for n := range stirred { // what our activators have of it has not changed, and counts
		if stopped || !tell(add[n].join(p.activators.DemandOf(n))) {
			p.mu.Lock()
			p.stirred[n] = true
			p.mu.Unlock()
			stopped = true
		}
	}
	for n := range rest { // whoever had them is gone
		if !stopped {
			p.told(orchestrator.Demand{Name: n})
		}
	}
}

// told is that steer knows of d: whether requests wait is part of how a revision
// stands.
func (p *path) told(d orchestrator.Demand) {
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

// waits reports whether requests for a revision waited when steer was told last.
func (p *path) waits(name functions.Name) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queued[name]
}

func (o outside) join(d orchestrator.Demand) orchestrator.Demand {
	d.Active += o.active
	d.Queued += o.queued
	if o.queued > 0 && (d.Oldest.IsZero() || o.since.Before(d.Oldest)) {
		d.Oldest = o.since
	}
	if o.end.After(d.LastEnd) {
		d.LastEnd = o.end
	}
	if o.queued > 0 {
		teams := map[string]int{d.Name.Team: o.queued}
		for t, n := range d.Teams {
			teams[t] += n
		}
		d.Teams = teams
	}
	return d
}
