package activator

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
)

// maxEarlyPerReplica is how many requests are at the door of one replica before it is READY,
// of each activator: the first of the line. The shim keeps them in memory beside its
// engine, and whoever stands behind them waits for those anyway.
const maxEarlyPerReplica = 8

// maxEarlyBody is how large the body of a request may be that is sent ahead: those at a
// door take memory of the pod, of which the engine may need all but a little.
const maxEarlyBody = 256 << 10

// earlyCopy is a request that was sent to the door of a replica that is not READY. It is
// a copy: the request stands in line all the same, with its turn, its deadline and
// its team's limits. Where the gate lets it through to that very replica, the copy is
// what was asked of it; where it is given another, nobody has seen an answer, and the
// copy is called back. An answer that comes first takes the request out of the line:
// its engine is READY, whoever has not heard of it yet.
//
// So the word READY goes from the engine to the shim that holds the copy, and not
// through four processes and back, of which each has to be given a processor.
type earlyCopy struct {
	replica *snapshot.Replica
	sent    time.Time
	cancel  context.CancelCauseFunc
	answers chan reply // nil once it has answered
	reply   reply
}

// pending is where its answer comes; nil, which blocks for ever, where none will.
func (h *earlyCopy) pending() <-chan reply {
	if h == nil {
		return nil
	}
	return h.answers
}

// sendEarly sends the request to the door of a replica that is about to be READY,
// where it is among the first of its line. One for an adapter, a large one, or one that
// a replica has failed, goes the usual way, and so does one that an engine may have seen:
// what kills engines must not be the first that each new one gets.
func (x *proxyRequest) sendEarly() {
	if x.early != nil || x.reservation != nil || x.place.Adapter != "" || x.place.FailedReplica != "" || x.seen || x.size() > maxEarlyBody {
		return
	}
	f := x.fn.Snapshot()
	if len(f.NotReadyEndpoints) == 0 {
		return
	}
	n := x.fn.Data.queue.Position(&x.place) - 1
	if n < 0 {
		return // it does not wait any more
	}
	r := &f.NotReadyEndpoints[n%len(f.NotReadyEndpoints)]
	if n/len(f.NotReadyEndpoints) >= min(f.SlotsOf(r)-x.fn.Data.queue.InFlight(r.ID), maxEarlyPerReplica) || r.ID == x.refusedEarly {
		return
	}
	out := x.buildRequest(f, r)
	out.Fields = append(out.Fields, upstream.Field{Name: snapshot.EarlyHeader, Value: "1"})
	out.Bound += max(0, x.deadline.Sub(x.a.o.Now()))
	ctx, cancel := context.WithCancelCause(x.context())
	h := &earlyCopy{replica: r, sent: x.a.o.Now(), cancel: cancel, answers: make(chan reply, 1)}
	x.early = h
	engines, stream, bufs, answers := x.a.o.Engines, x.stream, &x.a.buffers, h.answers
	go func() { answers <- askEngine(ctx, engines, out, stream, bufs, nil) }() // ends with the exchange: cancelEarly cancels and waits
}

// onEarlyReply takes the answer of a replica of which the gate has not heard yet. That
// it takes nothing ahead, is gone or has failed is none: the request stands where it
// stood.
func (x *proxyRequest) onEarlyReply(r reply, async bool) {
	h := x.early
	h.answers, h.reply = nil, r
	switch {
	case refusedByNode(&r):
		x.refusedEarly = h.replica.ID
		x.cancelEarly()
	case r.err != nil || r.res.Status >= 500:
		x.seen = true
		x.cancelEarly()
	case x.place.AdmitAt(admission.Target{Replica: h.replica}):
		x.endWait()
		x.phase = sent
		x.useEarly(x.a.o.Now(), async)
	}
}

// refusedByNode reports whether a request came no further than the replica's door.
func refusedByNode(r *reply) bool {
	if r.err != nil {
		return errors.Is(r.err, upstream.ErrDial)
	}
	return r.res.Status >= 400 && r.end && errors.Is(nodeError(r.res.Status, r.begin), upstream.ErrDial)
}

// cancelEarly ends a request that was sent ahead and is not wanted there, and waits for
// the goroutine that has it.
func (x *proxyRequest) cancelEarly() {
	h := x.early
	if h == nil {
		return
	}
	x.early = nil
	h.cancel(errRequestOver)
	if h.answers != nil {
		h.reply = <-h.answers
	}
	if h.reply.res != nil {
		h.reply.res.Close()
	}
}

// releasedAt is when the request that has its answer was let through: the door says how long
// it kept it.
func (h *earlyCopy) releasedAt(now time.Time) time.Time {
	us, err := strconv.ParseInt(h.reply.res.Header(snapshot.HeldHeader), 10, 64)
	if err != nil || us < 0 || us > now.Sub(h.sent).Microseconds() {
		return now
	}
	return h.sent.Add(time.Duration(us) * time.Microsecond)
}

// useEarly takes what was sent ahead to the replica that the request has been given
// for what is asked of it; false: it is still to be asked.
func (x *proxyRequest) useEarly(now time.Time, async bool) bool {
	h := x.early
	if h == nil || h.replica.ID != x.place.ReplicaID() {
		x.cancelEarly()
		return false
	}
	x.early = nil
	x.asked, x.cancel = now, h.cancel
	if h.answers == nil {
		x.asked = h.releasedAt(now)
		x.onReply(h.reply, async)
		return true
	}
	x.answers, x.sentEarly = h.answers, true
	return true
}
