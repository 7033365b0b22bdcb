package activator

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// errAbort makes the server cut the connection: the client must not take a part for
// the whole answer.
var errAbort = errors.New("the answer broke")

// respond sends the engine's answer, of which nothing has been sent yet.
func (x *proxyRequest) respond(res *httpserver.Response) {
	up := x.reply.Response
	if up.Status >= 400 && x.reply.Encoding == "" {
		x.reason = "engine_answered"
		x.refuseNow(res, x.reply.Error(x.endpoint.path, x.a.o.Now()))
		return
	}
	res.Status = up.Status
	x.setCommonFields(res)
	kind := up.Header("content-type")
	if x.reply.Events && !strings.HasPrefix(kind, "text/event-stream") {
		kind = "text/event-stream"
	}
	if kind != "" {
		res.Set("content-type", kind)
	}
	if x.reply.Encoding != "" {
		res.Set("content-encoding", x.reply.Encoding)
	}
	if x.reply.Events {
		res.Set("cache-control", "no-cache, no-transform")
		res.Set("x-accel-buffering", "no")
		res.Stream = &eventStream{x: x, seen: openai.Stream{TakeUsage: x.stripsUsage()}}
		return
	}
	if x.reply.End {
		res.Body = x.reply.Begin
		if up.Status < 300 {
			x.scanUsage(res.Body)
		}
		status := up.Status
		if status >= 400 {
			x.reason = "engine_answered"
		}
		x.finish(status)
		return
	}
	res.Length = x.reply.Length()
	res.Stream = &bodyStream{x: x, status: up.Status}
}

// commit sends the head of an answer that is still to come.
func (x *proxyRequest) commit(res *httpserver.Response) {
	res.Status = 200
	x.setCommonFields(res)
	res.Set("cache-control", "no-cache, no-transform")
	res.Set("x-accel-buffering", "no")
	if x.stream {
		res.Set("content-type", "text/event-stream")
		v := &eventStream{x: x, held: true, seen: openai.Stream{TakeUsage: x.stripsUsage()}}
		now := x.a.o.Now()
		v.comment, v.noop = now, now.Add(x.a.o.Noop)
		res.Stream = v
		return
	}
	res.Set("content-type", "application/json")
	res.Stream = &paddedBody{x: x, next: x.a.o.Now()}
}

// eventStream is the body of an event stream: comments and no-op chunks while it is
// held, then the engine's events, then exactly one end. The server's reads drive the
// request from here on.
//
// The engine's bytes are forwarded unchanged, but in whole events, so that an error
// frame never lands inside one. The end mark is kept until the engine's body has
// ended, so that both go out in one write.
type eventStream struct {
	x    *proxyRequest
	seen openai.Stream
	held bool // the head went out before the engine's first byte

	comment, noop time.Time // when the next is due

	out       []byte // is sent next
	buf       []byte // last read from the engine; out may lie in it until the next read
	lo, hi    int    // buf[lo:hi] is the beginning of an event
	oversized bool   // part of an event that was too long to keep has been sent
	mark      []byte // the end mark, kept back
	sequence  int64  // of the next event, at the responses endpoint
	died      bool   // the engine wrote that it is about to exit
	end       error  // io.EOF, httpserver.ErrLast or errAbort once nothing but out is left
}

// maxEvent is how much of one event is kept until it is whole.
const maxEvent = 256 << 10

func (v *eventStream) Read(p []byte) (int, error) {
	for {
		if len(v.out) > 0 {
			n := copy(p, v.out)
			if v.out = v.out[n:]; len(v.out) == 0 && v.end != errAbort {
				return n, v.end
			}
			return n, nil
		}
		if v.end != nil {
			return 0, v.end
		}
		switch v.x.phase {
		case waiting, sent:
			v.awaitFirstByte()
		case answered:
			v.forward()
		case refused:
			v.endWithError(v.x.fail)
		case clientLeft:
			v.x.reason = "client_left"
			v.end = errAbort
			v.x.finish(499)
		}
	}
}

