package activator

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
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
	message string
	dead    bool // the engine is about to exit
}

func (e *engineError) Error() string { return e.message }

// engineFailure looks for an engine's failure in its first bytes: a stream that begins
// with an error frame, or an answer after the death of its core process. An error of
// the caller's is returned as the refusal it would have been without a stream.
func engineFailure(r *reply, stream bool) (refusal *openai.Error, failure error) {
	switch {
	case r.res.Status >= 300 && r.res.Status < 400:
		return redirectError(r.res), nil
	case stream && r.res.Status == 200 && isEvents(r.res):
		status, message, ok := openai.Failure(r.begin)
		if !ok {
			return nil, nil
		}
		if status < 500 {
			e := openai.New(openai.InvalidRequest, message)
			e.Status = status
			return e, nil
		}
		return nil, &engineError{message, engineCoreDied([]byte(message))}
	case r.res.Status >= 500 && r.end && engineCoreDied(r.begin):
		return nil, &engineError{"", true}
	}
	return nil, nil
}

// engineCoreDied reports whether b is what vLLM's front end sends while it ends after
// the death of its core process.
func engineCoreDied(b []byte) bool {
	return bytes.Contains(b, []byte("EngineCore")) || bytes.Contains(b, []byte("EngineDeadError"))
}

// reportFailure leaves a replica that failed the request before its first byte, starts
// its cool-down and reports it to the platform. The error is for the client, where no
// other replica can help.
func (x *proxyRequest) reportFailure(err error, now time.Time) *openai.Error {
	problem, kind, e := describeFailure(err, errors.Is(err, upstream.ErrSilent))
	x.a.metricsOf(x.fn).countFailure(kind)
	var frame *engineError
	broken := !errors.As(err, &frame) || frame.dead // else it may have failed over this request alone
	if sent, ok := errors.AsType[*upstream.Error](err); ok && sent.Resent {
		x.queued.Retried = true
	}
	x.queued.MarkFailed(broken, now)
	x.leave()
	if broken {
		x.a.readmitAfterCoolDown(x.fn)
	}
	x.a.o.Waker.ReportFailure(x.fn.Name, x.queued.FailedReplica, problem)
	if kind == "died" || frame != nil && frame.dead {
		if to := x.countCrash(now); to != nil {
			return to
		}
	}
	return e
}

// reportUnsolicited counts how often a replica was found to write bytes that no request
// asked for, and logs the first time.
func (x *proxyRequest) reportUnsolicited(res *upstream.Response) {
	s := x.a.metricsOf(x.fn)
	s.m.Series("thaw_engine_errors_total", s.name.Name, s.name.Team, "unsolicited")(float64(res.Unsolicited))
	if res.FirstUnsolicited {
		x.a.o.Log.Warn("a replica wrote bytes that no request asked for; each of its connections serves one request from now on", "id", x.id, "model", s.name.Name, "team", s.name.Team, "replica", x.queued.ReplicaID())
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
func (x *proxyRequest) retry(e *openai.Error, began bool, now time.Time, async bool) {
	if e.Code == openai.RequestQuarantined {
		x.refuse(e)
		return
	}
	switch x.queued.Retry(began, !x.deadline.IsZero() && !now.Before(x.deadline)) {
	case admission.AlreadyRetried:
		x.refuse(e.Final())
	case admission.AnswerBegan: // only the client may try again, once
		x.answerBegan = true
		if n := x.header("X-Stainless-Retry-Count"); n != "" && n != "0" {
			e = e.Final()
		}
		x.refuse(e)
	case admission.DeadlinePassed:
		x.refuse(e)
	case admission.TryAgain:
		if !x.queued.Alone && !x.fn.Data.queue.Load(now).Free() && x.moveOn(e.Message, async) {
			return
		}
		x.a.metricsOf(x.fn).retried(1)
		x.enter(false)
		if x.phase == sent {
			x.launch(async)
		}
	}
}

// describeFailure describes a failure for the platform, for the metrics, and for the
// client whose second try fails too.
func describeFailure(err error, hung bool) (problem, kind string, e *openai.Error) {
	var frame *engineError
	switch {
	case hung:
		return "it said nothing within the deadline for its first token", "hung", openai.New(openai.EngineHung, "")
	case errors.As(err, &frame):
		e = openai.New(openai.EngineCrashed, "The engine failed before it answered.")
		if frame.message != "" && !frame.dead {
			e.Message = "The engine failed: " + functions.Clip(frame.message)
		}
		return "it answered with an error of its own before any token", "error_frame", e
	case errors.Is(err, upstream.ErrDial):
		return "it refuses connections", "refused", openai.New(openai.EngineCrashed, "The engine could not be reached.")
	case errors.Is(err, upstream.ErrProtocol):
		return "its answer is not HTTP", "protocol", openai.New(openai.EngineCrashed, "The engine's answer made no sense.")
	}
	return "it died before the first byte of an answer", "died", openai.New(openai.EngineCrashed, "")
}
