package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions/openai"
)

const (
	firstBuffer = 4 << 10  // a usual request, head and body, in one read
	firstBody   = 64 << 10 // what a declared length is believed at once
	keepBody    = 16 << 10 // a larger body buffer is not kept for the next request
	onePiece    = 64 << 10 // a write deadline covers at most this much
	lingerFor   = 2 * time.Second
	lingerBytes = 64 << 20
)

type phase uint8

const (
	idle    phase = iota // no byte of a request yet
	reading              // some of one
	busy                 // the handler has one, or its answer is being written
)

// conn is one connection as the server behind the front sees it: Read yields a
// plain request line for each request that is whole and strict, Write sends
// under a deadline.
//
// The goroutine that serves the connection owns everything but what mu guards.
// Between arm and disarm a look-ahead goroutine may own buf[w:].
type conn struct {
	net.Conn // the client's
	s        *server

	buf         []byte
	r, w        int         // buf[r:w] came and is not taken yet
	headEnd     int         // buf[headAt:headEnd] is the head of this exchange
	headAt      int         // 2 where a stray CR LF came before it
	fields      []fieldSpan // of the head
	head        head        // of the head
	text        string      // buf[headAt:headEnd], once asked for
	large       []byte      // the body where buf is too small for it
	charged     int64       // what the server counts for it; written under mu
	requestLine []byte      // what the server behind still has to read
	req         Request
	res         Response
	remote      bool   // req.Remote is known
	reason      []byte // scratch of the fiber body

	readUntil  time.Time // the deadlines as they stand on Conn
	writeUntil time.Time
	holdEnd    bool   // the stream has ended: its last bytes and its end go out together
	held       []byte // what waits for that
	last       bool   // no request is read after this one

	netHTTP bool          // the server behind reads while its handler runs
	poke    chan struct{} // ends such a Read

	mu     sync.Mutex
	phase  phase
	closed bool
	gone   bool
	ctx    *requestContext // the context of this exchange, once asked for
	timer  *time.Timer     // arms the watch
	watch  *watcher
	token  uint64        // in its epoll set; 0: not there
	ahead  chan struct{} // closed when the look-ahead goroutine has ended
}

func newConn(s *server, c net.Conn) *conn {
	w := &conn{Conn: c, s: s, poke: make(chan struct{}, 1)}
	w.req.c = w
	return w
}

// What the server behind gets to read: [HEAD?][HTTP/1.0?][close?]. It frames its
// answer by these three alone.
var requestLines = func() (f [2][2][2][]byte) {
	for i, method := range []string{"GET", "HEAD"} {
		for j, proto := range []string{"1.1", "1.0"} {
			for k, field := range []string{"", "Connection: close\r\n"} {
				if j == 1 && k == 0 {
					field = "Connection: keep-alive\r\n"
				}
				f[i][j][k] = []byte(method + " / HTTP/" + proto + "\r\nHost: thaw\r\n" + field + "\r\n")
			}
		}
	}
	return f
}()

// Read gives the server behind its next request. It is also how that server
// says that the exchange before is over.
func (w *conn) Read(p []byte) (int, error) {
	if len(w.requestLine) == 0 {
		if w.netHTTP && w.isBusy() { // net/http looks for a client that leaves; we do that ourselves
			<-w.poke
			return 0, os.ErrDeadlineExceeded
		}
		if err := w.next(); err != nil {
			return 0, io.EOF
		}
	}
	n := copy(p, w.requestLine)
	w.requestLine = w.requestLine[n:]
	return n, nil
}

func (w *conn) isBusy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.phase == busy
}

// The front owns the read deadline; a server behind that sets one only wants
// its Read back.
func (w *conn) SetReadDeadline(t time.Time) error {
	if !t.IsZero() {
		w.wakeRead()
	}
	return nil
}

