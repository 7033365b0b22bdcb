package httpserver

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/activator/http1"
	"github.com/thaw-dev/thaw/functions/openai"
)

// refuse answers a request that no handler sees.
func (c *conn) refuse(e *openai.Error) {
	var res Response
	if c.head.whole {
		c.s.o.setRefusal(&c.req, &res, e)
	} else {
		setRefusal(&res, e)
	}
	b := appendLastAnswer(nil, &res, c.s.date.now(time.Now()))
	waits := c.slot.place != beyond || c.slot.refuse()
	if _, err := c.out.write(b); err == nil && waits {
		halfCloseAndDrain(c.Conn, closeDrainBytes, c.slot.all.delay)
	}
}

// appendLastAnswer appends an answer that ends its connection: its head, and its body where it
// has no stream.
func appendLastAnswer(b []byte, res *Response, date string) []byte {
	b = append(strconv.AppendInt(append(b, "HTTP/1.1 "...), int64(res.Status), 10), ' ')
	b = append(append(append(b, http.StatusText(res.Status)...), "\r\ndate: "...), date...)
	b = append(b, "\r\nconnection: close\r\n"...)
	if res.Stream == nil {
		b = append(strconv.AppendInt(append(b, "content-length: "...), int64(len(res.Body)), 10), '\r', '\n')
	}
	for _, f := range res.Fields {
		if !isOwnField(f.Name) {
			b = append(append(append(append(b, f.Name...), ": "...), cleanValue(f.Value)...), '\r', '\n')
		}
	}
	return append(append(b, '\r', '\n'), res.Body...)
}

// call runs the handler. Afterwards the exchange's watch is off unless there is
// a stream, whose Close turns it off.
func (c *conn) call() (res *Response) {
	res = &c.res
	if c.rejected {
		res.Close = true
	} else {
		*res = Response{Fields: res.Fields[:0]}
		callHandler(c.s.o.Handler, &c.req, res, c.s.o.Logger)
		c.req.closeReceived()
	}
	if res.Stream == nil {
		c.state.stopWatch(errAnswered)
	}
	if c.s.draining.Load() {
		res.Close = true
	}
	return res
}

// callHandler has the handler fill res. A panic is logged, and answered with 500.
func callHandler(h Handler, req *Request, res *Response, log *slog.Logger) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("handler panicked", "panic", p, "path", req.Path, "stack", string(debug.Stack()))
			if res.Stream != nil {
				closeStream(res.Stream, log)
			}
			*res = Response{Close: true}
			setRefusal(res, openai.New(openai.InternalError, "").For(req.Path))
		}
	}()
	h(req, res)
	if res.Status == 0 {
		res.Status = http.StatusOK
	}
}

func setRefusal(res *Response, e *openai.Error) {
	res.Set("x-request-id", openai.NewID())
	res.Refuse(e)
}

// setRefusal has res refuse a request whose head is whole and that no handler sees.
func (o *Options) setRefusal(req *Request, res *Response, e *openai.Error) {
	setRefusal(res, e)
	if o.Refused != nil {
		callHandler(o.Refused, req, res, o.Logger)
	}
}

// closeStream closes a handler's stream. A panic is logged.
func closeStream(s io.Closer, log *slog.Logger) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("stream panicked in Close", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	s.Close()
}

// readStream reads a handler's stream once; bytes and error may come together. A panic is
// logged, and an error.
func readStream(s io.Reader, p []byte, log *slog.Logger) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Error("stream panicked", "panic", v, "stack", string(debug.Stack()))
			n, err = 0, errStreamPanic
		}
	}()
	return s.Read(p)
}

// isOwnField reports whether an answer's field is written by the server itself.
func isOwnField(name string) bool {
	return http1.IsFramingField(name) || http1.EqualFold(name, "date")
}

var errStreamPanic = errors.New("httpserver: the stream panicked")

// ErrFailureSent is what a Stream's Read returns behind its last bytes where these report its
// failure. The connection ends by FIN without the terminating chunk (HTTP/2: a reset
// behind the last bytes): some clients ignore the report, and would take a body that
// ends well for success.
var ErrFailureSent = errors.New("httpserver: the stream reported its failure")

// responseStream is a Response's Stream as the server behind reads it.
type responseStream struct {
	conn   *conn
	in     io.ReadCloser
	err    error // what the last Read ended with
	closed bool
	chunks bool // its end may be held back to go out with its last bytes
}

// next reads the handler's stream once.
func (s *responseStream) next(p []byte) (n int, err error) {
	n, err = readStream(s.in, p, s.conn.s.o.Logger)
	switch {
	case errors.Is(err, ErrFailureSent):
		s.conn.failureSent = true
	case err != nil && err != io.EOF && s.conn.head.http10:
		s.conn.out.resetOnClose()
	}
	return n, err
}

// Read is next for fasthttp, which gets the error with the Read after the last bytes.
func (s *responseStream) Read(p []byte) (n int, err error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err = s.next(p)
	s.err = err
	if err == io.EOF && s.chunks {
		s.conn.out.holdEnd = true
	}
	more, ok := s.in.(interface{ Buffered() int })
	s.conn.out.holdMore = ok && err == nil && s.chunks && more.Buffered() > 0
	if n > 0 {
		err = nil
	}
	return n, err
}

// Close closes the stream first and ends the request's context after it: the other way
// round the end would look like a cancel to the stream's source.
func (s *responseStream) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	closeStream(s.in, s.conn.s.o.Logger)
	s.conn.state.stopWatch(errAnswered)
	return nil
}