// Close is called by the server once, in all cases. The client left a stream that was
// not read to its end, unless the end mark has gone out: old clients close right at
// it.
func (v *eventStream) Close() error {
	code := 499
	if v.seen.Done && !v.seen.Failed {
		code = 200
	} else {
		v.x.reason = "client_left"
	}
	v.x.usage = v.seen.Usage
	v.x.finish(code)
	v.x.a.buffers.Put(v.buf) // no read can follow
	v.buf, v.out = nil, nil
	return nil
}

// awaitFirstByte waits for the engine's first byte and writes comments meanwhile.
func (v *eventStream) awaitFirstByte() {
	x := v.x
	now := x.a.o.Now()
	if !now.Before(v.comment) {
		v.writeComment(now)
		return
	}
	if x.endpoint.noop != nil && !now.Before(v.noop) {
		v.out = x.endpoint.noop(v.out[:0], cmp.Or(x.answerName, x.engineName), now)
		v.noop = now.Add(x.a.o.Noop)
		return
	}
	limit := v.comment
	if x.endpoint.noop != nil && v.noop.Before(limit) {
		limit = v.noop
	}
	if x.advance(limit, true) == stepChanged {
		v.writeComment(x.a.o.Now())
	}
}

// writeComment writes a comment and sets when the next is due, with a jitter, so that
// ten thousand streams do not write at once.
func (v *eventStream) writeComment(now time.Time) {
	x := v.x
	if x.loadingAdapter.Load() {
		v.out = openai.Comment(v.out[:0], functions.Loading.Word(), -1, -1, -1)
	} else {
		v.out = admission.HeldComment(v.out[:0], x.fn.Snapshot(), now, x.fn.Data.queue.Position(&x.queued))
	}
	period := x.a.o.Comment
	if g := x.timeouts.Gap; g > 0 {
		period = min(period, max(g/3, 100*time.Millisecond))
	}
	v.comment = now.Add(time.Duration(float64(period) * (0.8 + 0.2*rand.Float64())))
}

// forward reads the next part of the engine's stream.
func (v *eventStream) forward() {
	x := v.x
	r := &x.reply
	if !r.Events {
		v.endWithEngineError()
		return
	}
	if v.mark != nil {
		v.readPastMark()
		return
	}
	if v.buf == nil {
		v.buf, v.hi = r.Begin[:cap(r.Begin)], len(r.Begin)
		v.forwardWhole()
		if r.End && (len(v.out) == 0 || v.lo == v.hi) {
			v.engineEnded(io.EOF)
		}
		return
	}
	if r.End {
		v.engineEnded(io.EOF)
		return
	}
	v.hi = copy(v.buf, v.buf[v.lo:v.hi])
	v.lo = 0
	if v.hi == len(v.buf) {
		v.buf = append(v.buf, make([]byte, len(v.buf))...)
	}
	n, err := r.Read(v.buf[v.hi:])
	v.hi += n
	v.forwardWhole()
	switch {
	case err == io.EOF && len(v.out) > 0 && v.lo < v.hi:
		r.End = true // whole events go out first
		return
	case err != nil:
		v.engineEnded(err)
		return
	}
	r.Response.Bound(x.idleBound())
}

// forwardWhole passes on the events that are whole.
func (v *eventStream) forwardWhole() {
	p := v.buf[:v.hi]
	n := openai.CompleteEvents(p)
	switch {
	case n > 0:
		v.oversized = false
	case v.oversized || len(p) >= maxEvent:
		n, v.oversized = len(p), true
	}
	v.lo = n
	v.pass(p[:n])
}

// pass passes on whole events, but keeps the end mark back.
func (v *eventStream) pass(p []byte) {
	v.x.countEvents(p)
	was, failed := v.seen.Done, v.seen.Failed
	v.out = v.seen.Pass(p)
	v.died = v.died || v.seen.Failed && !failed && answer.EngineDied(v.out)
	if v.x.endpoint == &responsesEndpoint {
		v.sequence = openai.NextSequence(v.out, v.sequence)
	}
	if v.seen.Token && v.x.firstToken == 0 {
		v.x.recordFirstToken()
	}
	if v.seen.Done && !was && v.x.endpoint.usage {
		if i := bytes.LastIndex(v.out, []byte("[DONE]")); i >= 0 {
			i = bytes.LastIndexByte(v.out[:i], '\n') + 1
			v.out, v.mark = v.out[:i], v.out[i:]
		}
	}
}

