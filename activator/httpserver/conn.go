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

	"github.com/thaw-dev/thaw/functions/newest"
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
	reason      []byte // scratch of the fiber body

	readUntil  time.Time // the deadlines as they stand on Conn
	writeUntil time.Time
	holdEnd    bool   // the stream has ended: its last bytes and its end go out together
	held       []byte // what waits for that
	last       bool   // the stream has reported its failure: the connection ends by FIN
	opened     time.Time
	slot       *Slot
	used       bool   // a whole head has come
	account    string // what charged counts for
	address    string // of the client, once it is needed
	rejected   bool   // Authorize refused it: res is the answer, and the last one

	netHTTP bool          // the server behind reads while its handler runs
	poke    newest.Signal // ends such a Read

	mu     sync.Mutex
	phase  phase
	closed bool
	gone   bool
	ctx    *Context    // the context of this exchange, once asked for
	timer  *time.Timer // arms the watch
	watch  *watcher
	token  uint64        // in its epoll set; 0: not there
	ahead  chan struct{} // closed when the look-ahead goroutine has ended

	onDrain func() // of an upgraded connection
}

func newConn(s *server, c net.Conn, slot *Slot) *conn {
	w := &conn{Conn: c, s: s, slot: slot, poke: newest.NewSignal(), opened: time.Now()}
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

// SetReadDeadline ends a pending Read of the server behind; the read deadline itself is
// the front's.
func (w *conn) SetReadDeadline(t time.Time) error {
	if !t.IsZero() {
		w.poke.Set()
	}
	return nil
}

// SetWriteDeadline does nothing: every write has a deadline of its own.
func (w *conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline does nothing, as the two above.
func (w *conn) SetDeadline(time.Time) error { return nil }

// NetConn is the client's connection.
func (w *conn) NetConn() net.Conn { return w.Conn }

var (
	errRefused    = errors.New("httpserver: the request was refused")
	errConnClosed = errors.New("httpserver: the connection is over")
)

// next waits for the next request and reads it whole. An error means that the connection
// is over and any refusal has been sent.
func (w *conn) next() error {
	select {
	case <-w.poke: // of an earlier exchange
	default:
	}
	w.flush()
	w.removeFromServer()
	w.setPhase(idle)
	if w.s.draining.Load() {
		return errConnClosed
	}
	if refusal, err := w.readRequest(); err != nil {
		return err
	} else if refusal != nil {
		w.refuse(refusal)
		return errRefused
	}
	h := &w.head
	w.requestLine = requestLines[index(w.req.Method == "HEAD")][index(h.http10)][index(w.rejected || w.slot.place == beyond || h.close || h.http10 && !h.keepAlive)]
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || !w.slot.SetIdle(w.rejected) { // a rejected one may end to make room for another
		w.req.closeReceived()
		return errConnClosed
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

// removeFromServer drops the state of the exchange before.
func (w *conn) removeFromServer() {
	w.text = ""
	w.fields, w.head.whole = w.fields[:0], false
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

func (w *conn) setPhase(p phase) {
	if p == idle {
		w.slot.SetIdle(true)
	}
	w.mu.Lock()
	w.phase = p
	w.mu.Unlock()
}

// headText is the head as a string that outlives the exchange.
func (w *conn) headText() string {
	if w.text == "" {
		w.text = string(w.buf[w.headAt:w.headEnd])
	}
	return w.text
}

func (w *conn) header(name string) (value string) {
	head := w.headText()
	found := false
	for _, f := range w.fields {
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

func (w *conn) eachField(yield func(Field) bool) {
	head := w.headText()
	for _, f := range w.fields {
		if !yield(Field{head[f.name:f.colon], head[f.value:f.end]}) {
			return
		}
	}
}

func (w *conn) isHTTP10() bool      { return w.head.http10 }
func (w *conn) isDraining() bool    { return w.s.draining.Load() }
func (w *conn) asksWebSocket() bool { return w.head.upgrade }

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

// flush sends the bytes held back for the end of a stream.
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

// reset makes the coming close a TCP reset: for bodies that end with the connection, and
// for clients that stopped reading, to which the kernel would go on sending for minutes.
func (w *conn) reset() {
	if t, ok := withoutTLS(w.Conn).(*net.TCPConn); ok {
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
	w.s.o.Bodies.Add(w.account, -w.charged) // no answer is written any more
	w.mu.Unlock()
	w.flush()
	w.disarm(ErrGone)
	switch {
	case w.rejected:
		endSending(w.Conn, rejectDrainBytes)
	case w.last:
		EndSending(w.Conn)
	}
	err := w.Conn.Close()
	w.poke.Set()
	w.s.remove(w)
	return err
}
