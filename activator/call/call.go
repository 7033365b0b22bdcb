// Package call sends requests that thaw itself makes (lines of batches, members of Compositions,
// messages of WebSockets) to the activator in the same process, under a client's key or in the name
// of a team, and reads the answers. They have the queue, retries, limits and accounting of a
// client's requests.
package call

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/spend"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Caller is the one that a request of this program is made for. The data path believes it:
// no request of a client can carry one.
type Caller struct {
	auth.Identity
	// Keyed: the fields of the request have a key, which names its caller as that of a client's.
	Keyed bool
	// Parent is the id of the request that this one is a part of; "" none. The parent's
	// place in the team's limits covers it: it needs none of its own and is no request of
	// the minute, but its tokens and its money are charged.
	Parent string
	// Path has the names of the Compositions that the request came through, the outermost
	// first.
	Path []string
	// Depth counts the servers and Compositions that the request came through.
	Depth int
	// Priority is the value of thaw-priority; "" is none.
	Priority string
	// Data is the least class of its data; "" leaves it to the team.
	Data functions.DataClass
	// Entry is charged with what the request costs, and what its own calls cost; nil: each is
	// charged at once.
	Entry *spend.Entry
	// Draining reports whether a request that would wait is to be refused; nil: never.
	Draining func() bool
}

// Of returns the caller of a request; nil where that is a client's.
func Of(req *httpserver.Request) *Caller {
	if c, _ := req.Origin().(*Caller); c != nil && !c.Keyed {
		return c
	}
	return nil
}

// Authorize is an [httpserver.Options].Authorize that refuses the body of a request whose key
// is wrong. caller is the identity of a client; header returns the value of a field that it sent.
func Authorize(caller func(header func(string) string) (auth.Identity, *openai.Error)) func(*httpserver.Request,
	*httpserver.Response) (string, bool) {
	return func(req *httpserver.Request, res *httpserver.Response) (key string, ok bool) {
		id, e := caller(req.Header)
		if e != nil {
			res.Set("x-request-id", openai.NewID())
			res.Refuse(e)
		}
		return id.KeyID, e == nil
	}
}

// Covered reports whether a parent's place in the team's limits covers the request.
func (c *Caller) Covered() bool { return c != nil && c.Parent != "" }

// Charged is the entry that is charged with what the request costs; nil: none.
func (c *Caller) Charged() *spend.Entry {
	if c == nil {
		return nil
	}
	return c.Entry
}

// MaxAnswer bounds the answer that Do reads, in bytes.
const MaxAnswer = 16 << 20

// ErrTooLarge is an answer, or a line of one, beyond its bound.
var ErrTooLarge = errors.New("the answer is too large")

// PanicError is a panic of the data path.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("the data path panicked: %v", e.Value) }

// Answer is a whole answer. Its status may be that of an error.
type Answer struct {
	Status int
	Fields []httpserver.Field
	Body   []byte
}

// Header returns a field of the answer's head; "" where there is none.
func (a *Answer) Header(name string) string { return httpserver.FieldOf(a.Fields, name) }

// RouteTarget is the target that a Router chose; "" where none did.
func (a *Answer) RouteTarget() string {
	for part := range strings.SplitSeq(a.Header("thaw-route"), ";") {
		if target, ok := strings.CutPrefix(strings.TrimSpace(part), "target="); ok {
			return target
		}
	}
	return ""
}

// Problem is the error that the answer holds; nil where its status is below 400.
func (a *Answer) Problem() *openai.Error {
	if a.Status < 400 {
		return nil
	}
	e := openai.EngineError(a.Status, a.Header, a.Body, time.Now())
	e.Status = a.Status // it is the data path's own, not an engine's
	return e
}

// Do sends a request by POST and reads its whole answer. An error is an answer that did not
// come whole: the cause of ctx where that ended.
func Do(ctx context.Context, serve httpserver.Handler, c *Caller, path string, fields []httpserver.Field, body []byte) (Answer, error) {
	s := Open(ctx, serve, c, path, fields, body)
	defer s.Close()
	return s.Whole()
}

// Stream is an answer while it comes. One goroutine uses it.
type Stream struct {
	Answer        // Body is set where the answer is no event stream
	OnRead func() // is called before each read, which may wait; nil: nothing is

	ctx      context.Context
	own      *httpserver.Context
	unhook   func() bool
	body     io.ReadCloser // nil: it was closed, or the answer has none
	IsEvents bool          // Next reads the answer
	lines    []byte        // that were read and not returned
	buffer   []byte
	end      error // of body
}

