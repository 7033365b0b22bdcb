// Package answer sends a request once to an engine or Remote and reads the beginning of its answer:
// it tells streams, whole answers and failures apart, decompresses, makes a stream of a whole
// answer where one is wanted, and makes the client's error; the caller retries and passes the rest
// on.
package answer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/contentcoding"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Bounds of what is read of an answer before its head goes out.
const (
	firstReadSize  = 8 << 10
	maxWholeAnswer = 1 << 20
	maxUnstreamed  = 8 << 20 // of JSON in place of a stream, which is streamed only whole
)

// Answer is the beginning of an engine's answer, and what reads on in it.
type Answer struct {
	Response *upstream.Response // nil where Err is set; the caller closes it
	Encoding string             // that the body still has; "": none
	Events   bool               // the body is an event stream
	Begin    []byte             // first bytes of the body, decoded; all of it where End is set
	End      bool               // nothing follows Begin
	Began    bool               // Begin is an error that came behind the first events of a stream
	Err      error              // there is no answer; Begin has what came before it broke
	body     io.Reader          // the rest of it, if it is changed on its way; nil: Response
}

// Want is what a request wants of its answer.
type Want struct {
	Stream   bool
	Whole    bool   // of a stream that comes all the same, all is read, since it can be made a plain answer
	Comments bool   // a stream's comments count as its first data: another thaw may load the model
	Model    string // its name in the answer; "": as the engine writes it

	// Of a stream that is read whole: its choices, how long it may be silent, and how long all
	// of it may take.
	Choices    int
	Idle, Most time.Duration
}

// Read reads on in the body, after Begin.
func (a *Answer) Read(p []byte) (int, error) {
	if a.body == nil {
		return a.Response.Read(p)
	}
	return a.body.Read(p)
}

// decodedBody is a body that came compressed.
type decodedBody struct{ decoder *contentcoding.Reader }

func (b decodedBody) Read(p []byte) (int, error) {
	n, err := b.decoder.Read(p)
	if errors.Is(err, contentcoding.ErrMalformed) || errors.Is(err, contentcoding.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", upstream.ErrProtocol, err)
	}
	return n, err
}

// lineFeedBody is an event stream whose lines end with a carriage return alone; here they end
// with a line feed.
type lineFeedBody struct{ body io.Reader }

func (b lineFeedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	toLineFeeds(p[:n])
	return n, err
}

func toLineFeeds(p []byte) {
	for i := bytes.IndexByte(p, '\r'); i >= 0; i = bytes.IndexByte(p, '\r') {
		p[i] = '\n'
		p = p[i+1:]
	}
}

// convertLineEnds makes line feeds of the carriage returns that end the lines of an event
// stream, from its begin on, and reports whether it has any.
func (a *Answer) convertLineEnds(begin []byte) bool {
	if !openai.EndsLinesByCR(begin) || !isEvents(a.Response) && !beginsEvents(begin) {
		return false
	}
	toLineFeeds(begin)
	a.body = lineFeedBody{&Answer{Response: a.Response, body: a.body}}
	return true
}

// Length is that of the body as the client gets it; -1 is unknown.
func (a *Answer) Length() int64 {
	if a.body != nil {
		return -1
	}
	return a.Response.Length
}

// Sender sends requests: to engines, or to a Remote.
type Sender interface {
	Do(context.Context, *upstream.Request) (*upstream.Response, error)
}

