package activator

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// proxyRequest is one request from its arrival to its one end. One goroutine at
// a time has it: the handler's, and once a stream is committed the reader's. The
// goroutine that asks the engine uses only its arguments.
type proxyRequest struct {
	a           *Activator
	req         *httpserver.Request // nil where reservation is set
	reservation *Reservation        // nil where req is set
	caller      *call.Caller        // of a request of this program; else nil
	began       time.Time

	id, clientID string
	endpoint     *endpoint
	route        string // label where there is no endpoint
	team, keyID  string
	env          openai.Envelope
	forced       *functions.Name // the function, where the body does not name it; else nil
	engineName   string          // what the engine calls the model
	answerName   string          // the model's name in the answer; "": as the engine writes it
	stream       bool
	lease        ratelimit.Lease
	fn           *entry     // nil until the function is found
	routing      *routing   // of a request to a Router; else nil
	cached       *cache.Use // nil until the function is found
	data         functions.DataClass
	finished     bool       // finish was called
	reason       string     // code of the error it ended with, for the log
	shared       *sharedRun // that retries may join, or whose answer the request got; nil: none

	// Waiting.

	phase       phase
	queued      admission.Request
	timeouts    admission.ClientTimeouts
	counted     bool // its body counts as buffered
	indexed     bool // it is in Activator.requests
	waitFrom    time.Time
	waited      time.Duration
	deadline    time.Time // of the wait; zero: it did not wait
	changed     <-chan struct{}
	timer       *time.Timer
	contextDone <-chan struct{}

	// Before the replica is READY.

	early        *earlyCopy // sent to the shim of a starting replica; nil: none
	refusedEarly string     // the replica that refused an early copy
	engineMaySee bool       // an engine may have seen an early copy
	suspected    bool       // it was in flight at a crash of an engine, and is not refused for it
	sentEarly    bool       // the request at the replica is an early copy

	// At the engine.

	sentAt         time.Time
	loadingAdapter atomic.Bool   // set before the request is sent, cleared by the goroutine that asks
	adapterRetried bool          // the engine did not have the adapter although it was listed
	first          time.Duration // from asking to the engine's first byte of body
	firstToken     time.Duration // from began to the first token of a stream; 0: none has come
	cancel         context.CancelCauseFunc
	answers        chan answer.Answer // of the goroutine that asks; nil where none runs
	reply          answer.Answer
	remote         *remote.Call  // of a request for a Remote; else nil
	answerBegan    bool          // an engine failed behind the first byte of its answer
	fail           *openai.Error // the answer in phase refused
	usage          openai.Usage
	estimated      bool   // usage is: the engine was not asked for it
	asksUsage      bool   // the request was sent with the option that asks for usage
	usageRefused   string // the replica that may have refused the option
	events         int64  // of a stream whose usage is to be estimated
}

type phase uint8

const (
	waiting  phase = iota // in the queue
	sent                  // at the engine, which has not answered
	answered              // the engine's head and first bytes are in reply
	reserved              // a reservation has its replica
	refused               // fail is the answer
	clientLeft
)

// run handles an opened request until its answer, or until its stream is committed.
func (x *proxyRequest) run(res *httpserver.Response) {
	a := x.a
	x.enter(true)
	async := x.stream || x.hold() == HoldPad && !x.endpoint.form
	if x.phase == sent { // admitted at once
		x.launch(async)
	}
	for x.escalate(async) {
	}
	if x.phase == waiting || async && x.phase == sent {
		var limit time.Time
		switch {
		case x.stream:
			if x.phase == sent { // the timeouts are read only by requests that wait
				x.timeouts = admission.ParseTimeouts(x.header, true)
			}
			limit = x.began.Add(x.headDelay())
		case async:
			limit = x.began.Add(a.o.PadAfter)
		}
		for x.advance(limit, async) != stepDone {
			if !limit.IsZero() && !a.o.Now().Before(limit) {
				x.commit(res)
				return
			}
		}
	}
	switch x.phase {
	case refused, clientLeft:
		x.answerWithout(res)
	case answered:
		x.respond(res)
	}
}

// answerWithout ends a request that was refused or whose client left.
func (x *proxyRequest) answerWithout(res *httpserver.Response) {
	if x.phase == refused {
		x.reason = string(x.fail.Code)
		x.refuseNow(res, x.fail)
		return
	}
	x.reason = "client_left"
	res.Status = httpserver.StatusClientLeft
	x.finish(499)
}

