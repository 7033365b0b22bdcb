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
func (p *proxyRequest) sendEarly() {
	if _, known := p.req.source.body(); !known || p.early.copy != nil || p.req.adapter != "" || p.queued.FailedReplica != "" ||
		p.suspected || p.early.engineMaySee || p.req.source.bodyBytes() > maxEarlyBody {
		return
	}
	f := p.req.fn.Snapshot()
	if len(f.EarlyReplicas) == 0 {
		return
	}
	n := p.req.fn.Data.queue.Position(&p.queued) - 1
	if n < 0 {
		return // the wait has ended
	}
	r := &f.EarlyReplicas[n%len(f.EarlyReplicas)]
	if n/len(f.EarlyReplicas) >= min(f.SlotsOf(r)-p.req.fn.Data.queue.InFlight(r.ID), maxEarlyPerReplica) || r.ID == p.early.refusedBy {
		return
	}
	out := p.buildRequest(f, r)
	out.Fields = append(out.Fields, upstream.Field{Name: snapshot.EarlyHeader, Value: "1"})
	out.Bound += max(0, p.wait.deadline.Sub(p.a.o.Now()))
	ctx, cancel := context.WithCancelCause(p.req.source.context())
	h := &earlyCopy{replica: r, sent: p.a.o.Now(), cancel: cancel, answers: make(chan answer.Answer, 1)}
	p.early.copy = h
	engines, want, bufs, answers := p.a.o.Engines, p.want(), &p.a.buffers, h.answers
	go func() { answers <- sendToEngine(ctx, engines, out, want, bufs, nil) }() // ends with the request: early.cancel cancels and waits
}

// onEarlyReply handles the answer to an early copy. A refusal or a failed replica is
// not an answer; the request keeps its place in the queue.
func (p *proxyRequest) onEarlyReply(r answer.Answer, async bool) {
	h := p.early.copy
	h.answers, h.reply = nil, r
	switch {
	case refusedByNode(&r):
		p.early.refusedBy = h.replica.ID
		p.early.cancel()
	case r.Err != nil || r.Response.Status >= 500:
		p.early.engineMaySee = true
		p.early.cancel()
	case p.queued.AdmitAt(h.replica):
		p.endWait()
		p.phase = sent
		p.useEarly(p.a.o.Now(), async)
	}
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

// useEarly adopts the copy already sent to this replica. It returns false if the
// request must still be sent.
func (p *proxyRequest) useEarly(now time.Time, async bool) bool {
	h := p.early.copy
	if h == nil || h.replica.ID != p.queued.ReplicaID() {
		p.early.cancel()
		return false
	}
	p.early.copy = nil
	p.attempt.sentAt, p.attempt.cancel = now, h.cancel
	if h.answers == nil {
		p.attempt.sentAt = h.releasedAt(now)
		p.onReply(h.reply, async)
		return true
	}
	p.attempt.answers, p.early.adopted = h.answers, true
	return true
}
