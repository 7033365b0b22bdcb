package upstream

import (
	"bytes"
	"errors"
	"io"
	"os"

	"github.com/thaw-dev/thaw/activator/http1"
)

// nextChunk reads the line that opens the next chunk, and the end of the one before.
func (k *conn) nextChunk() error {
	if k.inChunk {
		l, err := k.line()
		if err != nil {
			return err
		}
		if len(l) != 0 {
			return protocolError("a chunk is longer than it says")
		}
		k.inChunk = false
	}
	l, err := k.line()
	if err != nil {
		return err
	}
	n, _, ok := http1.ParseChunkSize(l)
	if !ok {
		return protocolError("a chunk's size is %.20q", l)
	}
	if k.remain = n; n > 0 {
		return nil
	}
	for range 64 { // trailers are dropped
		if l, err = k.line(); err != nil {
			return err
		}
		if len(l) == 0 {
			k.done = true
			return nil
		}
	}
	return protocolError("its trailers do not end")
}

// chunkBuffered reports whether nextChunk would return without waiting.
func (k *conn) chunkBuffered() bool {
	b, _ := k.reader.Peek(k.reader.Buffered())
	if k.inChunk {
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

func (k *conn) read(p []byte) (n int, err error) {
	if k.done {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	if k.chunked {
		n, err = k.readChunks(p)
	} else {
		if k.remain > 0 && int64(len(p)) > k.remain {
			p = p[:k.remain]
		}
		n, err = k.reader.Read(p)
		if k.remain > 0 {
			if k.remain -= int64(n); k.remain == 0 {
				k.done = true
			}
		} else if err == io.EOF {
			k.done = true
		}
	}
	if k.done {
		return n, io.EOF
	}
	if err == nil || n > 0 {
		return n, nil
	}
	if cause := k.cancelCause(); cause != nil {
		return 0, &Error{Addr: k.addr, Kind: ErrCancelled, Err: cause}
	}
	k.close = true
	if errors.Is(err, ErrProtocol) {
		return 0, &Error{Addr: k.addr, Kind: ErrProtocol, Err: err}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, &Error{Addr: k.addr, Kind: ErrSilent, Err: err}
	}
	return 0, &Error{Addr: k.addr, Kind: io.ErrUnexpectedEOF, Err: err}
}

// readChunks fills p from as many chunks as are there; it waits only for the
// first byte.
func (k *conn) readChunks(p []byte) (n int, err error) {
	for n < len(p) {
		if k.remain == 0 {
			if n > 0 && !k.chunkBuffered() {
				return n, nil
			}
			if err = k.nextChunk(); err != nil || k.done {
				return n, err
			}
		}
		if n > 0 && k.reader.Buffered() == 0 {
			return n, nil
		}
		q := p[n:]
		if int64(len(q)) > k.remain {
			q = q[:k.remain]
		}
		var m int
		m, err = k.reader.Read(q)
		n += m
		if k.remain -= int64(m); k.remain == 0 && m > 0 {
			k.inChunk = true
		}
		if err != nil {
			return n, err
		}
	}
	// The end may already be here: return it together with the last bytes.
	if k.remain == 0 && k.chunkBuffered() {
		if b, _ := k.reader.Peek(3); len(b) == 3 && b[2] == '0' {
			err = k.nextChunk()
		}
	}
	return n, err
}