func (w *conn) wakeRead() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// SetWriteDeadline does nothing: every write has a deadline of its own.
func (w *conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline does nothing, as the two above.
func (w *conn) SetDeadline(time.Time) error { return nil }

// NetConn is the client's connection.
func (w *conn) NetConn() net.Conn { return w.Conn }

var (
	errRefused = errors.New("httpserver: the request was refused")
	errOver    = errors.New("httpserver: the connection is over")
)

// next waits for the next request, reads it whole, and makes it ready. An error
// means that the connection is over; what was to be said has been said.
func (w *conn) next() error {
	select {
	case <-w.poke: // of an earlier exchange
	default:
	}
	w.flush()
	w.forget()
	w.setPhase(idle)
	if w.last || w.s.draining.Load() {
		return errOver
	}
	if refusal, err := w.readRequest(); err != nil {
		return err
	} else if refusal != nil {
		w.refuse(refusal)
		return errRefused
	}
	h := &w.head
	q := &w.req
	b := w.buf[w.headAt:w.headEnd]
	setMethod(&q.Method, b[h.method[0]:h.method[1]])
	path, query, _ := bytes.Cut(b[h.target[0]:h.target[1]], []byte{'?'})
	setString(&q.Path, path)
	setString(&q.Query, query)
	setString(&q.Host, b[h.host[0]:h.host[1]])
	if !w.remote {
		w.remote = true
		if a, ok := w.Conn.RemoteAddr().(*net.TCPAddr); ok {
			ap := a.AddrPort()
			q.Remote = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
		}
	}
	q.Arrived = time.Now()
	w.requestLine = requestLines[index(q.Method == "HEAD")][index(h.http10)][index(h.close || h.http10 && !h.keepAlive)]
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errOver
	}
	w.phase = busy
	return nil
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// setString makes *s equal to b; the connection's usual case, the same again, costs nothing.
func setString(s *string, b []byte) {
	if *s != string(b) {
		*s = string(b)
	}
}

func setMethod(s *string, b []byte) {
	switch string(b) {
	case "POST":
		*s = "POST"
	case "GET":
		*s = "GET"
	default:
		setString(s, b)
	}
}

// forget drops what belonged to the exchange before.
func (w *conn) forget() {
	w.text = ""
	w.fields = w.fields[:0]
	w.holdEnd = false
	if cap(w.large) > keepBody {
		w.large = nil
	}
	w.charge(cap(w.large))
	w.req.Body = nil
	n := copy(w.buf, w.buf[w.r:w.w])
	w.r, w.w = 0, n
	clear(w.res.Fields)
}

// readRequest reads one head and its body. A refusal is what to answer; an
// error means that there is nobody to answer.
func (w *conn) readRequest() (refusal *openai.Error, err error) {
	if w.buf == nil {
		w.buf = make([]byte, min(firstBuffer, w.s.o.MaxHead))
		if t, ok := w.Conn.(interface{ Handshake() error }); ok { // TLS: no slower than a head
			w.readBy(time.Now().Add(w.s.o.HeadTimeout))
			if err := t.Handshake(); err != nil {
				return nil, err
			}
		}
	}
	var first time.Time // when the first byte was there
	line, at, skipped := 0, 0, false
	w.headAt = 0
	for {
		for at < w.w {
			n := bytes.IndexByte(w.buf[at:w.w], '\n')
			if n < 0 {
				at = w.w
				break
			}
			at += n + 1
			if at-2 < line || w.buf[at-2] != '\r' {
				return openai.New(openai.InvalidRequest, "The request's head is not well formed: a line does not end with CR LF."), nil
			}
			if at-2 > line {
				line = at
				continue
			}
			if line == 0 && !skipped { // old clients send one behind a body
				skipped, line, w.headAt = true, at, at
				continue
			}
			w.headEnd = at
			w.r = at
			var e *openai.Error
			if w.head, w.fields, e = parseHead(w.buf[w.headAt:at], w.fields); e != nil {
				return e, nil
			}
			return w.readBody()
		}
		if w.w == len(w.buf) {
			if len(w.buf) >= w.s.o.MaxHead {
				return openai.New(openai.HeadTooLarge, ""), nil
			}
			w.buf = append(w.buf, make([]byte, min(len(w.buf), w.s.o.MaxHead-len(w.buf)))...)
		}
		now := time.Now()
		if w.w > 0 {
			if first.IsZero() {
				first = now
				w.setPhase(reading)
			}
			w.readBy(first.Add(w.s.o.HeadTimeout))
		} else if left := w.readUntil.Sub(now); left < w.s.o.IdleTimeout || left > 2*w.s.o.IdleTimeout {
			w.readBy(now.Add(w.s.o.IdleTimeout + w.s.o.IdleTimeout/4)) // rarely, not per request
		}
		n, err := w.Conn.Read(w.buf[w.w:])
		w.w += n
		if err != nil && n == 0 {
			if w.w > w.headAt && errors.Is(err, os.ErrDeadlineExceeded) {
				return openai.New(openai.RequestTimeout, ""), nil
			}
			return nil, err
		}
	}
}

func (w *conn) setPhase(p phase) {
	w.mu.Lock()
	w.phase = p
	w.mu.Unlock()
}

func (w *conn) readBy(t time.Time) {
	if !t.Equal(w.readUntil) {
		w.readUntil = t
		w.Conn.SetReadDeadline(t)
	}
}

// readBody reads the body behind the head, whose bytes so far are buf[r:w].
func (w *conn) readBody() (refusal *openai.Error, err error) {
	h, o := &w.head, &w.s.o
	if h.length > o.MaxBody {
		return tooLarge(o.MaxBody), nil
	}
	have := int64(w.w - w.r)
	if !h.chunked && have >= h.length {
		n := int(max(h.length, 0))
		w.req.Body = w.buf[w.r : w.r+n : w.r+n]
		w.r += n
		return nil, nil
	}
	w.setPhase(reading)
	if h.expect && !h.http10 {
		if _, err := w.write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
			return nil, err
		}
	}
	pace := pacedReader{w: w, from: time.Now()}
	if h.chunked {
		err = w.readChunks(&pace)
	} else {
		err = w.readSized(&pace)
	}
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, errTooLarge):
		return tooLarge(o.MaxBody), nil
	case errors.Is(err, errFull):
		return openai.New(openai.QueueFull, "The server holds as many bodies as it may.").After(5 * time.Second), nil
	case errors.Is(err, errChunk):
		return openai.New(openai.InvalidRequest, "The request's body is not well formed: a chunk is wrong."), nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return openai.New(openai.RequestTimeout, ""), nil
	}
	return nil, err
}

