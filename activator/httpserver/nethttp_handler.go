package httpserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
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
// server gives requests up. OnFailureSent() is called on a response writer that has it before a
// stream ends with ErrFailureSent, for [HalfClose] when its connection is closed.
type NetHTTPHandler struct {
	o        Options
	draining atomic.Bool
	requests sync.Pool
	buffers  sync.Pool
}

// NewNetHTTPHandler makes a handler; it starts nothing.
func NewNetHTTPHandler(o Options) *NetHTTPHandler {
	return &NetHTTPHandler{o: o.withDefaults(), requests: sync.Pool{New: func() any { return &handlerExchange{} }},
		buffers: sync.Pool{New: func() any { return new([firstBuffer]byte) }}}
}

// Drain lets requests find Draining true from now on.
func (h *NetHTTPHandler) Drain() { h.draining.Store(true) }

// handlerExchange is the state of one request of a NetHTTPHandler.
type handlerExchange struct {
	h    *NetHTTPHandler
	r    *http.Request
	req  Request
	res  Response
	body []byte // kept for the next exchange where it is small

	charge  Charge // for body, to what Authorize returned
	pace    pacedReader
	control http.ResponseController

	mu   sync.Mutex
	ctx  *Context
	stop func() bool // unhooks life from the request's context
	over bool
}

func (e *handlerExchange) header(name string) string {
	if f := e.r.Header[name]; len(f) > 0 { // as most are spelled
		return f[0]
	}
	if isThawField(name) {
		return strings.Join(e.r.Header.Values(name), ", ")
	}
	return e.r.Header.Get(name)
}

func (e *handlerExchange) eachField(yield func(Field) bool) {
	for name, values := range e.r.Header {
		for _, x := range values {
			if !yield(Field{name, x}) {
				return
			}
		}
	}
}

func (e *handlerExchange) isDraining() bool { return e.h.draining.Load() }

// context is the exchange's, made when it is first asked for.
func (e *handlerExchange) context() *Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx != nil {
		return e.ctx
	}
	c := &Context{}
	e.ctx = c
	if e.over {
		c.End(errAnswered)
		return c
	}
	outer := e.r.Context()
	e.stop = context.AfterFunc(outer, func() {
		reason := context.Cause(outer)
		if !errors.Is(reason, ErrDraining) {
			reason = ErrGone
		}
		c.End(reason)
	})
	return c
}

// finish ends the context. Nothing of this exchange fires any more.
func (e *handlerExchange) finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over = true; e.ctx != nil {
		e.stop()
		e.ctx.End(errAnswered)
	}
}

// ServeHTTP answers one request by the Handler of the Options.
func (h *NetHTTPHandler) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	h.Serve(rw, r, h.o.Handler)
}

// Serve answers one request by a handler of its own.
func (h *NetHTTPHandler) Serve(rw http.ResponseWriter, r *http.Request, by Handler) {
	e := h.requests.Get().(*handlerExchange)
	e.h, e.r, e.charge.Budget = h, r, h.o.Bodies
	defer h.release(e)
	q := &e.req
	*q = Request{Method: r.Method, Host: r.Host, from: e, http10: !r.ProtoAtLeast(1, 1)}
	q.Path, q.Query, _ = strings.Cut(r.RequestURI, "?")
	e.res = Response{Fields: e.res.Fields[:0]}
	receiver, limit := h.o.receiverOf(q)
	if !h.authorize(e, receiver != nil) {
		EndUnread(rw, r)
		e.res.Close = r.ProtoMajor == 1 // for HTTP/2 it would end the other streams too
		h.write(e, rw)
		return
	}
	refusal, err := h.read(e, rw, receiver, limit)
	if err != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
	if refusal != nil {
		EndUnread(rw, r)
		h.o.setRefusal(q, &e.res, refusal.For(q.Path))
		e.res.Close = r.ProtoMajor == 1 // part of the body is still to come
	} else {
		callHandler(by, &e.req, &e.res, h.o.Logger)
		q.closeReceived()
	}
	h.write(e, rw)
}

// EndUnread bounds how long net/http reads on in the body of a request, up to 256 KiB, when
// the handler has ended without having read it whole: 2 s. net/http itself has no bound but
// ReadTimeout, and sets the next request's deadline.
func EndUnread(rw http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		http.NewResponseController(rw).SetReadDeadline(time.Now().Add(closeDelay))
	}
}

// release gives back what is kept for the next exchange.
func (h *NetHTTPHandler) release(e *handlerExchange) {
	e.finish()
	e.charge.Set(0)
	fields, body := e.res.Fields, e.body
	clear(fields)
	if cap(body) > keepBody {
		body = nil
	}
	*e = handlerExchange{body: body, res: Response{Fields: fields[:0]}}
	h.requests.Put(e)
}

// setCharged counts bodies that are not small: these are a connection's own.
func (e *handlerExchange) setCharged(n int) error {
	if n <= keepBody && e.charge.bytes == 0 {
		return nil
	}
	if e.charge.Account == "" {
		e.charge.Account = addressOf(e.r.RemoteAddr)
	}
	return e.charge.Set(int64(n))
}