// Open sends a request by POST and returns when the head of its answer is there; of an
// answer that is no event stream, use Whole. Close must follow.
func Open(ctx context.Context, serve httpserver.Handler, c *Caller, path string, fields []httpserver.Field, body []byte) *Stream {
	s := &Stream{ctx: ctx, own: &httpserver.Context{}}
	s.unhook = context.AfterFunc(ctx, func() {
		cause := httpserver.ErrGone
		if errors.Is(context.Cause(ctx), httpserver.ErrDraining) {
			cause = httpserver.ErrDraining
		}
		s.own.End(cause)
	})
	var res httpserver.Response
	if s.end = guard(func() error {
		serve(httpserver.NewRequest(c, "POST", path, c.fields(fields), body, s.own, c.draining), &res)
		return nil
	}); s.end != nil {
		s.Status = 500
	} else {
		s.Status, s.Fields, s.Body, s.body = res.Status, res.Fields, res.Body, res.Stream
	}
	s.Status = cmp.Or(s.Status, 200)
	kind, _, _ := mime.ParseMediaType(s.Header("content-type"))
	s.IsEvents = s.body != nil && kind == "text/event-stream"
	return s
}

func (c *Caller) draining() bool { return c.Draining != nil && c.Draining() }

// fields are those of the head.
func (c *Caller) fields(more []httpserver.Field) []httpserver.Field {
	all := append(make([]httpserver.Field, 0, len(more)+4), more...)
	add := func(name, value string) {
		if value != "" {
			all = append(all, httpserver.Field{Name: name, Value: value})
		}
	}
	add("Content-Type", "application/json")
	add("thaw-priority", c.Priority)
	add("thaw-data", string(c.Data))
	if c.Depth > 0 {
		add("thaw-depth", strconv.Itoa(c.Depth))
	}
	return all
}

// guard calls f and returns its error, or its panic: of a request of this program no server
// catches it.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return f()
}

// Whole reads the rest of an answer, up to MaxAnswer, into its Body.
func (s *Stream) Whole() (Answer, error) {
	for s.body != nil && s.end == nil {
		s.read()
		if len(s.lines) > MaxAnswer {
			s.end = ErrTooLarge
		}
	}
	if s.body != nil {
		s.Body, s.lines = s.lines, nil
	}
	var err error
	switch {
	case s.end != nil && s.end != io.EOF:
		err = s.cause(s.end)
	case s.Status == httpserver.StatusClientLeft:
		err = s.cause(httpserver.ErrGone)
	}
	return s.Answer, err
}

// cause is the cause of ctx where that ended, else err.
func (s *Stream) cause(err error) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return err
}

const (
	maxLine  = 1 << 20
	readSize = 4 << 10
)

func (s *Stream) read() {
	if s.buffer == nil {
		s.buffer = make([]byte, readSize)
	}
	if s.OnRead != nil {
		s.OnRead()
	}
	n := 0
	if err := guard(func() (err error) { n, err = s.body.Read(s.buffer); return err }); err != nil {
		s.end = err
	}
	s.lines = append(s.lines, s.buffer[:n]...)
}

// Next returns the next line of an event stream that is a comment or data, without its line
// end: it is valid until the next call. io.EOF is the stream's own end.
func (s *Stream) Next() ([]byte, error) {
	for {
		line, whole := s.cutLine()
		if len(line) > maxLine {
			return nil, ErrTooLarge
		}
		switch {
		case whole && (bytes.HasPrefix(line, []byte(":")) || bytes.HasPrefix(line, []byte("data:"))):
			return line, nil
		case whole:
		case s.end != nil && s.end != io.EOF || s.body == nil:
			return nil, s.cause(io.ErrUnexpectedEOF)
		case s.end != nil:
			return nil, io.EOF
		default:
			s.read()
		}
	}
}

// cutLine cuts the first line off what was read; not whole: it is the beginning of one.
func (s *Stream) cutLine() (line []byte, whole bool) {
	if line, rest, whole := bytes.Cut(s.lines, []byte{'\n'}); whole {
		s.lines = rest
		return bytes.TrimSuffix(line, []byte{'\r'}), true
	}
	if s.end == io.EOF && len(s.lines) > 0 { // the last line has no end
		line, s.lines = s.lines, nil
		return line, true
	}
	return s.lines, false
}

// Close ends the request, unless its answer has come whole.
func (s *Stream) Close() {
	s.unhook()
	if b := s.body; b != nil {
		s.body = nil
		if s.end == nil {
			s.own.End(httpserver.ErrGone)
		}
		guard(b.Close)
	}
	s.own.End(httpserver.ErrGone)
}
