package controlstream

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
)

// Feed is the data path that an Activator publishes to: activator.Activator. It reports its demand
// to the Activator before Publish and Remove return.
type Feed interface {
	Publish(fs ...snapshot.Snapshot)
	Remove(names ...functions.Name)
	AbortThrough(agent string)
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
// snapshots to the data path and passes on the demand there. It is the data path's
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
	latest  map[functions.Name]activator.Demand  // of a removed function while it has requests in flight
	changed newest.Map[functions.Name, struct{}] // in latest since the last report
}

// NewActivator returns an Activator; it starts nothing.
func NewActivator(o ActivatorOptions) *Activator {
	a := &Activator{
		o: o, synced: make(chan struct{}), fns: map[functions.Name]*snapshot.Snapshot{}, latest: map[functions.Name]activator.Demand{},
	}
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
	removed := a.removedBy(&d)
	if d.Keys != nil && a.o.Keys != nil {
		a.o.Keys(*d.Keys)
	}
	if d.RateLimits != nil && a.o.RateLimits != nil {
		a.o.RateLimits.ApplyAllotments(*d.RateLimits, time.Now())
	}
	if len(removed) > 0 {
		a.feed.Remove(removed...)
	}
	if len(d.Functions) > 0 {
		a.feed.Publish(d.Functions...)
	}
	a.afterUpdate(&d, removed, seq)
	for _, agent := range d.AbortAgent { // aborted requests find another replica in the new snapshots
		a.feed.AbortThrough(agent)
	}
	if d.Table != nil {
		if a.o.Table != nil {
			a.o.Table(d.Table)
		}
		a.Send(Report{Applied: d.Table.Version})
	}
	if len(d.Functions)+len(removed) > 0 {
		a.reportDue.Set() // acknowledge the snapshots: a replica that left the routes may be ended then
	}
	if d.FullSync && !a.syncedOnce.Swap(true) {
		close(a.synced)
	}
}

// removedBy returns the published functions that d removes.
func (a *Activator) removedBy(d *Update) (names []functions.Name) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !d.FullSync {
		return functions.Filter(d.Removed, func(name functions.Name) bool { return a.fns[name] != nil })
	}
	named := functions.SetOf(d.Functions, func(f snapshot.Snapshot) functions.Name { return f.Name })
	for name := range a.fns {
		if !named[name] {
			names = append(names, name)
		}
	}
	return names
}

// afterUpdate records the published snapshots; removed replicas get no new requests.
func (a *Activator) afterUpdate(d *Update, removed []functions.Name, seq uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range removed {
		delete(a.fns, name)
	}
	for i := range d.Functions {
		a.fns[d.Functions[i].Name] = &d.Functions[i]
	}
	a.seq = seq
}

// Demand takes the demand for functions; it is written at once if none was for demandPace.
func (a *Activator) Demand(ds ...activator.Demand) {
	a.mu.Lock()
	for _, d := range ds {
		if _, known := a.latest[d.Name]; !known && !hasRequests(&d) && d.LastEnd.IsZero() {
			continue // a function without a request yet
		}
		a.latest[d.Name] = d
		a.changed.Put(d.Name, struct{}{})
	}
	a.mu.Unlock()
	a.demandChanged.Set()
}

// demand adds to u the demand of all functions that have any, or of those whose demand has
// changed. The first report of a connection also has what a new controller needs: each
// function's last use, or a cold function would look idle since ever, and wakes for queued requests.
func (a *Activator) demand(all, first bool, u *Report) (whole bool, heard uint64) {
	if a.o.RateLimits != nil {
		u.RateLimits = a.o.RateLimits.Reports(first, all, time.Now())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if first {
		a.seq = 0 // the sequence number may be of another hub
	}
	for _, e := range a.changed.Entries() {
		u.Demand = append(u.Demand, a.latest[e.Key])
	}
	if all {
		a.addUnchanged(first, u)
	}
	a.changed.Clear()
	return all, a.seq
}

// addUnchanged adds to u what demand adds beside the changed demand; mu must be held.
func (a *Activator) addUnchanged(first bool, u *Report) {
	for name, d := range a.latest {
		f := a.fns[name]
		if _, changed := a.changed.Get(name); !changed && (hasRequests(&d) || first && !d.LastEnd.IsZero()) {
			u.Demand = append(u.Demand, d)
		}
		if f == nil && !hasRequests(&d) {
			delete(a.latest, name)
		}
		if first && d.Queued > d.Low.Queued && f != nil && len(f.Replicas) == 0 {
			u.Wakes = append(u.Wakes, Wake{Name: name})
		}
	}
}

func hasRequests(d *activator.Demand) bool { return d.Active+d.Queued+len(d.InFlight) > 0 }
