package activator

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// adapterLoadError is the failure to load an adapter: the request did not reach the
// engine.
type adapterLoadError struct{ err error }

func (e *adapterLoadError) Error() string { return e.err.Error() }

func (e *adapterLoadError) Unwrap() error { return e.err }

// engineError is a failure that the engine itself reported before a byte went to the
// client.
type engineError struct {
	answer *openai.Error // with the engine's words; nil: the engine is about to exit
}

func (e *engineError) Error() string {
	if e.answer == nil {
		return "its core process died"
	}
	return e.answer.Message
}

func (e *engineError) isDead() bool { return e.answer == nil }

// engineFailure looks for an engine's failure in its first bytes: a stream that begins
// with an error frame, a whole answer in place of a stream that is an error, or an answer
// after the death of its core process. A failure is tried on another replica. A refusal is
// the answer: an error of the caller's, or one that does not name a status, which another
// run would most likely repeat.
func (p *proxyRequest) engineFailure(r *answer.Answer) (refusal *openai.Error, failure error) {
	switch {
	case r.Response.Status >= 300 && r.Response.Status < 400:
		return redirectError(r.Response), nil
	case r.Response.Status >= 500 && r.End && answer.EngineDied(r.Begin):
		return nil, &engineError{}
	case !p.stream || !answer.IsSuccess(r.Response.Status) || r.Encoding != "":
		return nil, nil
	case r.Events && !p.endpoint.usage && bytes.Contains(r.Begin, []byte("event:")):
		return nil, nil // an error has an event of the endpoint's own, which passes
	case r.Events:
		begin := r.Begin
		if r.End { // the last line need not be ended
			begin = append(bytes.Clone(begin), '\n')
		}
		e, stated := openai.Failure(begin)
		switch {
		case e == nil:
			return nil, nil
		case answer.EngineDied([]byte(e.Message)):
			return nil, &engineError{}
		case stated && e.Status >= 500:
			return nil, &engineError{e}
		}
		return e, nil
	case !r.End:
		return nil, nil
	}
	if e := openai.WholeError(r.Begin); e != nil {
		return e, nil
	}
	if events := openai.StreamWhole(p.endpoint.path, r.Begin, p.env.IncludeUsage || p.stripsUsage()); events != nil {
		r.Begin, r.Events = events, true
	}
	return nil, nil
}

// reportFailure leaves a replica that failed the request before its first byte, starts
// its cool-down and reports it to the platform. The error is for the client, where no
// other replica can help.
func (p *proxyRequest) reportFailure(err error, now time.Time) *openai.Error {
	problem, kind, e := describeFailure(err, errors.Is(err, upstream.ErrSilent))
	p.a.metricsOf(p.fn).countFailure(kind)
	var frame *engineError
	broken := !errors.As(err, &frame) || frame.isDead() // else it may have failed over this request alone
	if sent, ok := errors.AsType[*upstream.Error](err); ok && sent.Resent {
		p.queued.Retried = true
	}
	p.queued.MarkFailed(broken, now)
	p.leave()
	if broken {
		p.a.readmitAfterCoolDown(p.fn)
	}
	p.a.o.Waker.ReportFailure(p.fn.Name, p.queued.FailedReplica, problem)
	if kind == "died" || frame != nil && frame.isDead() {
		if to := p.countCrash(err, now); to != nil {
			return to
		}
	}
	return e
}

// reportUnsolicited counts how often a replica was found to write bytes that no request
// asked for, and logs the first time.
func (p *proxyRequest) reportUnsolicited(res *upstream.Response) {
	s := p.a.metricsOf(p.fn)
	s.m.Series("thaw_engine_errors_total", s.name.Name, s.name.Team, "unsolicited")(float64(res.Unsolicited))
	if res.FirstUnsolicited {
		p.a.o.Log.Warn("a replica wrote bytes that no request asked for; each of its connections serves one request from now on", "id", p.id, "model", s.name.Name, "team", s.name.Team, "replica", p.queued.ReplicaID())
	}
}

// redirectError is the error of an engine's redirect, which is not followed.
func redirectError(res *upstream.Response) *openai.Error {
	e := openai.New(openai.InternalError, fmt.Sprintf("The engine answered with a redirect (%d) to %q, which is not followed: only one to the same host, port and path but for a final slash is, once.", res.Status, functions.Clip(res.Header("location"))))
	e.Status = 502
	return e.Final()
}

// retry tries another replica, once; otherwise e is the answer. With began the engine
// had begun an answer, though not the body.
func (p *proxyRequest) retry(e *openai.Error, began bool, now time.Time, async bool) {
	if e.Code == openai.RequestQuarantined {
		p.refuse(e)
		return
	}
	switch p.queued.Retry(began, !p.deadline.IsZero() && !now.Before(p.deadline)) {
	case admission.AlreadyRetried:
		p.refuse(e.Final())
	case admission.AnswerBegan: // only the client may try again, once
		p.answerBegan = true
		if n := p.header("X-Stainless-Retry-Count"); n != "" && n != "0" {
			e = e.Final()
		}
		p.refuse(e)
	case admission.DeadlinePassed:
		p.refuse(e)
	case admission.TryAgain:
		if !p.queued.Alone && !p.fn.Data.queue.Load(now).AdmitsAtOnce() && p.moveOn(e.Message, async) {
			return
		}
		p.a.metricsOf(p.fn).retried(1)
		p.enter(false)
		if p.phase == sent {
			p.launch(async)
		}
	}
}

const errorBeforeToken = "it answered with an error of its own before any token"

// describeFailure describes a failure for the platform, for the metrics, and for the
// client whose second try fails too.
func describeFailure(err error, hung bool) (problem, kind string, e *openai.Error) {
	var frame *engineError
	switch {
	case hung:
		return "it said nothing within the deadline for its first token", "hung", openai.New(openai.EngineHung, "")
	case errors.As(err, &frame):
		if e = frame.answer; e == nil {
			e = openai.New(openai.EngineCrashed, "The engine failed before it answered.")
		}
		return errorBeforeToken, "error_frame", e
	case errors.Is(err, upstream.ErrDial):
		return "it refuses connections", "refused", openai.New(openai.EngineCrashed, "The engine could not be reached.")
	case errors.Is(err, upstream.ErrProtocol):
		return "its answer is not HTTP", "protocol", openai.New(openai.EngineCrashed, "The engine's answer made no sense.")
	}
	return "it died before the first byte of an answer", "died", openai.New(openai.EngineCrashed, "")
}

// describeBreak describes, as describeFailure does, how an engine broke off an answer.
func describeBreak(err error) (problem, kind string, e *openai.Error) {
	switch {
	case err == io.EOF:
		return "it ended a stream without its end mark", "cut", openai.New(openai.EngineCrashed, "The engine ended the answer before it was complete.")
	case errors.Is(err, upstream.ErrSilent):
		return "it fell silent in the middle of an answer", "hung", openai.New(openai.EngineHung, "")
	case errors.Is(err, upstream.ErrProtocol):
		return "its answer became malformed in the middle", "protocol", openai.New(openai.EngineCrashed, "The engine's answer became malformed in the middle.")
	}
	return "it died in the middle of an answer", "died", openai.New(openai.EngineCrashed, "The engine died in the middle of the answer.")
}
