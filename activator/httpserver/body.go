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

var (
	errTooLarge = errors.New("httpserver: body too large")
	errChunk    = errors.New("httpserver: bad chunk")
)

// bodyRefusal is the answer to a body that could not be read. It returns err itself
// where the client is gone.
func bodyRefusal(err error, limit int64) (*openai.Error, error) {
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, errTooLarge):
		return tooLarge(limit), nil
	case errors.Is(err, ErrBudgetUsed):
		return openai.New(openai.QueueFull, "The server holds as many bodies as it may.").After(5 * time.Second), nil
	case errors.Is(err, ErrShareUsed):
		return openai.New(openai.RateLimitExceeded, "The requests of this key, or of this address where there is no key, "+
			"hold as much memory for bodies as one may.").After(5 * time.Second), nil
	case errors.Is(err, errChunk):
		return openai.New(openai.InvalidRequest, "The request's body is not well formed: a chunk is wrong."), nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return openai.New(openai.RequestTimeout, ""), nil
	}
	return nil, err
}

func tooLarge(limit int64) *openai.Error {
	return openai.New(openai.RequestTooLarge, fmt.Sprintf("The body is larger than %d bytes.", limit))
}

// bodyCounter counts the memory of bodies. setCharged counts n bytes for one body in place of
// what was counted for it before, or returns why not.
type bodyCounter interface{ setCharged(n int) error }

// readBody reads in to its end into b's array, or into a larger one that grows with what
// has come. A buffer of size bytes meets the end; -1: the size is unknown.
func readBody(in io.Reader, b []byte, size int, limit int64, counter bodyCounter) ([]byte, error) {
	first, maximum := firstBuffer, int(limit)+1
	if size >= 0 {
		first, maximum = min(size, firstBody), size
	}
	for {
		if len(b) == cap(b) {
			to := min(max(first, 2*cap(b)), maximum)
			if err := counter.setCharged(to); err != nil {
				counter.setCharged(0) // at once: of bodies that grow beside each other not all are refused
				return nil, err
			}
			b = append(make([]byte, 0, to), b...)
		}
		n, err := in.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case int64(len(b)) > limit:
			return nil, errTooLarge
		case err == io.EOF:
			return b[:len(b):cap(b)], nil
		case err != nil:
			return nil, err
		}
	}
}

// bodyIdle bounds the silence within a body, and bodyTimeout a whole one, which has a second more for
// each wholeBodyRate bytes. The average alone lets a client that sent a burst be silent for hours.
const (
	bodyIdle      = 10 * time.Second
	bodyTimeout   = 2 * time.Minute
	wholeBodyRate = 64 << 10
)

// pacedReader reads a body within the time bounds of the Options.
type pacedReader struct {
	o    *Options
	in   io.Reader
	conn interface{ SetReadDeadline(time.Time) error }
	from time.Time

	got   int64
	until time.Time
}

func (p *pacedReader) Read(b []byte) (int, error) {
	now := time.Now()
	at := func(rate int64) time.Duration { return time.Duration(p.got * int64(time.Second) / rate) }
	wait := min(p.from.Add(min(p.o.BodyGrace+at(p.o.BodyRate), bodyTimeout+at(wholeBodyRate))).Sub(now), bodyIdle)
	if by := now.Add(wait); by.After(p.until) {
		p.until = by.Add(p.o.BodyGrace / 8) // not per read
		p.conn.SetReadDeadline(p.until)
	}
	n, err := p.in.Read(b)
	p.got += int64(n)
	if n == 0 && err == nil {
		err = io.ErrNoProgress
	}
	return n, err
}

// bodyMemory is what a connection has for bodies beside its first buffer.
type bodyMemory struct {
	Charge
	large []byte // the body where the connection's buffer is too small for it
	grown int64  // by how much that buffer has grown for a body
}

// setCharged counts n bytes for large.
func (m *bodyMemory) setCharged(n int) error { return m.Set(int64(n) + m.grown) }

// reset drops what is not kept for the next body.
func (m *bodyMemory) reset() {
	if cap(m.large) > keepBody {
		m.large = nil
	}
	m.setCharged(cap(m.large))
}

// setAccount counts the memory for another account, without the body before.
func (m *bodyMemory) setAccount(account string) error {
	if account == m.Account {
		return nil
	}
	m.large = nil
	m.Set(0)
	m.Account = account
	return m.setCharged(0)
}

// connBody reads a connection's body: first what came with the head.
type connBody struct {
	in      *input
	pace    pacedReader
	start   int // of the body in in's buffer
	chunked bool
	left    int64 // of the body, or of its chunk
	got     int64 // of a chunked body: the sizes of its chunks so far
	max     int64 // bounds got
}

// Read returns io.EOF with the last bytes of a body of declared length.
func (c *connBody) Read(p []byte) (n int, err error) {
	in := c.in
	switch {
	case c.left > 0:
	case !c.chunked:
		return 0, io.EOF
	default:
		if err := c.nextChunk(); err != nil {
			return 0, err
		}
	}
	p = p[:min(int64(len(p)), c.left)]
	switch {
	case in.r < in.w:
		n = copy(p, in.buf[in.r:in.w])
		in.r += n
	case c.chunked:
		return 0, c.fill()
	default:
		if n, err = c.receive(p); err != nil {
			return n, err
		}
	}
	if c.left -= int64(n); c.left == 0 && !c.chunked {
		err = io.EOF
	}
	return n, err
}

// receive reads from the client, whose end is not the body's.
func (c *connBody) receive(p []byte) (int, error) {
	n, err := c.pace.Read(p)
	if n > 0 {
		return n, nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return 0, err
}

// fill receives bytes behind those not consumed yet, and moves these to the front of the
// buffer where it is full.
func (c *connBody) fill() error {
	in := c.in
	if in.w == len(in.buf) {
		if in.r == c.start {
			return errChunk
		}
		in.w = c.start + copy(in.buf[c.start:], in.buf[in.r:in.w])
		in.r = c.start
	}
	n, err := c.receive(in.buf[in.w:])
	in.w += n
	return err
}

// line returns the next line without its end.
func (c *connBody) line(limit int) ([]byte, error) {
	in := c.in
	for {
		b := in.buf[in.r:in.w]
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			if i == 0 || b[i-1] != '\r' || i > limit {
				return nil, errChunk
			}
			in.r += i + 1
			return b[:i-1], nil
		}
		if len(b) > limit {
			return nil, errChunk
		}
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
}

// nextChunk reads the lines between two chunks. Behind the last it drops the trailers and
// returns io.EOF.
func (c *connBody) nextChunk() error {
	if c.got > 0 {
		if l, err := c.line(2); err != nil {
			return err
		} else if len(l) != 0 {
			return errChunk
		}
	}
	l, err := c.line(256)
	if err != nil {
		return err
	}
	size, extension, ok := http1.ParseChunkSize(l)
	if !ok || http1.HasControl(extension) {
		return errChunk
	}
	if size > 0 {
		c.left = size
		if c.got += size; c.got > c.max {
			return errTooLarge
		}
		return nil
	}
	for range 32 {
		if l, err := c.line(512); err != nil {
			return err
		} else if len(l) == 0 {
			return io.EOF
		}
	}
	return errChunk
}