// Ask sends a request and reads up to the first data of a stream, or all of a plain answer
// that is not large. Begin of a stream lies in a buffer of bufs, which the caller puts back.
func Ask(ctx context.Context, engines Sender, out *upstream.Request, want Want, bufs *Buffers) Answer {
	res, err := engines.Do(ctx, out)
	if err != nil {
		return Answer{Err: err}
	}
	r := Answer{Response: res}
	decoder, known := contentcoding.NewReader(res.Header("content-encoding"), res)
	switch {
	case !known:
		r.Encoding = res.Header("content-encoding")
	case decoder != nil:
		r.body = decodedBody{decoder}
	}
	if want.Model != "" && known && namesModel(res) {
		r.body = &renamedBody{body: &Answer{Response: res, body: r.body}, model: want.Model}
	}
	if want.Stream && IsSuccess(res.Status) && r.Encoding == "" {
		r.Begin = bufs.get()
		n, err := r.Read(r.Begin)
		r.convertLineEnds(r.Begin[:n])
		// only comments so far
		for err == nil && n < len(r.Begin) && !openai.HasData(r.Begin[:n]) &&
			!(want.Comments && n > 0 && r.Begin[0] == ':' && r.Begin[n-1] == '\n') && (n < 8 || isEvents(res) || beginsEvents(r.Begin[:n])) {
			var m int
			m, err = r.Read(r.Begin[n:])
			n += m
			r.convertLineEnds(r.Begin[:n])
		}
		r.Events = isEvents(res) && !beginsObject(r.Begin[:n]) || beginsEvents(r.Begin[:n])
		if r.Begin, r.End = r.Begin[:n], err == io.EOF; r.Events && (n > 0 || err == nil) {
			return r
		}
		buf := r.Begin
		r.Begin = bytes.Clone(buf)
		bufs.Put(buf)
		if r.Events && r.End {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return r.ended(err)
		}
	}
	if want.Stream && IsSuccess(res.Status) && (IsJSON(res) || beginsObject(r.Begin)) {
		return r.readWhole(maxUnstreamed)
	}
	if r.Events = want.Whole && IsSuccess(res.Status) && isEvents(res); r.Events {
		return r.readStream(&want)
	}
	r = r.readWhole(maxWholeAnswer)
	if r.End && r.Encoding == "" && (IsJSON(res) || beginsObject(r.Begin)) {
		r.Begin = openai.StandardJSON(r.Begin)
	}
	if r.Events = want.Whole && r.Err == nil && IsSuccess(res.Status) && r.Encoding == "" && beginsEvents(r.Begin); r.Events {
		return r.readStream(&want)
	}
	return r
}

// readWhole reads all of an answer up to limit, or what is there of one that is passed on as
// it arrives.
func (a Answer) readWhole(limit int) Answer {
	size := 4 << 10
	if n := a.Length(); n > 0 && n < maxWholeAnswer {
		size = int(n) + 1
	}
	buf := append(make([]byte, 0, size), a.Begin...)
	for {
		if len(buf) == cap(buf) {
			if len(buf) >= limit {
				a.Begin = buf
				return a
			}
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := a.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		a.Begin = buf
		switch {
		case err != nil:
			return a.ended(err)
		// audio is passed on as it arrives
		case a.Length() < 0 && IsSuccess(a.Response.Status) && !IsJSON(a.Response) && !beginsObject(buf):
			return a
		}
	}
}

// ended is the Answer whose body ended with err. An error answer that breaks in the middle is
// an answer: its status has come, and some of its words.
func (a Answer) ended(err error) Answer {
	if err == io.EOF || a.Response.Status >= 400 && len(a.Begin) > 0 && !errors.Is(err, upstream.ErrCancelled) {
		a.End = true
		return a
	}
	a.Response.Close()
	return Answer{Err: err, Begin: a.Begin}
}

// IsSuccess reports whether a status is one of 200 to 299.
func IsSuccess(status int) bool { return status >= 200 && status < 300 }

// beginsEvents reports whether a body begins as an event stream does, whatever its media type.
func beginsEvents(p []byte) bool {
	p = bytes.TrimLeft(p, "\r\n")
	fields := []string{"data:", "event:", "id:", "retry:", "error:", ":"}
	return slices.ContainsFunc(fields, func(field string) bool { return bytes.HasPrefix(p, []byte(field)) })
}

// beginsObject reports whether a body begins as JSON's objects do.
func beginsObject(p []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(bytes.TrimPrefix(p, []byte("\ufeff")), " \t\r\n"), []byte("{"))
}

// Buffers is the pool of read buffers of streams.
type Buffers struct{ pool sync.Pool }

func (b *Buffers) get() []byte {
	if p, ok := b.pool.Get().(*[firstReadSize]byte); ok {
		return p[:]
	}
	return make([]byte, firstReadSize)
}

// Put takes a buffer back.
func (b *Buffers) Put(p []byte) {
	if cap(p) == firstReadSize { // a buffer that has grown is not reused
		b.pool.Put((*[firstReadSize]byte)(p[:firstReadSize]))
	}
}

func isEvents(r *upstream.Response) bool { return mediaType(r) == "text/event-stream" }

// IsJSON reports whether the body is said to be JSON.
func IsJSON(r *upstream.Response) bool { return mediaType(r) == "application/json" }

// mediaType is the media type of an answer in lower case, without its parameters.
func mediaType(r *upstream.Response) string {
	t, _, _ := strings.Cut(r.Header("content-type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}

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
