// Package demand has the parts of the activator's reports of demand to the platform: the type
// Demand (a function's requests in flight and queued), the list Changes of functions whose demand
// changed, and Removed, the requests in flight of removed functions; it sends no report and
// forecasts nothing.
package demand

import (
	"maps"
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
	// InFlight is how many requests each replica has, also one that is in the snapshot no more or
	// not yet; one without any is left out. It is not changed any more.
	InFlight map[string]int
}

// Changes lists the functions whose demand has changed since the last call of Each. A function
// must not be added again before Each has yielded it.
type Changes[F any] struct {
	Notify func() // may be nil; called with the first function on the list

	mu    sync.Mutex
	list  []F
	spare []F
}

// Add notes that the demand for a function has changed.
func (c *Changes[F]) Add(f F) {
	c.mu.Lock()
	c.list = append(c.list, f)
	first := len(c.list) == 1
	c.mu.Unlock()
	if first && c.Notify != nil {
		c.Notify()
	}
}

// Each yields the functions and takes them off the list. It must not be called concurrently.
func (c *Changes[F]) Each(yield func(F)) {
	c.mu.Lock()
	changed := c.list
	c.list, c.spare = c.spare, nil
	c.mu.Unlock()
	for _, f := range changed {
		yield(f)
	}
	clear(changed)
	c.mu.Lock()
	c.spare = changed[:0]
	c.mu.Unlock()
}

// Removed has the functions that were removed while requests of theirs were in flight. The
// zero value is empty; its methods may be called concurrently.
type Removed struct {
	mu     sync.Mutex
	byName map[functions.Name]*admission.Queue
}

// Add keeps a function while it has requests in flight, and drops those without any.
func (r *Removed) Add(name functions.Name, q *admission.Queue, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.byName, func(_ functions.Name, q *admission.Queue) bool { return q.Load(now).Active == 0 })
	if q.Load(now).Active > 0 {
		if r.byName == nil {
			r.byName = map[functions.Name]*admission.Queue{}
		}
		r.byName[name] = q
	}
}

// InFlight is how many requests a replica of a removed function has.
func (r *Removed) InFlight(name functions.Name, replica string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.byName[name]
	if q == nil {
		return 0
	}
	n := q.InFlight(replica)
	if n == 0 && q.Load(time.Time{}).Active == 0 {
		delete(r.byName, name)
	}
	return n
}
