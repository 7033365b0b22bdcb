package activator

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
)

// aheadMost is how many requests are at the door of one replica before it is READY,
// of each activator: the first of the line. The shim keeps them in memory beside its
// engine, and whoever stands behind them waits for those anyway.
const aheadMost = 8

// aheadBytes is how large the body of a request may be that is sent ahead: those at a
// door take memory of the pod, of which the engine may need all but a little.
const aheadBytes = 256 << 10

// ahead is a request that was sent to the door of a replica that is not READY. It is
// a copy: the request stands in line all the same, with its turn, its deadline and
// its team's limits. Where the gate lets it through to that very replica, the copy is
// what was asked of it; where it is given another, nobody has seen an answer, and the
// copy is called back. An answer that comes first takes the request out of the line:
// its engine is READY, whoever has not heard of it yet.
//
// So the word READY goes from the engine to the shim that holds the copy, and not
// through four processes and back, of which each has to be given a processor.
type ahead struct {
	replica string
	sent    time.Time
	cancel  context.CancelCauseFunc
	answers chan reply // nil once it has answered
	reply   reply
}

// word is where its answer comes; nil, which blocks for ever, where none will.
func (h *ahead) word() <-chan reply {
	if h == nil {
		return nil
	}
	return h.answers
}

// sendAhead sends the request to the door of a replica that is about to be READY,
// where it is among the first of its line. One for an adapter, a large one, or one that
// a replica has failed, goes the usual way, and so does one that an engine may have seen:
// what kills engines must not be the first that each new one gets.
func (x *exchange) sendAhead() {
	if x.ahead != nil || x.stay != nil || x.adapter != "" || x.failed != "" || x.seen || x.size() > aheadBytes {
		return
	}
	f := x.e.Now()
	if len(f.Coming) == 0 {
		return
	}
	n := x.e.Own.gate.Position(&x.place) - 1
	if n < 0 {
		return // it does not wait any more
	}
	r := &f.Coming[n%len(f.Coming)]
	if n/len(f.Coming) >= min(f.SlotsOf(r)-x.e.Own.InFlight(r.ID), aheadMost) || r.ID == x.notAhead {
		return
	}
	out := x.compose(f, r)
	out.Fields = append(out.Fields, upstream.Field{Name: snapshot.Ahead, Value: "1"})
	out.Bound += max(0, x.deadline.Sub(x.a.o.Now()))
	ctx, cancel := context.WithCancelCause(x.context())
	h := &ahead{replica: r.ID, sent: x.a.o.Now(), cancel: cancel, answers: make(chan reply, 1)}
	x.ahead = h
	engines, stream, bufs, answers := x.a.o.Engines, x.stream, &x.a.buffers, h.answers
	go func() { answers <- converse(ctx, engines, out, stream, bufs, nil) }() // ends with the exchange: callBack cancels and waits
}

// heardAhead takes the answer of a replica of which the gate has not heard yet. That
// it takes nothing ahead, is gone or has failed is none: the request stands where it
// stood.
func (x *exchange) heardAhead(r reply, async bool) {
	h := x.ahead
	h.answers, h.reply = nil, r
	switch {
	case turnedAway(&r):
		x.notAhead = h.replica
		x.callBack()
	case r.err != nil || r.res.Status >= 500:
		x.seen = true
		x.callBack()
	case x.e.Own.Claim(&x.place, h.replica):
		x.a.homes.Store(h.replica, x.e)
		x.unwait()
		x.phase, x.replica = asking, h.replica
		x.arrived(x.a.o.Now(), async)
	}
}

// turnedAway reports whether a request came no further than the replica's door.
func turnedAway(r *reply) bool {
	if r.err != nil {
		return errors.Is(r.err, upstream.ErrDial)
	}
	return r.res.Status >= 400 && r.end && errors.Is(agentSays(r.res.Status, r.begin), upstream.ErrDial)
}

// callBack ends a request that was sent ahead and is not wanted there, and waits for
// the goroutine that has it.
func (x *exchange) callBack() {
	h := x.ahead
	if h == nil {
		return
	}
	x.ahead = nil
	h.cancel(errOver)
	if h.answers != nil {
		h.reply = <-h.answers
	}
	if h.reply.res != nil {
		h.reply.res.Close()
	}
}

// let is when the request that has its answer was let through: the door says how long
// it kept it.
func (h *ahead) let(now time.Time) time.Time {
	us, err := strconv.ParseInt(h.reply.res.Header(snapshot.Waited), 10, 64)
	if err != nil || us < 0 || us > now.Sub(h.sent).Microseconds() {
		return now
	}
	return h.sent.Add(time.Duration(us) * time.Microsecond)
}

// arrived takes what was sent ahead to the replica that the request has been given
// for what is asked of it; false: it is still to be asked.
func (x *exchange) arrived(now time.Time, async bool) bool {
	h := x.ahead
	if h == nil || h.replica != x.replica {
		x.callBack()
		return false
	}
	x.ahead = nil
	x.asked, x.cancel = now, h.cancel
	if h.answers == nil {
		x.asked = h.let(now)
		x.heard(h.reply, async)
		return true
	}
	x.answers, x.early = h.answers, true
	return true
}
