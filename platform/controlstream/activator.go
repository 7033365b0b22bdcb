package controlstream

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// Feed is the data path that an Activator publishes to and reports on: activator.Activator.
type Feed interface {
	Publish(fs ...snapshot.Snapshot)
	Remove(names ...functions.Name)
	AbortThrough(agent string)
	Demand(all bool, yield func(activator.Demand))
	DemandOf(name functions.Name) (activator.Demand, bool)
	EachInFlight(name functions.Name, yield func(replica string, n int))
	InFlightOf(name functions.Name, replica string) int
}

// RateLimits is an activator's part of the teams' limits: ratelimit.Limits.
type RateLimits interface {
	Reports(first, all bool, now time.Time) *ratelimit.UsageReports
	ApplyAllotments(g ratelimit.Allotments, now time.Time)
	OnDisconnect(now time.Time)
}

// ActivatorOptions configure an Activator. Addr, Token and Hello.ID must be set, and Attach
// must be called before Run.
type ActivatorOptions struct {
	ClientOptions              // NewActivator sets Hello.Kind; Hello.ID is the name of its pod
	Table         func(*Table) // applies the newest table before it returns; may be nil
	Keys          func(Keys)   // applies the newest keys; may be nil
	RateLimits    RateLimits   // nil: there are no limits
}

// Activator is an activator's end of its control stream: it publishes the controller's
// snapshots to the data path and reports the demand there. It is the data path's
// activator.Waker. Without a connection the last snapshots stay published.
type Activator struct {
	*Client
	o    ActivatorOptions
	feed Feed // set by Attach, before Run

	synced     chan struct{} // closed after the first full sync
	syncedOnce atomic.Bool

	mu      sync.Mutex
	seq     uint64 // Seq of the published snapshots
	fns     map[functions.Name]*snapshot.Snapshot
	removed map[functions.Name][]string // replicas of removed functions that may still have requests in flight
}

// NewActivator returns an Activator; it starts nothing.
func NewActivator(o ActivatorOptions) *Activator {
	a := &Activator{o: o, synced: make(chan struct{}), fns: map[functions.Name]*snapshot.Snapshot{}, removed: map[functions.Name][]string{}}
	o.Hello.Kind = KindActivator
	a.Client = NewClient(o.ClientOptions)
	a.Client.hears, a.Client.demand = a.onUpdate, a.demand
	if o.RateLimits != nil {
		a.ended = func() { o.RateLimits.OnDisconnect(time.Now()) }
	}
	return a
}

// Attach sets the data path, whose constructor needs the Activator as its Waker.
func (a *Activator) Attach(feed Feed) { a.feed = feed }

// Synced returns a channel that is closed after the controller's first full sync.
func (a *Activator) Synced() <-chan struct{} { return a.synced }

// DemandChanged reports that the demand has changed (activator.Options.DemandChanged).
func (a *Activator) DemandChanged() { a.demandChanged.Set() }

// ReportUsageNow has the rate-limit usage reported now (ratelimit.Limits.ShareLimits).
func (a *Activator) ReportUsageNow() { a.reportDue.Set() }

// Wake requests a first replica. It returns "": the cold start's id comes with the next
// snapshot.
func (a *Activator) Wake(name functions.Name) string {
	a.Send(Report{Wakes: []Wake{{Name: name}}})
	return ""
}

// Nudge reports a change of demand that the controller should check now.
func (a *Activator) Nudge(name functions.Name) {
	a.Send(Report{DemandHints: []functions.Name{name}})
}

// ReportFailure reports a replica that failed a request.
func (a *Activator) ReportFailure(name functions.Name, replica, problem string) {
	a.Send(Report{HealthReports: []HealthReport{{Name: name, Replica: replica, Problem: problem}}})
}

// FirstToken reports the time from READY to the engine's first byte for the first request
// of a cold start (activator.Options.OnFirstByte).
func (a *Activator) FirstToken(name functions.Name, coldStart string, took time.Duration) {
	a.Send(Report{FirstTokens: []FirstToken{{Name: name, ColdStart: coldStart, Seconds: took.Seconds()}}})
}

