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
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// errAbort makes the server cut the connection: the client must not take a part for
// the whole answer.
var errAbort = errors.New("the answer broke")

// respond sends the engine's answer, of which nothing has been sent yet.
func (p *proxyRequest) respond(res *httpserver.Response) {
	up := p.attempt.reply.Response
	if up.Status >= 400 && p.attempt.reply.Encoding == "" {
		p.reason = "engine_answered"
		path := p.req.endpoint.Path
		p.refuseNow(res, answer.NameServed(p.attempt.reply.Error(path, p.a.o.Now()), path, p.req.fn.Snapshot().Model))
		return
	}
	res.Status = up.Status
	p.setCommonFields(res)
	kind := up.Header("content-type")
	if p.attempt.reply.Events && !strings.HasPrefix(kind, "text/event-stream") {
		kind = "text/event-stream"
	}
	if p.attempt.assembled {
		kind = "application/json"
	}
	if kind != "" {
		res.Set("content-type", kind)
	}
	if p.attempt.reply.Encoding != "" {
		res.Set("content-encoding", p.attempt.reply.Encoding)
	}
	if p.attempt.reply.Events {
		res.Set("cache-control", "no-cache, no-transform")
		res.Set("x-accel-buffering", "no")
		res.Stream = &eventStream{request: p, seen: openai.Stream{TakeUsage: p.attempt.stripsUsage()}}
		return
	}
	if p.attempt.reply.End {
		res.Body = p.attempt.reply.Begin
		if up.Status < 300 {
			p.attempt.tokens.Usage = scanUsage(res.Body)
		}
		reason := ""
		if up.Status >= 400 {
			reason = "engine_answered"
		}
		p.finish(up.Status, reason)
		return
	}
	res.Length = p.attempt.reply.Length()
	res.Stream = &bodyStream{request: p, status: up.Status}
}

// withinThird bounds a period by a third of the client's timeout, where that is known, but for the
// least.
func withinThird(period, timeout, least time.Duration) time.Duration {
	if timeout <= 0 {
		return period
	}
	return min(period, max(timeout/3, least))
}

// sendHead sends the head of an answer that is still to come.
func (p *proxyRequest) sendHead(res *httpserver.Response) {
	res.Status = 200
	p.setCommonFields(res)
	res.Set("cache-control", "no-cache, no-transform")
	res.Set("x-accel-buffering", "no")
	if p.req.stream {
		res.Set("content-type", "text/event-stream")
		v := &eventStream{request: p, held: true, seen: openai.Stream{TakeUsage: p.attempt.stripsUsage()}}
		now := p.a.o.Now()
		v.comment, v.noop = now, now.Add(p.a.o.Timing.Noop)
		res.Stream = v
		return
	}
	res.Set("content-type", "application/json")
	res.Stream = &paddedBody{request: p, next: p.a.o.Now()}
}

// eventStream is the body of an event stream: comments and no-op chunks while it is
// held, then the engine's events, then exactly one end. The server's reads drive the
// request from here on.
//
// The engine's bytes are forwarded unchanged but for numbers that are no JSON, and in
// whole events, so that an error frame never lands inside one. The end mark is kept until the engine's body has
// ended, so that both go out in one write.
type eventStream struct {
	request *proxyRequest
	seen    openai.Stream
	held    bool // the head went out before the engine's first byte

	comment, noop time.Time // when the next is due

	out       []byte // is sent next
	buf       []byte // last read from the engine; out may lie in it until the next read
	lo, hi    int    // buf[lo:hi] is the beginning of an event
	oversized bool   // part of an event that was too long to keep has been sent
	mark      []byte // the end mark, kept back
	sequence  int64  // of the next event, at the responses endpoint
	died      bool   // the engine wrote that it is about to exit
	end       error  // io.EOF, httpserver.ErrFailureSent or errAbort once nothing but out is left
}

// maxEvent is how much of one event is kept until it is whole.
const maxEvent = 256 << 10

func (s *eventStream) Read(p []byte) (int, error) {
	for {
		if len(s.out) > 0 {
			n := copy(p, s.out)
			if s.out = s.out[n:]; len(s.out) == 0 && s.end != errAbort {
				return n, s.end
			}
			return n, nil
		}
		if s.end != nil {
			return 0, s.end
		}
		switch s.request.phase {
		case waiting, sent:
			s.awaitFirstByte()
		case engineAnswered:
			s.forward()
		case refused:
			s.endWithError(s.request.fail)
		case clientLeft:
			s.end = errAbort
			s.request.finish(499, "client_left")
		}
	}
}

