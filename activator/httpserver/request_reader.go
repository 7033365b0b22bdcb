package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/thaw-dev/thaw/activator/http1"
	"github.com/thaw-dev/thaw/functions/openai"
)

// readRequest reads one head and its body. A refusal is the answer to
// send; an error means that the client is gone.
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
	return bodyRefusal(err, o.MaxBody)
}

// bodyRefusal is the answer to a body that could not be read. It returns err itself
// where the client is gone.
func bodyRefusal(err error, limit int64) (*openai.Error, error) {
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, errTooLarge):
		return tooLarge(limit), nil
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

// bodyDeadline is when the next byte of a body must be there that began at from and has
// got bytes so far.
func (o *Options) bodyDeadline(from time.Time, got int64) time.Time {
	return from.Add(o.BodyGrace + time.Duration(got*int64(time.Second)/o.BodyRate))
}

// pacedReader reads a body that must come at a rate.
type pacedReader struct {
	w    *conn
	from time.Time
	got  int64
}

func (p *pacedReader) read(b []byte) (int, error) {
	o := &p.w.s.o
	p.w.readBy(o.bodyDeadline(p.from, p.got))
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

// fill reads more bytes behind those not consumed yet, and moves these to the front of
// the buffer where it is full.
func (w *conn) fill(p *pacedReader) error {
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

// readChunks reads a chunked body; extensions and trailers are dropped.
func (w *conn) readChunks(p *pacedReader) error {
	if len(w.buf)-w.headEnd < 1<<10 {
		w.buf = append(w.buf, make([]byte, firstBuffer)...)
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
			if err := w.fill(p); err != nil {
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
		size, extension, ok := http1.ParseChunkSize(l)
		if !ok || http1.HasControl(extension) {
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
				if err := w.fill(p); err != nil {
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
