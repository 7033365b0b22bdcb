// Package contentcoding decodes gzip and deflate bodies of engines' answers while they are read,
// within bounds of size and ratio; it encodes nothing and decodes no client's request.
package contentcoding

import (
	"bufio"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds of one answer: it may have maxSize bytes, and maxRatio times the bytes that came
// beyond the first freeSize. JSON of a model's answer compresses 3 to 50 times.
const (
	maxSize  = 256 << 20
	maxRatio = 200
	freeSize = 1 << 20
)

// ErrMalformed means that the bytes are not of their encoding, or end too early.
var ErrMalformed = errors.New("the compressed answer is malformed")

// ErrTooLarge means that an answer exceeds a bound.
var ErrTooLarge = errors.New("the compressed answer is too large")

// Reader reads a decoded body. It returns what is decoded without waiting for more. Errors of
// the body come back unchanged; others wrap ErrMalformed or ErrTooLarge.
type Reader struct {
	open    func(io.Reader) (io.Reader, error)
	from    source
	decoder io.Reader // nil before the first Read
	size    int64
	err     error
}

// source counts the bytes of the body and keeps its error.
type source struct {
	body io.Reader
	size int64
	err  error // not io.EOF
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	s.size += int64(n)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// NewReader returns the reader of a body with this Content-Encoding; nil if the body is not
// encoded. known is false for an encoding that this package does not decode.
func NewReader(encoding string, body io.Reader) (r *Reader, known bool) {
	var open func(io.Reader) (io.Reader, error)
	switch strings.ToLower(strings.Trim(encoding, " \t")) {
	case "", "identity":
		return nil, true
	case "gzip", "x-gzip":
		open = openGzip
	case "deflate":
		open = openDeflate
	default:
		return nil, false
	}
	return &Reader{open: open, from: source{body: body}}, true
}

func openGzip(from io.Reader) (io.Reader, error) {
	z, err := gzip.NewReader(from)
	if err != nil {
		return nil, err
	}
	return z, nil
}

// openDeflate reads zlib's format, and bare deflate, which some servers send by that name.
func openDeflate(from io.Reader) (io.Reader, error) {
	buffered := bufio.NewReader(from)
	head, err := buffered.Peek(2)
	if err == nil && head[0]&0x0f == 8 && (int(head[0])<<8|int(head[1]))%31 == 0 {
		return zlib.NewReader(buffered)
	}
	return flate.NewReader(buffered), nil
}

// Read decodes the next bytes.
func (r *Reader) Read(p []byte) (n int, err error) {
	if r.err != nil {
		return 0, r.err
	}
	if r.decoder == nil {
		r.decoder, err = r.open(&r.from)
	}
	if err == nil {
		n, err = r.decoder.Read(p)
		r.size += int64(n)
	}
	switch {
	case r.size > maxSize || r.size > freeSize+maxRatio*r.from.size:
		n, err = 0, fmt.Errorf("%w: %d bytes from %d", ErrTooLarge, r.size, r.from.size)
	case r.from.err != nil:
		if err != nil {
			err = r.from.err
		}
	case err == nil:
	case err == io.EOF, r.from.size == 0, err == gzip.ErrHeader && r.decoder != nil: // whole, empty, or bytes follow it
		err = io.EOF
		io.CopyN(io.Discard, &r.from, 1<<10) // the connection is used again only if its answer was read to the end
	default:
		err = fmt.Errorf("%w: %v", ErrMalformed, err)
	}
	r.err = err
	return n, err
}
