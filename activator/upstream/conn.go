package upstream

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/http1"
	"github.com/thaw-dev/thaw/activator/tcp"
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
// goroutine of its exchange; only cancel comes from elsewhere.
type conn struct {
	c        *Client
	addr     string
	secure   bool // TLS
	netConn  net.Conn
	socket   *socket   // nil: it cannot be looked at
	under    *pollable // under TLS
	asker    asker     // nil: a request is sent and its answer read by two calls
	asks     []byte    // the request that the next read of the answer sends before
	sendErr  error     // that it failed with
	reader   *bufio.Reader
	writeBuf []byte // what is sent
	headBuf  []byte // the head that came, fields only
	spans    []fieldSpan
	fields   []Field

	watched   bool // in its first exchange: others were open beside it
	reused    bool
	answered  bool // a byte of the answer came
	early     bool // it came before the whole request was sent
	sentAt    time.Time
	firstByte time.Duration // from sentAt to the answer's first byte
	idleSince time.Time

	// What Traffic reads.
	begunAt   atomic.Int64  // when the exchange under way began, in unix nanoseconds; 0: there is none
	bodyBegan atomic.Bool   // a byte of its answer's body came
	lastByte  *atomic.Int64 // of the address, in unix nanoseconds

	// Where the body stands.
	chunked bool
	remain  int64 // of the body, or of the chunk; -1: until the connection ends
	inChunk bool  // a chunk's data was read, its CRLF was not
	done    bool
	close   bool // not to be used again

	until      time.Time // nc's read deadline; zero is none
	writeUntil time.Time // nc's write deadline

	stop func() bool // unhooks the cancel; nil where ctx cannot end

	mu         sync.Mutex // orders cancel against the end of the exchange
	gen        uint64     // which exchange
	inExchange bool       // an exchange is under way
	cancelled  error      // why it was cut
	aborted    bool       // by AbortThrough
}

type fieldSpan struct{ name, colon, value, end int }

func newConn(c *Client, addr string, nc net.Conn) *conn {
	nc = tcp.Wrap(nc)
	k := &conn{c: c, addr: addr, netConn: nc, socket: newSocket(nc), lastByte: new(atomic.Int64)}
	k.asker, _ = nc.(asker)
	k.reader = bufio.NewReaderSize(source{k}, 8<<10)
	return k
}

func (c *conn) closeConn() {
	c.netConn.Close()
	c.c.forget(c)
}

// abort closes it under whatever it is used for.
func (c *conn) abort() {
	c.mu.Lock()
	c.aborted = true
	c.mu.Unlock()
	c.closeConn()
}

func (c *conn) wasAborted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aborted
}

// exchange sends r and reads the head of its answer.
func (c *conn) exchange(ctx context.Context, r *Request) (*Response, error) {
	c.mu.Lock()
	c.gen++
	c.inExchange, c.cancelled = true, nil
	gen := c.gen
	c.mu.Unlock()
	c.answered, c.early = false, false
	c.bodyBegan.Store(false)
	now := time.Now()
	c.begunAt.Store(now.UnixNano())
	if a, ok := ctx.(interface {
		AfterFunc(func()) func() bool
	}); ok { // httpserver's own; package context would do the same with four more allocations
		c.stop = a.AfterFunc(func() { c.cancel(gen, context.Cause(ctx)) })
	} else if ctx.Done() != nil {
		c.stop = context.AfterFunc(ctx, func() { c.cancel(gen, context.Cause(ctx)) })
	}

	switch {
	case r.Bound > 0:
		most := r.Bound
		if most >= longBound {
			most += most / 64 // not per request
		}
		if left := c.until.Sub(now); left < r.Bound || left > most {
			c.setReadDeadline(now.Add(most))
		}
	case !c.until.IsZero(): // that of the exchange before
		c.setReadDeadline(time.Time{})
	}
	size := 0
	for _, p := range r.Body {
		size += len(p)
	}
	asks := c.asker != nil && c.reused && size <= oneWrite
	if !asks {
		if err := c.checkSilent(); err != nil {
			return nil, err
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
	case werr != nil && c.reused && c.look() == spoke:
		return nil, errEarly
	}
	// An engine may refuse a body before it has read it: then the answer is there although
	// writing failed. It is believed on a new connection only.
	res := &Response{k: c}
	err := c.readHead(res, r.Method == "HEAD")
	if asks {
		werr, c.sendErr = c.sendErr, nil
	}
	if err != nil {
		if werr != nil && !errors.Is(err, ErrProtocol) {
			err = werr
		}
		return nil, err
	}
	if werr != nil {
		c.close, c.early = true, true
	}
	return res, nil
}

// limitSilence moves the read deadline so that silence of d ends the exchange, and
// moves it again only when an eighth of d has passed: a stream calls this for
// each piece. It belongs to the goroutine of the exchange.
func (c *conn) limitSilence(d time.Duration) {
	now := time.Now()
	if left := c.until.Sub(now); left < d || left > d+d/8 {
		c.setReadDeadline(now.Add(d + d/8))
	}
}

func (c *conn) setReadDeadline(t time.Time) {
	c.until = t
	c.netConn.SetReadDeadline(t)
}

// cancel ends exchange gen by closing the connection under it. It does nothing
// to a later one, and does not run beside finish.
func (c *conn) cancel(gen uint64, cause error) {
	c.mu.Lock()
	if c.inExchange && c.gen == gen {
		c.cancelled = cmp.Or(cause, context.Canceled)
		c.closeConn()
	}
	c.mu.Unlock()
}

// cancelCause is why the exchange was cancelled; nil if it was not.
func (c *conn) cancelCause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cancelled
}

