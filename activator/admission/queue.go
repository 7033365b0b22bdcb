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
	// once, and again only after TakeLoad.
	Demand Listener

	mu        sync.Mutex // guards everything below
	waiting   order
	low       order // requests of priority Low: behind waiting
	alone     order // requests that run alone, of any priority
	limits    limits
	replicas  []*replica // the newest snapshot's in its order, then those that end
	active    int        // requests that hold a slot
	lowActive int        // of active: of priority Low
	lastEnd   time.Time
	lastUse   time.Time     // see LowLoad.LastUse
	lastReady time.Time     // when a replica was last READY; zero: never
	changed   chan struct{} // nil while there is no listener
	announced bool          // Demand was called, and TakeLoad not since
	apart     *replica      // gets no other requests: one runs alone there, or is about to; nil: none
	runsAlone bool          // a request runs alone at apart

	sessions sessions

	claim     *claim // a request asks the limits of its team whether it may begin a cold start; nil: none does
	wakeAsked bool   // a first replica was asked for, with no result yet
	nudged    bool   // only Low requests have asked
	coldStart string // id of the last cold start; see Woken
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
	if before == nil {
		q.demandChanged() // an earlier function of its name may have had requests
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
		if e := blockedError(f, now); e != nil {
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
	q.demandChanged()
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

// hasPlace reports whether r may wait within the limits. Requests of priority Low make
// place for others: the newest of the team that has the most of them is rejected. mu is
// held.
func (q *Queue) hasPlace(r *Request) bool {
	full := func(low *order) bool {
		return q.waiting.count+low.count >= q.limits.requests || r.Bytes > q.limits.bytes-q.waiting.bytes-low.bytes-q.alone.bytes
	}
	if r.Priority == Low {
		return !full(&q.low)
	}
	if full(&order{}) {
		return false
	}
	for full(&q.low) {
		out := q.low.newest()
		q.low.remove(out)
		out.rejection = QueueFullError()
		out.notify()
	}
	return true
}

// admit gives free slots to waiting requests, in their order. mu is held.
func (q *Queue) admit(now time.Time) {
	if q.admitFrom(&q.waiting, now) {
		q.admitAlone(now)
		q.admitFrom(&q.low, now)
		return
	}
	q.admitAlone(now)
}

// admitFrom gives free slots to the requests of o. It reports whether none is left in it.
func (q *Queue) admitFrom(o *order, now time.Time) bool {
	for r := o.peek(); r != nil; r = o.peek() {
		at := q.choose(r, now)
		if at == nil {
			return false
		}
		o.take()
		q.assignSlot(r, at, now)
		r.notify()
		q.demandChanged()
	}
	return true
}

// reject ends all waits with why. mu is held.
func (q *Queue) reject(reason *openai.Error) {
	for _, o := range [...]*order{&q.waiting, &q.low, &q.alone} {
		for r := o.take(); r != nil; r = o.take() {
			r.rejection = reason
			r.notify()
			q.demandChanged()
		}
	}
	q.reopenApart()
}

// Position of a waiting request, 1 for the next; 0 for one that does not wait.
func (q *Queue) Position(r *Request) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.teamQueue == nil {
		return 0
	}
	n := q.orderOf(r).position(r)
	if q.orderOf(r) == &q.low {
		n += q.waiting.count
	}
	return n
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
	Low            LowLoad
}

// LowLoad is the part of a load that is of priority Low. Oldest of the load is the arrival
// of a request of a higher priority wherever one waits.
type LowLoad struct {
	Active, Queued int
	// LastUse is when the last request that is not Low left, where a Low one left since, and
	// BeforeAll if none ever did. Zero: LastEnd is of a request that is not Low.
	LastUse time.Time
}

// BeforeAll is a moment before all requests.
var BeforeAll = time.Unix(0, 0)

// Free reports whether a request would be admitted at once.
func (l Load) AdmitsAtOnce() bool { return l.Queued == 0 && l.FreeSlots > 0 }

func (q *Queue) Load(now time.Time) Load {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.load(now)
}

func (q *Queue) load(now time.Time) Load {
	l := Load{
		Active: q.active, Queued: q.queued(), Bytes: q.waiting.bytes + q.low.bytes + q.alone.bytes, LastEnd: q.lastEnd,
		Low: LowLoad{Active: q.lowActive, Queued: q.low.count, LastUse: q.lastUse},
	}
	for _, r := range q.replicas {
		if r != q.apart && r.usable(now) {
			l.FreeSlots += max(0, r.slots-r.inFlight)
		}
	}
	l.Oldest = q.waiting.oldest()
	if t := q.alone.oldest(); l.Oldest.IsZero() || !t.IsZero() && t.Before(l.Oldest) {
		l.Oldest = t
	}
	if l.Oldest.IsZero() {
		l.Oldest = q.low.oldest()
	}
	return l
}

// queued is how many requests wait. mu is held.
func (q *Queue) queued() int { return q.waiting.count + q.low.count + q.alone.count }

// TakeLoad is the load, and how many requests each replica has that has any, also one that takes
// no new ones, or not yet. Changes after it are announced to Demand again.
func (q *Queue) TakeLoad(now time.Time) (l Load, inFlight map[string]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.announced = false
	for _, r := range q.replicas {
		if r.inFlight == 0 {
			continue
		}
		if inFlight == nil {
			inFlight = make(map[string]int, len(q.replicas))
		}
		inFlight[r.Replica.ID] = r.inFlight
	}
	return q.load(now), inFlight
}

// ColdStart is the id of the cold start that was asked for last; "" unknown.
func (q *Queue) ColdStart() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.coldStart
}
