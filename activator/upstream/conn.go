package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/http1"
)

// oneWrite is up to where head and body are copied together and sent in one
// system call; beyond it copying costs more than a vector write.
const oneWrite = 32 << 10

// lastWrite is how much of a larger request is held back until the connection was checked
// for bytes that came meanwhile.
const lastWrite = 1 << 10

// atOnce is how soon after a request was sent the end of its connection means that the
// engine had closed it before: longer than any way in a cluster, shorter than any work.
const atOnce = 200 * time.Millisecond

// An engine must read a request within writeWait, and within a second more for each
// writeRate bytes of it.
const (
	writeWait = 30 * time.Second
	writeRate = 1 << 20
)

// longBound is the shortest Bound that may be late, by a part in 64.
const longBound = 10 * time.Minute

// conn is one connection to an engine. Between get and finish it belongs to the
// goroutine of its exchange; only cancel and abort come from elsewhere.
type conn struct {
	c         *Client
	addr      string
	transport transport
	answer    answer
	exchange  exchange
	writeBuf  []byte        // what is sent
	lastByte  *atomic.Int64 // of the address, in unix nanoseconds; see Traffic

	watched   bool // in its first exchange: others were open beside it
	reused    bool
	answered  bool // a byte of the answer came
	early     bool // it came before the whole request was sent
	sentAt    time.Time
	firstByte time.Duration // from sentAt to the answer's first byte
	idleSince time.Time
}

// exchange is the request under way on a connection, and its answer. Its lock orders cancel
// and abort against the end.
type exchange struct {
	begunAt   atomic.Int64 // in unix nanoseconds; 0: none is under way
	bodyBegan atomic.Bool  // a byte of its answer's body came
	stop      func() bool  // unhooks cancel; nil where ctx cannot end

	mu  sync.Mutex
	gen uint64 // which exchange
	cut error  // why the connection was closed under it: ErrCut, or the cause of cancel
}

// begin begins an exchange, and returns its generation.
func (e *exchange) begin(now time.Time) (gen uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gen++
	e.bodyBegan.Store(false)
	e.begunAt.Store(now.UnixNano())
	return e.gen
}

// cancel notes why exchange gen is cut: its connection is then to be closed, and not used
// again. It returns false, and does nothing, where that has ended.
func (e *exchange) cancel(gen uint64, cause error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gen != gen || e.begunAt.Load() == 0 {
		return false
	}
	e.cut = cmp.Or(cause, context.Canceled)
	return true
}

// end makes late cancels harmless; false if the exchange has ended before.
func (e *exchange) end() bool {
	e.mu.Lock()
	ended := e.begunAt.Swap(0) != 0
	e.mu.Unlock()
	if ended && e.stop != nil {
		e.stop()
		e.stop = nil
	}
	return ended
}

// cause is why the exchange was cut; nil if it was not.
func (e *exchange) cause() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cut
}

func newConn(c *Client, addr string, nc net.Conn) *conn {
	k := &conn{c: c, addr: addr, lastByte: new(atomic.Int64)}
	k.transport.open(nc)
	k.answer = answer{in: k.transport.reader, maxHead: c.o.MaxHead}
	return k
}

func (c *conn) closeConn() {
	c.transport.conn.Close()
	c.c.forget(c)
}

// abort closes it under whatever it is used for.
func (c *conn) abort() {
	c.exchange.mu.Lock()
	c.exchange.cut = cmp.Or(c.exchange.cut, ErrCut)
	c.exchange.mu.Unlock()
	c.closeConn()
}

// cancel ends exchange gen by closing the connection under it. It does nothing to a later
// one.
func (c *conn) cancel(gen uint64, cause error) {
	if c.exchange.cancel(gen, cause) {
		c.closeConn()
	}
}

// roundTrip sends r and reads the head of its answer.
func (c *conn) roundTrip(ctx context.Context, r *Request) (*Response, error) {
	c.answered, c.early = false, false
	now := time.Now()
	gen := c.exchange.begin(now)
	if a, ok := ctx.(interface {
		AfterFunc(func()) func() bool
	}); ok { // httpserver's own; package context would do the same with four more allocations
		c.exchange.stop = a.AfterFunc(func() { c.cancel(gen, context.Cause(ctx)) })
	} else if ctx.Done() != nil {
		c.exchange.stop = context.AfterFunc(ctx, func() { c.cancel(gen, context.Cause(ctx)) })
	}

	t := &c.transport
	switch {
	case r.Bound >= longBound:
		t.limitSilence(now, r.Bound, r.Bound/64) // not per request
	case r.Bound > 0:
		t.limitSilence(now, r.Bound, 0)
	case !t.readUntil.IsZero(): // that of the exchange before
		t.setReadDeadline(time.Time{})
	}
	size := 0
	for _, p := range r.Body {
		size += len(p)
	}
	asks := t.asker != nil && c.reused && size <= oneWrite
	if !asks {
		switch found := t.look(); {
		case found == spoke:
			return nil, errUnsolicited
		case found == ended && c.reused:
			return nil, errStale
		}
	}
	if c.watched {
		c.watched = false
		defer c.c.watch(c)()
	}
	werr := c.send(r, size, asks)
	switch {
	case errors.Is(werr, os.ErrDeadlineExceeded), errors.Is(werr, errEarly):
		return nil, werr
	case werr != nil && c.reused && t.look() == spoke:
		return nil, errEarly
	}
	// An engine may refuse a body before it has read it: then the answer is there although
	// writing failed. It is believed on a new connection only.
	res := &Response{k: c}
	err := c.readHead(res, r.Method == "HEAD")
	if asks {
		werr, t.sendErr = t.sendErr, nil
	}
	if err != nil {
		if werr != nil && !errors.Is(err, ErrProtocol) {
			err = werr
		}
		return nil, err
	}
	if werr != nil {
		c.answer.close, c.early = true, true
	}
	return res, nil
}

