package httpserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

// NetHTTPHandler is an http.Handler for another net/http server. That server's own
// settings replace the Options of heads, idle connections and writes.
//
// A request's context must end when its client leaves, and with [ErrDraining] where the
// server gives requests up. Last() is called on a response writer that has it before a
// stream ends with ErrLast, for [EndSending] when its connection is closed.
type NetHTTPHandler struct {
	o        Options
	draining atomic.Bool
	requests sync.Pool
	buffers  sync.Pool
}

// NewNetHTTPHandler makes a handler; it starts nothing.
func NewNetHTTPHandler(o Options) *NetHTTPHandler { return &NetHTTPHandler{o: o.withDefaults()} }

// Drain lets requests find Draining true from now on.
func (h *NetHTTPHandler) Drain() { h.draining.Store(true) }

// request is one request of a NetHTTPHandler.
type request struct {
	g    *NetHTTPHandler
	r    *http.Request
	req  Request
	res  Response
	body []byte // kept for the next exchange if it is small

	account string // what Authorize returned for body
	charged int64  // what the handler counts for body
	pace    pacedReader
	control http.ResponseController

	mu   sync.Mutex
	ctx  *Context
	stop func() bool // unhooks life from the request's context
	over bool
}

func (r *request) header(name string) string {
	if f := r.r.Header[name]; len(f) > 0 { // as most are spelled
		return f[0]
	}
	if isThawField(name) {
		return strings.Join(r.r.Header.Values(name), ", ")
	}
	return r.r.Header.Get(name)
}

func (r *request) eachField(yield func(Field) bool) {
	for name, values := range r.r.Header {
		for _, x := range values {
			if !yield(Field{name, x}) {
				return
			}
		}
	}
}

func (r *request) isHTTP10() bool      { return !r.r.ProtoAtLeast(1, 1) }
func (r *request) isDraining() bool    { return r.g.draining.Load() }
func (r *request) asksWebSocket() bool { return false }

// context returns the exchange's context, made at the first call.
func (r *request) context() *Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx != nil {
		return r.ctx
	}
	l := &Context{}
	r.ctx = l
	if r.over {
		l.End(errAnswered)
		return l
	}
	outer := r.r.Context()
	r.stop = context.AfterFunc(outer, func() {
		reason := context.Cause(outer)
		if !errors.Is(reason, ErrDraining) {
			reason = ErrGone
		}
		l.End(reason)
	})
	return l
}

// finish ends the context. No callback of this exchange runs after it.
func (r *request) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over = true; r.ctx != nil {
		r.stop()
		r.ctx.End(errAnswered)
	}
}

// ServeHTTP answers one request by the Handler of the Options.
func (h *NetHTTPHandler) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	h.Serve(rw, r, h.o.Handler)
}

// Serve answers one request by a handler of its own.
func (h *NetHTTPHandler) Serve(rw http.ResponseWriter, r *http.Request, by Handler) {
	v, ok := h.requests.Get().(*request)
	if !ok {
		v = &request{}
	}
	v.g, v.r = h, r
	defer h.release(v)
	q := &v.req
	*q = Request{Method: r.Method, Host: r.Host, from: v}
	q.Path, q.Query, _ = strings.Cut(r.RequestURI, "?")
	v.res = Response{Fields: v.res.Fields[:0]}
	receiver, limit := h.o.receiverOf(q)
	if !h.authorize(v, receiver != nil) {
		EndUnread(rw, r)
		v.res.Close = r.ProtoMajor == 1 // for HTTP/2 it would end the other streams too
		h.write(v, rw)
		return
	}
	body, refusal, err := h.read(v, rw, r, receiver, limit)
	if err != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
	q.Body = body
	if refusal != nil {
		EndUnread(rw, r)
		h.o.setRefusal(q, &v.res, refusal.For(q.Path))
		v.res.Close = r.ProtoMajor == 1 // part of the body is still to come
	} else {
		callHandler(by, &v.req, &v.res, h.o.Logger)
		q.closeReceived()
	}
	h.write(v, rw)
}

// EndUnread bounds how long net/http reads on in the body of a request, up to 256 KiB, when
// the handler has ended without having read it whole: 2 s. net/http itself has no bound but
// ReadTimeout, and sets the next request's deadline.
func EndUnread(rw http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		http.NewResponseController(rw).SetReadDeadline(time.Now().Add(closeDelay))
	}
}

