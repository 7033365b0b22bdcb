package activator

import (
	"errors"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions/openai"
)

// adapterLoadError is the failure to load an adapter: the request did not reach the
// engine.
type adapterLoadError struct{ error }

func (e *adapterLoadError) Unwrap() error { return e.error }

// reportFailure leaves a replica that failed the request, before its first byte or with began
// in the middle of an answer, starts its cool-down and reports it to the platform. The error is
// for the client, where no other replica can help.
func (p *proxyRequest) reportFailure(err error, began bool, now time.Time) *openai.Error {
	problem, kind, e := answer.DescribeFailure(err, errors.Is(err, upstream.ErrSilent))
	var frame *answer.EngineError
	if began && !errors.As(err, &frame) {
		problem, kind, e = answer.DescribeBreak(err)
	} else if kind == "hung" && p.req.stream {
		e.Message += " It was silent for longer than deadlines.firstToken of the model file."
	}
	p.a.metricsOf(p.req.fn).CountFailure(kind, 1)
	broken := !errors.As(err, &frame) || frame.IsDead() // else it may have failed over this request alone
	if sent, ok := errors.AsType[*upstream.Error](err); ok && sent.Resent {
		p.wait.queued.Retried = true
	}
	p.wait.queued.MarkFailed(broken, now)
	p.leave()
	if broken {
		a, q := p.a, &p.req.fn.Data.queue
		time.AfterFunc(admission.CoolDown, func() { q.Readmit(a.o.Now()) })
	}
	p.a.o.Waker.ReportFailure(p.req.fn.Name, p.wait.queued.FailedReplica, problem)
	if kind == "died" || frame != nil && frame.IsDead() {
		if to := p.suspicion.countCrash(err, now); to != nil {
			return to
		}
	}
	return e
}

// reportBreak counts and reports a replica that failed in the middle of its answer. The second
// error, if any, is the client's in place of the first: the request is to blame.
func (p *proxyRequest) reportBreak(err error) (e, blamed *openai.Error) {
	problem, kind, e := answer.DescribeBreak(err)
	p.attempt.reportProblem(kind, problem)
	if kind == "died" && p.attempt.remote == nil {
		blamed = p.suspicion.countCrash(err, p.a.o.Now())
	}
	return e, blamed
}

// retry tries another replica, once; otherwise e is the answer. With began the engine
// had begun an answer, though not the body.
func (p *proxyRequest) retry(e *openai.Error, began bool, now time.Time, async bool) {
	if e.Code == openai.RequestQuarantined {
		p.refuse(e)
		return
	}
	switch p.wait.queued.Retry(began, !p.wait.deadline.IsZero() && !now.Before(p.wait.deadline)) {
	case admission.AlreadyRetried:
		p.refuse(e.Final())
	case admission.AnswerBegan: // only the client may try again, once
		p.attempt.answerBegan = true
		if n := p.req.source.header("X-Stainless-Retry-Count"); n != "" && n != "0" {
			e = e.Final()
		}
		p.refuse(e)
	case admission.DeadlinePassed:
		p.refuse(e)
	case admission.TryAgain:
		if !p.wait.queued.Alone && !p.req.fn.Data.queue.Load(now).AdmitsAtOnce() && p.moveOn(e.Message, async) {
			return
		}
		p.a.metricsOf(p.req.fn).Retried(1)
		p.enter(false, async)
	}
}
