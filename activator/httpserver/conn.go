package httpserver

import (
	"io"
	"net"
	"time"

	"github.com/thaw-dev/thaw/activator/tcp"
)

const (
	firstBuffer = 4 << 10  // a usual request, head and body, in one read
	firstBody   = 64 << 10 // what a declared length is believed at once
	keepBody    = 16 << 10 // a larger body buffer is not kept for the next request
	// rejectDrainBytes is what is read, and dropped, of a body that Authorize refused.
	rejectDrainBytes = 64 << 10
)

// conn is one connection as the server behind the front sees it: Read yields a
// plain request line for each request that is whole and strict, Write sends
// under a deadline.
//
// The goroutine that serves the connection owns everything but what the locks of state and
// body guard.
type conn struct {
	net.Conn    // the client's
	s           *server
	slot        *Slot
	opened      time.Time
	headTimeout time.Duration // of a head, and of the first byte
	used        bool          // a whole head has come
	address     string        // of the client, once it is needed

	in    input
	head  head // of this exchange
	body  bodyMemory
	out   output
	state connState

	req         Request
	res         Response
	rejected    bool   // Authorize refused it: res is the answer, and the last one
	failureSent bool   // the stream has reported its failure: the connection ends by FIN
	requestLine []byte // what the server behind still has to read
	reason      []byte // scratch of the fiber body
}

// input is what a client sends.
type input struct {
	conn  net.Conn
	buf   []byte
	r, w  int       // buf[r:w] came and is not taken yet
	until time.Time // the read deadline as it stands
}

// SetReadDeadline sets the read deadline where it is another.
func (i *input) SetReadDeadline(t time.Time) error {
	if !t.Equal(i.until) {
		i.until = t
		i.conn.SetReadDeadline(t)
	}
	return nil
}

func newConn(s *server, nc net.Conn, slot *Slot) *conn {
	nc = tcp.Wrap(nc)
	c := &conn{Conn: nc, s: s, slot: slot, opened: time.Now(), headTimeout: s.o.HeadTimeout, in: input{conn: nc}}
	if slot.place == beyond {
		c.headTimeout = min(beyondTimeout, c.headTimeout)
	}
	c.out.conn, c.out.timeout = nc, s.o.WriteTimeout
	c.state.server, c.state.in = s, &c.in
	c.body.Budget = s.o.Bodies
	c.req.from = c
	return c
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
	if len(c.requestLine) == 0 && !c.next() {
		return 0, io.EOF
	}
	n := copy(p, c.requestLine)
	c.requestLine = c.requestLine[n:]
	return n, nil
}

// The server behind sets no deadline: input has that of reads, and every write has its own.

func (c *conn) SetDeadline(time.Time) error      { return nil }
func (c *conn) SetReadDeadline(time.Time) error  { return nil }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// next waits for the next request and reads it whole. It returns false where the connection
// is over and any refusal has been sent.
func (c *conn) next() bool {
	c.out.flush()
	c.resetExchange()
	c.slot.SetIdle(true)
	c.state.setPhase(idle)
	if c.s.draining.Load() {
		return false
	}
	refusal, err := c.readRequest()
	if refusal != nil {
		c.refuse(refusal)
	}
	if refusal != nil || err != nil {
		return false
	}
	h := &c.head
	c.requestLine = requestLines[index(c.req.Method == "HEAD")][index(h.http10)][index(c.rejected || c.slot.place == beyond || h.close ||
		h.http10 && !h.keepAlive)]
	if !c.slot.SetIdle(c.rejected) || !c.state.setPhase(busy) { // a rejected one may end to make room for another
		c.req.closeReceived()
		return false
	}
	return true
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

// resetExchange clears the state of the exchange before.
func (c *conn) resetExchange() {
	c.head = head{fields: c.head.fields[:0]}
	c.out.holdEnd, c.out.holdMore = false, false
	c.body.reset()
	c.req.Body, c.req.Opened = nil, nil
	n := copy(c.in.buf, c.in.buf[c.in.r:c.in.w])
	c.in.r, c.in.w = 0, n
	clear(c.res.Fields)
}

func (c *conn) header(name string) string { return c.head.value(name) }

func (c *conn) eachField(yield func(Field) bool) {
	text := c.head.text()
	for _, f := range c.head.fields {
		if !yield(Field{text[f.name:f.colon], text[f.value:f.end]}) {
			return
		}
	}
}

func (c *conn) context() *Context { return c.state.context() }
func (c *conn) isDraining() bool  { return c.s.draining.Load() }

// Write sends p, perhaps with what follows it.
func (c *conn) Write(p []byte) (int, error) { return c.out.Write(p) }

// Close is called by the server behind, once it is through with the connection.
func (c *conn) Close() error {
	if !c.state.setPhase(closed) {
		return nil
	}
	c.body.End() // no answer is written any more
	c.out.flush()
	c.state.stopWatch(ErrGone)
	switch {
	case c.rejected:
		halfCloseAndDrain(c.Conn, rejectDrainBytes, closeDelay)
	case c.failureSent:
		HalfClose(c.Conn)
	}
	err := c.Conn.Close()
	c.s.remove(c)
	return err
}