// release keeps the exchange's buffers for the next one.
func (h *NetHTTPHandler) release(v *request) {
	v.finish()
	if v.charged > 0 {
		v.g.o.Bodies.Add(v.account, -v.charged)
	}
	fields, body := v.res.Fields, v.body
	clear(fields)
	if cap(body) > keepBody {
		body = nil
	}
	*v = request{body: body, res: Response{Fields: fields[:0]}}
	h.requests.Put(v)
}

// charge counts bodies that are not small: these are a connection's own.
func (r *request) charge(n int) error {
	if n <= keepBody {
		return nil
	}
	if r.account == "" {
		r.account = addressOf(r.r.RemoteAddr)
	}
	more := int64(n) - r.charged
	if err := r.g.o.Bodies.Add(r.account, more); err != nil {
		return err
	}
	r.charged += more
	return nil
}

// authorize asks whether the body may be read; if not, v.res is the answer. It does not ask
// where there is none, nor for a small one of HTTP/1, which usually came with the head,
// unless it is for a receiver. The next request's deadline is set by net/http.
func (h *NetHTTPHandler) authorize(v *request, received bool) (ok bool) {
	r := v.r
	small := r.ContentLength == 0 || r.ProtoMajor == 1 && r.ContentLength > 0 && r.ContentLength <= firstBuffer
	if h.o.Authorize == nil || small && !received && r.Header["Expect"] == nil {
		return true
	}
	callHandler(func(q *Request, res *Response) { v.account, ok = h.o.Authorize(q, res) }, &v.req, &v.res, h.o.Logger)
	return ok
}

// read reads the body, or has a receiver read it. An error means that the client is gone.
func (h *NetHTTPHandler) read(v *request, rw http.ResponseWriter, r *http.Request, receiver Receiver, limit int64) (body []byte, refusal *openai.Error, err error) {
	if receiver == nil {
		limit = h.o.MaxBody
	}
	if c := r.Header.Get("Content-Encoding"); c != "" && !strings.EqualFold(c, "identity") {
		return nil, openai.New(openai.UnsupportedEncoding, ""), nil
	}
	if receiver == nil && (r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0) {
		return nil, nil, nil
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit), nil
	}
	v.control = *http.NewResponseController(rw)
	v.pace = pacedReader{o: &h.o, in: r.Body, conn: &v.control, from: time.Now()}
	if receiver != nil {
		refusal, err = receiveBody(receiver, &v.req, &v.pace, limit, h.o.Logger)
		v.control.SetReadDeadline(time.Time{})
		return nil, refusal, err
	}
	size := -1
	if r.ContentLength > 0 {
		// One byte more, so that the last read finds the end as well: net/http watches for
		// a client that leaves only then.
		size = int(r.ContentLength) + 1
	}
	if body, err = readBody(&v.pace, v.body[:0], size, h.o.MaxBody, v); err == nil {
		v.control.SetReadDeadline(time.Time{})
		if v.body = body; len(body) == 0 {
			return nil, nil, nil
		}
		return body, nil, nil
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge(large.Limit), nil
	case errors.Is(err, errTooLarge), errors.Is(err, ErrBudgetUsed), errors.Is(err, ErrShareUsed), errors.Is(err, os.ErrDeadlineExceeded):
	case context.Cause(r.Context()) == nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return nil, openai.New(openai.InvalidRequest, "The request's body is not well formed."), nil
	}
	refusal, err = bodyRefusal(err, h.o.MaxBody)
	return nil, refusal, err
}

// write writes what the handler left.
func (h *NetHTTPHandler) write(v *request, rw http.ResponseWriter) {
	res := &v.res
	res.Close = res.Close || h.draining.Load()
	if res.Stream == nil {
		v.finish()
		writeResponse(rw, v.r.Method, res, nil, nil)
		return
	}
	defer v.finish() // after the stream: the other way round its end would look like a cancel
	defer closeStream(res.Stream, h.o.Logger)
	buf, ok := h.buffers.Get().(*[firstBuffer]byte)
	if !ok {
		buf = new([firstBuffer]byte)
	}
	defer h.buffers.Put(buf)
	writeResponse(rw, v.r.Method, res, func(p []byte) (int, error) {
		n, err := readStream(res.Stream, p, h.o.Logger)
		if c, ok := rw.(interface{ Last() }); ok && errors.Is(err, ErrLast) {
			c.Last()
		}
		return n, err
	}, buf[:])
}