var (
	errTooLarge = errors.New("httpserver: body too large")
	errFull     = errors.New("httpserver: too many bodies")
	errChunk    = errors.New("httpserver: bad chunk")
)

// charge counts a body buffer of n bytes for this connection, in place of what
// was counted before; false if the server holds too much already.
func (w *conn) charge(n int) bool {
	more := int64(n) - w.charged
	if more == 0 {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	if total := w.s.bodies.Add(more); more > 0 && total > w.s.o.MaxBodies {
		w.s.bodies.Add(-more)
		return false
	}
	w.charged = int64(n)
	return true
}

func tooLarge(limit int64) *openai.Error {
	return openai.New(openai.RequestTooLarge, fmt.Sprintf("The body is larger than %d bytes.", limit))
}

// pacedReader reads a body that must come at a rate.
type pacedReader struct {
	w    *conn
	from time.Time
	got  int64
}

func (p *pacedReader) read(b []byte) (int, error) {
	o := &p.w.s.o
	p.w.readBy(p.from.Add(o.BodyGrace + time.Duration(p.got*int64(time.Second)/o.BodyRate)))
	n, err := p.w.Conn.Read(b)
	p.got += int64(n)
	if n > 0 {
		return n, nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return 0, err
}

func (w *conn) readSized(p *pacedReader) error {
	length := int(w.head.length)
	if w.r+length <= len(w.buf) {
		end := w.r + length
		for w.w < end {
			n, err := p.read(w.buf[w.w:end])
			if err != nil {
				return err
			}
			w.w += n
		}
		w.req.Body = w.buf[w.r:end:end]
		w.r = end
		return nil
	}
	b := w.large[:0]
	if cap(b) == 0 {
		if !w.charge(min(length, firstBody)) {
			return errFull
		}
		b = make([]byte, 0, min(length, firstBody))
	}
	b = append(b, w.buf[w.r:w.w]...)
	w.r = w.w
	for len(b) < length {
		if len(b) == cap(b) {
			if !w.charge(min(length, 2*cap(b))) {
				return errFull
			}
			more := make([]byte, len(b), min(length, 2*cap(b)))
			copy(more, b)
			b = more
		}
		n, err := p.read(b[len(b):min(cap(b), length)])
		if err != nil {
			return err
		}
		b = b[:len(b)+n]
	}
	w.large = b
	w.req.Body = b[:length:length]
	return nil
}

// readChunks reads a chunked body; extensions and trailers are dropped.
func (w *conn) readChunks(p *pacedReader) error {
	if len(w.buf)-w.headEnd < 1<<10 {
		w.buf = append(w.buf, make([]byte, firstBuffer)...)
	}
	more := func() error {
		if w.w == len(w.buf) {
			if w.r == w.headEnd {
				return errChunk
			}
			w.w = w.headEnd + copy(w.buf[w.headEnd:], w.buf[w.r:w.w])
			w.r = w.headEnd
		}
		n, err := p.read(w.buf[w.w:])
		w.w += n
		return err
	}
	line := func(limit int) ([]byte, error) {
		for {
			b := w.buf[w.r:w.w]
			if i := bytes.IndexByte(b, '\n'); i >= 0 {
				if i == 0 || b[i-1] != '\r' || i > limit {
					return nil, errChunk
				}
				w.r += i + 1
				return b[:i-1], nil
			}
			if len(b) > limit {
				return nil, errChunk
			}
			if err := more(); err != nil {
				return nil, err
			}
		}
	}
	b := w.large[:0]
	for {
		l, err := line(256)
		if err != nil {
			return err
		}
		size, ok := chunkSize(l)
		if !ok {
			return errChunk
		}
		if size == 0 {
			break
		}
		if int64(len(b))+size > w.s.o.MaxBody {
			return errTooLarge
		}
		for size > 0 {
			if w.r == w.w {
				if err := more(); err != nil {
					return err
				}
			}
			n := min(int64(w.w-w.r), size)
			if b = append(b, w.buf[w.r:w.r+int(n)]...); !w.charge(cap(b)) {
				return errFull
			}
			w.r += int(n)
			size -= n
		}
		if l, err = line(2); err != nil {
			return err
		}
		if len(l) != 0 {
			return errChunk
		}
	}
	for range 32 {
		l, err := line(512)
		if err != nil {
			return err
		}
		if len(l) == 0 {
			w.large = b
			w.req.Body = b[:len(b):len(b)]
			return nil
		}
	}
	return errChunk
}

func chunkSize(l []byte) (n int64, ok bool) {
	if i := bytes.IndexByte(l, ';'); i >= 0 {
		for _, c := range l[i:] {
			if c < ' ' && c != '\t' || c == 0x7f {
				return 0, false
			}
		}
		l = bytes.TrimRight(l[:i], " \t")
	}
	if len(l) == 0 || len(l) > 8 {
		return 0, false
	}
	for _, c := range l {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int64(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | int64(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}

// refuse answers a request that no handler sees, and waits a moment for the
// client to take the answer: closing over unread bytes would reset the
// connection and the answer be lost with it.
func (w *conn) refuse(e *openai.Error) {
	body := e.Body()
	b := make([]byte, 0, 512+len(body))
	b = append(strconv.AppendInt(append(b, "HTTP/1.1 "...), int64(e.Status), 10), ' ')
	b = append(append(b, http.StatusText(e.Status)...), "\r\ndate: "...)
	b = append(append(b, w.s.date.now(time.Now())...), "\r\nconnection: close\r\ncontent-length: "...)
	b = append(strconv.AppendInt(b, int64(len(body)), 10), "\r\nx-request-id: "...)
	b = append(append(b, openai.NewID()...), '\r', '\n')
	for name, value := range e.Header {
		b = append(append(append(append(b, name...), ": "...), value...), '\r', '\n')
	}
	b = append(append(b, '\r', '\n'), body...)
	if _, err := w.write(b); err != nil {
		return
	}
	half, ok := w.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	w.readBy(time.Now().Add(lingerFor))
	for got := 0; got < lingerBytes; {
		n, err := w.Conn.Read(w.buf)
		if err != nil {
			return
		}
		got += n
	}
}

// headText is the head as a string that outlives the exchange.
func (w *conn) headText() string {
	if w.text == "" {
		w.text = string(w.buf[w.headAt:w.headEnd])
	}
	return w.text
}

// Write sends p in pieces, each under a deadline of its own.
func (w *conn) Write(p []byte) (int, error) {
	if w.holdEnd {
		w.held = append(w.held, p...)
		if bytes.HasSuffix(w.held, []byte("0\r\n\r\n")) {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
		return len(p), nil
	}
	return w.write(p)
}

// flush sends what waits for the end of a stream.
func (w *conn) flush() error {
	if len(w.held) == 0 {
		return nil
	}
	_, err := w.write(w.held)
	if w.held = w.held[:0]; cap(w.held) > onePiece {
		w.held = nil
	}
	return err
}

func (w *conn) write(p []byte) (n int, err error) {
	for len(p) > 0 {
		now, d := time.Now(), w.s.o.WriteTimeout
		if w.writeUntil.Sub(now) < d {
			w.writeUntil = now.Add(d + d/8) // not per write
			w.Conn.SetWriteDeadline(w.writeUntil)
		}
		m, err := w.Conn.Write(p[:min(len(p), onePiece)])
		n += m
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				w.reset()
			}
			return n, err
		}
		p = p[m:]
	}
	return n, nil
}

// reset makes the coming close a reset: where the end of the connection is the
// end of the body, and where the kernel would go on sending for minutes.
func (w *conn) reset() {
	c := w.Conn
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
}

// Close is called by the server behind, once it is through with the connection.
func (w *conn) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.s.bodies.Add(-w.charged) // nobody answers any more
	w.mu.Unlock()
	w.flush()
	w.disarm(ErrGone)
	err := w.Conn.Close()
	w.wakeRead()
	w.s.remove(w)
	return err
}

// call runs the handler. Afterwards the exchange's watch is off unless there is
// a stream, whose Close turns it off.
func (w *conn) call() (res *Response) {
	res = &w.res
	*res = Response{Fields: res.Fields[:0]}
	defer func() {
		if v := recover(); v != nil {
			w.s.o.Logger.Error("handler panicked", "panic", v, "path", w.req.Path, "stack", string(debug.Stack()))
			if res.Stream != nil {
				closeStream(w, res.Stream)
			}
			e := openai.New(openai.InternalError, "")
			*res = Response{Status: e.Status, Body: e.Body(), Close: true}
			res.Set("x-request-id", openai.NewID())
			for name, value := range e.Header {
				res.Set(name, value)
			}
			w.disarm(errAnswered)
		}
	}()
	w.s.o.Handler(&w.req, res)
	if res.Status == 0 {
		res.Status = 200
	}
	if res.Stream == nil {
		w.disarm(errAnswered)
	}
	if w.s.draining.Load() {
		res.Close = true
	}
	return res
}

func closeStream(w *conn, s io.Closer) {
	defer func() {
		if v := recover(); v != nil {
			w.s.o.Logger.Error("stream panicked in Close", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	s.Close()
}

// isFramingField names the fields that the door writes itself.
func isFramingField(name string) bool {
	switch len(name) {
	case 2:
		return equalFold(name, "te")
	case 4:
		return equalFold(name, "date")
	case 7:
		return equalFold(name, "trailer") || equalFold(name, "upgrade")
	case 10:
		return equalFold(name, "connection") || equalFold(name, "keep-alive")
	case 14:
		return equalFold(name, "content-length")
	case 16:
		return equalFold(name, "proxy-connection")
	case 17:
		return equalFold(name, "transfer-encoding")
	}
	return false
}

// ErrLast is what a Stream's Read returns in place of io.EOF where the body is
// whole but the connection should end with it: a stream that broke and said so.
var ErrLast = errors.New("httpserver: the last answer of this connection")

// responseStream is a Response's Stream as the server behind reads it.
type responseStream struct {
	w      *conn
	in     io.ReadCloser
	err    error // what the last Read ended with
	closed bool
	chunks bool // its end may be held back to go out with its last bytes
}

func (s *responseStream) Read(p []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.w.s.o.Logger.Error("stream panicked", "panic", v, "stack", string(debug.Stack()))
			n, err = 0, errors.New("httpserver: the stream panicked")
			s.err = err
		}
	}()
	if s.err != nil {
		return 0, s.err
	}
	n, err = s.in.Read(p)
	if err == nil {
		return n, nil
	}
	if errors.Is(err, ErrLast) {
		s.w.last, err = true, io.EOF
	}
	s.err = err
	if err == io.EOF && s.chunks {
		s.w.holdEnd = true
	}
	if err != io.EOF && s.w.head.http10 {
		s.w.reset()
	}
	if n > 0 {
		err = nil
	}
	return n, err
}

// Close closes the stream first and ends the request's context after it: the
// other way round the end would look like a cancel to whoever feeds it.
func (s *responseStream) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	closeStream(s.w, s.in)
	s.w.disarm(errAnswered)
	return nil
}