// Buffered is how many bytes wait to be sent.
func (s *eventStream) Buffered() int { return len(s.out) }

// Close is called by the server once, in all cases. The client left a stream that was
// not read to its end, unless the end mark has gone out, or an error: clients close right at
// them.
func (s *eventStream) Close() error {
	code, reason := 499, "client_left"
	switch {
	case s.seen.Failed:
		code, reason = 502, "engine_error"
		if !s.request.finished {
			s.countEngineError()
		}
	case s.seen.Done:
		code, reason = 200, ""
	}
	s.request.attempt.tokens.Usage = s.seen.Usage
	s.request.finish(code, reason)
	s.request.a.buffers.Put(s.buf) // no read can follow
	s.buf, s.out = nil, nil
	return nil
}

// awaitFirstByte waits for the engine's first byte and writes comments meanwhile.
func (s *eventStream) awaitFirstByte() {
	p := s.request
	now := p.a.o.Now()
	if !now.Before(s.comment) {
		s.writeComment(now)
		return
	}
	if p.req.endpoint.Noop != nil && !now.Before(s.noop) {
		s.out = p.req.endpoint.Noop(s.out[:0], cmp.Or(p.req.answerName, p.req.engineName), now)
		s.noop = now.Add(p.a.o.Timing.Noop)
		return
	}
	limit := s.comment
	if p.req.endpoint.Noop != nil && s.noop.Before(limit) {
		limit = s.noop
	}
	if p.advance(limit, true) == stepChanged {
		s.writeComment(p.a.o.Now())
	}
}

// writeComment writes a comment and sets when the next is due, with a jitter, so that
// ten thousand streams do not write at once.
func (s *eventStream) writeComment(now time.Time) {
	p := s.request
	if p.attempt.loadingAdapter.Load() {
		s.out = openai.Comment(s.out[:0], functions.Loading.Word(), -1, -1, -1)
	} else {
		s.out = admission.HeldComment(s.out[:0], p.req.fn.Snapshot(), now, p.req.fn.Data.queue.Position(&p.wait.queued))
	}
	period := withinThird(p.a.o.Timing.Comment, p.wait.timeouts.Gap, 100*time.Millisecond)
	s.comment = now.Add(time.Duration(float64(period) * (0.8 + 0.2*rand.Float64())))
}

// forward reads the next part of the engine's stream.
func (s *eventStream) forward() {
	p := s.request
	r := &p.attempt.reply
	if !r.Events {
		// an engine's error, or that of an answer that cannot be streamed, is sent as a frame: the head has been sent
		p.reason = "engine_answered"
		path := p.req.endpoint.Path
		s.endWithError(answer.NameServed(p.attempt.reply.StreamError(path, p.a.o.Now()), path, p.req.fn.Snapshot().Model))
		return
	}
	if s.mark != nil {
		// waits, up to a second, for the end of a body whose end mark has come, so that the
		// connection can be used again and mark and end go out in one write
		if !p.attempt.reply.End {
			s.mark = bytes.Clone(s.mark)
			p.attempt.reply.ReadOut(s.buf) // bytes after the end mark are ignored
		}
		s.engineEnded(io.EOF)
		return
	}
	if s.buf == nil {
		s.buf, s.hi = r.Begin[:cap(r.Begin)], len(r.Begin)
		s.forwardWhole()
		if r.End && (len(s.out) == 0 || s.lo == s.hi) {
			s.engineEnded(io.EOF)
		} else if s.seen.Finished || s.seen.Done {
			s.limitSilence()
		}
		return
	}
	if r.End {
		s.engineEnded(io.EOF)
		return
	}
	s.hi = copy(s.buf, s.buf[s.lo:s.hi])
	if s.hi == len(s.buf) {
		s.buf = append(s.buf, make([]byte, len(s.buf))...)
	}
	n, err := r.Read(s.buf[s.hi:])
	s.hi += n
	s.forwardWhole()
	switch {
	case err == io.EOF && len(s.out) > 0 && s.lo < s.hi:
		r.End = true // whole events go out first
		return
	case err != nil:
		s.engineEnded(err)
		return
	}
	s.limitSilence()
}

// limitSilence sets how long the engine may be silent from now on.
func (s *eventStream) limitSilence() {
	bound := s.request.attempt.idleBound()
	if s.seen.Finished && s.request.req.env.N == 1 || s.seen.Done {
		if !openai.HasData(s.out) { // comments are no reason to wait longer
			return
		}
		bound = min(bound, answer.IdleOfFinished(&s.seen, s.request.req.env.IncludeUsage || s.request.attempt.stripsUsage()))
	}
	s.request.attempt.reply.Response.LimitSilence(bound)
}

