package activator

import (
	"cmp"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions/openai"
)

// wait is what a request has of its wait in the queue.
type wait struct {
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

// enter queues the request and decides. Afterwards the phase is waiting, sent
// (admitted: launch is next) or refused. fresh is false for a second try.
func (p *proxyRequest) enter(fresh bool) {
	a, q := p.a, &p.req.fn.Data.queue
	now := a.o.Now()
	size := p.req.source.bodyBytes()
	p.queued.Team, p.queued.Bytes, p.queued.Adapter = p.req.team, size, p.req.adapter
	if fresh {
		if e := p.beginRemote(now); e != nil {
			p.refuse(e)
			return
		}
		p.queued.Key, p.queued.Session = p.req.affinity()
	}
	switch p.queued.Enter(q, now) {
	case admission.Admitted:
		p.phase = sent
		return
	case admission.Full:
		if p.req.fn.Removed() {
			p.refuse(openai.New(openai.ModelNotFound, ""))
		} else {
			p.refuse(admission.FullError(p.req.fn.Snapshot(), now))
		}
		return
	}
	a.metricsOf(p.req.fn) // the gauges show a function's first request while it waits
	if run := p.req.http.run; run != nil {
		run.AtEngine.Store(false)
	}
	p.phase = waiting
	p.wait.since = now
	if e := p.countBuffered(size, now); e != nil {
		p.withdraw(e)
		return
	}
	if fresh || p.wait.deadline.IsZero() {
		p.wait.timeouts = admission.ParseTimeouts(p.req.source.header, p.req.stream)
		p.wait.timeouts.RefuseToWait = !p.req.stream && p.req.hold() == Hold503
		p.wait.deadline = p.waitDeadline()
	}
	// The snapshot is read after Enter: a failure that is published later rejects
	// the request.
	f := p.req.fn.Snapshot()
	if p.req.fn.Removed() {
		p.withdraw(openai.New(openai.ModelNotFound, ""))
		return
	}
	d := p.queued.Decide(f, p.wait.timeouts, now)
	if e := cmp.Or(p.wake(d.Wake), d.Error); e != nil {
		p.withdraw(e)
		return
	}
	a.waiting.Add(p, p.req.id, p.req.clientID)
	p.wait.indexed = true
	if a.draining.Load() || p.req.source.mustDrain() {
		p.withdraw(openai.New(openai.ShuttingDown, ""))
		return
	}
	p.wait.changed = q.Changed()
	p.sendEarly()
}

// countBuffered counts the body of a waiting request against the team's limit and the
// activator's.
func (p *proxyRequest) countBuffered(size int64, now time.Time) *openai.Error {
	if !p.req.caller.Covered() {
		if r := ratelimit.RetryUntilAllotment(p.req.source.context,
			func() *ratelimit.Refusal { return p.a.o.Limits.AdmitWaiting(p.req.team, now) }); r != nil {
			return p.a.limitError(p.req.team, r)
		}
	}
	p.wait.counted = true
	limit := p.a.o.BufferBytes
	if p.queued.Priority == admission.Low {
		limit /= 2 // the rest is for others
	}
	if p.a.buffered.Add(size) > limit {
		return admission.QueueFullError()
	}
	return nil
}

func (p *proxyRequest) waitDeadline() time.Time {
	wait := admission.MaxWait(p.req.fn.Snapshot().Model, p.wait.timeouts)
	if !p.req.stream {
		wait = p.req.source.boundWait(wait, &p.a.o)
	}
	return p.req.began.Add(wait)
}

// wake asks the platform for what the queue has decided. The team whose request begins a cold
// start is charged for it; where its limits refuse that, the next that waits is asked.
func (p *proxyRequest) wake(w admission.Wake) (refusal *openai.Error) {
	a, q := p.a, &p.req.fn.Data.queue
	team, ok := p.req.team, true
	begins := w == admission.Begin
	defer func() {
		for begins { // a panic: without an answer to Begin no later request would begin a start
			_, begins = q.RefuseBegin(openai.New(openai.InternalError, ""))
		}
	}()
	for ok && w == admission.Begin {
		r := ratelimit.RetryUntilAllotment(p.req.source.context, func() *ratelimit.Refusal { return a.o.Limits.AdmitColdStart(team, a.o.Now()) })
		if r == nil {
			w = q.ConfirmBegin()
			break
		}
		e := a.limitError(team, r)
		if refusal == nil {
			refusal = e
			p.leave()
		}
		team, ok = q.RefuseBegin(e)
	}
	begins = false
	if w != admission.NoWake {
		a.reportDemand()
	}
	switch w {
	case admission.Replica:
		id := a.o.Waker.Wake(p.req.fn.Name)
		q.Woken(id)
		p.queued.ColdStart = id
	case admission.Nudge:
		a.o.Waker.Nudge(p.req.fn.Name)
	}
	return refusal
}

// admitTeam reads the request's priority and counts it against the team's limits. It waits
// a moment for units that another activator holds.
func (p *proxyRequest) admitTeam(team string) (e *openai.Error) {
	if p.queued.Priority, e = admission.ParsePriority(p.req.source.header(admission.PriorityHeader), team,
		p.a.o.Limits.MaxPriority(team)); e != nil {
		return e
	}
	if p.req.caller.Covered() {
		p.req.lease = p.a.o.Limits.Cover(team)
		return nil
	}
	r := ratelimit.RetryUntilAllotment(p.req.source.context, func() (r *ratelimit.Refusal) {
		p.req.lease, r = p.a.o.Limits.Admit(team, p.req.began)
		return r
	})
	if r != nil {
		return p.a.limitError(p.req.team, r)
	}
	return nil
}

func (p *proxyRequest) refuse(e *openai.Error) {
	p.phase, p.fail = refused, e
}

// withdraw refuses a request that has a place in the queue or a slot at a replica.
func (p *proxyRequest) withdraw(e *openai.Error) {
	p.leave()
	p.refuse(e)
}

// leave releases the place in the queue, or the slot at the replica.
func (p *proxyRequest) leave() {
	p.early.cancel()
	p.endWait()
	if p.queued.Leave(p.a.o.Now()) {
		p.a.reportDemand()
		p.a.o.Waker.Nudge(p.req.fn.Name)
	}
}

func (p *proxyRequest) endWait() {
	if p.wait.counted {
		p.wait.counted = false
		p.a.buffered.Add(-p.req.source.bodyBytes())
		if !p.req.caller.Covered() {
			p.a.o.Limits.EndWaiting(p.req.team, p.a.o.Now())
		}
	}
	if !p.wait.indexed {
		return
	}
	p.wait.indexed = false
	p.a.waiting.Remove(p, p.req.id, p.req.clientID)
	d := p.a.o.Now().Sub(p.wait.since)
	p.wait.took += d
	p.a.metricsOf(p.req.fn).QueueWait(d.Seconds())
	if p.queued.Cold {
		p.resolveColdStart()
		p.a.coldStarts.Remember(p.req.id, p.queued.ColdStart)
		p.a.coldStarts.Remember(p.req.clientID, p.queued.ColdStart)
	}
}

// resolveColdStart fills in the id of the cold start where it was unknown on arrival.
func (p *proxyRequest) resolveColdStart() {
	if p.queued.ColdStart == "" {
		p.queued.ColdStart = p.req.fn.Data.queue.ColdStart()
	}
	if p.queued.ColdStart != "" {
		return
	}
	// A platform in another process reports the id in its snapshots only. A cold start
	// that was over on arrival is an earlier one.
	t := p.req.fn.Snapshot().ColdStart
	if t != nil && (!t.State.Over() || t.Began.Add(time.Duration(t.Total*float64(time.Second))).After(p.req.began)) {
		p.queued.ColdStart = t.ID
	}
}
