package activator

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
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
	began       time.Time

	id, clientID string
	endpoint     *endpoint
	route        string // label where there is no endpoint
	team         string
	env          openai.Envelope
	forced       *functions.Name // the function, where the body does not name it; else nil
	engineName   string          // what the engine calls the model
	stream       bool
	lease        ratelimit.Lease
	fn           *entry // nil until the function is found
	finished     bool   // finish was called
	reason       string // code of the error it ended with, for the log

	// Waiting.

	phase       phase
	place       admission.Request
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
	seen         bool       // an engine may have seen an early copy
	sentEarly    bool       // the request at the replica is an early copy

	// At the engine.

	asked          time.Time
	loadingAdapter atomic.Bool   // set before the request is sent, cleared by the goroutine that asks
	adapterRetried bool          // the engine did not have the adapter although it was listed
	first          time.Duration // from asking to the engine's first byte of body
	cancel         context.CancelCauseFunc
	answers        chan reply // of the goroutine that asks; nil where none runs
	reply          reply
	fail           *openai.Error // the answer in phase refused
	usage          openai.Usage
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

// reply is what the engine said first.
type reply struct {
	res   *upstream.Response
	begin []byte // first bytes of body; the whole body where end is set
	end   bool
	err   error
}

// errRequestOver cancels what is asked of an engine once nobody wants it any more.
var errRequestOver = errors.New("the exchange is over")

// Bounds of what is read of an answer before anything goes out.
const (
	firstReadSize  = 8 << 10
	maxWholeAnswer = 1 << 20
	maxErrorBody   = 64 << 10
)

