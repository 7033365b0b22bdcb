package api

import (
	"context"
	"io"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/backoff"
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

// streams opens the streams of changes.
type streams struct {
	access  *Access
	changed func(context.Context) <-chan struct{} // may be nil
}

// open answers with what look appends, at once after a change and every second; it ends
// when look returns false.
func (s *streams) open(x *exchange, res *httpserver.Response, look func([]byte) ([]byte, bool)) *stream {
	opened := &stream{}
	opened.ctx, opened.cancel = context.WithCancel(x.Context())
	// A stream outlives the handler, and may outlive the caller's key: it is asked for
	// anew at every look.
	opened.look = func(b []byte) ([]byte, bool) {
		if caller, err := s.access.identify(x.Request, read); err != nil || caller != x.caller || x.Draining() {
			return b, false
		}
		return look(b)
	}
	if s.changed != nil {
		opened.changed = s.changed(opened.ctx)
	}
	res.Set("content-type", "application/x-ndjson")
	res.Set("x-accel-buffering", "no")
	res.Stream, res.Length = opened, -1
	return opened
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
