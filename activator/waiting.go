package activator

import (
	"cmp"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions/openai"
)

// wait is the request's place in the queue of its function, then its slot at a replica.
type wait struct {
	req         *request
	queued      admission.Request
	timeouts    admission.ClientTimeouts
	counted     bool          // the request's body counts as buffered
	indexed     bool          // the request is in Activator.waiting
	since       time.Time     // when the present wait began
	took        time.Duration // all waits that are over
	deadline    time.Time     // zero: it did not wait
	changed     <-chan struct{}
	timer       *time.Timer // of the deadline, or of what its caller does meanwhile
	contextDone <-chan struct{}
}

func (w *wait) setTimer(d time.Duration) {
	d = max(0, d)
	if w.timer == nil {
		w.timer = time.NewTimer(d)
	} else {
		w.timer.Reset(d)
	}
}

// enter queues the request and decides. Afterwards it is admitted, waits, or is to leave with an
// error. fresh is false for a second try.
func (w *wait) enter(fresh bool, now time.Time) (admitted bool, e *openai.Error) {
	r, a, q := w.req, w.req.a, &w.req.fn.Data.queue
	w.queued.Team, w.queued.Bytes, w.queued.Adapter = r.team, r.source.bodyBytes(), r.adapter
	if fresh {
		w.queued.Key, w.queued.Session = r.affinity()
	}
	switch w.queued.Enter(q, now) {
	case admission.Admitted:
		return true, nil
	case admission.Full:
		if r.fn.Removed() {
			return false, openai.New(openai.ModelNotFound, "")
		}
		return false, admission.FullError(r.fn.Snapshot(), now)
	}
	a.metricsOf(r.fn) // the gauges show a function's first request while it waits
	if run := r.http.run; run != nil {
		run.AtEngine.Store(false)
	}
	w.since = now
	if e := w.countBuffered(now); e != nil {
		return false, e
	}
	if fresh || w.deadline.IsZero() {
		w.timeouts = admission.ParseTimeouts(r.source.header, r.stream)
		w.timeouts.RefuseToWait = !r.stream && r.hold() == Hold503
		w.deadline = w.bound()
	}
	// The snapshot is read after Enter: a failure that is published later rejects
	// the request.
	f := r.fn.Snapshot()
	if r.fn.Removed() {
		return false, openai.New(openai.ModelNotFound, "")
	}
	d := w.queued.Decide(f, w.timeouts, now)
	if e := cmp.Or(w.queued.Ask(q, d.Wake, w), d.Error); e != nil {
		return false, e
	}
	a.waiting.Add(w, r.id, r.clientID)
	w.indexed = true
	if a.draining.Load() || r.source.mustDrain() {
		return false, openai.New(openai.ShuttingDown, "")
	}
	w.changed = q.Changed()
	return false, nil
}

// countBuffered counts the body of a waiting request against the team's limit and the
// activator's.
func (w *wait) countBuffered(now time.Time) *openai.Error {
	r, a := w.req, w.req.a
	if !r.caller.Covered() {
		if over := ratelimit.RetryUntilAllotment(r.source.context,
			func() *ratelimit.Refusal { return a.o.Limits.AdmitWaiting(r.team, now) }); over != nil {
			return a.limitError(r.team, over)
		}
	}
	w.counted = true
	limit := a.o.BufferBytes
	if w.queued.Priority == admission.Low {
		limit /= 2 // the rest is for others
	}
	if a.buffered.Add(w.queued.Bytes) > limit {
		return admission.QueueFullError()
	}
	return nil
}

// bound is until when the request may wait.
func (w *wait) bound() time.Time {
	limit := admission.MaxWait(w.req.fn.Snapshot().Model, w.timeouts)
	if !w.req.stream {
		limit = w.req.source.boundWait(limit, &w.req.a.o)
	}
	return w.req.began.Add(limit)
}

// ChargeStart charges a team for a cold start that begins, or refuses it.
func (w *wait) ChargeStart(team string) *openai.Error {
	a := w.req.a
	over := ratelimit.RetryUntilAllotment(w.req.source.context,
		func() *ratelimit.Refusal { return a.o.Limits.AdmitColdStart(team, a.o.Now()) })
	if over == nil {
		return nil
	}
	w.leave()
	return a.limitError(team, over)
}

// Wake asks the platform for a first replica.
func (w *wait) Wake() (coldStart string) {
	w.req.a.reportDemand()
	return w.req.a.o.Waker.Wake(w.req.fn.Name)
}

// Nudge asks the platform to look at the demand.
func (w *wait) Nudge() {
	w.req.a.reportDemand()
	w.req.a.o.Waker.Nudge(w.req.fn.Name)
}

// leave releases the place in the queue, or the slot at the replica.
func (w *wait) leave() {
	w.end()
	if w.queued.Leave(w.req.a.o.Now()) {
		w.Nudge()
	}
}

// end accounts for a wait that is over.
func (w *wait) end() {
	r, a := w.req, w.req.a
	if w.counted {
		w.counted = false
		a.buffered.Add(-w.queued.Bytes)
		if !r.caller.Covered() {
			a.o.Limits.EndWaiting(r.team, a.o.Now())
		}
	}
	if !w.indexed {
		return
	}
	w.indexed = false
	a.waiting.Remove(w, r.id, r.clientID)
	d := a.o.Now().Sub(w.since)
	w.took += d
	a.metricsOf(r.fn).QueueWait(d.Seconds())
	if w.queued.Cold {
		w.resolveColdStart()
		a.coldStarts.Remember(r.id, w.queued.ColdStart)
		a.coldStarts.Remember(r.clientID, w.queued.ColdStart)
	}
}

// resolveColdStart fills in the id of the cold start where it was unknown on arrival.
func (w *wait) resolveColdStart() {
	if w.queued.ColdStart == "" {
		w.queued.ColdStart = w.req.fn.Data.queue.ColdStart()
	}
	if w.queued.ColdStart != "" {
		return
	}
	// A platform in another process reports the id in its snapshots only. A cold start
	// that was over on arrival is an earlier one.
	t := w.req.fn.Snapshot().ColdStart
	if t != nil && (!t.State.Over() || t.Began.Add(time.Duration(t.Total*float64(time.Second))).After(w.req.began)) {
		w.queued.ColdStart = t.ID
	}
}
