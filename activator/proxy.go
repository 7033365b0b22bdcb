package activator

import (
	"context"
	"errors"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/compositions"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/activator/usageoption"
	"github.com/thaw-dev/thaw/functions/openai"
)

// proxyRequest is one request from its arrival to its one end. One goroutine at
// a time has it: the handler's, and once a stream is committed the reader's. The
// goroutine that asks the engine uses only its arguments.
type proxyRequest struct {
	a   *Activator
	req request

	phase  phase
	queued admission.Request
	wait   wait
	early  early
	fail   *openai.Error // the answer in phase refused

	attempt   attempt
	remote    *remote.Call // of a request for a Remote; else nil
	suspected bool         // it was in flight at a crash, and is not refused for it
	tokens    usageoption.Tokens

	composed compositions.Summary // what a Composition used for it
	joined   string               // id of the request whose answer it got; "": its own
	finished bool                 // finish was called
	reason   string               // code of the error it ended with, for the log
}

// init makes p a request that has come from s now.
func (p *proxyRequest) init(a *Activator, s source) {
	p.a = a
	p.req = request{a: a, source: s, id: openai.NewID(), began: a.o.Now()}
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
	p.enter(true)
	async := p.req.stream || p.req.hold() == HoldPad && !p.req.endpoint.Form
	if p.phase == sent { // admitted at once
		p.launch(async)
	}
	for p.escalate(async) {
	}
	if p.phase == waiting || async && p.phase == sent {
		var limit time.Time
		switch {
		case p.req.stream:
			if p.phase == sent { // the timeouts are read only by requests that wait
				p.wait.timeouts = admission.ParseTimeouts(p.req.source.header, true)
			}
			limit = p.req.began.Add(p.headDelay())
		case async:
			limit = p.req.began.Add(a.o.PadAfter)
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
	p.reason = "client_left"
	res.Status = httpserver.StatusClientLeft
	p.finish(499)
}

// headDelay is how long a stream stays silent before its head goes out.
func (p *proxyRequest) headDelay() time.Duration {
	d := p.a.o.Silent
	if g := p.wait.timeouts.Gap; g > 0 {
		d = min(d, max(g/3, 10*time.Millisecond))
	}
	return d
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
			case <-p.queued.Done():
				p.endWait()
				if e := p.queued.Rejection(); e != nil {
					p.early.cancel()
					p.refuse(e)
					continue
				}
				p.phase = sent
				p.launch(async)
			case <-p.wait.contextDone:
				p.contextEnded()
			case <-p.wait.changed:
				p.wait.changed = p.req.fn.Data.queue.Changed()
				p.sendEarly()
				return stepChanged
			case r := <-p.early.pending():
				p.onEarlyReply(r, async)
			case <-p.wait.timer.C:
				if now := p.a.o.Now(); !now.Before(p.wait.deadline) {
					p.expire(now)
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

// contextEnded ends a request whose context has ended: the client left, or the
// server's drain is over.
func (p *proxyRequest) contextEnded() {
	p.stopEngine()
	p.leave()
	if p.phase = clientLeft; errors.Is(context.Cause(p.req.source.context()), httpserver.ErrDraining) {
		p.refuse(openai.New(openai.ShuttingDown, ""))
	}
}

// expire ends a wait that reached its deadline.
func (p *proxyRequest) expire(now time.Time) {
	e := p.req.fn.Data.queue.ExpiredError(p.req.fn.Snapshot(), p.wait.since, now)
	p.withdraw(e)
}

// launch sends an admitted request to its replica. With async a goroutine asks
// the engine, so that comments can go out meanwhile.
func (p *proxyRequest) launch(async bool) {
	_, e := p.findSuspect() // it may have been found to blame while it waited
	if e == nil {
		e = p.recheckRemote(p.a.o.Now())
	}
	if e != nil {
		p.withdraw(e)
		return
	}
	if run := p.req.http.run; run != nil {
		run.AtEngine.Store(true)
	}
	r := p.queued.Grant.Replica
	if !p.req.source.assign(r) && !p.useEarly(p.a.o.Now(), async) {
		p.sendToEngine(p.req.fn.Snapshot(), r, async)
	}
}
