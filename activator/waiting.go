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
func (p *proxyRequest) enter(fresh bool) {
	a, q := p.a, &p.fn.Data.queue
	now := a.o.Now()
	size := p.size()
	p.queued.Team, p.queued.Bytes = p.team, size
	if fresh {
		if e := p.beginRemote(now); e != nil {
			p.refuse(e)
			return
		}
		p.queued.Key = p.affinityKey()
	}
	switch p.queued.Enter(q, now) {
	case admission.Admitted:
		p.phase = sent
		return
	case admission.Full:
		if p.fn.Removed() {
			p.refuse(openai.New(openai.ModelNotFound, ""))
		} else {
			p.refuse(admission.FullError(p.fn.Snapshot(), now))
		}
		return
	}
	a.metricsOf(p.fn) // the gauges show a function's first request while it waits
	if p.leads() {
		p.shared.Running.Store(false)
	}
	p.phase = waiting
	p.waitFrom = now
	if e := p.buffer(size, now); e != nil {
		p.leave()
		p.refuse(e)
		return
	}
	if fresh || p.deadline.IsZero() {
		p.timeouts = admission.ParseTimeouts(p.header, p.stream)
		p.timeouts.RefuseToWait = !p.stream && p.hold() == Hold503
		p.deadline = p.waitDeadline()
	}
	// The snapshot is read after Enter: a failure that is published later rejects
	// the request.
	f := p.fn.Snapshot()
	if p.fn.Removed() {
		p.leave()
		p.refuse(openai.New(openai.ModelNotFound, ""))
		return
	}
	switch d, alone := p.queued.Decide(f, p.timeouts, now); {
	case d.Verdict == admission.Refuse:
		p.leave()
		if d.WakeForRetry {
			if e := p.wake(f, true); e != nil {
				p.refuse(e)
				return
			}
		}
		p.refuse(d.Error)
		return
	case len(f.Replicas) > 0:
		a.o.Waker.Nudge(p.fn.Name)
	default:
		if e := p.wake(f, alone); e != nil {
			p.leave()
			p.refuse(e)
			return
		}
	}
	a.requests.add(p)
	p.indexed = true
	if a.draining.Load() || p.mustDrain() {
		p.leave()
		p.refuse(openai.New(openai.ShuttingDown, ""))
		return
	}
	if p.reservation == nil {
		p.changed = q.Changed()
		p.sendEarly()
	}
}

// buffer counts the body of a waiting request against the team's limit and the
// activator's.
func (p *proxyRequest) buffer(size int64, now time.Time) *openai.Error {
	if !p.caller.Covered() {
		if r := ratelimit.RetryUntilAllotment(p.context, func() *ratelimit.Refusal { return p.a.o.Limits.AdmitWaiting(p.team, now) }); r != nil {
			return p.limitError(r)
		}
	}
	p.counted = true
	limit := p.a.o.BufferBytes
	if p.queued.Priority == admission.Low {
		limit /= 2 // the rest is for others
	}
	if p.a.buffered.Add(size) > limit {
		return admission.QueueFullError()
	}
	return nil
}

// waitDeadline is the time at which the wait is over.
func (p *proxyRequest) waitDeadline() time.Time {
	wait := admission.MaxWait(p.fn.Snapshot().Model, p.timeouts)
	if !p.stream && p.reservation == nil {
		wait = min(wait, p.a.o.PlainWait)
		if p.isProxied() && p.header("thaw-max-wait") == "" {
			wait = min(wait, proxiedWait)
		}
	}
	return p.began.Add(wait)
}

// proxiedWait bounds the wait of a plain request behind a proxy, whose timeout is not
// known: nginx gives up after 60 s.
const proxiedWait = 55 * time.Second

// isProxied reports whether the head of the request was set by a proxy.
func (p *proxyRequest) isProxied() bool {
	return p.req.IsHTTP10() || p.header("Via") != "" || p.header("X-Forwarded-For") != ""
}

// wake asks the platform for a first replica, once however many requests wait. The
// team whose request begins a cold start is charged for it.
func (p *proxyRequest) wake(f *snapshot.Snapshot, again bool) *openai.Error {
	r := ratelimit.RetryUntilAllotment(p.context, func() (r *ratelimit.Refusal) {
		p.queued.RequestReplica(&p.fn.Data.queue, f, again, func() *openai.Error {
			if r = p.a.o.Limits.AdmitColdStart(p.team, p.a.o.Now()); r != nil {
				return openai.New(openai.RateLimitExceeded, r.Message)
			}
			return nil
		}, func() string { return p.a.o.Waker.Wake(p.fn.Name, p.team) }, func() { p.a.o.Waker.Nudge(p.fn.Name) })
		return r
	})
	if r != nil {
		return p.limitError(r)
	}
	return nil
}

// admitTeam reads the request's priority and counts it against the team's limits. It waits
// a moment for units that another activator holds.
func (p *proxyRequest) admitTeam(team string) (e *openai.Error) {
	if p.queued.Priority, e = admission.ParsePriority(p.header(admission.PriorityHeader), team, p.a.o.Limits.MaxPriority(team)); e != nil {
		return e
	}
	if p.caller.Covered() {
		p.lease = p.a.o.Limits.Cover(team)
		return nil
	}
	r := ratelimit.RetryUntilAllotment(p.context, func() (r *ratelimit.Refusal) {
		p.lease, r = p.a.o.Limits.Admit(team, p.began)
		return r
	})
	if r != nil {
		return p.limitError(r)
	}
	return nil
}

func (p *proxyRequest) refuse(e *openai.Error) {
	p.phase, p.fail = refused, e
}

// leave releases the place in the queue, or the slot at the replica.
func (p *proxyRequest) leave() {
	p.cancelEarly()
	p.endWait()
	if p.queued.Leave(p.a.o.Now()) {
		p.a.o.Waker.Nudge(p.fn.Name)
	}
}

// endWait accounts for the end of the wait.
func (p *proxyRequest) endWait() {
	if p.counted {
		p.counted = false
		p.a.buffered.Add(-p.size())
		if !p.caller.Covered() {
			p.a.o.Limits.EndWaiting(p.team, p.a.o.Now())
		}
	}
	if !p.indexed {
		return
	}
	p.indexed = false
	p.a.requests.remove(p)
	d := p.a.o.Now().Sub(p.waitFrom)
	p.waited += d
	p.a.metricsOf(p.fn).queueWait(d.Seconds())
	if p.queued.Cold {
		p.resolveColdStart()
		p.a.requests.rememberColdStart(p.id, p.queued.ColdStart)
		p.a.requests.rememberColdStart(p.clientID, p.queued.ColdStart)
	}
}

// resolveColdStart fills in the id of the cold start where it was unknown on arrival.
func (p *proxyRequest) resolveColdStart() {
	if p.queued.ColdStart != "" {
		return
	}
	p.queued.ColdStart = p.fn.Data.queue.ColdStart()
	if p.queued.ColdStart != "" {
		return
	}
	// A platform in another process reports the id in its snapshots only. A cold start
	// that was over on arrival is an earlier one.
	t := p.fn.Snapshot().ColdStart
	if t != nil && (!t.State.Over() || t.Began.Add(time.Duration(t.Total*float64(time.Second))).After(p.began)) {
		p.queued.ColdStart = t.ID
	}
}
