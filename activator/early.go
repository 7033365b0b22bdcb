package activator

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
)

// maxEarlyPerReplica bounds the early copies at one starting replica, per activator.
// The shim keeps them in memory beside its engine.
const maxEarlyPerReplica = 8

// maxEarlyBody bounds the body of an early copy: those at a shim take memory of the
// pod, of which the engine may need all but a little.
const maxEarlyBody = 256 << 10

// earlyCopy is a copy of a request, sent to the shim of a replica that is not READY.
// The request keeps its place in the queue, its deadline and its team's limits. If it
// is admitted to that replica, the copy becomes the request; if it is admitted to
// another, the copy is cancelled before an answer was used. A copy that is answered
// first takes its request out of the queue: the replica is READY, although the
// activator does not know it yet.
//
// So readiness needs one step, from the engine to the shim that holds the copy, and
// not a chain of four processes that each must be scheduled.
type earlyCopy struct {
	replica *snapshot.Replica
	sent    time.Time
	cancel  context.CancelCauseFunc
	answers chan answer.Answer // nil once it has answered
	reply   answer.Answer
}

// early is what a request has of its early copies.
type early struct {
	copy         *earlyCopy // sent to the shim of a starting replica; nil: none
	refusedBy    string     // the replica that refused a copy
	engineMaySee bool       // an engine may have seen a copy
	adopted      bool       // the request at the replica is a copy
}

// pending is the channel of the copy's answer; nil, which blocks for ever, where none is
// expected.
func (e *early) pending() <-chan answer.Answer {
	if e.copy == nil {
		return nil
	}
	return e.copy.answers
}

// take returns the copy that is at this replica and stays none of the early ones. Another is
// cancelled.
func (e *early) take(replicaID string) *earlyCopy {
	c := e.copy
	if c == nil || c.replica.ID != replicaID {
		e.cancel()
		return nil
	}
	e.copy = nil
	return c
}

// answered notes the answer of the copy. It is false for a refusal or a failure of the replica,
// which ends the copy: the request keeps its place in the queue.
func (e *early) answered(r answer.Answer) bool {
	c := e.copy
	c.answers, c.reply = nil, r
	switch {
	case refusedByNode(&r):
		e.refusedBy = c.replica.ID
	case r.Err != nil || r.Response.Status >= 500:
		e.engineMaySee = true
	default:
		return true
	}
	e.cancel()
	return false
}

// cancel ends a copy that is not needed, and waits for its goroutine.
func (e *early) cancel() {
	c := e.copy
	if c == nil {
		return
	}
	e.copy = nil
	c.cancel(errRequestOver)
	if c.answers != nil {
		c.reply = <-c.answers
	}
	if c.reply.Response != nil {
		c.reply.Response.Close()
	}
}

// sendEarly sends a copy to the shim of a replica that is about to be READY, if the
// request is among the first of the queue. Requests for an adapter, large ones,
// retries, suspects and requests that an engine may have seen are not copied: a request
// that kills engines must not be the first of each new one.
func (a *attempt) sendEarly(suspected bool) {
	r, queued := a.req, &a.wait.queued
	if r.http.req == nil || a.early.copy != nil || r.adapter != "" || queued.FailedReplica != "" ||
		suspected || a.early.engineMaySee || r.source.bodyBytes() > maxEarlyBody {
		return
	}
	f, q := r.fn.Snapshot(), &r.fn.Data.queue
	if len(f.EarlyReplicas) == 0 {
		return
	}
	n := q.Position(queued) - 1
	if n < 0 {
		return // the wait has ended
	}
	to := &f.EarlyReplicas[n%len(f.EarlyReplicas)]
	if n/len(f.EarlyReplicas) >= min(f.SlotsOf(to)-q.InFlight(to.ID), maxEarlyPerReplica) || to.ID == a.early.refusedBy {
		return
	}
	now, engines, bufs := r.a.o.Now(), r.a.o.Engines, &r.a.buffers
	out := a.buildRequest(to)
	out.Fields = append(out.Fields, upstream.Field{Name: snapshot.EarlyHeader, Value: "1"})
	out.Bound += max(0, a.wait.deadline.Sub(now))
	ctx, cancel := context.WithCancelCause(r.source.context())
	c := &earlyCopy{replica: to, sent: now, cancel: cancel, answers: make(chan answer.Answer, 1)}
	a.early.copy = c
	want, answers := a.want(), c.answers
	go func() { answers <- sendToEngine(ctx, engines, out, want, bufs, nil) }() // ends with the request: early.cancel cancels and waits
}

// adopt makes an early copy, at the replica that the request was admitted to, the request there:
// with its answer, where that has come.
func (a *attempt) adopt(c *earlyCopy, now time.Time) (reply answer.Answer, answered bool) {
	a.sentAt, a.cancel = now, c.cancel
	if c.answers == nil {
		a.sentAt = c.releasedAt(now)
		return c.reply, true
	}
	a.answers, a.early.adopted = c.answers, true
	return reply, false
}

// refusedByNode reports whether the agent or shim refused a request without giving it
// to the engine.
func refusedByNode(r *answer.Answer) bool {
	if r.Err != nil {
		return errors.Is(r.Err, upstream.ErrDial)
	}
	return r.Response.Status >= 400 && r.End && errors.Is(answer.NodeError(r.Response.Status, r.Begin), upstream.ErrDial)
}

// releasedAt is when the shim gave the answered copy to its engine, by the time that
// it reports to have held it.
func (c *earlyCopy) releasedAt(now time.Time) time.Time {
	us, err := strconv.ParseInt(c.reply.Response.Header(snapshot.HeldHeader), 10, 64)
	if err != nil || us < 0 || us > now.Sub(c.sent).Microseconds() {
		return now
	}
	return c.sent.Add(time.Duration(us) * time.Microsecond)
}