// onUpdate applies an update of the controller. Calls are sequential.
func (a *Activator) onUpdate(d Update, seq uint64) {
	names, gone := a.beforeUpdate(&d)
	if d.Keys != nil && a.o.Keys != nil {
		a.o.Keys(*d.Keys)
	}
	if d.RateLimits != nil && a.o.RateLimits != nil {
		a.o.RateLimits.ApplyAllotments(*d.RateLimits, time.Now())
	}
	if len(names) > 0 {
		a.feed.Remove(names...)
	}
	if len(d.Functions) > 0 {
		a.feed.Publish(d.Functions...)
	}
	a.afterUpdate(&d, gone, seq)
	for _, agent := range d.AbortAgent { // aborted requests find another replica in the new snapshots
		a.feed.AbortThrough(agent)
	}
	if d.Table != nil {
		if a.o.Table != nil {
			a.o.Table(d.Table)
		}
		a.Send(Report{Applied: d.Table.Version})
	}
	if len(d.Functions)+len(gone) > 0 {
		a.reportDue.Set() // acknowledge the snapshots: a replica that left the routes may be ended then
	}
	if d.FullSync && !a.syncedOnce.Swap(true) {
		close(a.synced)
	}
}

// beforeUpdate returns the functions to remove, and for each its replicas that may still
// have requests in flight.
func (a *Activator) beforeUpdate(d *Update) (names []functions.Name, gone map[functions.Name][]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.FullSync {
		named := functions.SetOf(d.Functions, func(f snapshot.Snapshot) functions.Name { return f.Name })
		for name := range a.fns {
			if !named[name] {
				names = append(names, name)
			}
		}
	} else {
		names = functions.Filter(d.Removed, func(name functions.Name) bool { return a.fns[name] != nil })
	}
	gone = make(map[functions.Name][]string, len(names))
	for _, name := range names {
		var reps []string
		f := a.fns[name]
		for i := range f.Replicas {
			reps = append(reps, f.Replicas[i].ID)
		}
		for i := range f.EarlyReplicas { // requests sent before READY are in flight once the replica answers
			reps = append(reps, f.EarlyReplicas[i].ID)
		}
		a.feed.EachInFlight(name, func(replica string, _ int) {
			if !slices.Contains(reps, replica) {
				reps = append(reps, replica)
			}
		})
		gone[name] = reps
	}
	return names, gone
}

// afterUpdate records the published snapshots; removed replicas get no new requests.
func (a *Activator) afterUpdate(d *Update, gone map[functions.Name][]string, seq uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range d.Functions {
		f := &d.Functions[i]
		a.fns[f.Name] = f
		delete(a.removed, f.Name)
	}
	for name, reps := range gone {
		delete(a.fns, name)
		a.removed[name] = reps
	}
	a.seq = seq
}

// demand adds to u the demand of all functions, or of those whose demand has changed.
func (a *Activator) demand(all, first bool, u *Report) (whole bool, heard uint64) {
	a.mu.Lock()
	if first {
		a.seq = 0 // the sequence number may be of another hub
	}
	heard = a.seq
	a.mu.Unlock()
	if a.o.RateLimits != nil {
		u.RateLimits = a.o.RateLimits.Reports(first, all, time.Now())
	}
	a.feed.Demand(all, func(d activator.Demand) {
		var flights map[string]int
		a.feed.EachInFlight(d.Name, func(replica string, n int) {
			if flights == nil {
				flights = map[string]int{}
			}
			flights[replica] = n
		})
		u.Demand = append(u.Demand, Demand{Demand: d, InFlight: flights})
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, reps := range a.removed {
		flights := map[string]int{}
		for _, replica := range reps {
			if n := a.feed.InFlightOf(name, replica); n > 0 {
				flights[replica] = n
			}
		}
		u.Demand = append(u.Demand, Demand{Demand: activator.Demand{Name: name}, InFlight: flights})
		if len(flights) == 0 {
			delete(a.removed, name)
		}
	}
	if first {
		a.addResumeState(u)
	}
	return all, heard
}

// addResumeState adds what a new controller needs: each function's last use, or a cold function
// would look idle since ever, and wakes for queued requests. mu must be
// held.
func (a *Activator) addResumeState(u *Report) {
	busy := make(map[functions.Name]bool, len(u.Demand))
	for _, d := range u.Demand {
		busy[d.Name] = true
		n := a.fns[d.Name]
		if d.Queued > d.Low.Queued && n != nil && len(n.Replicas) == 0 {
			u.Wakes = append(u.Wakes, Wake{Name: d.Name})
		}
	}
	for name := range a.fns {
		if busy[name] {
			continue
		}
		if d, ok := a.feed.DemandOf(name); ok && !d.LastEnd.IsZero() {
			u.Demand = append(u.Demand, Demand{Demand: d})
		}
	}
}
