package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
)

// body is a proxied request's body. Its first keepBody bytes are kept so that it can be
// sent again.
type body struct {
	in       io.ReadCloser
	control  *http.ResponseController
	sized    bool        // has a declared length: bodyIdle bounds its silence
	once     bool        // cannot be sent again: nothing is kept
	timedOut atomic.Bool // the body did not arrive in time

	reads   chan struct{} // holds a token during a read: the lock of the fields below
	until   time.Time     // the deadline for reads
	kept    []byte
	dropped bool  // more was read than is kept
	end     error // the error that reading in returned
	current *bodySending

	// Reading ahead, while the request is held.
	waiting atomic.Bool
	reader  chan struct{} // closed when the reader has ended; nil: there was none

	memory httpserver.Charge // the capacity of kept; the transport may read on after its End
}

// readsOn is how long a new sending waits for an earlier one's pending read.
const readsOn = 100 * time.Millisecond

type bodySending struct {
	b      *body
	at     int         // offset in kept: bytes sent so far
	closed atomic.Bool // by the sender; in is closed by the server
}

// bodyIdle bounds the silence within a body of declared length.
const bodyIdle = 60 * time.Second

// bodyOf returns the body of a request; nil if it has none.
func (g *Gateway) bodyOf(w *writer, r *http.Request) *body {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil
	}
	return &body{memory: httpserver.Charge{Budget: g.o.Bodies}, reads: make(chan struct{}, 1), in: r.Body,
		control: http.NewResponseController(w.ResponseWriter), sized: r.ContentLength > 0}
}

// readWhole reads a small body of declared length completely.
func (b *body) readWhole(length int64) error {
	if length < 0 || length > keepBody {
		return nil
	}
	b.reads <- struct{}{}
	defer func() { <-b.reads }()
	if length <= oneWrite {
		b.kept = make([]byte, 0, length+1) // one more, to reach the end
	} else if !b.grow(int(length) + 1) {
		return nil // it is read when it can be sent
	}
	for b.end == nil && len(b.kept) < cap(b.kept) {
		n, err := b.readClient(b.kept[len(b.kept):cap(b.kept)])
		b.kept, b.end = b.kept[:len(b.kept)+n], err
	}
	if b.end != io.EOF {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// readAhead reads in the background while the request is held. It calls leave once if the
// client disconnects.
func (b *body) readAhead(most int64, leave func()) {
	b.waiting.Store(true)
	if b.reader != nil {
		return // it is held again: enough was read
	}
	b.reader = make(chan struct{})
	go func() { // ends with the hold, at the latest by release
		defer close(b.reader)
		for b.waiting.Load() && b.readPiece(most) {
		}
		b.reads <- struct{}{}
		gone := b.end != nil && b.end != io.EOF
		<-b.reads
		if gone {
			leave()
		}
	}()
}

// readPiece reads one piece ahead; false at the end, or if a bound is reached.
func (b *body) readPiece(most int64) bool {
	b.reads <- struct{}{}
	defer func() { <-b.reads }()
	if b.end != nil || b.dropped || int64(len(b.kept)) >= most {
		return false
	}
	if len(b.kept) == cap(b.kept) && !b.grow(min(max(bufferSize, 2*cap(b.kept)), int(most))) {
		return false
	}
	n, err := b.readClient(b.kept[len(b.kept):cap(b.kept)])
	b.kept, b.end = b.kept[:len(b.kept)+n], err
	return err == nil
}

// grow gives kept a capacity of size bytes, and counts them; false where the memory is
// not free, and after release. The token of reads must be held.
func (b *body) grow(size int) bool {
	if b.memory.Set(int64(size)) != nil {
		return false
	}
	b.kept = append(make([]byte, 0, size), b.kept...)
	return true
}

// release stops the background reader, waits for its end, and gives back what is counted.
func (b *body) release() {
	defer b.memory.End()
	if b.reader == nil {
		return
	}
	b.waiting.Store(false)
	select {
	case <-b.reader:
	default: // the client is silent: interrupt the pending read
		b.control.SetReadDeadline(time.Unix(1, 0))
		<-b.reader
		b.control.SetReadDeadline(time.Time{})
	}
}

func (b *body) complete() bool {
	b.reads <- struct{}{}
	defer func() { <-b.reads }()
	return b.end == io.EOF && !b.dropped
}

// unread reports whether no byte was read and no read is under way.
func (b *body) unread() bool {
	select {
	case b.reads <- struct{}{}:
	default:
		return false
	}
	defer func() { <-b.reads }()
	return !b.dropped && (b.end == io.EOF || len(b.kept) == 0 && b.end == nil)
}

// readClient reads from the client; the token of reads must be held.
func (b *body) readClient(p []byte) (int, error) {
	if b.sized {
		if now := time.Now(); b.until.Sub(now) < bodyIdle {
			b.until = now.Add(bodyIdle + bodyIdle/8)
			b.control.SetReadDeadline(b.until)
		}
	}
	n, err := b.in.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.timedOut.Store(true)
	case b.sized:
		b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// send returns the body from its first byte; false if that is no longer kept, or if an
// earlier sending's read is still under way.
func (b *body) send() (io.ReadCloser, bool) {
	if b.current != nil {
		b.current.closed.Store(true)
	}
	select {
	case b.reads <- struct{}{}:
	case <-time.After(readsOn):
		return nil, false
	}
	defer func() { <-b.reads }()
	switch {
	case b.dropped:
		return nil, false
	case b.end == io.EOF: // complete: for this type the transport writes head and body at once
		return io.NopCloser(bytes.NewReader(b.kept)), true
	}
	b.current = &bodySending{b: b}
	return b.current, true
}

// getBody is send in the form of http.Request.GetBody.
func (b *body) getBody() (io.ReadCloser, error) {
	if r, ok := b.send(); ok {
		return r, nil
	}
	return nil, errors.New("gateway: the body is gone")
}

func (s *bodySending) Read(p []byte) (int, error) {
	b := s.b
	b.reads <- struct{}{}
	defer func() { <-b.reads }()
	if s.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if s.at < len(b.kept) {
		n := copy(p, b.kept[s.at:])
		if s.at += n; s.at == len(b.kept) {
			return n, b.end
		}
		return n, nil
	}
	if b.end != nil {
		return 0, b.end
	}
	n, err := b.readClient(p)
	b.end = err
	switch {
	case b.dropped || n == 0:
	case b.once || len(b.kept)+n > keepBody || len(b.kept)+n > cap(b.kept) && !b.grow(min(max(len(b.kept)+n, 2*cap(b.kept)), keepBody)):
		b.kept, b.dropped, s.at = nil, true, 0
	default:
		b.kept = append(b.kept, p[:n]...)
		s.at = len(b.kept)
	}
	return n, err
}

// Close ends this sending; the client's body stays open.
func (s *bodySending) Close() error {
	s.closed.Store(true)
	return nil
}