// authorize asks whether the body may be read; if not, v.res is the answer. It does not ask
// where there is none, nor for a small one of HTTP/1, which usually came with the head,
// unless it is for a receiver. The next request's deadline is set by net/http.
func (h *NetHTTPHandler) authorize(e *handlerExchange, received bool) (ok bool) {
	r := e.r
	small := r.ContentLength == 0 || r.ProtoMajor == 1 && r.ContentLength > 0 && r.ContentLength <= firstBuffer
	if h.o.Authorize == nil || small && !received && r.Header["Expect"] == nil {
		return true
	}
	callHandler(func(q *Request, res *Response) { e.charge.Account, ok = h.o.Authorize(q, res) }, &e.req, &e.res, h.o.Logger)
	return ok
}

// read reads the body, or has a receiver read it. An error means that the client is gone.
func (h *NetHTTPHandler) read(e *handlerExchange, rw http.ResponseWriter, receiver Receiver, limit int64) (*openai.Error, error) {
	r := e.r
	switch c := r.Header.Get("Content-Encoding"); {
	case c != "" && !strings.EqualFold(c, "identity"):
		return openai.New(openai.UnsupportedEncoding, ""), nil
	case receiver == nil && (r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0):
		return nil, nil
	case r.ContentLength > limit:
		return tooLarge(limit), nil
	}
	e.control = *http.NewResponseController(rw)
	e.pace = pacedReader{o: &h.o, in: r.Body, conn: &e.control, from: time.Now()}
	if receiver != nil {
		defer e.control.SetReadDeadline(time.Time{})
		return receiveBody(receiver, &e.req, &e.pace, limit, h.o.Logger)
	}
	size := -1
	if r.ContentLength > 0 {
		// One byte more, so that the last read finds the end as well: net/http watches for
		// a client that leaves only then.
		size = int(r.ContentLength) + 1
	}
	body, err := readBody(&e.pace, e.body[:0], size, limit, e)
	if err == nil {
		e.control.SetReadDeadline(time.Time{})
		if e.body = body; len(body) > 0 {
			e.req.Body = body
		}
		return nil, nil
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge(large.Limit), nil
	case errors.Is(err, errTooLarge), errors.Is(err, ErrBudgetUsed), errors.Is(err, ErrShareUsed), errors.Is(err, os.ErrDeadlineExceeded):
	case context.Cause(r.Context()) == nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return openai.New(openai.InvalidRequest, "The request's body is not well formed."), nil
	}
	return bodyRefusal(err, limit)
}

func (h *NetHTTPHandler) write(e *handlerExchange, rw http.ResponseWriter) {
	res := &e.res
	res.Close = res.Close || h.draining.Load()
	if res.Stream == nil {
		e.finish()
		writeResponse(rw, e.r.Method, res, nil, nil)
		return
	}
	defer e.finish() // after the stream: the other way round its end would look like a cancel
	defer closeStream(res.Stream, h.o.Logger)
	buf := h.buffers.Get().(*[firstBuffer]byte)
	defer h.buffers.Put(buf)
	writeResponse(rw, e.r.Method, res, func(p []byte) (int, error) {
		n, err := readStream(res.Stream, p, h.o.Logger)
		if c, ok := rw.(interface{ OnFailureSent() }); ok && errors.Is(err, ErrFailureSent) {
			c.OnFailureSent()
		}
		return n, err
	}, buf[:])
}

// writeResponse writes an answer to net/http. It writes the head with the stream's first
// bytes, read by next, and flushes each piece. It ends with the clean end of the stream,
// and panics with http.ErrAbortHandler where the stream or the client breaks.
func writeResponse(rw http.ResponseWriter, method string, res *Response, next func([]byte) (int, error), buf []byte) {
	if res.Status == StatusClientLeft && res.Stream == nil {
		panic(http.ErrAbortHandler)
	}
	h := rw.Header()
	h["Content-Type"] = nil // net/http does not guess one
	for _, x := range res.Fields {
		if !isOwnField(x.Name) {
			h.Add(x.Name, cleanValue(x.Value))
		}
	}
	if res.Close {
		h.Set("Connection", "close")
	}
	switch {
	case res.Stream == nil:
		if method != http.MethodHead || len(res.Body) > 0 {
			h.Set("Content-Length", strconv.Itoa(len(res.Body)))
		}
		rw.WriteHeader(res.Status)
		rw.Write(res.Body)
		return
	case res.Length > 0:
		h.Set("Content-Length", strconv.FormatInt(res.Length, 10))
	}
	if method == http.MethodHead {
		rw.WriteHeader(res.Status)
		return
	}
	control := http.NewResponseController(rw)
	for wrote := false; ; {
		n, err := next(buf)
		if !wrote && (n > 0 || err == io.EOF) {
			wrote = true
			rw.WriteHeader(res.Status)
		}
		if n > 0 {
			if _, werr := rw.Write(buf[:n]); werr != nil {
				panic(http.ErrAbortHandler)
			}
			if err != io.EOF { // else the end goes out with the last bytes
				control.Flush()
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}
