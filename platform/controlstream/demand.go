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
// were on their own connections.
func (h *Hub) dropLostActivators() {
	defer h.reportDemand()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.o.Now()
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

// sum adds up the demand for a function at all activators. One that has not yet acknowledged the
// removal of a replica from the routes counts as one more request in flight there: it may be
// sending one just now. mu must be held.
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
		for replica, n := range d.InFlight {
			addInFlight(&out, replica, n)
		}
	}
	for _, l := range h.removed[name] {
		h.activators(func(p *peer) {
			if p.appliedSeq < l.seq {
				addInFlight(&out, l.id, 1)
			}
		})
	}
	return out
}

func addInFlight(d *activator.Demand, replica string, n int) {
	if d.InFlight == nil {
		d.InFlight = map[string]int{}
	}
	d.InFlight[replica] += n
}

// markRemoved marks the demand for the functions that lost a replica after seq and by to as
// changed; mu must be held.
func (h *Hub) markRemoved(seq, to uint64) {
	if seq >= h.lastRemoved {
		return
	}
	for name, list := range h.removed {
		if slices.ContainsFunc(list, func(l removedReplica) bool { return seq < l.seq && l.seq <= to }) {
			h.demandChanged.Put(name, name)
		}
	}
}

// reportDemand gives the demand that has changed at any activator to the Waker. When it returns,
// the Waker has what changed before the call.
func (h *Hub) reportDemand() {
	h.reporting.Lock()
	defer h.reporting.Unlock()
	h.mu.Lock()
	changed := functions.ConvertAll(h.demandChanged.Values(), h.sum)
	h.demandChanged.Clear()
	closed := h.closed
	h.mu.Unlock()
	if len(changed) > 0 && h.o.Waker != nil && !closed {
		h.o.Waker.Demand(changed...)
	}
}

// forgetAfter is how long a hub keeps what a disconnected activator may have missed:
// that a replica left the routes, and when a function without a snapshot ended its
// last request.
const forgetAfter = time.Hour

// prune drops entries that are older than forgetAfter, once a minute; mu must be held.
func (h *Hub) prune() {
	now := h.o.Now()
	if now.Sub(h.prunedAt) < time.Minute {
		return
	}
	h.prunedAt = now
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

// applyReport records the demand of an activator; mu must be held.
func (h *Hub) applyReport(p *peer, f *reportFrame, u Report) {
	if f.FullSync {
		named := functions.SetOf(u.Demand, func(d activator.Demand) functions.Name { return d.Name })
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
		if before, ok := p.demand[d.Name]; ok && f.FullSync && alike(&d, &before) && !d.LastEnd.After(ends.any.Add(jitter)) &&
			!use.After(ends.use.Add(jitter)) {
			continue // unchanged
		}
		h.noteRequestEnd(d.Name, d.LastEnd, use)
		h.demandChanged.Put(d.Name, d.Name)
		if !hasRequests(&d) {
			delete(p.demand, d.Name)
		} else {
			p.demand[d.Name] = d
		}
	}
	if seq := min(f.AppliedSeq, h.seq); seq > p.appliedSeq {
		h.markRemoved(p.appliedSeq, seq)
		p.appliedSeq = seq
	}
	if u.Applied > 0 {
		p.applied = u.Applied
	}
}

// jitter is how far an unchanged moment may seem to move, by its messages' transmission
// times.
const jitter = 20 * time.Millisecond

// alike reports whether two demands for one function are equal, within jitter.
func alike(d, o *activator.Demand) bool {
	return d.Active == o.Active && d.Queued == o.Queued && d.Low.Active == o.Low.Active && d.Low.Queued == o.Low.Queued &&
		d.Oldest.IsZero() == o.Oldest.IsZero() &&
		d.Oldest.Sub(o.Oldest).Abs() <= jitter && maps.Equal(d.InFlight, o.InFlight)
}