// run takes an opened exchange to its answer, or to a committed stream.
func (x *proxyRequest) run(res *httpserver.Response) {
	a := x.a
	x.enter(true)
	async := x.stream || a.o.Hold == HoldPad && !x.endpoint.form
	if x.phase == sent { // through at once
		x.launch(async)
	}
	if x.phase == waiting || async && x.phase == sent {
		var limit time.Time
		switch {
		case x.stream:
			if x.phase == sent { // not read yet: it did not have to wait
				x.timeouts = parseTimeouts(x.header, true)
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
	case refused:
		x.reason = string(x.fail.Code)
		x.refuseNow(res, x.fail)
	case clientLeft:
		x.reason = "client_left"
		res.Status = 499 // nobody reads it
		res.Close = true
		x.finish(499)
	case answered:
		x.respond(res)
	}
}

// headDelay is how long a stream may say nothing before its head goes out.
func (x *proxyRequest) headDelay() time.Duration {
	d := x.a.o.Silent
	if g := x.timeouts.Gap; g > 0 {
		d = min(d, max(g/3, 10*time.Millisecond))
	}
	return d
}

// enter queues the request and decides. Afterwards the phase is waiting, sent
// (admitted: launch is next) or refused. fresh is false for a second try.
func (x *proxyRequest) enter(fresh bool) {
	a, q := x.a, &x.fn.Data.queue
	now := a.o.Now()
	size := x.size()
	x.place.Team, x.place.Bytes = x.team, size
	if fresh {
		x.place.Key = x.affinityKey()
	}
	switch x.place.Enter(q, now) {
	case admission.Admitted:
		x.phase = sent
		return
	case admission.Full:
		if x.fn.Removed() {
			x.refuse(openai.New(openai.ModelNotFound, ""))
		} else {
			x.refuse(admission.FullError(x.fn.Snapshot(), now))
		}
		return
	}
	a.metrics.of(x.fn) // the gauges show a function's first request while it waits
	x.phase = waiting
	x.waitFrom = now
	if e := x.buffer(size, now); e != nil {
		x.leave()
		x.refuse(e)
		return
	}
	if fresh || x.deadline.IsZero() {
		x.timeouts = parseTimeouts(x.header, x.stream)
		x.timeouts.Instant = !x.stream && a.o.Hold == Hold503
		x.deadline = x.waitDeadline()
	}
	// The snapshot is read after Enter: a failure that is published later rejects
	// the request.
	f := x.fn.Snapshot()
	if x.fn.Removed() {
		x.leave()
		x.refuse(openai.New(openai.ModelNotFound, ""))
		return
	}
	switch d, alone := x.place.Decide(f, x.timeouts, now); {
	case d.Verdict == admission.Refuse:
		x.leave()
		if d.WakeForRetry {
			if e := x.wake(f, true); e != nil {
				x.refuse(e)
				return
			}
		}
		x.refuse(d.Error)
		return
	case len(f.Replicas) > 0:
		a.o.Waker.Nudge(x.fn.Name)
	default:
		if e := x.wake(f, alone); e != nil {
			x.leave()
			x.refuse(e)
			return
		}
	}
	a.requests.add(x)
	x.indexed = true
	if a.draining.Load() || x.leaving() {
		x.leave()
		x.refuse(openai.New(openai.ShuttingDown, ""))
		return
	}
	if x.reservation == nil {
		x.changed = q.Changed()
		x.sendEarly()
	}
}

// buffer counts the body of a waiting request against the team's limit and the
// activator's.
func (x *proxyRequest) buffer(size int64, now time.Time) *openai.Error {
	if r := ratelimit.RetryUntilAllotment(x.context, func() *ratelimit.Refusal { return x.a.o.Limits.Hold(x.team, now) }); r != nil {
		return x.limitError(r)
	}
	x.counted = true
	if x.a.buffered.Add(size) > x.a.o.BufferBytes {
		return admission.QueueFullError()
	}
	return nil
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
	return x.req.Context()
}

// size is how much of the request's body is in memory while it waits.
func (x *proxyRequest) size() int64 {
	if x.reservation != nil {
		return x.reservation.bytes
	}
	return int64(len(x.req.Body))
}

// leaving reports whether the server that has the request shuts down.
func (x *proxyRequest) leaving() bool { return x.reservation == nil && x.req.Draining() }

// waitDeadline is the time at which the wait is over.
func (x *proxyRequest) waitDeadline() time.Time {
	wait := admission.MaxWait(x.fn.Snapshot().Model, x.timeouts)
	if !x.stream && x.reservation == nil {
		wait = min(wait, x.a.o.PlainWait)
	}
	return x.began.Add(wait)
}

// wake asks the platform for a first replica, once however many wait. The
// team whose request begins a cold start is charged for it.
func (x *proxyRequest) wake(f *snapshot.Snapshot, again bool) *openai.Error {
	r := ratelimit.RetryUntilAllotment(x.context, func() (r *ratelimit.Refusal) {
		x.place.Wake(&x.fn.Data.queue, f, again, func() *openai.Error {
			if r = x.a.o.Limits.AdmitColdStart(x.team, x.a.o.Now()); r != nil {
				return openai.New(openai.RateLimitExceeded, r.Message)
			}
			return nil
		}, func() string { return x.a.o.Waker.Wake(x.fn.Name, x.team) })
		return r
	})
	if r != nil {
		return x.limitError(r)
	}
	return nil
}

// admitTeam counts the request in. What of the team's limits is at another activator is
// waited for, a moment.
func (x *proxyRequest) admitTeam(team string) *openai.Error {
	r := ratelimit.RetryUntilAllotment(x.context, func() (r *ratelimit.Refusal) {
		x.lease, r = x.a.o.Limits.Admit(team, x.began)
		return r
	})
	if r != nil {
		return x.limitError(r)
	}
	return nil
}

func (x *proxyRequest) refuse(e *openai.Error) {
	x.phase, x.fail = refused, e
}

// leave gives back the place in the queue, or the slot at the replica.
func (x *proxyRequest) leave() {
	x.cancelEarly()
	x.endWait()
	if x.place.Leave(x.a.o.Now()) {
		x.a.o.Waker.Nudge(x.fn.Name)
	}
}

// endWait accounts for the end of the wait.
func (x *proxyRequest) endWait() {
	if x.counted {
		x.counted = false
		x.a.buffered.Add(-x.size())
		x.a.o.Limits.Unhold(x.team, x.a.o.Now())
	}
	if !x.indexed {
		return
	}
	x.indexed = false
	x.a.requests.remove(x)
	d := x.a.o.Now().Sub(x.waitFrom)
	x.waited += d
	x.a.metrics.of(x.fn).queueWait.Observe(d.Seconds())
	if x.place.Cold {
		x.resolveColdStart()
		x.a.requests.rememberColdStart(x.id, x.place.ColdStart)
		x.a.requests.rememberColdStart(x.clientID, x.place.ColdStart)
	}
}

// resolveColdStart fills in the cold start's id where it was not known yet when we came.
func (x *proxyRequest) resolveColdStart() {
	if x.place.ColdStart != "" {
		return
	}
	x.place.ColdStart = x.fn.Data.queue.ColdStart()
	if x.place.ColdStart != "" {
		return
	}
	// A platform that is not in this process tells it by its pictures only. One that
	// was over when we came is an earlier one.
	t := x.fn.Snapshot().ColdStart
	if t != nil && (!t.State.Over() || t.Began.Add(time.Duration(t.Total*float64(time.Second))).After(x.began)) {
		x.place.ColdStart = t.ID
	}
}

// What advance returned for, while the exchange is still under way.
type step uint8

const (
	stepLimit step = iota // the limit was reached
	stepNews              // something about the function changed
	stepDone              // the phase is answered, refused or left
)

// advance waits until the exchange is answered, refused or left, until limit
// (zero is none), or until there is news.
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
			case <-x.place.Done():
				x.endWait()
				if e := x.place.Rejection(); e != nil {
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
				return stepNews
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
			return stepDone
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

// contextEnded ends an exchange whose context has ended: the client left, or the
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

// expire ends a wait whose time is over.
func (x *proxyRequest) expire(now time.Time) {
	e := x.fn.Data.queue.ExpiredError(x.fn.Snapshot(), x.waitFrom, now)
	x.leave()
	x.refuse(e)
}

// launch sends an admitted request to its replica. With async a goroutine asks
// the engine, so that comments can go out meanwhile.
func (x *proxyRequest) launch(async bool) {
	r := x.place.Grant.Replica
	switch {
	case x.reservation != nil:
		x.reservation.assign(r)
	case !x.useEarly(x.a.o.Now(), async):
		x.sendToEngine(x.fn.Snapshot(), r, async)
	}
}

// buildRequest is the request as it goes to a replica.
func (x *proxyRequest) buildRequest(f *snapshot.Snapshot, r *snapshot.Replica) *upstream.Request {
	addr, prefix := splitEndpoint(r.Endpoint)
	accept, kind := "application/json", "application/json"
	if x.stream {
		accept = "text/event-stream"
	} else if x.endpoint.path == "/v1/audio/speech" {
		accept = "*/*"
	}
	if x.endpoint.form {
		kind = x.header("Content-Type")
	}
	out := &upstream.Request{Addr: addr, Prefix: prefix, Method: "POST", Path: x.endpoint.path}
	out.Fields = make([]upstream.Field, 0, 6)
	out.Fields = append(out.Fields, upstream.Field{Name: "content-type", Value: kind},
		upstream.Field{Name: "accept", Value: accept}, upstream.Field{Name: "x-request-id", Value: x.id})
	if t := x.header("traceparent"); validTrace(t) {
		out.Fields = append(out.Fields, upstream.Field{Name: "traceparent", Value: t})
	}
	if r.Token != "" {
		out.Fields = append(out.Fields, upstream.Field{Name: "authorization", Value: "Bearer " + r.Token})
	} else if r.Key != "" {
		out.Fields = append(out.Fields, upstream.Field{Name: "authorization", Value: "Bearer " + r.Key})
	}
	out.Body = x.env.Splice(make([][]byte, 0, 4), x.req.Body, x.engineName, x.stripsUsage())

	out.Bound = x.a.o.PlainAnswer
	if x.stream {
		out.Bound = 2 * time.Minute
		if f.Model != nil && f.Model.Spec.Deadlines.FirstToken > 0 {
			out.Bound = f.Model.Spec.Deadlines.FirstToken.Std()
		}
	}
	return out
}

// sendToEngine sends the request to a replica.
func (x *proxyRequest) sendToEngine(f *snapshot.Snapshot, r *snapshot.Replica, async bool) {
	out := x.buildRequest(f, r)
	x.asked = x.a.o.Now()
	ctx := x.context()
	fetch := x.adapterLoad(r)
	if !async {
		x.onReply(askEngine(ctx, x.a.o.Engines, out, x.stream, nil, fetch), false)
		return
	}
	ctx, x.cancel = context.WithCancelCause(ctx)
	answers := make(chan reply, 1)
	x.answers = answers
	engines, stream, bufs := x.a.o.Engines, x.stream, &x.a.buffers
	go func() { answers <- askEngine(ctx, engines, out, stream, bufs, fetch) }() // ends with the exchange: stop cancels and waits
}

// stripsUsage reports whether the engine is asked for a usage chunk that the
// client did not ask for.
func (x *proxyRequest) stripsUsage() bool {
	return x.stream && x.endpoint.usage && x.env.AsksUsage() && x.lease.NeedsUsage()
}

// splitEndpoint takes an endpoint apart into host:port and the prefix of its paths.
func splitEndpoint(endpoint string) (addr, prefix string) {
	addr = strings.TrimPrefix(endpoint, "http://")
	if i := strings.IndexByte(addr, '/'); i >= 0 {
		addr, prefix = addr[:i], strings.TrimSuffix(addr[i:], "/")
	}
	return addr, prefix
}

// askEngine asks and reads up to the engine's first byte of body; of a plain
// answer all of it, if it is not large. fetch, if not nil, comes before.
func askEngine(ctx context.Context, engines *upstream.Client, out *upstream.Request, stream bool, bufs *buffers, fetch func(context.Context) error) reply {
	if fetch != nil {
		if err := fetch(ctx); err != nil {
			return reply{err: &adapterLoadError{err}}
		}
	}
	res, err := engines.Do(ctx, out)
	if err != nil {
		return reply{err: err}
	}
	if stream && res.Status == 200 && isEvents(res) {
		buf := bufs.get()
		n, err := res.Read(buf)
		for err == nil && n < len(buf) && !hasData(buf[:n]) { // comments alone
			var m int
			m, err = res.Read(buf[n:])
			n += m
		}
		if n == 0 && err != nil {
			bufs.put(buf)
			res.Close()
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return reply{err: err}
		}
		return reply{res: res, begin: buf[:n], end: err == io.EOF}
	}
	size := 4 << 10
	if res.Length > 0 && res.Length < maxWholeAnswer {
		size = int(res.Length) + 1
	}
	buf := make([]byte, 0, size)
	for {
		if len(buf) == cap(buf) {
			if len(buf) >= maxWholeAnswer {
				return reply{res: res, begin: buf}
			}
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := res.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case err == io.EOF:
			return reply{res: res, begin: buf, end: true}
		case err != nil:
			res.Close()
			return reply{err: err, begin: buf}
		case res.Length < 0 && !isJSON(res): // audio: it should begin to sound
			return reply{res: res, begin: buf}
		}
	}
}

// hasData reports whether a stream has said something: a whole line of data.
func hasData(p []byte) bool {
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			return false
		}
		if bytes.HasPrefix(p, []byte("data:")) {
			return true
		}
		p = p[i+1:]
	}
	return false
}

// buffers are those of streams, used again.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() []byte {
	if p, ok := b.pool.Get().(*[firstReadSize]byte); ok {
		return p[:]
	}
	return make([]byte, firstReadSize)
}

