package activator

import (
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/functions"
)

// Demand is the demand for one function now.
type Demand struct {
	Name    functions.Name
	Active  int
	Queued  int
	Oldest  time.Time // arrival of the longest waiting request, of a low one only where no other waits; zero if none waits
	LastEnd time.Time // of the last request; zero if there was none
	Low     admission.LowLoad
	Teams   map[string]int // waiting requests per team; nil if none waits
}

// changedFunctions lists the functions whose demand has changed since the last call of
// Demand. A function is on it once however often it changes.
type changedFunctions struct {
	notify func() // Options.DemandChanged
	mu     sync.Mutex
	list   []*function
	spare  []*function
}

// OnChange notes that the demand for the function has changed.
func (f *function) OnChange() {
	f.changed.mu.Lock()
	f.changed.list = append(f.changed.list, f)
	first := len(f.changed.list) == 1
	f.changed.mu.Unlock()
	if first && f.changed.notify != nil {
		f.changed.notify()
	}
}

// demand is the demand for the function now; later changes call OnChange again.
func (f *function) demand(now time.Time) Demand {
	l, teams := f.queue.TakeDemand(now)
	return Demand{Name: f.self.Name, Active: l.Active, Queued: l.Queued, Oldest: l.Oldest, LastEnd: l.LastEnd, Low: l.Low, Teams: teams}
}

// Demand yields the functions whose demand, or the requests in flight at one of their
// replicas, may have changed since the last call, also to nothing; with all also every
// other function that has requests. It must not be called concurrently.
func (a *Activator) Demand(all bool, yield func(Demand) bool) {
	s := &a.changed
	s.mu.Lock()
	changed := s.list
	s.list, s.spare = s.spare, nil
	s.mu.Unlock()
	for i, f := range changed {
		if d := f.demand(a.o.Now()); !f.self.Removed() && !yield(d) { // the others are for the next call
			s.mu.Lock()
			s.list = append(s.list, changed[i+1:]...)
			s.mu.Unlock()
			return
		}
	}
	clear(changed)
	s.mu.Lock()
	s.spare = changed[:0]
	s.mu.Unlock()
	if !all {
		return
	}
	for _, e := range a.table.All() {
		if now := a.o.Now(); !e.Data.queue.Load(now).Idle() && !yield(e.Data.demand(now)) {
			return
		}
	}
}