// readHead reads the head of the answer.
func (c *conn) readHead(res *Response, headOnly bool) error {
	if _, err := c.answer.in.Peek(1); err != nil {
		return err
	}
	now := time.Now()
	c.answered, c.firstByte = true, now.Sub(c.sentAt)
	c.lastByte.Store(now.UnixNano())
	return c.answer.readHead(res, headOnly)
}

// Read reads the body of the answer.
func (c *conn) Read(p []byte) (n int, err error) {
	n, err = c.answer.read(p)
	if n > 0 {
		c.lastByte.Store(time.Now().UnixNano())
		c.exchange.bodyBegan.Store(true)
	}
	switch {
	case c.answer.done:
		return n, io.EOF
	case err == nil || n > 0:
		return n, nil
	}
	return 0, c.failed(io.ErrUnexpectedEOF, err)
}

// failed is the error of the exchange that err ended; kind is what it is where nothing else is
// known of it.
func (c *conn) failed(kind, err error) *Error {
	e := &Error{Addr: c.addr, Kind: kind, Err: err}
	switch cause := c.exchange.cause(); {
	case cause != nil && cause != ErrCut:
		e.Kind, e.Err = ErrCancelled, cause
	case errors.Is(err, ErrProtocol):
		e.Kind = ErrProtocol
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Kind = ErrSilent
	case cause == ErrCut:
		e.Err = fmt.Errorf("%w: %w", ErrCut, err)
	}
	return e
}

// finish ends an exchange; the connection is kept only if nothing of the answer
// is left on it and no cancel has closed it.
func (c *conn) finish() {
	if !c.exchange.end() {
		return
	}
	whole, more := c.answer.done && !c.answer.close, c.answer.in.Buffered() > 0
	if whole && more {
		c.c.markUnsolicited(c.addr)
	}
	if !whole || more || c.exchange.cause() != nil {
		c.closeConn()
		return
	}
	if cap(c.writeBuf) > 4*oneWrite {
		c.writeBuf = nil
	}
	c.c.put(c)
}

// send sends a request whose body has size bytes. With asks it leaves it to the next read.
func (c *conn) send(r *Request, size int, asks bool) error {
	t := &c.transport
	c.sentAt = time.Now()
	if wait := writeWait + time.Duration(size/writeRate)*time.Second; t.writeUntil.Sub(c.sentAt) < wait {
		t.setWriteDeadline(c.sentAt.Add(wait + writeWait/2)) // not per request
	}
	b := appendHead(c.writeBuf[:0], r, size)
	if size <= oneWrite {
		for _, p := range r.Body {
			b = append(b, p...)
		}
	}
	c.writeBuf = b
	switch {
	case asks:
		t.asks = b
		return nil
	case size <= oneWrite:
		_, err := t.conn.Write(b)
		return err
	}
	bufs := append(make(net.Buffers, 0, 1+len(r.Body)), b)
	for _, p := range r.Body {
		if len(p) > 0 {
			bufs = append(bufs, p)
		}
	}
	n := len(bufs) - 1
	cut := len(bufs[n]) - min(len(bufs[n]), lastWrite)
	last := bufs[n][cut:]
	bufs[n] = bufs[n][:cut]
	if _, err := bufs.WriteTo(t.conn); err != nil {
		return err
	}
	if t.look() == spoke {
		if c.reused {
			return errEarly
		}
		c.early = true
	}
	c.sentAt = time.Now()
	_, err := t.conn.Write(last)
	return err
}

// appendHead appends the head of a request whose body has size bytes.
func appendHead(b []byte, r *Request, size int) []byte {
	b = append(b, r.Method...)
	b = append(append(append(b, ' '), r.Prefix...), r.Path...)
	b = append(append(b, " HTTP/1.1\r\nhost: "...), cmp.Or(r.Host, r.Addr)...)
	if size > 0 || r.Method != "GET" && r.Method != "HEAD" {
		b = strconv.AppendInt(append(b, "\r\ncontent-length: "...), int64(size), 10)
	}
	b = append(b, '\r', '\n')
	if !slices.ContainsFunc(r.Fields, func(f Field) bool { return http1.EqualFold(f.Name, "accept-encoding") }) {
		b = append(b, "accept-encoding: identity\r\n"...)
	}
	for _, f := range r.Fields {
		if isOwnField(f.Name) {
			continue
		}
		b = append(append(b, f.Name...), ": "...)
		n := len(b)
		b = append(b, f.Value...)
		for i := n; i < len(b); i++ { // a value can never start a line
			if b[i] == '\r' || b[i] == '\n' || b[i] == 0 {
				b[i] = ' '
			}
		}
		b = append(b, '\r', '\n')
	}
	return append(b, '\r', '\n')
}

// isOwnField reports whether a request's field is written by appendHead itself.
func isOwnField(name string) bool {
	return http1.EqualFold(name, "host") || http1.EqualFold(name, "expect") || http1.IsFramingField(name)
}
