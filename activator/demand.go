package activator

import (
	"time"

	"github.com/thaw-dev/thaw/activator/demand"
)

// Demand is the demand for one function now.
type Demand = demand.Demand

// reportEvery bounds how long a change of demand alone is not reported: every warm request
// changes it.
const reportEvery = 20 * time.Millisecond

// OnChange notes that the demand for the function has changed.
func (f *function) OnChange() { f.changed.Add(f) }

// reportDemand gives the demand that has changed to the Waker. When it returns, the Waker has what
// changed before the call: reports are made one after another, each read and given under one lock,
// so that no older one comes after a newer.
func (a *Activator) reportDemand() {
	a.reporting.Lock()
	defer a.reporting.Unlock()
	var changed []Demand
	a.changed.Each(func(f *function) {
		l, inFlight := f.queue.TakeLoad(a.o.Now())
		d := Demand{
			Name: f.self.Name, Active: l.Active, Queued: l.Queued, Oldest: l.Oldest, LastEnd: l.LastEnd, Low: l.Low, InFlight: inFlight,
		}
		if f.self.Removed() {
			if a.names.table.Lookup(d.Name) != nil {
				return // there is one of its name again, which is reported
			}
			d = Demand{Name: d.Name, InFlight: inFlight}
		}
		changed = append(changed, d)
	})
	if len(changed) > 0 {
		a.o.Waker.Demand(changed...)
	}
}
