package admission

import (
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Priority orders the requests of one team; Low ones come behind those of all teams.
type Priority int8

const (
	Low    Priority = -1
	Normal Priority = 0
	High   Priority = 1
)

// Admission is the result of Enter.
type Admission uint8

// The results of Enter.
const (
	Admitted Admission = iota // the request holds a Grant
	Waiting                   // it waits; Done or the Listener reports the end of the wait
	Full                      // the queue has no place, or not enough bytes
)

// Request is one request at a queue, from Enter to Leave. The zero value is
// ready, and it may Enter again after Leave. One goroutine at a time has it; the
// queue guards what it changes itself.
type Request struct {
	// Set before Enter.

	Listener Listener // called in place of Done, which then stays nil: for a request without a goroutine
	Team     string
	Bytes    int64  // of the body that is kept while it waits
	Key      uint64 // affinity, see AffinityKey; 0 none
	Session  bool   // Key is that of a session, whose replica is remembered
	Adapter  string // that it needs; "" for the base model
	Alone    bool   // it is granted only a replica that serves no other request, see Grant.Alone
	Priority Priority

	// Set by the lifecycle.

	Grant         Grant  // the slot it holds once admitted
	Cold          bool   // it waited for a replica to start
	ColdStart     string // id of the cold start that it took part in; "" unknown
	FailedReplica string // that failed the first try; "" none
	Moved         Moved
	Retried       bool

	queue     *Queue     // set while it waits or holds a slot
	teamQueue *teamQueue // set while it waits
	at        int
	since     time.Time
	done      chan struct{} // closed at the end of the wait
	rejection *openai.Error
}

// Enter asks for a slot. Leave must follow once for Admitted and Waiting.
func (r *Request) Enter(q *Queue, now time.Time) Admission {
	q.mu.Lock()
	defer q.mu.Unlock()
	r.rejection, r.done = nil, nil
	if !r.Alone && q.waiting.count == 0 && (r.Priority != Low || q.low.count == 0) {
		if at := q.choose(r, now); at != nil {
			r.queue = q
			q.assignSlot(r, at, now)
			q.demandChanged()
			return Admitted
		}
	}
	if r.Alone && q.alone.count >= maxAlone || !q.hasPlace(r) {
		return Full
	}
	r.queue, r.since = q, now
	if r.Listener == nil {
		r.done = make(chan struct{})
	}
	q.orderOf(r).add(r)
	if q.demandChanged(); r.Alone {
		q.admitAlone(now)
	}
	return Waiting
}

// notify reports the end of the wait. The queue's mutex is held.
func (r *Request) notify() {
	if r.Listener != nil {
		r.Listener.OnChange()
		return
	}
	close(r.done)
}

// Done is closed when the wait ended. It is nil, which blocks for ever, for a
// request that never waited or has a Listener.
func (r *Request) Done() <-chan struct{} { return r.done }

// Rejection is nil once admitted, and the answer otherwise. It may be read after
// Done is closed or the Listener was called.
func (r *Request) Rejection() *openai.Error { return r.rejection }

// ReplicaID is the replica whose slot the request holds; "" none.
func (r *Request) ReplicaID() string {
	if r.Grant.slot == nil {
		return ""
	}
	return r.Grant.Replica.ID
}

// Decide decides what becomes of a request that waits for the function of snapshot f. f is read
// after Enter: a failure that is published later rejects the request. A refused one has left.
// Ask carries out Decision.Wake, whatever the verdict.
func (r *Request) Decide(f *snapshot.Snapshot, t ClientTimeouts, now time.Time) Decision {
	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	alone := q.queued() == 1
	d := Decide(f, q.load(now), t, now)
	switch {
	case d.Verdict == Refuse:
		wasLast := r.leave(now)
		if d.Wake != NoWake && r.Priority != Low { // the wake of a low one would evict idle replicas
			d.Wake = q.wake(r, f, true)
		} else if d.Wake = NoWake; wasLast {
			d.Wake = Nudge
		}
	case len(f.Replicas) > 0:
		d.Wake = Nudge
	default:
		r.Cold = true
		d.Wake = q.wake(r, f, alone)
	}
	return d
}

// AdmitAt admits a waiting request out of turn, at a replica that has answered it
// already and that may not be in a snapshot yet. It returns false if the request
// does not wait any more.
func (r *Request) AdmitAt(replica *snapshot.Replica) bool {
	q := r.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.teamQueue == nil {
		return false
	}
	q.orderOf(r).remove(r)
	at := findReplica(q.replicas, replica.ID)
	if at == nil {
		at = newReplica(replica)
		q.replicas = append(q.replicas, at)
	}
	q.assignSlot(r, at, r.since)
	r.Grant.Replica = replica
	q.demandChanged()
	return true
}

// MarkFailed notes that the replica failed the request, which is to Leave next.
// With broken the replica cools down: Queue.Readmit is due after CoolDown.
func (r *Request) MarkFailed(broken bool, now time.Time) {
	r.FailedReplica = r.ReplicaID()
	if broken && r.Grant.slot != nil {
		r.queue.mu.Lock()
		r.Grant.slot.coolsAt = now.Add(CoolDown)
		r.queue.mu.Unlock()
	}
}

// NoteAnswer notes the status of the replica's answer, and reports whether its engine is to be
// probed.
func (r *Request) NoteAnswer(status int) (probe bool) {
	return r.Grant.slot != nil && r.Grant.slot.errors.Note(status)
}

// Retry is the result of Request.Retry.
type Retry uint8

// The results of Retry.
const (
	TryAgain       Retry = iota // Enter again
	AlreadyRetried              // a second replica failed it
	AnswerBegan                 // the client may have seen a part of the answer
	DeadlinePassed              // its time is over
)

// Retry returns whether a failed request, which has left, may Enter again: once,
// before a byte of its answer came, and within its time.
func (r *Request) Retry(began, expired bool) Retry {
	switch {
	case r.Retried:
		return AlreadyRetried
	case began:
		return AnswerBegan
	case expired:
		return DeadlinePassed
	}
	r.Retried = true
	return TryAgain
}

// Leave ends the wait or gives the slot back, and admits the next request. It
// returns true if the platform should look at the demand: the last waiting
// request left and none holds a slot. Leaving again does nothing.
func (r *Request) Leave(now time.Time) (wasLast bool) {
	q := r.queue
	if q == nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return r.leave(now)
}

// leave is Leave with the queue's mutex held.
func (r *Request) leave(now time.Time) (wasLast bool) {
	q := r.queue
	r.queue = nil
	q.dropClaim(r)
	switch {
	case r.teamQueue != nil:
		q.orderOf(r).remove(r)
		if wasLast = q.queued() == 0 && q.active == 0; wasLast {
			q.wakeAsked = false
		}
		if r.Alone {
			q.reopenApart()
			q.admit(now)
		}
		q.demandChanged()
	case r.Grant.slot != nil:
		r.Grant.release(now)
		q.admit(now)
		q.demandChanged()
	}
	return wasLast
}

// FullError answers a request that the queue had no place for.
func FullError(f *snapshot.Snapshot, now time.Time) *openai.Error {
	if len(f.Replicas) == 0 && BreakerOpen(f, now) {
		return loadFailedError(f)
	}
	return QueueFullError()
}

// ExpiredError answers a request that has waited since for as long as it may.
func (q *Queue) ExpiredError(f *snapshot.Snapshot, since, now time.Time) *openai.Error {
	q.mu.Lock()
	ready := q.lastReady
	q.mu.Unlock()
	if len(f.Replicas) > 0 || !ready.IsZero() && !ready.Before(since) {
		return openai.New(openai.QueueTimeout, "")
	}
	return loadingError(f, now)
}
