package activator

import (
	"context"
	"errors"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/compositions"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions/openai"
)

// proxyRequest is one request from its arrival to its one end. One goroutine at
// a time has it: the handler's, and once a stream is committed the reader's. The
// goroutine that asks the engine uses only its arguments.
type proxyRequest struct {
	a         *Activator
	req       request
	wait      wait
	attempt   attempt
	suspicion suspicion

	phase    phase
	fail     *openai.Error        // the answer in phase refused
	composed compositions.Summary // what a Composition used for it
	joined   string               // id of the request whose answer it got; "": its own
	finished bool                 // finish was called
	reason   string               // code of the error that it is known to end with; "": that of finish
}

// init makes p a request that has come from s now.
func (p *proxyRequest) init(a *Activator, s source) {
	p.a = a
	p.req = request{a: a, source: s, id: openai.NewID(), began: a.o.Now()}
	p.wait.req = &p.req
	p.attempt.req, p.attempt.wait = &p.req, &p.wait
	p.suspicion.req, p.suspicion.wait = &p.req, &p.wait
}

type phase uint8

const (
	waiting        phase = iota // in the queue
	sent                        // at the engine, which has not answered
	engineAnswered              // the engine's head and first bytes are in reply
	reserved                    // a reservation has its replica
	refused                     // fail is the answer
	clientLeft
)

// run handles an opened request until its answer, or until its stream is committed.
func (p *proxyRequest) run(res *httpserver.Response) {
	a := p.a
	async := p.req.stream || p.req.hold() == HoldPad && !p.req.endpoint.Media()
	p.enter(true, async)
	for p.escalate(async) {
	}
	if p.phase == waiting || async && p.phase == sent {
		var limit time.Time
		switch {
		case p.req.stream:
			if p.phase == sent { // the timeouts are read only by requests that wait
				p.wait.timeouts = admission.ParseTimeouts(p.req.source.header, true)
			}
			limit = p.req.began.Add(withinThird(a.o.Timing.Silent, p.wait.timeouts.Gap, 10*time.Millisecond))
		case async:
			limit = p.req.began.Add(a.o.Timing.PadAfter)
		}
		for p.advance(limit, async) != stepDone {
			if !limit.IsZero() && !a.o.Now().Before(limit) {
				p.sendHead(res)
				return
			}
		}
	}
	switch p.phase {
	case refused, clientLeft:
		p.answerWithout(res)
	case engineAnswered:
		p.respond(res)
	}
}

// answerWithout ends a request that was refused or whose client left.
func (p *proxyRequest) answerWithout(res *httpserver.Response) {
	if p.phase == refused {
		p.refuseNow(res, p.fail)
		return
	}
	res.Status = httpserver.StatusClientLeft
	p.finish(499, "client_left")
}

// hold is what a plain request gets while it waits.
func (r *request) hold() HoldMode {
	if r.caller != nil {
		return HoldSilent
	}
	return r.a.o.Hold
}

// step is what advance returned for, while the request is not finished.
type step uint8

const (
	stepLimit   step = iota // the limit was reached
	stepChanged             // something about the function changed
	stepDone                // the phase is answered, refused or left
)

// advance waits until the request is answered, refused or left, until limit (zero is
// none), or until something about the function changed.
func (p *proxyRequest) advance(limit time.Time, async bool) step {
	if p.wait.contextDone == nil {
		p.wait.contextDone = p.req.source.context().Done()
	}
	for {
		switch p.phase {
		case waiting:
			until := p.wait.deadline
			if !limit.IsZero() && limit.Before(until) {
				until = limit
			}
			p.wait.setTimer(until.Sub(p.a.o.Now()))
			select {
			case <-p.wait.queued.Done():
				p.wait.end()
				if e := p.wait.queued.Rejection(); e != nil {
					p.refuse(e)
					continue
				}
				p.phase = sent
				p.launch(async)
			case <-p.wait.contextDone:
				p.contextEnded()
			case <-p.wait.changed:
				p.wait.changed = p.req.fn.Data.queue.Changed()
				p.attempt.sendEarly(p.suspicion.suspected)
				return stepChanged
			case r := <-p.attempt.early.pending():
				p.onEarlyReply(r, async)
			case <-p.wait.timer.C:
				if now := p.a.o.Now(); !now.Before(p.wait.deadline) {
					p.withdraw(p.req.fn.Data.queue.ExpiredError(p.req.fn.Snapshot(), p.wait.since, now))
					continue
				}
				return stepLimit
			}
		case sent:
			var alarm <-chan time.Time
			if !limit.IsZero() {
				p.wait.setTimer(limit.Sub(p.a.o.Now()))
				alarm = p.wait.timer.C
			}
			select {
			case r := <-p.attempt.answers:
				p.attempt.answers = nil
				p.onReply(r, async)
			case <-p.wait.contextDone:
				p.contextEnded()
			case <-alarm:
				return stepLimit
			}
		default:
			if !p.escalate(async) {
				return stepDone
			}
		}
	}
}

