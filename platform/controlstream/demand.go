package controlstream

import (
	"maps"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/functions"
)

// dropLostActivators removes activators that are disconnected for longer than grace: their requests
// were on their own connections. mu must be held.
func (h *Hub) dropLostActivators(now time.Time) {
	for id, p := range h.peers[KindActivator] {
		if p.lost.IsZero() || now.Sub(p.lost) < grace {
			continue
		}
		delete(h.peers[KindActivator], id)
		for name, d := range p.demand {
			switch {
			case d.Active > d.Low.Active:
				h.noteRequestEnd(name, p.lost, p.lost)
			case d.Active > 0:
				h.noteRequestEnd(name, p.lost, admission.BeforeAll)
			}
			h.demandChanged.Put(name, name)
		}
	}
}

// requestEnds is when the last request for a function ended, and the last one that is not
// of priority low.
type requestEnds struct{ any, use time.Time }

func (h *Hub) noteRequestEnd(name functions.Name, at, use time.Time) {
	e := h.ends[name]
	if at.After(e.any) {
		e.any = at
	}
	if use.After(e.use) {
		e.use = use
	}
	if e != h.ends[name] {
		h.ends[name] = e
	}
}

// sum adds up the demand for a function at all activators; mu must be held.
func (h *Hub) sum(name functions.Name) activator.Demand {
	out := activator.Demand{Name: name, LastEnd: h.ends[name].any}
	if e := h.ends[name]; e.use.Before(e.any) {
		out.Low.LastUse = e.use
	}
	for _, p := range h.peers[KindActivator] {
		d, ok := p.demand[name]
		if !ok {
			continue
		}
		others, more := out.Queued > out.Low.Queued, d.Queued > d.Low.Queued
		if !d.Oldest.IsZero() && (out.Oldest.IsZero() || more && !others || more == others && d.Oldest.Before(out.Oldest)) {
			out.Oldest = d.Oldest
		}
		out.Active += d.Active
		out.Queued += d.Queued
		out.Low.Active += d.Low.Active
		out.Low.Queued += d.Low.Queued
	}
	return out
}

// DemandOf returns the demand for one function at all activators.
func (h *Hub) DemandOf(name functions.Name) activator.Demand {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sum(name)
}

// Demand yields the demand of each function whose demand, or whose replicas' requests in
// flight, may have changed since the last call; with all also of every function that has
// requests. Calls must be sequential.
func (h *Hub) Demand(all bool, yield func(activator.Demand)) {
	h.mu.Lock()
	h.dropLostActivators(h.o.Now())
	if all {
		for _, p := range h.peers[KindActivator] {
			for name, d := range p.demand {
				if d.Active+d.Queued > 0 {
					h.demandChanged.Put(name, name)
				}
			}
		}
		h.prune()
	}
	out := functions.ConvertAll(h.demandChanged.Values(), h.sum)
	h.demandChanged.Clear()
	h.mu.Unlock()
	for _, d := range out {
		yield(d)
	}
}

// forgetAfter is how long a hub keeps what a disconnected activator may have missed:
// that a replica left the routes, and when a function without a snapshot ended its
// last request.
const forgetAfter = time.Hour

// prune drops entries that are older than forgetAfter; mu must be held.
func (h *Hub) prune() {
	now := h.o.Now()
	for name, list := range h.removed {
		if list = slices.DeleteFunc(list, func(l removedReplica) bool { return now.Sub(l.at) > forgetAfter }); len(list) == 0 {
			delete(h.removed, name)
		} else {
			h.removed[name] = list
		}
	}
	for name, at := range h.ends {
		if h.snapshots[name] == nil && now.Sub(at.any) > forgetAfter {
			delete(h.ends, name)
		}
	}
}

// InFlightOf counts a replica's requests at all activators. An activator that has not yet
// acknowledged the replica's removal from the routes counts as one more: it may be sending
// a request to it just now.
func (h *Hub) InFlightOf(name functions.Name, replica string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.peers[KindActivator] {
		n += p.demand[name].InFlight[replica]
	}
	for _, l := range h.removed[name] {
		if l.id == replica {
			h.activators(func(p *peer) {
				if p.appliedSeq < l.seq {
					n++
				}
			})
		}
	}
	return n
}

// applyReport records the demand of an activator; mu must be held.
func (h *Hub) applyReport(p *peer, f *reportFrame, u Report) {
	if f.FullSync {
		named := functions.SetOf(u.Demand, func(d Demand) functions.Name { return d.Name })
		for name := range p.demand {
			if !named[name] {
				delete(p.demand, name)
				h.demandChanged.Put(name, name)
			}
		}
	}
	for _, d := range u.Demand {
		maps.DeleteFunc(d.InFlight, func(_ string, n int) bool { return n == 0 })
		ends, use := h.ends[d.Name], d.Low.LastUse
		if use.IsZero() {
			use = d.LastEnd // of a request that is not of priority low
		}
		if before, ok := p.demand[d.Name]; ok && f.FullSync && d.like(&before) && !d.LastEnd.After(ends.any.Add(jitter)) &&
			!use.After(ends.use.Add(jitter)) {
			continue // unchanged
		}
		h.noteRequestEnd(d.Name, d.LastEnd, use)
		h.demandChanged.Put(d.Name, d.Name)
		if d.Active+d.Queued+len(d.InFlight) == 0 {
			delete(p.demand, d.Name)
		} else {
			p.demand[d.Name] = d
		}
	}
	p.appliedSeq = max(p.appliedSeq, min(f.AppliedSeq, h.seq))
	if u.Applied > 0 {
		p.applied = u.Applied
	}
}

// jitter is how far an unchanged moment may seem to move, by its messages' transmission
// times.
const jitter = 20 * time.Millisecond

// like reports whether two demands for one function are equal, within jitter.
func (d *Demand) like(o *Demand) bool {
	return d.Active == o.Active && d.Queued == o.Queued && d.Low.Active == o.Low.Active && d.Low.Queued == o.Low.Queued &&
		d.Oldest.IsZero() == o.Oldest.IsZero() &&
		d.Oldest.Sub(o.Oldest).Abs() <= jitter && maps.Equal(d.InFlight, o.InFlight)
}
