package call

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/openai"
)

// body is an answer's body that counts its closes.
type body struct {
	io.Reader
	closed int
}

func (b *body) Close() error { b.closed++; return nil }

func TestDo(t *testing.T) {
	broken := errors.New("broken")
	for name, x := range map[string]struct {
		res    httpserver.Response
		stream io.Reader
		status int
		body   string
		err    error
	}{
		"a body":              {res: httpserver.Response{Body: []byte("hi")}, status: 200, body: "hi"},
		"in pieces":           {stream: iotest.OneByteReader(strings.NewReader("hello")), status: 200, body: "hello"},
		"data with its end":   {stream: iotest.DataErrReader(strings.NewReader("hello")), status: 200, body: "hello"},
		"an error":            {res: httpserver.Response{Status: 503, Body: openai.New(openai.ModelLoading, "").Body()}, status: 503, body: string(openai.New(openai.ModelLoading, "").Body())},
		"it breaks":           {stream: io.MultiReader(strings.NewReader("hel"), iotest.ErrReader(broken)), status: 200, body: "hel", err: broken},
		"it is too large":     {stream: io.LimitReader(zeros{}, MaxAnswer+readSize), status: 200, err: ErrTooLarge},
		"the client has left": {res: httpserver.Response{Status: httpserver.StatusClientLeft}, status: 499, err: httpserver.ErrGone},
	} {
		t.Run(name, func(t *testing.T) {
			b := &body{Reader: x.stream}
			got, err := Do(t.Context(), func(_ *httpserver.Request, res *httpserver.Response) {
				*res = x.res
				if x.stream != nil {
					res.Stream = b
				}
			}, &Caller{}, "/x", nil, nil)
			if got.Status != x.status || x.err != ErrTooLarge && string(got.Body) != x.body || !errors.Is(err, x.err) {
				t.Errorf("%d %.80q %v", got.Status, got.Body, err)
			}
			if x.stream != nil && b.closed != 1 {
				t.Errorf("closed %d times", b.closed)
			}
			if p := got.Problem(); (p != nil) != (got.Status >= 400) || p != nil && got.Status == 503 && p.Code != openai.ModelLoading {
				t.Errorf("problem %v", p)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestRequest: the data path sees whom the request is for, and a head that says so where
// engines and Remotes need it.
func TestRequest(t *testing.T) {
	c := &Caller{Identity: auth.Identity{Team: "red", KeyID: "k"}, Parent: "p", Depth: 2, Priority: "low", Data: "secret",
		Draining: func() bool { return true }}
	Do(t.Context(), func(req *httpserver.Request, _ *httpserver.Response) {
		if Of(req) != c || !Of(req).Covered() || req.Method != "POST" || req.Path != "/x" || string(req.Body) != "b" || !req.Draining() {
			t.Errorf("%+v", req)
		}
		for name, want := range map[string]string{"content-type": "application/json", "thaw-depth": "2", "thaw-priority": "low", "thaw-data": "secret", "a": "1", "authorization": ""} {
			if got := req.Header(name); got != want {
				t.Errorf("%s: %q", name, got)
			}
		}
	}, c, "/x", []httpserver.Field{{Name: "a", Value: "1"}}, []byte("b"))
	if of := Of(&httpserver.Request{}); of != nil || of.Covered() {
		t.Error("a client's request has a caller")
	}
}

// TestEnd: the request ends with its context, whatever part of it runs.
func TestEnd(t *testing.T) {
	gone := errors.New("no more")
	for name, x := range map[string]struct {
		cause, seen error
		streams     bool
	}{
		"before the head": {cause: gone, seen: httpserver.ErrGone},
		"in the stream":   {cause: gone, seen: httpserver.ErrGone, streams: true},
		"a drain is over": {cause: httpserver.ErrDraining, seen: httpserver.ErrDraining},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				began := make(chan struct{})
				go func() { <-began; cancel(x.cause) }()
				_, err := Do(ctx, func(req *httpserver.Request, res *httpserver.Response) {
					wait := func() {
						close(began)
						<-req.Context().Done()
						if err := req.Context().Err(); err != x.seen {
							t.Errorf("the data path saw %v", err)
						}
					}
					if !x.streams {
						wait()
						res.Status = httpserver.StatusClientLeft
						return
					}
					res.Stream = &body{Reader: readerFunc(func() error { wait(); return errors.New("aborted") })}
				}, &Caller{}, "/x", nil, nil)
				if err != x.cause {
					t.Errorf("error %v", err)
				}
			})
		})
	}
}

type readerFunc func() error

func (f readerFunc) Read([]byte) (int, error) { return 0, f() }

// TestPanic: a panic of the data path is an error, not the end of the program.
func TestPanic(t *testing.T) {
	var p *PanicError
	if a, err := Do(t.Context(), func(*httpserver.Request, *httpserver.Response) { panic("no") }, &Caller{}, "/x", nil, nil); !errors.As(err,
		&p) || len(p.Stack) == 0 || a.Status != 500 {
		t.Errorf("%v", err)
	}
	b := &body{Reader: readerFunc(func() error { panic("no") })}
	if _, err := Do(t.Context(), func(_ *httpserver.Request, res *httpserver.Response) { res.Stream = b }, &Caller{}, "/x", nil,
		nil); !errors.As(err, &p) || b.closed != 1 {
		t.Errorf("%v, closed %d", err, b.closed)
	}
}

func TestStream(t *testing.T) {
	whole := ": thaw state=loading\n\ndata: 1\r\n\r\nevent: x\ndata: 2\n\nid: 3\ndata: [DONE]\n\n"
	for name, x := range map[string]struct {
		in    string
		err   error // that the body ends with
		lines []string
		end   error
	}{
		"whole":                 {in: whole, err: io.EOF, lines: []string{": thaw state=loading", "data: 1", "data: 2", "data: [DONE]"}, end: io.EOF},
		"no end of line":        {in: "data: 1", err: io.EOF, lines: []string{"data: 1"}, end: io.EOF},
		"it breaks":             {in: "data: 1\n\ndata: {", err: httpserver.ErrFailureSent, lines: []string{"data: 1"}, end: io.ErrUnexpectedEOF},
		"a line without an end": {in: "data: " + strings.Repeat("x", maxLine), err: io.EOF, end: ErrTooLarge},
	} {
		for _, small := range []bool{false, true} {
			if small && len(x.in) > 1000 {
				continue
			}
			var r io.Reader = io.MultiReader(strings.NewReader(x.in), iotest.ErrReader(x.err))
			if small {
				r = iotest.OneByteReader(r)
			}
			b := &body{Reader: r}
			s := Open(t.Context(), func(_ *httpserver.Request, res *httpserver.Response) {
				res.Set("Content-Type", "text/event-stream; charset=utf-8")
				res.Stream = b
			}, &Caller{}, "/x", nil, nil)
			if !s.IsEvents {
				t.Fatal(name, "no event stream")
			}
			var lines []string
			var err error
			for {
				var line []byte
				if line, err = s.Next(); err != nil {
					break
				}
				lines = append(lines, string(bytes.Clone(line)))
			}
			s.Close()
			if strings.Join(lines, "|") != strings.Join(x.lines, "|") || !errors.Is(err, x.end) || b.closed != 1 {
				t.Errorf("%s: %q %v, closed %d", name, lines, err, b.closed)
			}
		}
	}
}