// endExchange makes late cancels harmless; false if the exchange has ended before.
func (c *conn) endExchange() bool {
	c.mu.Lock()
	inExchange := c.inExchange
	c.inExchange = false
	c.mu.Unlock()
	c.begunAt.Store(0)
	if inExchange && c.stop != nil {
		c.stop()
		c.stop = nil
	}
	return inExchange
}

// finish ends an exchange; the connection is kept only if nothing of the answer
// is left on it and no cancel has closed it.
func (c *conn) finish() {
	if !c.endExchange() {
		return
	}
	if c.done && !c.close && c.reader.Buffered() > 0 {
		c.c.markUnsolicited(c.addr)
	}
	if !c.done || c.close || c.reader.Buffered() > 0 || c.cancelCause() != nil || c.wasAborted() {
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
	now, wait := time.Now(), writeWait+time.Duration(size/writeRate)*time.Second
	if c.writeUntil.Sub(now) < wait {
		c.writeUntil = now.Add(wait + writeWait/2) // not per request
		c.netConn.SetWriteDeadline(c.writeUntil)
	}
	c.sentAt = now
	b := append(c.writeBuf[:0], r.Method...)
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
	b = append(b, '\r', '\n')
	if size <= oneWrite {
		for _, p := range r.Body {
			b = append(b, p...)
		}
		c.writeBuf = b
		if asks {
			c.asks = b
			return nil
		}
		_, err := c.netConn.Write(b)
		return err
	}
	c.writeBuf = b
	bufs := make(net.Buffers, 0, 1+len(r.Body))
	bufs = append(bufs, b)
	for _, p := range r.Body {
		if len(p) > 0 {
			bufs = append(bufs, p)
		}
	}
	n := len(bufs) - 1
	cut := len(bufs[n]) - min(len(bufs[n]), lastWrite)
	last := bufs[n][cut:]
	bufs[n] = bufs[n][:cut]
	if _, err := bufs.WriteTo(c.netConn); err != nil {
		return err
	}
	if c.look() == spoke {
		if c.reused {
			return errEarly
		}
		c.early = true
	}
	c.sentAt = time.Now()
	_, err := c.netConn.Write(last)
	return err
}

// isOwnField reports whether a request's field is written by send itself.
func isOwnField(name string) bool {
	switch len(name) {
	case 4:
		return http1.EqualFold(name, "host")
	case 6:
		return http1.EqualFold(name, "expect")
	}
	return http1.IsFramingField(name)
}

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, args...)...)
}

// line reads one line without its end. It is valid until the next read.
func (c *conn) line() ([]byte, error) {
	l, err := c.reader.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		l, err = c.longLine(l)
	}
	if err != nil {
		return nil, err
	}
	l = l[:len(l)-1]
	if n := len(l); n > 0 && l[n-1] == '\r' {
		l = l[:n-1]
	}
	return l, nil
}

// longLine reads on a line that began with l and is longer than the reader's buffer.
func (c *conn) longLine(l []byte) ([]byte, error) {
	var whole []byte
	for {
		whole = append(whole, l...)
		if len(whole) > c.c.o.MaxHead {
			return nil, protocolError("a line is too long")
		}
		var err error
		if l, err = c.reader.ReadSlice('\n'); err == nil {
			return append(whole, l...), nil
		} else if err != bufio.ErrBufferFull {
			return nil, err
		}
	}
}

