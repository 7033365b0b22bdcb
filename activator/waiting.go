package activator

import (
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions/openai"
)

// enter queues the request and decides. Afterwards the phase is waiting, sent
// (admitted: launch is next) or refused. fresh is false for a second try.
func (x *proxyRequest) enter(fresh bool) {
	a, q := x.a, &x.fn.Data.queue
	now := a.o.Now()
	size := x.size()
	x.queued.Team, x.queued.Bytes = x.team, size
	if fresh {
		if e := x.beginRemote(now); e != nil {
			x.refuse(e)
			return
		}
		x.queued.Key = x.affinityKey()
	}
	switch x.queued.Enter(q, now) {
	case admission.Admitted:
		x.phase = sent
		return
	case admission.Full:
		if x.fn.Removed() {
			x.refuse(openai.New(openai.ModelNotFound, ""))
		} else {
			x.refuse(admission.FullError(x.fn.Snapshot(), now))
		}
		return
	}
	a.metricsOf(x.fn) // the gauges show a function's first request while it waits
	if x.leads() {
		x.shared.Running.Store(false)
	}
	x.phase = waiting
	x.waitFrom = now
	if e := x.buffer(size, now); e != nil {
		x.leave()
		x.refuse(e)
		return
	}
	if fresh || x.deadline.IsZero() {
		x.timeouts = admission.ParseTimeouts(x.header, x.stream)
		x.timeouts.Instant = !x.stream && x.hold() == Hold503
		x.deadline = x.waitDeadline()
	}
	// The snapshot is read after Enter: a failure that is published later rejects
	// the request.
	f := x.fn.Snapshot()
	if x.fn.Removed() {
		x.leave()
		x.refuse(openai.New(openai.ModelNotFound, ""))
		return
	}
	switch d, alone := x.queued.Decide(f, x.timeouts, now); {
	case d.Verdict == admission.Refuse:
		x.leave()
		if d.WakeForRetry {
			if e := x.wake(f, true); e != nil {
				x.refuse(e)
				return
			}
		}
		x.refuse(d.Error)
		return
	case len(f.Replicas) > 0:
		a.o.Waker.Nudge(x.fn.Name)
	default:
		if e := x.wake(f, alone); e != nil {
			x.leave()
			x.refuse(e)
			return
		}
	}
	a.requests.add(x)
	x.indexed = true
	if a.draining.Load() || x.mustDrain() {
		x.leave()
		x.refuse(openai.New(openai.ShuttingDown, ""))
		return
	}
	if x.reservation == nil {
		x.changed = q.Changed()
		x.sendEarly()
	}
}

// buffer counts the body of a waiting request against the team's limit and the
// activator's.
func (x *proxyRequest) buffer(size int64, now time.Time) *openai.Error {
	if !x.caller.Covered() {
		if r := ratelimit.RetryUntilAllotment(x.context, func() *ratelimit.Refusal { return x.a.o.Limits.Hold(x.team, now) }); r != nil {
			return x.limitError(r)
		}
	}
	x.counted = true
	limit := x.a.o.BufferBytes
	if x.queued.Priority == admission.Low {
		limit /= 2 // the rest is for others
	}
	if x.a.buffered.Add(size) > limit {
		return admission.QueueFullError()
	}
	return nil
}

// waitDeadline is the time at which the wait is over.
func (x *proxyRequest) waitDeadline() time.Time {
	wait := admission.MaxWait(x.fn.Snapshot().Model, x.timeouts)
	if !x.stream && x.reservation == nil {
		wait = min(wait, x.a.o.PlainWait)
		if x.isProxied() && x.header("thaw-max-wait") == "" {
			wait = min(wait, proxiedWait)
		}
	}
	return x.began.Add(wait)
}

// proxiedWait bounds the wait of a plain request behind a proxy, whose timeout is not
// known: nginx gives up after 60 s.
const proxiedWait = 55 * time.Second

// isProxied reports whether the head of the request was set by a proxy.
func (x *proxyRequest) isProxied() bool {
	return x.req.IsHTTP10() || x.header("Via") != "" || x.header("X-Forwarded-For") != ""
}

// wake asks the platform for a first replica, once however many requests wait. The
// team whose request begins a cold start is charged for it.
func (x *proxyRequest) wake(f *snapshot.Snapshot, again bool) *openai.Error {
	r := ratelimit.RetryUntilAllotment(x.context, func() (r *ratelimit.Refusal) {
		x.queued.Wake(&x.fn.Data.queue, f, again, func() *openai.Error {
			if r = x.a.o.Limits.AdmitColdStart(x.team, x.a.o.Now()); r != nil {
				return openai.New(openai.RateLimitExceeded, r.Message)
			}
			return nil
		}, func() string { return x.a.o.Waker.Wake(x.fn.Name, x.team) }, func() { x.a.o.Waker.Nudge(x.fn.Name) })
		return r
	})
	if r != nil {
		return x.limitError(r)
	}
	return nil
}

// admitTeam reads the request's priority and counts it against the team's limits. It waits
// a moment for units that another activator holds.
func (x *proxyRequest) admitTeam(team string) (e *openai.Error) {
	if x.queued.Priority, e = admission.ParsePriority(x.header(admission.PriorityHeader), team, x.a.o.Limits.MaxPriority(team)); e != nil {
		return e
	}
	if x.caller.Covered() {
		x.lease = x.a.o.Limits.Cover(team)
		return nil
	}
	r := ratelimit.RetryUntilAllotment(x.context, func() (r *ratelimit.Refusal) {
		x.lease, r = x.a.o.Limits.Admit(team, x.began)
		return r
	})
	if r != nil {
		return x.limitError(r)
	}
	return nil
}

func (x *proxyRequest) refuse(e *openai.Error) {
	x.phase, x.fail = refused, e
}

// leave releases the place in the queue, or the slot at the replica.
func (x *proxyRequest) leave() {
	x.cancelEarly()
	x.endWait()
	if x.queued.Leave(x.a.o.Now()) {
		x.a.o.Waker.Nudge(x.fn.Name)
	}
}

// endWait accounts for the end of the wait.
func (x *proxyRequest) endWait() {
	if x.counted {
		x.counted = false
		x.a.buffered.Add(-x.size())
		if !x.caller.Covered() {
			x.a.o.Limits.ReleaseHeld(x.team, x.a.o.Now())
		}
	}
	if !x.indexed {
		return
	}
	x.indexed = false
	x.a.requests.remove(x)
	d := x.a.o.Now().Sub(x.waitFrom)
	x.waited += d
	x.a.metricsOf(x.fn).queueWait(d.Seconds())
	if x.queued.Cold {
		x.resolveColdStart()
		x.a.requests.rememberColdStart(x.id, x.queued.ColdStart)
		x.a.requests.rememberColdStart(x.clientID, x.queued.ColdStart)
	}
}

// resolveColdStart fills in the id of the cold start where it was unknown on arrival.
func (x *proxyRequest) resolveColdStart() {
	if x.queued.ColdStart != "" {
		return
	}
	x.queued.ColdStart = x.fn.Data.queue.ColdStart()
	if x.queued.ColdStart != "" {
		return
	}
	// A platform in another process reports the id in its snapshots only. A cold start
	// that was over on arrival is an earlier one.
	t := x.fn.Snapshot().ColdStart
	if t != nil && (!t.State.Over() || t.Began.Add(time.Duration(t.Total*float64(time.Second))).After(x.began)) {
		x.queued.ColdStart = t.ID
	}
}
