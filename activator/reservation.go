package activator

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/thaw-dev/thaw/activator/metrics"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// ReservationRequest requests a slot of a replica for a request that the caller will proxy
// itself: any method, any path, a body of any kind.
type ReservationRequest struct {
	Name functions.Name // of the function, or of an alias
	Team string         // that the request counts against
	// Bytes of the body that are kept in memory while it waits.
	Bytes int64
	// Header returns a field of the request's head, "" where there is none; nil is a
	// head without fields. It is used until Finish.
	Header func(name string) string
	// OnWait, if not nil, is called each time the request is about to wait.
	OnWait func()
}

// Reservation is a slot of a replica, held for the caller's request. One goroutine at
// a time uses it. Between Reserve and Finish the request counts as demand.
type Reservation struct {
	ID       string // of the request: for its log line, and X-Request-Id
	Endpoint string // URL of the replica, without a slash at its end
	Key      string // API key of the engine itself, "" none
	External bool   // the replica runs a program that is not one of our engines

	proxied proxyRequest
	ctx     context.Context
	want    ReservationRequest
}

// otherEndpoint labels paths outside the OpenAI allow-list.
var otherEndpoint = openai.Endpoint{Path: metrics.Other}

// Reserve finds a slot at a replica of the function: at once where one is free,
// otherwise the request is queued, the function is woken, and the request waits as
// long as the function or the client allows (see admission.ClientTimeouts), or until
// ctx ends. Failed reports a replica that failed; Finish ends the reservation. The
// error is the answer, and then there is nothing to finish.
func (a *Activator) Reserve(ctx context.Context, w ReservationRequest) (*Reservation, *openai.Error) {
	s := &Reservation{ctx: ctx, want: w}
	p := &s.proxied
	p.init(a, s)
	p.req.endpoint, p.req.team, s.ID = &otherEndpoint, w.Team, p.req.id
	if id := s.header("X-Request-Id"); openai.ValidID(id) {
		p.req.clientID = id
	}
	held := false
	defer func() {
		if !held { // also on a panic
			code, reason := 500, ""
			if p.fail != nil {
				code, reason = p.fail.Status, string(p.fail.Code)
			}
			p.finish(code, reason)
		}
	}()
	e, alias := a.names.lookup(w.Name)
	if e == nil || e.Snapshot().Remote != nil { // a Remote answers only what is checked for its class of data
		if p.fail = openai.New(openai.ModelNotFound, "The model `"+w.Name.Short()+"` does not exist."); alias {
			p.fail = unpublishedError(w.Name)
		}
		return nil, p.fail
	}
	p.req.fn = e
	if p.wait.queued.Priority, p.fail = p.req.admit(); p.fail != nil {
		return nil, p.fail
	}
	p.enter(true, false)
	if err := s.await(); err != nil {
		return nil, err
	}
	held = true
	return s, nil
}

// await waits until the reservation has a replica, or an answer without one.
func (r *Reservation) await() *openai.Error {
	p := &r.proxied
	if p.phase == waiting && r.want.OnWait != nil {
		r.want.OnWait()
	}
	for p.phase == waiting {
		p.advance(time.Time{}, false)
	}
	switch p.phase {
	case reserved:
		return nil
	case clientLeft:
		p.refuse(openai.New(openai.RequestTimeout, "The client left."))
		p.fail.Status = 499
		p.reason = "client_left"
	default:
		p.reason = string(p.fail.Code)
	}
	return p.fail
}

// ColdStart is the id of the cold start that the request took part in; "" where it
// found a READY replica, or the id is unknown.
func (r *Reservation) ColdStart() string {
	if r.proxied.wait.queued.Cold {
		r.proxied.wait.resolveColdStart()
	}
	return r.proxied.wait.queued.ColdStart
}

// Failed reports that the replica failed the request before a byte of its answer came.
// The replica cools down and the failure is reported. The first time the reservation
// moves to another replica, waiting for one if it must; else the error is the answer,
// and only Finish is left to call. why is the cause; a client that left is no failure.
func (r *Reservation) Failed(reason error) *openai.Error {
	p := &r.proxied
	if context.Cause(r.ctx) != nil {
		p.contextEnded()
		return r.await()
	}
	if op, ok := errors.AsType[*net.OpError](reason); ok && op.Op == "dial" {
		reason = &upstream.Error{Addr: r.Endpoint, Kind: upstream.ErrDial, Err: reason}
	}
	now := p.a.o.Now()
	p.retry(p.reportFailure(reason, false, now), false, now, false)
	return r.await()
}

// FailedForGood is Failed for a request that cannot be sent a second time. The error
// is the answer, and only Finish is left to call.
func (r *Reservation) FailedForGood(reason error) *openai.Error {
	r.proxied.wait.queued.Retried = true
	return r.Failed(reason)
}

// FirstByte reports that the first byte of the answer has come.
func (r *Reservation) FirstByte() {
	p := &r.proxied
	p.attempt.recordFirstByte(p.a.o.Now(), true)
}

// BrokeMidAnswer reports that the replica failed in the middle of its answer: only the
// client can try again.
func (r *Reservation) BrokeMidAnswer() {
	p := &r.proxied
	if context.Cause(r.ctx) != nil || p.wait.queued.ReplicaID() == "" {
		return
	}
	p.reason = string(openai.EngineCrashed)
	p.attempt.reportProblem("died", "it died in the middle of an answer")
}

// Finish ends the reservation. code is the status that the client was answered with,
// 499 where it left. A second call does nothing.
func (r *Reservation) Finish(code int) {
	reason := ""
	if code == 499 {
		reason = "client_left"
	}
	r.proxied.finish(code, reason)
}
