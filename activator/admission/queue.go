package admission

import (
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Listener is called on a change of its request or demand, with the queue locked:
// it notes the change and returns.
type Listener interface{ OnChange() }

// Queue of one function. The zero value has no replicas and no room. Its methods
// may be called concurrently. An empty queue owns no goroutine and is some hundred
// bytes: there may be ten thousand.
type Queue struct {
	// Demand, set before anything else, is called when the demand has changed:
	// once, and again only after TakeDemand.
	Demand Listener

	mu        sync.Mutex // guards everything below
	waiting   order
	alone     order // requests that run alone
	limits    limits
	replicas  []*replica // the newest snapshot's in its order, then those that end
	active    int        // requests that hold a slot
	lastEnd   time.Time
	lastReady time.Time     // when a replica was last READY; zero: never
	changed   chan struct{} // nil while there is no listener
	announced bool          // Demand was called and TakeDemand not since
	apart     *replica      // gets no other requests: one runs alone there, or is about to; nil: none
	runsAlone bool          // a request runs alone at apart

	wakeAsked bool   // Wake was called and has had no result yet
	coldStart string // id of the cold start that Wake returned last
}

// limits of what may wait. Zero is zero: no request may.
type limits struct {
	requests int
	bytes    int64
}

// demandChanged calls the listener of the demand. mu is held.
func (q *Queue) demandChanged() {
	if !q.announced && q.Demand != nil {
		q.announced = true
		q.Demand.OnChange()
	}
}

// Publish takes in snapshot f, which replaces before (nil: f is the first).
// Waiting requests that a replica has a slot for are admitted, and those of a
// failed start rejected, before it returns.
func (q *Queue) Publish(before, f *snapshot.Snapshot, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if m := f.Model; m != nil && (before == nil || before.Model != m) {
		q.limits = limits{m.Spec.Queue.Requests, int64(m.Spec.Queue.Bytes)}
	} else if f.Remote != nil && before == nil {
		d := functions.Defaults().Queue
		q.limits = limits{d.Requests, int64(d.Bytes)}
	}
	if before != nil || len(f.Replicas) > 0 {
		q.setReplicas(f)
	}
	if len(f.Replicas) > 0 || before != nil && len(before.Replicas) > 0 {
		q.lastReady = now
	}
	if len(f.Replicas) > 0 || f.Failure != nil || before != nil && before.Starting() && !f.Starting() {
		q.wakeAsked = false
	}
	q.admit(now)
	switch {
	case before == nil || len(f.Replicas) > 0:
	case BreakerOpen(f, now):
		q.reject(loadFailedError(f))
	default:
		if e := quotaError(f, now); e != nil {
			q.reject(e)
		}
	}
}

// Close rejects the waiting requests of a function that was removed.
func (q *Queue) Close(name functions.Name) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limits = limits{}
	q.setReplicas(&snapshot.Snapshot{})
	q.reject(openai.New(openai.ModelNotFound, "The model `"+name.Short()+"` has been removed."))
}

// Readmit admits waiting requests after the cool-down of a replica.
func (q *Queue) Readmit(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.admit(now)
}

// RejectAll answers all waiting requests with why.
func (q *Queue) RejectAll(reason *openai.Error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reject(reason)
}

// admit gives free slots to waiting requests, in their order. mu is held.
func (q *Queue) admit(now time.Time) {
	for r := q.waiting.peek(); r != nil; r = q.waiting.peek() {
		at := q.choose(r, now)
		if at == nil {
			break
		}
		q.waiting.take()
		q.hold(r, at)
		r.wake()
		q.demandChanged()
	}
	q.admitAlone(now)
}

// reject ends all waits with why. mu is held.
func (q *Queue) reject(reason *openai.Error) {
	for _, o := range [...]*order{&q.waiting, &q.alone} {
		for r := o.take(); r != nil; r = o.take() {
			r.rejection = reason
			r.wake()
			q.demandChanged()
		}
	}
	q.rejoin()
}

// Position of a waiting request, 1 for the next; 0 for one that does not wait.
func (q *Queue) Position(r *Request) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.teamQueue == nil {
		return 0
	}
	return q.orderOf(r).position(r)
}

// Changed is closed at the next Broadcast.
func (q *Queue) Changed() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.changed == nil {
		q.changed = make(chan struct{})
	}
	return q.changed
}

// Broadcast closes the channel of Changed: held streams write a comment.
func (q *Queue) Broadcast() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.changed != nil {
		close(q.changed)
		q.changed = nil
	}
}

// Load is what a queue has now.
type Load struct {
	Active, Queued int
	Bytes          int64
	FreeSlots      int       // of replicas that may be given requests
	Oldest         time.Time // arrival of the longest waiting request; zero if none
	LastEnd        time.Time // when the last request left, zero if none did
}

// Free reports whether a request would be admitted at once.
func (l Load) Free() bool { return l.Queued == 0 && l.FreeSlots > 0 }

// Idle reports whether no request waits or holds a slot.
func (l Load) Idle() bool { return l.Active == 0 && l.Queued == 0 }

// Load of the queue at now.
func (q *Queue) Load(now time.Time) Load {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.load(now)
}

func (q *Queue) load(now time.Time) Load {
	l := Load{Active: q.active, Queued: q.queued(), Bytes: q.waiting.bytes + q.alone.bytes, LastEnd: q.lastEnd}
	for _, r := range q.replicas {
		if r != q.apart && r.usable(now) {
			l.FreeSlots += max(0, r.slots-r.inFlight)
		}
	}
	for _, o := range [...]*order{&q.waiting, &q.alone} {
		for a, i := o.turn, 0; i < len(o.teamQueues); a, i = a.next, i+1 {
			if t := a.first().since; l.Oldest.IsZero() || t.Before(l.Oldest) {
				l.Oldest = t
			}
		}
	}
	return l
}

// queued is how many requests wait. mu is held.
func (q *Queue) queued() int { return q.waiting.count + q.alone.count }

// TakeDemand is the load, with the number of waiting requests per team (nil if
// none waits). Changes after it are announced to Demand again.
func (q *Queue) TakeDemand(now time.Time) (l Load, teams map[string]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.announced = false
	if q.queued() > 0 {
		teams = make(map[string]int, len(q.waiting.teamQueues))
		for _, o := range [...]*order{&q.waiting, &q.alone} {
			for team, a := range o.teamQueues {
				teams[team] += a.count
			}
		}
	}
	return q.load(now), teams
}

// ColdStart is the id of the cold start that was asked for last; "" unknown.
func (q *Queue) ColdStart() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.coldStart
}
