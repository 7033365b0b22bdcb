package activator

import (
	"time"

	"github.com/thaw-dev/thaw/activator/demand"
)

// Demand is the demand for one function now.
type Demand = demand.Demand

// OnChange notes that the demand for the function has changed.
func (f *function) OnChange() { f.changed.Add(f) }

// demand is the demand for the function now; later changes call OnChange again.
func (f *function) demand(now time.Time) Demand {
	l := f.queue.TakeLoad(now)
	return Demand{Name: f.self.Name, Active: l.Active, Queued: l.Queued, Oldest: l.Oldest, LastEnd: l.LastEnd, Low: l.Low}
}

// Demand yields the functions whose demand, or the requests in flight at one of their
// replicas, may have changed since the last call, also to nothing; with all also every
// other function that has requests. It must not be called concurrently.
func (a *Activator) Demand(all bool, yield func(Demand)) {
	a.changed.Each(func(f *function) {
		if d := f.demand(a.o.Now()); !f.self.Removed() {
			yield(d)
		}
	})
	if !all {
		return
	}
	for _, e := range a.table.All() {
		if now := a.o.Now(); !e.Data.queue.Load(now).Idle() {
			yield(e.Data.demand(now))
		}
	}
}
