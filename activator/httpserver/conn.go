package httpserver

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/tcp"
)

const (
	firstBuffer     = 4 << 10  // a usual request, head and body, in one read
	firstBody       = 64 << 10 // what a declared length is believed at once
	keepBody        = 16 << 10 // a larger body buffer is not kept for the next request
	onePiece        = 64 << 10 // a write deadline covers at most this much
	closeDelay      = 2 * time.Second
	closeDrainBytes = 64 << 20
	// rejectDrainBytes is what is read, and dropped, of a body that Authorize refused.
	rejectDrainBytes = 64 << 10
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
// Between startWatch and stopWatch a look-ahead goroutine may own buf[w:].
type conn struct {
	net.Conn // the client's
	s        *server

	buf         []byte
	r, w        int         // buf[r:w] came and is not taken yet
	headEnd     int         // buf[headAt:headEnd] is the head of this exchange
	headAt      int         // 2 where a stray CR LF came before it
	fields      []fieldSpan // of the head
	lengths     uint64      // of its fields' names, one bit for each; see lengthBit
	head        head        // of the head
	text        string      // buf[headAt:headEnd], once asked for
	large       []byte      // the body where buf is too small for it
	grown       int64       // by how much buf has grown for a body
	charged     int64       // what the server counts for large and grown; written under mu
	requestLine []byte      // what the server behind still has to read
	req         Request
	res         Response
	reason      []byte // scratch of the fiber body

	readUntil   time.Time // the deadlines as they stand on Conn
	writeUntil  time.Time
	holdEnd     bool   // the stream has ended: its last bytes and its end go out together
	holdMore    bool   // the stream has more bytes at once: they go out with these
	held        []byte // what waits for that
	failureSent bool   // the stream has reported its failure: the connection ends by FIN
	opened      time.Time
	slot        *Slot
	used        bool   // a whole head has come
	account     string // what charged counts for
	address     string // of the client, once it is needed
	rejected    bool   // Authorize refused it: res is the answer, and the last one

	mu     sync.Mutex
	phase  phase
	closed bool
	gone   bool
	ctx    *Context    // the context of this exchange, once asked for
	timer  *time.Timer // starts the watch
	watch  *watcher
	token  uint64        // in its epoll set; 0: not there
	ahead  chan struct{} // closed when the look-ahead goroutine has ended

	onDrain func() // of an upgraded connection
}

func newConn(s *server, c net.Conn, slot *Slot) *conn {
	w := &conn{Conn: tcp.Wrap(c), s: s, slot: slot, opened: time.Now()}
	w.req.from = w
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

// Read returns the request line of the next request to the server behind. A call also
// means that the exchange before is over.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.requestLine) == 0 {
		if err := c.next(); err != nil {
			return 0, io.EOF
		}
	}
	n := copy(p, c.requestLine)
	c.requestLine = c.requestLine[n:]
	return n, nil
}

