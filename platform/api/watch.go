package api

import (
	"context"
	"io"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/api/live"
)

const (
	pollEvery    = time.Second            // counters change without news
	minUpdateGap = 100 * time.Millisecond // and news may come in bursts
	aliveEvery   = 15 * time.Second
)

// Change is one line of a watch.
type Change[T any] struct {
	Event string `json:"event"` // put, removed, synced
	Item  *T     `json:"item,omitempty"`
	Name  string `json:"name,omitempty"`
}

// listHandler answers a list, or watches it. key names an item; items whose key is ""
// are never removed nor changed (events).
func listHandler[T any](a *API, get func(*exchange) ([]T, *openai.Error), key func(T) string) handler {
	return func(x *exchange, res *httpserver.Response) *openai.Error {
		if !x.query.on("watch") {
			items, err := get(x)
			if err != nil {
				return err
			}
			return writeJSON(res, List[T]{items})
		}
		var failed *openai.Error
		read := itemsOf(get, key)
		changes := live.New("", func() (items []live.Item) { items, failed = read(x); return items }, time.Now).Watch()
		look := func(b []byte) ([]byte, bool) { b = changes.Append(b); return b, failed == nil }
		first, ok := look(nil)
		if !ok {
			return failed
		}
		a.stream(x, res, look).buf = first
		return nil
	}
}

// stream answers with what look appends, at once after a change and every second; it ends
// when look returns false.
func (a *API) stream(x *exchange, res *httpserver.Response, look func([]byte) ([]byte, bool)) *stream {
	s := &stream{}
	s.ctx, s.cancel = context.WithCancel(x.Context())
	// A stream outlives the handler, and may outlive the caller's key: it is asked for
	// anew at every look.
	s.look = func(b []byte) ([]byte, bool) {
		if caller, err := a.identify(x.Request, read); err != nil || caller != x.caller || x.Draining() {
			return b, false
		}
		return look(b)
	}
	if a.o.Changed != nil {
		s.changed = a.o.Changed(s.ctx)
	}
	res.Set("content-type", "application/x-ndjson")
	res.Set("x-accel-buffering", "no")
	res.Stream, res.Length = s, -1
	return s
}

// stream blocks in each Read until there is a change. It has no goroutine; the one that
// writes to the client drives it.
type stream struct {
	ctx     context.Context
	cancel  context.CancelFunc
	changed <-chan struct{}
	look    func([]byte) ([]byte, bool)
	closed  func() // may be nil
	buf     []byte
}

func (s *stream) Read(p []byte) (int, error) {
	last := time.Now()
	for len(s.buf) == 0 {
		select {
		case <-s.ctx.Done():
			return 0, io.EOF
		case _, ok := <-s.changed:
			if !ok {
				s.changed = nil
			}
			backoff.Sleep(s.ctx, minUpdateGap)
		case <-time.After(pollEvery):
		}
		var ok bool
		if s.buf, ok = s.look(s.buf); !ok {
			return 0, io.EOF
		}
		if len(s.buf) == 0 && time.Since(last) >= aliveEvery {
			s.buf = append(s.buf, '\n')
		}
	}
	n := copy(p, s.buf)
	s.buf = s.buf[n:]
	return n, nil
}

func (s *stream) Close() error {
	s.cancel()
	if s.closed != nil {
		s.closed()
	}
	return nil
}

// followed is a log that is followed: it ends when the server begins to shut down,
// which must not wait for readers.
type followed struct {
	io.ReadCloser
	cancel context.CancelFunc
	done   chan struct{}
}

func (f *followed) Close() error {
	f.cancel()
	<-f.done
	return f.ReadCloser.Close()
}

// openFollowed opens a stream whose context ends with the request or the server.
func openFollowed(x *exchange, open func(context.Context) (io.ReadCloser, error)) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(x.Context())
	r, err := open(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	f := &followed{ReadCloser: r, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		for backoff.Sleep(ctx, pollEvery) {
			if x.Draining() {
				cancel()
			}
		}
	}()
	return f, nil
}
