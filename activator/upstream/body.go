package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/thaw-dev/thaw/activator/http1"
)

// nextChunk reads the line that opens the next chunk, and the end of the one before.
func (c *conn) nextChunk() error {
	if c.inChunk {
		l, err := c.line()
		if err != nil {
			return err
		}
		if len(l) != 0 {
			return protocolError("a chunk is longer than it says")
		}
		c.inChunk = false
	}
	l, err := c.line()
	if err != nil {
		return err
	}
	n, _, ok := http1.ParseChunkSize(bytes.TrimRight(l, " \t")) // some servers pad it
	if !ok {
		return protocolError("a chunk's size is %.20q", l)
	}
	if c.remain = n; n > 0 {
		return nil
	}
	for range 64 { // trailers are dropped
		if l, err = c.line(); err != nil {
			return err
		}
		if len(l) == 0 {
			c.done = true
			return nil
		}
	}
	return protocolError("its trailers do not end")
}

// chunkBuffered reports whether nextChunk would return without waiting.
func (c *conn) chunkBuffered() bool {
	b, _ := c.reader.Peek(c.reader.Buffered())
	if c.inChunk {
		if len(b) < 2 {
			return false
		}
		b = b[2:]
	}
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return false
	}
	if b[0] == '0' { // the last one: its empty line must be here too
		return bytes.HasPrefix(b[i+1:], []byte("\r\n"))
	}
	return true
}

func (c *conn) read(p []byte) (n int, err error) {
	if c.done {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	if c.chunked {
		n, err = c.readChunks(p)
	} else {
		if c.remain > 0 && int64(len(p)) > c.remain {
			p = p[:c.remain]
		}
		n, err = c.reader.Read(p)
		if c.remain > 0 {
			if c.remain -= int64(n); c.remain == 0 {
				c.done = true
			}
		} else if err == io.EOF {
			c.done = true
		}
	}
	if n > 0 {
		c.lastByte.Store(time.Now().UnixNano())
		c.bodyBegan.Store(true)
	}
	if c.done {
		return n, io.EOF
	}
	if err == nil || n > 0 {
		return n, nil
	}
	c.close = true
	return 0, c.failed(io.ErrUnexpectedEOF, err)
}

// failed is the error of the exchange that err ended; kind is what it is where nothing else is
// known of it.
func (c *conn) failed(kind, err error) *Error {
	e := &Error{Addr: c.addr, Kind: kind, Err: err}
	switch cause := c.cancelCause(); {
	case cause != nil:
		e.Kind, e.Err = ErrCancelled, cause
	case errors.Is(err, ErrProtocol):
		e.Kind = ErrProtocol
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Kind = ErrSilent
	case c.wasAborted():
		e.Err = fmt.Errorf("%w: %w", ErrCut, err)
	}
	return e
}

// readChunks fills p from as many chunks as are there; it waits only for the
// first byte.
func (c *conn) readChunks(p []byte) (n int, err error) {
	for n < len(p) {
		if c.remain == 0 {
			if n > 0 && !c.chunkBuffered() {
				return n, nil
			}
			if err = c.nextChunk(); err != nil || c.done {
				return n, err
			}
		}
		if n > 0 && c.reader.Buffered() == 0 {
			return n, nil
		}
		q := p[n:]
		if int64(len(q)) > c.remain {
			q = q[:c.remain]
		}
		var m int
		m, err = c.reader.Read(q)
		n += m
		if c.remain -= int64(m); c.remain == 0 && m > 0 {
			c.inChunk = true
		}
		if err != nil {
			return n, err
		}
	}
	// The end may already be here: return it together with the last bytes.
	if c.remain == 0 && c.chunkBuffered() {
		if b, _ := c.reader.Peek(3); len(b) == 3 && b[2] == '0' {
			err = c.nextChunk()
		}
	}
	return n, err
}