// readPastMark waits, up to a second, for the end of a body whose end mark has come,
// so that the connection can be used again and mark and end go out in one write.
func (v *eventStream) readPastMark() {
	x := v.x
	if !x.reply.End {
		v.mark = bytes.Clone(v.mark)
		x.reply.Response.Bound(time.Second)
		for {
			if _, err := x.reply.Read(v.buf); err != nil {
				break // bytes after the end mark are ignored
			}
		}
	}
	v.engineEnded(io.EOF)
}

// engineEnded ends a stream whose engine has ended, cleanly or not.
func (v *eventStream) engineEnded(err error) {
	x := v.x
	if v.lo < v.hi && v.mark == nil && len(v.out) == 0 && !v.oversized {
		v.passLast(err == io.EOF)
	}
	x.usage = v.seen.Usage
	good := v.seen.Done || v.seen.Finished && err == io.EOF
	complete := good && !v.oversized && v.lo == v.hi || v.mark != nil
	switch {
	case v.seen.Failed: // the engine has sent the error already, however it ends
		if v.end = io.EOF; x.endpoint.usage { // other endpoints have an event for it
			v.end = httpserver.ErrLast
		}
		v.countEngineError()
		x.finish(502)
	case complete:
		switch {
		case v.held && x.queued.Cold:
			v.out = append(openai.Timeline(bytes.Clone(v.out), x.phases(nil)), v.mark...)
		case len(v.out) == 0:
			v.out = v.mark
		default: // both came in one read, and the mark lies right behind out
			v.out = v.out[:len(v.out)+len(v.mark)]
		}
		v.end = io.EOF
		x.finish(200)
	case errors.Is(context.Cause(x.context()), httpserver.ErrGone):
		x.reason = "client_left"
		v.end = errAbort
		x.finish(499)
	case errors.Is(context.Cause(x.context()), httpserver.ErrDraining):
		v.endWithError(openai.New(openai.ShuttingDown, "The server shut down before the answer was complete."))
	default:
		problem, kind, e := describeBreak(err)
		x.a.metricsOf(x.fn).countFailure(kind)
		x.reportProblem(problem)
		if kind == "died" {
			if to := x.countCrash(err, x.a.o.Now()); to != nil {
				e = to
			}
		}
		x.nameRemote(e)
		v.endWithError(e)
	}
}

// passLast passes on the last event of a stream, whose blank line some engines leave out.
// What is torn behind the finish_reason of a stream that ended cleanly adds nothing to the
// answer and is dropped. A stream that broke has a last event only if that is an error.
func (v *eventStream) passLast(clean bool) {
	rest := v.buf[v.lo:v.hi]
	last := append(bytes.TrimRight(bytes.Clone(rest), "\r\n"), "\n\n"...)
	switch failure, _ := openai.Failure(last); {
	case openai.IsWholeEvent(last) && (clean || failure != nil):
		v.pass(last)
		v.lo = v.hi
	case clean && v.seen.Finished:
		v.lo = v.hi
	}
}

// countEngineError notes an error that the engine sent in the middle of an answer: it
// is no success, though [DONE] may follow and the connection end cleanly.
func (v *eventStream) countEngineError() {
	x := v.x
	x.reason = "engine_error"
	x.a.metricsOf(x.fn).countFailure("error_frame")
	if v.died {
		x.countCrash(nil, x.a.o.Now())
	}
	x.reportProblem("it sent an error in the middle of an answer")
}

