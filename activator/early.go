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

// pending is the channel of the answer; nil, which blocks for ever, where none is
// expected.
func (c *earlyCopy) pending() <-chan answer.Answer {
	if c == nil {
		return nil
	}
	return c.answers
}

// sendEarly sends a copy to the shim of a replica that is about to be READY, if the
// request is among the first of the queue. Requests for an adapter, large ones,
// retries, suspects and requests that an engine may have seen are not copied: a request
// that kills engines must not be the first of each new one.
func (p *proxyRequest) sendEarly() {
	if p.early != nil || p.reservation != nil || p.queued.Adapter != "" || p.queued.FailedReplica != "" || p.suspected || p.engineMaySee || p.size() > maxEarlyBody {
		return
	}
	f := p.fn.Snapshot()
	if len(f.NotReadyEndpoints) == 0 {
		return
	}
	n := p.fn.Data.queue.Position(&p.queued) - 1
	if n < 0 {
		return // the wait has ended
	}
	r := &f.NotReadyEndpoints[n%len(f.NotReadyEndpoints)]
	if n/len(f.NotReadyEndpoints) >= min(f.SlotsOf(r)-p.fn.Data.queue.InFlight(r.ID), maxEarlyPerReplica) || r.ID == p.refusedEarly {
		return
	}
	out := p.buildRequest(f, r)
	out.Fields = append(out.Fields, upstream.Field{Name: snapshot.EarlyHeader, Value: "1"})
	out.Bound += max(0, p.deadline.Sub(p.a.o.Now()))
	ctx, cancel := context.WithCancelCause(p.context())
	h := &earlyCopy{replica: r, sent: p.a.o.Now(), cancel: cancel, answers: make(chan answer.Answer, 1)}
	p.early = h
	engines, want, bufs, answers := p.a.o.Engines, p.want(), &p.a.buffers, h.answers
	go func() { answers <- sendToEngine(ctx, engines, out, want, bufs, nil) }() // ends with the request: cancelEarly cancels and waits
}

// onEarlyReply handles the answer to an early copy. A refusal or a failed replica is
// not an answer; the request keeps its place in the queue.
func (p *proxyRequest) onEarlyReply(r answer.Answer, async bool) {
	h := p.early
	h.answers, h.reply = nil, r
	switch {
	case refusedByNode(&r):
		p.refusedEarly = h.replica.ID
		p.cancelEarly()
	case r.Err != nil || r.Response.Status >= 500:
		p.engineMaySee = true
		p.cancelEarly()
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

// cancelEarly ends an early copy that is not needed, and waits for its goroutine.
func (p *proxyRequest) cancelEarly() {
	h := p.early
	if h == nil {
		return
	}
	p.early = nil
	h.cancel(errRequestOver)
	if h.answers != nil {
		h.reply = <-h.answers
	}
	if h.reply.Response != nil {
		h.reply.Response.Close()
	}
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
	h := p.early
	if h == nil || h.replica.ID != p.queued.ReplicaID() {
		p.cancelEarly()
		return false
	}
	p.early = nil
	p.sentAt, p.cancel = now, h.cancel
	if h.answers == nil {
		p.sentAt = h.releasedAt(now)
		p.onReply(h.reply, async)
		return true
	}
	p.answers, p.sentEarly = h.answers, true
	return true
}