func (c *conn) readHead(res *Response, headOnly bool) error {
	if _, err := c.reader.Peek(1); err != nil {
		return err
	}
	now := time.Now()
	c.answered, c.firstByte = true, now.Sub(c.sentAt)
	c.lastByte.Store(now.UnixNano())
	for informational := 0; ; informational++ {
		if err := c.readOneHead(res); err != nil {
			return err
		}
		if res.Status == 101 {
			return protocolError("it switches protocols unasked")
		}
		if res.Status >= 200 {
			break
		}
		if informational == 16 {
			return protocolError("it sends no final answer")
		}
	}
	switch {
	case headOnly || res.Status == 204 || res.Status == 304:
		c.chunked, c.remain, c.done = false, 0, true
	case c.chunked:
	case c.remain == 0:
		c.done = true
	case c.remain < 0:
		c.close = true
	}
	res.Length = c.remain
	if c.chunked {
		res.Length, c.remain = -1, 0
	}
	return nil
}

func parseStatusLine(l []byte) (status int, err error) {
	if len(l) < 12 || string(l[:7]) != "HTTP/1." || l[7] != '0' && l[7] != '1' || l[8] != ' ' || len(l) > 12 && l[12] != ' ' {
		return 0, protocolError("its status line is %.60q", l)
	}
	for _, d := range l[9:12] {
		if d < '0' || d > '9' {
			return 0, protocolError("its status line is %.60q", l)
		}
		status = status*10 + int(d-'0')
	}
	if status < 100 {
		return 0, protocolError("its status is %d", status)
	}
	return status, nil
}

// readOneHead reads one status line and its fields.
func (c *conn) readOneHead(res *Response) error {
	l, err := c.line()
	if err != nil {
		return err
	}
	status, err := parseStatusLine(l)
	if err != nil {
		return err
	}
	res.Status = status
	c.chunked, c.inChunk, c.remain, c.done = false, false, -1, false
	old := l[7] == '0' // HTTP/1.0
	c.close = old
	size := len(l)
	c.headBuf, c.spans = c.headBuf[:0], c.spans[:0]
	for {
		if l, err = c.line(); err != nil {
			return err
		}
		if len(l) == 0 {
			break
		}
		if size += len(l) + 2; size > c.c.o.MaxHead || len(c.spans) == 128 {
			return protocolError("its head is too large")
		}
		colon := bytes.IndexByte(l, ':')
		if colon <= 0 {
			return protocolError("a field is %.60q", l)
		}
		for i, char := range l[:colon] {
			if char <= ' ' || char >= 0x7f {
				return protocolError("a field is %.60q", l)
			}
			if char >= 'A' && char <= 'Z' {
				l[i] = char | 0x20
			}
		}
		if http1.HasControl(l[colon+1:]) {
			return protocolError("a field's value has control characters")
		}
		name, value := l[:colon], bytes.Trim(l[colon+1:], " \t")
		switch string(name) {
		case "content-length":
			n, ok := http1.ParseLength(value, 15)
			if c.remain >= 0 || !ok {
				return protocolError("its content-length is %.60q", value)
			}
			c.remain = n
			continue
		case "transfer-encoding":
			if !http1.EqualFold(value, "chunked") {
				return protocolError("its transfer-encoding is %.60q", value)
			}
			c.chunked = true // also twice: applications that copy fields behind a server that adds its own
			continue
		case "connection":
			c.close = c.close || http1.EqualFold(value, "close")
			continue
		case "keep-alive", "upgrade", "trailer", "proxy-connection", "te":
			continue
		}
		at := len(c.headBuf)
		c.headBuf = append(append(c.headBuf, name...), value...)
		c.spans = append(c.spans, fieldSpan{at, at + len(name), at + len(name), len(c.headBuf)})
	}
	if c.chunked && (old || c.remain >= 0) {
		return protocolError("it has chunks where it may not")
	}
	if status < 200 {
		return nil
	}
	head := string(c.headBuf) // one allocation for all names and values
	fields := c.fields[:0]
	for _, f := range c.spans {
		fields = append(fields, Field{head[f.name:f.colon], head[f.value:f.end]})
	}
	c.fields, res.Fields = fields, fields
	return nil
}
