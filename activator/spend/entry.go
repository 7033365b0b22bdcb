package spend

import (
	"maps"
	"sync"
	"time"
)

// Entry collects what the calls for one entry of a log cost, so that they are charged with
// it. Its methods may be called concurrently.
type Entry struct {
	mu      sync.Mutex
	held    []*Reservation
	charges map[string]float64 // by account
	taken   bool
}

// Settle leaves a cost to the entry, and the reservation stays until that is written. A cost
// for no entry (e is nil), or for one that was taken, is charged now.
func (e *Entry) Settle(r *Reservation, cost float64, now time.Time) {
	if e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
	}
	if e == nil || e.taken || positive(cost) == 0 {
		r.Settle(cost, now)
		return
	}
	if e.charges == nil {
		e.charges = map[string]float64{}
	}
	for _, name := range r.accounts {
		e.charges[name] += cost
	}
	e.held = append(e.held, r)
}

// Take returns the charges that are to be written in the entry, by account; nil where there
// are none. No cost is added to them any more.
func (e *Entry) Take() map[string]float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken = true
	return e.charges
}

// Record makes the charges of an entry that was taken and written, and ends the reservations.
// end is the byte at which it ends in its log, whose entries are recorded in order.
func (l *Ledger) Record(log string, end int64, e *Entry, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range e.held {
		r.release()
	}
	e.held = nil
	l.charge(log, end, e.charges, now)
}

// Replay makes the charges that an entry of a log has, unless they are made.
func (l *Ledger) Replay(log string, end int64, charges map[string]float64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.charge(log, end, charges, now)
}

// charge makes charges to the present day, unless the log is charged up to end. mu is held.
func (l *Ledger) charge(log string, end int64, charges map[string]float64, now time.Time) {
	if len(charges) == 0 || end <= l.logs[log] {
		return
	}
	l.turn(now)
	for name, cost := range charges {
		l.account(name).spent += positive(cost)
	}
	l.logs[log] = end
	l.change()
}

// Keep forgets up to where logs are charged that keep does not name: none of their entries is
// replayed again.
func (l *Ledger) Keep(keep func(log string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := len(l.logs)
	maps.DeleteFunc(l.logs, func(log string, _ int64) bool { return !keep(log) })
	if len(l.logs) < before {
		l.change()
	}
}