func (s *eventStream) forwardWhole() {
	p := s.buf[:s.hi]
	n := openai.CompleteEvents(p)
	if n == 0 {
		if q := openai.SeparateEvents(p); q != nil {
			s.buf, s.hi = append(q, make([]byte, len(s.buf))...), len(q)
			p = q
			n = openai.CompleteEvents(p)
		}
	}
	switch {
	case n > 0:
		s.oversized = false
	case s.oversized || len(p) >= maxEvent:
		n, s.oversized = len(p), true
	}
	s.lo = n
	s.pass(p[:n])
}

// pass passes on whole events, but keeps the end mark back.
func (s *eventStream) pass(p []byte) {
	if request := s.request; !request.attempt.tokens.Asked && request.attempt.stripsUsage() { // their tokens are to be estimated
		request.attempt.tokens.Events += int64(bytes.Count(p, []byte("data:")))
	}
	was, failed := s.seen.Done, s.seen.Failed
	s.out = s.seen.Pass(p)
	if s.seen.InLines {
		s.out = openai.JoinData(s.out)
	}
	if s.seen.Doubled {
		s.out = openai.SingleData(s.out)
	}
	if !s.oversized { // a part of an event may begin within a string
		s.out = openai.StandardData(s.out)
	}
	if s.seen.Failed && !failed {
		s.out = openai.FrameErrors(s.out, s.request.req.endpoint.Path, openai.NextSequence(s.out, s.sequence))
		s.died = s.died || answer.EngineDied(s.out)
	}
	if s.request.req.endpoint.Path == "/v1/responses" {
		s.sequence = openai.NextSequence(s.out, s.sequence)
	}
	if s.seen.Token && s.request.attempt.tokens.FirstTook == 0 {
		s.request.attempt.recordFirstToken()
	}
	if s.seen.Done && !was && s.request.req.endpoint.Usage {
		if i := bytes.LastIndex(s.out, []byte("[DONE]")); i >= 0 {
			i = bytes.LastIndexByte(s.out[:i], '\n') + 1
			s.out, s.mark = s.out[:i], s.out[i:]
		}
	}
}

// engineEnded ends a stream whose engine has ended, cleanly or not.
func (s *eventStream) engineEnded(err error) {
	p := s.request
	if s.lo < s.hi && s.mark == nil && len(s.out) == 0 && !s.oversized {
		s.passLast(err == io.EOF)
	}
	p.attempt.tokens.Usage = s.seen.Usage
	quiet := s.seen.Finished && p.req.env.N == 1 && errors.Is(err, upstream.ErrSilent) // some engines leave the connection open
	good := s.seen.Done || s.seen.Finished && err == io.EOF || quiet
	complete := good && !s.oversized && s.lo == s.hi || s.mark != nil
	switch {
	case s.seen.Failed: // the engine has sent the error already, however it ends
		if s.end = io.EOF; p.req.endpoint.Usage { // other endpoints have an event for it
			s.end = httpserver.ErrFailureSent
		}
		s.countEngineError()
		p.finish(502, "engine_error")
	case complete:
		unmarked := !s.seen.Done && p.req.endpoint.End != ""
		if unmarked { // some engines leave it out
			s.mark = []byte(p.req.endpoint.End)
		}
		switch {
		case s.held && p.wait.queued.Cold:
			s.out = append(openai.Timeline(bytes.Clone(s.out), p.phases(nil)), s.mark...)
		case len(s.out) == 0:
			s.out = s.mark
		case unmarked:
			s.out = append(bytes.Clone(s.out), s.mark...)
		default: // both came in one read, and the mark lies right behind out
			s.out = s.out[:len(s.out)+len(s.mark)]
		}
		s.end = io.EOF
		p.finish(200, "")
	case errors.Is(context.Cause(p.req.source.context()), httpserver.ErrGone):
		s.end = errAbort
		p.finish(499, "client_left")
	case errors.Is(context.Cause(p.req.source.context()), httpserver.ErrDraining):
		s.endWithError(openai.New(openai.ShuttingDown, "The server shut down before the answer was complete."))
	default:
		e, blamed := p.reportBreak(err)
		if len(s.seen.Said) > 0 && !s.seen.Token {
			e.Message += " It wrote: " + functions.Clip(string(s.seen.Said))
		}
		p.attempt.remote.Reword(e)
		s.endWithError(cmp.Or(blamed, e))
	}
}