func (b *buffers) put(p []byte) {
	if cap(p) == firstReadSize { // not one that has grown
		b.pool.Put((*[firstReadSize]byte)(p[:firstReadSize]))
	}
}

func isEvents(r *upstream.Response) bool {
	return strings.HasPrefix(r.Header("content-type"), "text/event-stream")
}

func isJSON(r *upstream.Response) bool {
	return strings.HasPrefix(r.Header("content-type"), "application/json")
}

// nodeError is what an agent or the shim in a pod, not the engine behind it,
// answers where it has no such replica (any more), or its engine did not answer.
// Engines have no such codes.
func nodeError(status int, body []byte) error {
	switch {
	case status == 503 && (bytes.Contains(body, []byte(`"code":"shutting_down"`)) || bytes.Contains(body, []byte(`"code":"model_loading"`)) || bytes.Contains(body, []byte(`"code":"model_load_failed"`))):
		return upstream.ErrDial
	case bytes.Contains(body, []byte(`"code":"replica_not_found"`)), bytes.Contains(body, []byte(`"code":"replica_not_ready"`)):
		return upstream.ErrDial
	case bytes.Contains(body, []byte(`"code":"engine_crashed"`)):
		return upstream.ErrNoAnswer
	}
	return nil
}

// adapterLoadError: the request did not get as far as the engine.
type adapterLoadError struct{ err error }

