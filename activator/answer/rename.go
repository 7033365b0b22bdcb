package answer

import (
	"bytes"
	"io"
	"strings"

	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions/openai"
)

// namesModel reports whether an answer may be JSON or an event stream, whatever it is called.
func namesModel(r *upstream.Response) bool {
	kind := mediaType(r)
	return IsSuccess(r.Status) && !strings.HasPrefix(kind, "audio/") && kind != "application/octet-stream"
}

// renamedBody is a body in which the model has another name. Its first byte that is no blank
// decides whether it is one JSON or an event stream.
type renamedBody struct {
	body   io.Reader
	model  string
	rename *openai.Renamer // nil before that byte
	in     [4 << 10]byte
	buffer []byte
	out    []byte // of buffer, to be read next
	err    error
}

func (b *renamedBody) Read(p []byte) (int, error) {
	for len(b.out) == 0 && b.err == nil {
		n, err := b.body.Read(b.in[:])
		b.out, b.err = b.in[:n], err
		if begin := bytes.TrimLeft(b.out, " \t\r\n"); b.rename == nil && len(begin) > 0 {
			b.rename = openai.NewRenamer(b.model, begin[0] != '{')
		}
		if b.rename != nil {
			b.buffer = b.rename.Append(b.buffer[:0], b.out)
			b.out = b.buffer
		}
	}
	n := copy(p, b.out)
	if b.out = b.out[n:]; len(b.out) == 0 {
		return n, b.err
	}
	return n, nil
}