// headDelay is how long a stream stays silent before its head goes out.
func (x *proxyRequest) headDelay() time.Duration {
	d := x.a.o.Silent
	if g := x.timeouts.Gap; g > 0 {
		d = min(d, max(g/3, 10*time.Millisecond))
	}
	return d
}

// hold is what a plain request gets while it waits.
func (x *proxyRequest) hold() HoldMode {
	if x.caller != nil {
		return HoldSilent
	}
	return x.a.o.Hold
}

// header is a field of the request's head.
func (x *proxyRequest) header(name string) string {
	if x.reservation != nil {
		return x.reservation.header(name)
	}
	return x.req.Header(name)
}

// context is the request's.
func (x *proxyRequest) context() context.Context {
	if x.reservation != nil {
		return x.reservation.ctx
	}
	if x.leads() {
		return &x.shared.ctx
	}
	return x.req.Context()
}

// size is how much of the request's body is in memory while it waits.
func (x *proxyRequest) size() int64 {
	if x.reservation != nil {
		return x.reservation.bytes
	}
	return int64(cap(x.req.Body))
}

// mustDrain reports whether the server that has the request shuts down.
func (x *proxyRequest) mustDrain() bool { return x.reservation == nil && x.req.Draining() }

// step is what advance returned for, while the request is not finished.
type step uint8

const (
	stepLimit   step = iota // the limit was reached
	stepChanged             // something about the function changed
	stepDone                // the phase is answered, refused or left
)

// advance waits until the request is answered, refused or left, until limit (zero is
// none), or until something about the function changed.
func (x *proxyRequest) advance(limit time.Time, async bool) step {
	if x.contextDone == nil {
		x.contextDone = x.context().Done()
	}
	for {
		switch x.phase {
		case waiting:
			until := x.deadline
			if !limit.IsZero() && limit.Before(until) {
				until = limit
			}
			x.setTimer(until)
			select {
			case <-x.queued.Done():
				x.endWait()
				if e := x.queued.Rejection(); e != nil {
					x.cancelEarly()
					x.refuse(e)
					continue
				}
				x.phase = sent
				x.launch(async)
			case <-x.contextDone:
				x.contextEnded()
			case <-x.changed:
				x.changed = x.fn.Data.queue.Changed()
				x.sendEarly()
				return stepChanged
			case r := <-x.early.pending():
				x.onEarlyReply(r, async)
			case <-x.timer.C:
				if now := x.a.o.Now(); !now.Before(x.deadline) {
					x.expire(now)
					continue
				}
				return stepLimit
			}
		case sent:
			var alarm <-chan time.Time
			if !limit.IsZero() {
				x.setTimer(limit)
				alarm = x.timer.C
			}
			select {
			case r := <-x.answers:
				x.answers = nil
				x.onReply(r, async)
			case <-x.contextDone:
				x.contextEnded()
			case <-alarm:
				return stepLimit
			}
		default:
			if !x.escalate(async) {
				return stepDone
			}
		}
	}
}

func (x *proxyRequest) setTimer(until time.Time) {
	d := max(0, until.Sub(x.a.o.Now()))
	if x.timer == nil {
		x.timer = time.NewTimer(d)
	} else {
		x.timer.Reset(d)
	}
}

// contextEnded ends a request whose context has ended: the client left, or the
// server's drain is over.
func (x *proxyRequest) contextEnded() {
	if errors.Is(context.Cause(x.context()), httpserver.ErrDraining) {
		x.stopEngine()
		x.leave()
		x.refuse(openai.New(openai.ShuttingDown, ""))
		return
	}
	x.stopEngine()
	x.leave()
	x.phase = clientLeft
}

// expire ends a wait that reached its deadline.
func (x *proxyRequest) expire(now time.Time) {
	e := x.fn.Data.queue.ExpiredError(x.fn.Snapshot(), x.waitFrom, now)
	x.leave()
	x.refuse(e)
}

// launch sends an admitted request to its replica. With async a goroutine asks
// the engine, so that comments can go out meanwhile.
func (x *proxyRequest) launch(async bool) {
	e, _ := x.isQuarantined()
	if e == nil {
		e = x.recheckRemote(x.a.o.Now())
	}
	if e != nil {
		x.leave()
		x.refuse(e)
		return
	}
	if x.leads() {
		x.shared.runs.Store(true)
	}
	r := x.queued.Grant.Replica
	switch {
	case x.reservation != nil:
		x.reservation.assign(r)
	case !x.useEarly(x.a.o.Now(), async):
		x.sendToEngine(x.fn.Snapshot(), r, async)
	}
}