func (e *adapterLoadError) Error() string { return e.err.Error() }
func (e *adapterLoadError) Unwrap() error { return e.err }

// endWithEngineError is an answer that is the engine's own failure, of which the client
// has seen nothing yet.
type engineError struct {
	message string
	dead    bool // it is about to end
}

func (e *engineError) Error() string { return e.message }

// engineFailure looks for the failure of an engine in what it said first: a stream that
// begins with an error frame, or an answer after the death of what computes. An
// error that is the caller's comes as the refusal it would have been without a
// stream.
func engineFailure(r *reply, stream bool) (refusal *openai.Error, failure error) {
	switch {
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

// engineCoreDied is what vLLM's front says while it ends after the death of its core.
func engineCoreDied(b []byte) bool {
	return bytes.Contains(b, []byte("EngineCore")) || bytes.Contains(b, []byte("EngineDeadError"))
}

// onReply takes the engine's first word, or that it has none.
func (x *proxyRequest) onReply(r reply, async bool) {
	now := x.a.o.Now()
	if x.sentEarly {
		x.sentEarly = false
		f := x.fn.Snapshot()
		if i := f.ReplicaIndex(x.place.ReplicaID()); i >= 0 && refusedByNode(&r) && context.Cause(x.context()) == nil {
			// No engine has seen it, and by now there is one.
			if r.res != nil {
				r.res.Close()
			}
			x.stopEngine()
			x.sendToEngine(f, &f.Replicas[i], async)
			return
		}
	}
	if r.err == nil && r.res.Status >= 400 && r.end {
		if err := nodeError(r.res.Status, r.begin); err != nil {
			r.res.Close()
			r = reply{err: err}
		}
	}
	if r.err == nil && x.place.Adapter != "" && r.res.Status == 404 && r.end && !x.adapterRetried && x.a.o.Adapters != nil {
		// It was dropped for another meanwhile. Once more, through the platform.
		f := x.fn.Snapshot()
		if i := f.ReplicaIndex(x.place.ReplicaID()); i >= 0 {
			x.stopEngine()
			r.res.Close()
			x.adapterRetried = true
			x.sendToEngine(f, &f.Replicas[i], async)
			return
		}
	}
	if r.err == nil {
		refusal, failure := engineFailure(&r, x.stream)
		switch {
		case failure != nil:
			r.res.Close()
			r = reply{err: failure}
		case refusal != nil:
			r.res.Close()
			x.stopEngine()
			x.leave()
			x.refuse(refusal)
			return
		}
	}
	if r.err == nil {
		x.reply = r
		x.phase = answered
		x.first = max(1, now.Sub(x.asked))
		x.recordFirstByte(now)
		if !r.end {
			r.res.Bound(x.a.o.StreamIdle)
		}
		return
	}
	var unfetched *adapterLoadError
	if (errors.Is(r.err, upstream.ErrCancelled) || errors.As(r.err, &unfetched)) && context.Cause(x.context()) != nil {
		x.contextEnded()
		return
	}
	x.stopEngine()
	var e *openai.Error
	if unfetched != nil {
		e = x.adapterFailure(unfetched.err)
		x.place.MarkFailed(false, now)
		x.leave()
		if e != nil {
			x.refuse(e)
			return
		}
		e = openai.New(openai.AdapterUnavailable, "")
	} else {
		e = x.reportFailure(r.err, now)
	}
	x.retry(e, len(r.begin) > 0, now, async)
}

// reportFailure leaves a replica that failed the request before its first byte, and has
// others leave it alone for a while. The error is for the client, where no other
// replica can help.
func (x *proxyRequest) reportFailure(err error, now time.Time) *openai.Error {
	problem, kind, e := describeFailure(err, errors.Is(err, upstream.ErrSilent))
	x.a.metrics.of(x.fn).countFailure(kind)
	var frame *engineError
	broken := !errors.As(err, &frame) || frame.dead // else it may have failed over this request alone
	x.place.MarkFailed(broken, now)
	x.leave()
	if broken {
		x.a.readmitAfterCoolDown(x.fn)
	}
	x.a.o.Waker.ReportFailure(x.fn.Name, x.place.FailedReplica, problem)
	return e
}

// retry takes a request to another replica, once; otherwise e is its answer.
// begun: the engine had begun one, though not the body.
func (x *proxyRequest) retry(e *openai.Error, began bool, now time.Time, async bool) {
	switch x.place.Retry(began, !x.deadline.IsZero() && !now.Before(x.deadline)) {
	case admission.AlreadyRetried:
		x.refuse(e.Final())
	case admission.AnswerBegan: // only the client may try again, once
		if n := x.header("X-Stainless-Retry-Count"); n != "" && n != "0" {
			e = e.Final()
		}
		x.refuse(e)
	case admission.TooLate:
		x.refuse(e)
	case admission.TryAgain:
		x.a.metrics.of(x.fn).retried.Inc()
		x.enter(false)
		if x.phase == sent {
			x.launch(async)
		}
	}
}

// describeFailure says a failure for the platform, for the metrics, and for the
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

// recordFirstByte accounts for the engine's first byte.
func (x *proxyRequest) recordFirstByte(now time.Time) {
	s := x.a.metrics.of(x.fn)
	i, _ := coldLabel(x.place.Cold)
	s.ttft[i].Observe(now.Sub(x.began).Seconds())
	if !x.place.Cold || x.place.ColdStart == "" {
		return
	}
	if !x.a.requests.rememberFirstToken(x.place.ColdStart, x.first) {
		return
	}
	x.a.metrics.observeFirstToken(x.fn, x.first)
	if x.a.o.FirstToken != nil {
		x.a.o.FirstToken(x.fn.Name, x.place.ColdStart, x.first)
	}
}

// stopEngine ends what is under way at the engine: its request is cancelled, which
// is how it learns that nobody listens, and the goroutine that asks is waited
// for.
func (x *proxyRequest) stopEngine() {
	if x.answers != nil {
		x.cancel(errRequestOver)
		if r := <-x.answers; r.res != nil {
			r.res.Close()
		}
		x.answers = nil
	}
	if x.reply.res != nil {
		x.reply.res.Close() // closes the connection unless it was read to its end
		x.reply.res = nil
	}
	if x.cancel != nil {
		x.cancel(errRequestOver)
		x.cancel = nil
	}
	if x.timer != nil {
		x.timer.Stop()
	}
}