// SetReadDeadline does nothing: the front sets the read deadline.
func (c *conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing: every write has a deadline of its own.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline does nothing, as the two above.
func (c *conn) SetDeadline(time.Time) error { return nil }

// NetConn is the client's connection.
func (c *conn) NetConn() net.Conn { return c.Conn }

var (
	errRefused    = errors.New("httpserver: the request was refused")
	errConnClosed = errors.New("httpserver: the connection is over")
)

// next waits for the next request and reads it whole. An error means that the connection
// is over and any refusal has been sent.
func (c *conn) next() error {
	c.flush()
	c.resetExchange()
	c.setPhase(idle)
	if c.s.draining.Load() {
		return errConnClosed
	}
	if refusal, err := c.readRequest(); err != nil {
		return err
	} else if refusal != nil {
		c.refuse(refusal)
		return errRefused
	}
	h := &c.head
	c.requestLine = requestLines[index(c.req.Method == "HEAD")][index(h.http10)][index(c.rejected || c.slot.place == beyond || h.close ||
		h.http10 && !h.keepAlive)]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || !c.slot.SetIdle(c.rejected) { // a rejected one may end to make room for another
		c.req.closeReceived()
		return errConnClosed
	}
	c.phase = busy
	return nil
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// setString makes *s equal to b, without allocating where it is already.
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

// resetExchange clears the state of the exchange before.
func (c *conn) resetExchange() {
	c.text = ""
	c.fields, c.head.whole = c.fields[:0], false
	c.holdEnd, c.holdMore = false, false
	if cap(c.large) > keepBody {
		c.large = nil
	}
	c.setCharged(cap(c.large))
	c.req.Body, c.req.Opened = nil, nil
	n := copy(c.buf, c.buf[c.r:c.w])
	c.r, c.w = 0, n
	clear(c.res.Fields)
}

func (c *conn) setPhase(p phase) {
	if p == idle {
		c.slot.SetIdle(true)
	}
	c.mu.Lock()
	c.phase = p
	c.mu.Unlock()
}

// headText is the head as a string that outlives the exchange.
func (c *conn) headText() string {
	if c.text == "" {
		c.text = string(c.buf[c.headAt:c.headEnd])
	}
	return c.text
}

// lengthBit is the bit for names of n bytes: most fields that are asked for are not there, and
// no field has a name of their length.
func lengthBit(n int) uint64 { return 1 << (n & 63) }

func (c *conn) header(name string) (value string) {
	if c.lengths&lengthBit(len(name)) == 0 {
		return ""
	}
	head := c.headText()
	found := false
	for _, f := range c.fields {
		if int(f.colon-f.name) != len(name) || !strings.EqualFold(head[f.name:f.colon], name) {
			continue
		}
		if found {
			value += ", " + head[f.value:f.end]
			continue
		}
		if value, found = head[f.value:f.end], true; !isThawField(name) {
			break
		}
	}
	return value
}

func (c *conn) eachField(yield func(Field) bool) {
	head := c.headText()
	for _, f := range c.fields {
		if !yield(Field{head[f.name:f.colon], head[f.value:f.end]}) {
			return
		}
	}
}

func (c *conn) isHTTP10() bool      { return c.head.http10 }
func (c *conn) isDraining() bool    { return c.s.draining.Load() }
func (c *conn) asksWebSocket() bool { return c.head.upgrade }

// Write sends p in pieces, each under a deadline of its own.
func (c *conn) Write(p []byte) (int, error) {
	if !c.holdEnd && !c.holdMore && len(c.held) == 0 {
		return c.write(p)
	}
	c.held = append(c.held, p...)
	whole := !c.holdMore || len(c.held) >= onePiece/2
	if c.holdEnd {
		whole = bytes.HasSuffix(c.held, []byte("0\r\n\r\n"))
	}
	if whole {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// flush sends the bytes held back for what follows them.
func (c *conn) flush() error {
	if len(c.held) == 0 {
		return nil
	}
	_, err := c.write(c.held)
	if c.held = c.held[:0]; cap(c.held) > onePiece {
		c.held = nil
	}
	return err
}

func (c *conn) write(p []byte) (n int, err error) {
	for len(p) > 0 {
		now, d := time.Now(), c.s.o.WriteTimeout
		if c.writeUntil.Sub(now) < d {
			c.writeUntil = now.Add(d + d/8) // not per write
			c.Conn.SetWriteDeadline(c.writeUntil)
		}
		m, err := c.Conn.Write(p[:min(len(p), onePiece)])
		n += m
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.resetOnClose()
			}
			return n, err
		}
		p = p[m:]
	}
	return n, nil
}

// resetOnClose makes the coming close a TCP reset: for bodies that end with the connection, and
// for clients that stopped reading, to which the kernel would go on sending for minutes.
func (c *conn) resetOnClose() {
	if t, ok := withoutTLS(c.Conn).(interface{ SetLinger(int) error }); ok {
		t.SetLinger(0)
	}
}

// Close is called by the server behind, once it is through with the connection.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.s.o.Bodies.Add(c.account, -c.charged) // no answer is written any more
	c.mu.Unlock()
	c.flush()
	c.stopWatch(ErrGone)
	switch {
	case c.rejected:
		halfCloseAndDrain(c.Conn, rejectDrainBytes)
	case c.failureSent:
		HalfClose(c.Conn)
	}
	err := c.Conn.Close()
	c.s.remove(c)
	return err
}