// endWithError ends the stream with an error frame.
func (v *eventStream) endWithError(e *openai.Error) {
	x := v.x
	if x.reason == "" {
		x.reason = string(e.Code)
	}
	out := append([]byte(nil), v.out...)
	if v.oversized { // the frame must not become part of the event that has begun
		out = append(out, "\n\n"...)
	}
	v.out = append(out, e.FrameFor(x.endpoint.path, v.sequence)...)
	v.end = httpserver.ErrLast
	x.finish(e.Status)
}

// endWithEngineError sends an engine's error as a frame, because the head has been sent; or
// that of an answer that cannot be streamed.
func (v *eventStream) endWithEngineError() {
	x := v.x
	x.reason = "engine_answered"
	v.endWithError(x.reply.StreamError(x.endpoint.path, x.a.o.Now()))
}

// scanUsage reads the usage of a whole plain answer.
func (x *proxyRequest) scanUsage(body []byte) {
	var s openai.UsageScan
	s.Pass(body)
	x.usage = s.Usage()
}

// bodyStream is the body of an answer that is too large or too slow to be buffered.
type bodyStream struct {
	x      *proxyRequest
	scan   openai.UsageScan
	status int
}

func (r *bodyStream) Read(p []byte) (n int, err error) {
	x := r.x
	if b := x.reply.Begin; len(b) > 0 {
		n = copy(p, b)
		x.reply.Begin = b[n:]
	} else {
		n, err = x.reply.Read(p)
	}
	r.scan.Pass(p[:n])
	switch {
	case err == io.EOF:
		x.usage = r.scan.Usage()
		x.finish(r.status)
	case err != nil:
		if context.Cause(x.context()) == nil {
			problem, kind, e := describeBreak(err)
			x.reason = string(e.Code)
			x.a.metricsOf(x.fn).countFailure(kind)
			x.reportProblem(problem)
			if kind == "died" {
				x.countCrash(err, x.a.o.Now())
			}
			x.finish(502)
		}
		err = errAbort
	default:
		x.reply.Response.Bound(x.idleBound())
	}
	return n, err
}

func (r *bodyStream) Close() error {
	r.x.reason = "client_left"
	r.x.finish(499)
	return nil
}

// paddedBody is the body of a plain answer whose 200 has gone out: newlines, then the
// engine's JSON. A failure cuts the connection, because most clients raise nothing for
// a 200 with an error in it.
type paddedBody struct {
	x    *proxyRequest
	next time.Time
	out  []byte
	rest *bodyStream
	end  error
}

func (d *paddedBody) Read(p []byte) (int, error) {
	x := d.x
	for {
		if len(d.out) > 0 {
			n := copy(p, d.out)
			if d.out = d.out[n:]; len(d.out) == 0 && d.end == io.EOF {
				return n, io.EOF
			}
			return n, nil
		}
		if d.end != nil {
			return 0, d.end
		}
		switch x.phase {
		case waiting, sent:
			if now := x.a.o.Now(); !now.Before(d.next) {
				period := x.a.o.PadEvery
				if g := x.timeouts.Wait; g > 0 {
					period = min(period, max(g/3, 100*time.Millisecond))
				}
				d.next = now.Add(period)
				d.out = []byte{'\n'}
				continue
			}
			x.advance(d.next, true)
		case answered:
			if x.reply.Response.Status >= 300 || x.reply.Encoding != "" {
				x.reason = "engine_answered"
				d.end = errAbort
				x.finish(502)
				continue
			}
			if !x.reply.End { // too large to be buffered
				if d.rest == nil {
					d.rest = &bodyStream{x: x, status: 200}
				}
				n, err := d.rest.Read(p)
				d.end = err
				return n, err
			}
			x.scanUsage(x.reply.Begin)
			d.out, d.end = x.reply.Begin, io.EOF
			if len(d.out) == 0 {
				d.out = []byte{'\n'}
			}
			x.finish(200)
		case refused:
			x.reason = string(x.fail.Code)
			d.end = errAbort
			x.finish(x.fail.Status)
		case clientLeft:
			x.reason = "client_left"
			d.end = errAbort
			x.finish(499)
		}
	}
}

func (d *paddedBody) Close() error {
	d.x.reason = "client_left"
	d.x.finish(499)
	return nil
}