// enter queues the request, and launches it where it is admitted at once. fresh is false for a
// second try.
func (p *proxyRequest) enter(fresh, async bool) {
	now := p.a.o.Now()
	if fresh {
		if e := p.attempt.beginRemote(now); e != nil {
			p.refuse(e)
			return
		}
	}
	switch admitted, e := p.wait.enter(fresh, now); {
	case admitted:
		p.phase = sent
		p.launch(async)
	case e != nil:
		p.withdraw(e)
	default:
		p.phase = waiting
		p.attempt.sendEarly(p.suspicion.suspected)
	}
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
	p.attempt.early.cancel()
	p.wait.leave()
}

// contextEnded ends a request whose context has ended: the client left, or the
// server's drain is over.
func (p *proxyRequest) contextEnded() {
	p.attempt.stop()
	p.leave()
	if p.phase = clientLeft; errors.Is(context.Cause(p.req.source.context()), httpserver.ErrDraining) {
		p.refuse(openai.New(openai.ShuttingDown, ""))
	}
}

// launch sends an admitted request to its replica. With async a goroutine asks
// the engine, so that comments can go out meanwhile.
func (p *proxyRequest) launch(async bool) {
	_, e := p.suspicion.find() // it may have been found to blame while it waited
	if e == nil {
		e = p.attempt.recheckRemote(p.a.o.Now())
	}
	if e != nil {
		p.withdraw(e)
		return
	}
	if run := p.req.http.run; run != nil {
		run.AtEngine.Store(true)
	}
	replica := p.wait.queued.Grant.Replica
	if p.req.source.assign(replica) {
		return
	}
	if c := p.attempt.early.take(replica.ID); c == nil {
		p.send(replica, async)
	} else if r, answered := p.attempt.adopt(c, p.a.o.Now()); answered {
		p.onReply(r, async)
	}
}

func (p *proxyRequest) send(replica *snapshot.Replica, async bool) {
	if r, answered := p.attempt.send(replica, async); answered {
		p.onReply(r, async)
	}
}

// onEarlyReply handles the answer to an early copy.
func (p *proxyRequest) onEarlyReply(r answer.Answer, async bool) {
	c := p.attempt.early.copy
	if !p.attempt.early.answered(r) || !p.wait.queued.AdmitAt(c.replica) {
		return
	}
	p.wait.end()
	p.phase = sent
	p.attempt.early.take(c.replica.ID)
	r, _ = p.attempt.adopt(c, p.a.o.Now())
	p.onReply(r, async)
}

// onReply handles the engine's first bytes, or their absence.
func (p *proxyRequest) onReply(r answer.Answer, async bool) {
	now, at := p.a.o.Now(), &p.attempt
	if at.remote != nil && !(errors.Is(r.Err, upstream.ErrCancelled) && context.Cause(p.req.source.context()) != nil) {
		p.phase = engineAnswered
		if e := at.acceptRemote(r, now); e != nil {
			p.withdraw(e)
		}
		return
	}
	if r.Response != nil && r.Response.Unsolicited > 0 {
		at.reportUnsolicited(r.Response)
	}
	if replica := at.again(&r); replica != nil {
		p.send(replica, async)
		return
	}
	if r.Err == nil {
		if e := at.refusal(&r); e != nil {
			p.withdraw(e)
			return
		}
	}
	if r.Err == nil {
		at.accept(r, now)
		p.phase = engineAnswered
		return
	}
	var unfetched *adapterLoadError
	if (errors.Is(r.Err, upstream.ErrCancelled) || errors.As(r.Err, &unfetched)) && context.Cause(p.req.source.context()) != nil {
		p.contextEnded()
		return
	}
	at.stop()
	var e *openai.Error
	if unfetched != nil {
		e = at.adapterFailure(unfetched.error)
		p.wait.queued.MarkFailed(false, now)
		p.leave()
		if e != nil {
			p.refuse(e)
			return
		}
		e = openai.New(openai.AdapterUnavailable, "")
	} else {
		e = p.reportFailure(r.Err, len(r.Begin) > 0, now)
	}
	p.retry(e, len(r.Begin) > 0, now, async)
}