// passLast passes on the last event of a stream, whose blank line some engines leave out.
// What is torn behind the finish_reason of a stream that ended cleanly adds nothing to the
// answer and is dropped. A stream that broke has a last event only if that is an error.
func (s *eventStream) passLast(clean bool) {
	last := append(bytes.TrimRight(bytes.Clone(s.buf[s.lo:s.hi]), "\r\n"), "\n\n"...)
	switch failure, _ := openai.Failure(last); {
	case openai.IsWholeEvent(last) && (clean || failure != nil):
		s.pass(last)
		s.lo = s.hi
	case clean && s.seen.Finished:
		s.lo = s.hi
	}
}

// countEngineError notes an error that the engine sent in the middle of an answer: it
// is no success, though [DONE] may follow and the connection end cleanly.
func (s *eventStream) countEngineError() {
	p := s.request
	if s.died && p.attempt.remote == nil {
		p.suspicion.countCrash(nil, p.a.o.Now())
	}
	p.attempt.reportProblem("error_frame", answer.ErrorInAnswer)
}

func (s *eventStream) endWithError(e *openai.Error) {
	p := s.request
	out := append([]byte(nil), s.out...)
	if s.oversized { // the frame must not become part of the event that has begun
		out = append(out, "\n\n"...)
	}
	s.out = append(out, e.FrameFor(p.req.endpoint.Path, s.sequence)...)
	s.end = httpserver.ErrFailureSent
	p.finish(e.Status, string(e.Code))
}

// scanUsage reads the usage of a whole plain answer.
func scanUsage(body []byte) openai.Usage {
	var s openai.UsageScan
	s.Observe(body)
	return s.Usage()
}

// bodyStream is the body of an answer that is too large or too slow to be buffered.
type bodyStream struct {
	request *proxyRequest
	scan    openai.UsageScan
	status  int
}

func (s *bodyStream) Read(p []byte) (n int, err error) {
	request := s.request
	if b := request.attempt.reply.Begin; len(b) > 0 {
		n = copy(p, b)
		request.attempt.reply.Begin = b[n:]
	} else {
		n, err = request.attempt.reply.Read(p)
	}
	s.scan.Observe(p[:n])
	switch {
	case err == io.EOF:
		request.attempt.tokens.Usage = s.scan.Usage()
		request.finish(s.status, "")
	case err != nil:
		if context.Cause(request.req.source.context()) == nil {
			e, _ := request.reportBreak(err)
			request.finish(502, string(e.Code))
		}
		err = errAbort
	default:
		request.attempt.reply.Response.LimitSilence(request.attempt.idleBound())
	}
	return n, err
}

func (s *bodyStream) Close() error {
	s.request.finish(499, "client_left")
	return nil
}

// paddedBody is the body of a plain answer whose 200 has gone out: newlines, then the
// engine's JSON. A failure cuts the connection, because most clients raise nothing for
// a 200 with an error in it.
type paddedBody struct {
	request *proxyRequest
	next    time.Time
	out     []byte
	rest    *bodyStream
	end     error
}

func (b *paddedBody) Read(p []byte) (int, error) {
	request := b.request
	for {
		if len(b.out) > 0 {
			n := copy(p, b.out)
			if b.out = b.out[n:]; len(b.out) == 0 && b.end == io.EOF {
				return n, io.EOF
			}
			return n, nil
		}
		if b.end != nil {
			return 0, b.end
		}
		switch request.phase {
		case waiting, sent:
			if now := request.a.o.Now(); !now.Before(b.next) {
				b.next = now.Add(withinThird(request.a.o.Timing.PadEvery, request.wait.timeouts.Wait, 100*time.Millisecond))
				b.out = []byte{'\n'}
				continue
			}
			request.advance(b.next, true)
		case engineAnswered:
			if request.attempt.reply.Response.Status >= 300 || request.attempt.reply.Encoding != "" {
				b.end = errAbort
				request.finish(502, "engine_answered")
				continue
			}
			if !request.attempt.reply.End { // too large to be buffered
				if b.rest == nil {
					b.rest = &bodyStream{request: request, status: 200}
				}
				n, err := b.rest.Read(p)
				b.end = err
				return n, err
			}
			request.attempt.tokens.Usage = scanUsage(request.attempt.reply.Begin)
			b.out, b.end = request.attempt.reply.Begin, io.EOF
			if len(b.out) == 0 {
				b.out = []byte{'\n'}
			}
			request.finish(200, "")
		case refused:
			b.end = errAbort
			request.finish(request.fail.Status, string(request.fail.Code))
		case clientLeft:
			b.end = errAbort
			request.finish(499, "client_left")
		}
	}
}

func (b *paddedBody) Close() error {
	b.request.finish(499, "client_left")
	return nil
}
