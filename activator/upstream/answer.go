package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/thaw-dev/thaw/activator/http1"
)

// answer reads the answers of one connection, one after the other: a head, then its body to
// the end.
type answer struct {
	in      *bufio.Reader
	maxHead int
	headBuf []byte // the head that came, fields only
	spans   []fieldSpan
	fields  []Field

	// Where the body stands.
	chunked bool
	remain  int64 // of the body, or of the chunk; -1: until the connection ends
	inChunk bool  // a chunk's data was read, its CRLF was not
	done    bool
	broken  error // it is not HTTP, which was found behind bytes that a read returned

	close bool // the connection is not to be used again
}

type fieldSpan struct{ name, colon, value, end int }

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, args...)...)
}

// line reads one line without its end. It is valid until the next read.
func (a *answer) line() ([]byte, error) {
	l, err := a.in.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		l, err = a.longLine(l)
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
func (a *answer) longLine(l []byte) ([]byte, error) {
	var whole []byte
	for {
		whole = append(whole, l...)
		if len(whole) > a.maxHead {
			return nil, protocolError("the line %.40q has more than %d bytes", whole, a.maxHead)
		}
		var err error
		if l, err = a.in.ReadSlice('\n'); err == nil {
			return append(whole, l...), nil
		} else if err != bufio.ErrBufferFull {
			return nil, err
		}
	}
}

// readHead reads the head of an answer, behind those of informational ones.
func (a *answer) readHead(res *Response, headOnly bool) error {
	for informational := 0; ; informational++ {
		if err := a.readOneHead(res); err != nil {
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
		a.chunked, a.remain, a.done = false, 0, true
	case a.chunked:
	case a.remain == 0:
		a.done = true
	case a.remain < 0:
		a.close = true
	}
	res.Length = a.remain
	if a.chunked {
		a.remain = 0
	}
	return nil
}

func parseStatusLine(l []byte) (status int, err error) {
	ok := len(l) >= 12 && string(l[:7]) == "HTTP/1." && (l[7] == '0' || l[7] == '1') && l[8] == ' ' && (len(l) == 12 || l[12] == ' ')
	var n int64
	if ok {
		n, ok = http1.ParseLength(l[9:12], 3)
	}
	switch {
	case !ok:
		return 0, protocolError("its status line is %.60q", l)
	case n < 100:
		return 0, protocolError("its status is %d", n)
	}
	return int(n), nil
}

// setLength reads a Content-Length. Equal ones, of a list or of several fields, count as one
// (RFC 9110, section 8.6).
func (a *answer) setLength(value []byte) error {
	for v := range bytes.SplitSeq(value, []byte{','}) {
		n, ok := http1.ParseLength(bytes.Trim(v, " \t"), 15)
		switch {
		case !ok:
			return protocolError("its content-length is %.60q", value)
		case a.remain >= 0 && a.remain != n:
			return protocolError("it has two different content-lengths, %d and %d", a.remain, n)
		}
		a.remain = n
	}
	return nil
}

// readOneHead reads one status line and its fields.
func (a *answer) readOneHead(res *Response) error {
	l, err := a.line()
	if err != nil {
		return err
	}
	status, err := parseStatusLine(l)
	if err != nil {
		return err
	}
	res.Status = status
	a.chunked, a.inChunk, a.remain, a.done = false, false, -1, false
	old := l[7] == '0' // HTTP/1.0
	a.close = old
	size := len(l)
	a.headBuf, a.spans = a.headBuf[:0], a.spans[:0]
	for {
		if l, err = a.line(); err != nil {
			return err
		}
		if len(l) == 0 {
			break
		}
		if size += len(l) + 2; size > a.maxHead || len(a.spans) == 128 {
			return protocolError("its head has more than %d bytes or 128 fields", a.maxHead)
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
			if err := a.setLength(value); err != nil {
				return err
			}
			continue
		case "transfer-encoding":
			if http1.EqualFold(value, "identity") { // of HTTP as it was before 2014: none
				continue
			}
			if !http1.EqualFold(value, "chunked") {
				return protocolError("its transfer-encoding is %.60q", value)
			}
			a.chunked = true // also twice: applications that copy fields behind a server that adds its own
			continue
		case "connection":
			a.close = a.close || http1.EqualFold(value, "close")
			continue
		case "keep-alive", "upgrade", "trailer", "proxy-connection", "te":
			continue
		}
		at := len(a.headBuf)
		a.headBuf = append(append(a.headBuf, name...), value...)
		a.spans = append(a.spans, fieldSpan{at, at + len(name), at + len(name), len(a.headBuf)})
	}
	if a.chunked && (old || a.remain >= 0) {
		return protocolError("it has chunks beside a content-length, or in HTTP/1.0; a server that copies the fields of another leaves out both")
	}
	if status < 200 {
		return nil
	}
	head := string(a.headBuf) // one allocation for all names and values
	fields := a.fields[:0]
	for _, f := range a.spans {
		fields = append(fields, Field{head[f.name:f.colon], head[f.value:f.end]})
	}
	a.fields, res.Fields = fields, fields
	return nil
}

// nextChunk reads the line that opens the next chunk, and the end of the one before.
func (a *answer) nextChunk() error {
	if a.inChunk {
		l, err := a.line()
		if err != nil {
			return err
		}
		if len(l) != 0 {
			return protocolError("a chunk is longer than it says")
		}
		a.inChunk = false
	}
	l, err := a.line()
	if err != nil {
		return err
	}
	n, _, ok := http1.ParseChunkSize(bytes.TrimRight(l, " \t")) // some servers pad it
	if !ok {
		return protocolError("a chunk's size is %.20q", l)
	}
	if a.remain = n; n > 0 {
		return nil
	}
	for range 64 { // trailers are dropped
		if l, err = a.line(); err != nil {
			return err
		}
		if len(l) == 0 {
			a.done = true
			return nil
		}
	}
	return protocolError("its trailers do not end")
}

// chunkBuffered reports whether nextChunk would return without waiting.
func (a *answer) chunkBuffered() bool {
	b, _ := a.in.Peek(a.in.Buffered())
	if a.inChunk {
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

// read reads the body, and sets done at its end.
func (a *answer) read(p []byte) (n int, err error) {
	if a.done || len(p) == 0 {
		return 0, nil
	}
	if a.chunked {
		if a.broken != nil {
			return 0, a.broken
		}
		if n, err = a.readChunks(p); errors.Is(err, ErrProtocol) {
			a.broken = err
		}
		return n, err
	}
	if a.remain > 0 && int64(len(p)) > a.remain {
		p = p[:a.remain]
	}
	n, err = a.in.Read(p)
	if a.remain > 0 {
		if a.remain -= int64(n); a.remain == 0 {
			a.done = true
		}
	} else if err == io.EOF {
		a.done = true
	}
	return n, err
}

// readChunks fills p from as many chunks as are there; it waits only for the
// first byte.
func (a *answer) readChunks(p []byte) (n int, err error) {
	for n < len(p) {
		if a.remain == 0 {
			if n > 0 && !a.chunkBuffered() {
				return n, nil
			}
			if err = a.nextChunk(); err != nil || a.done {
				return n, err
			}
		}
		if n > 0 && a.in.Buffered() == 0 {
			return n, nil
		}
		q := p[n:]
		if int64(len(q)) > a.remain {
			q = q[:a.remain]
		}
		var m int
		m, err = a.in.Read(q)
		n += m
		if a.remain -= int64(m); a.remain == 0 && m > 0 {
			a.inChunk = true
		}
		if err != nil {
			return n, err
		}
	}
	// The end may already be here: return it together with the last bytes.
	if a.remain == 0 && a.chunkBuffered() {
		if b, _ := a.in.Peek(3); len(b) == 3 && b[2] == '0' {
			err = a.nextChunk()
		}
	}
	return n, err
}
