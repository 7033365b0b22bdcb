package httpserver

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions/newest"
)

// aliveEvery is the period of empty lines on a silent stream, so that proxies keep it.
const aliveEvery = 15 * time.Second

// StreamLines runs produce and has res stream each emitted value as one line of JSON. It
// returns after the first value, or with produce's error if there was none. Close of the
// stream cancels produce's context and waits for its return; a drain ends it early.
func StreamLines[T any](req *Request, res *Response, produce func(ctx context.Context, emit func(T)) error) error {
	ctx, cancel := context.WithCancel(req.Context())
	l := &lineStream{cancel: cancel, draining: req.Draining, written: newest.NewSignal(), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		l.err = produce(ctx, func(v T) { l.emit(v) })
	}()
	select {
	case <-l.written:
		l.written.Set() // for the first Read
	case <-l.ended:
		if l.err != nil && len(l.buf) == 0 {
			cancel()
			return l.err
		}
	}
	res.Set("content-type", "application/x-ndjson")
	res.Stream, res.Length = l, -1
	return nil
}

type lineStream struct {
	cancel   context.CancelFunc
	draining func() bool   // is polled once a second
	written  newest.Signal // buf has grown
	ended    chan struct{}
	err      error // of produce; set before ended is closed

	mu  sync.Mutex // guards buf
	buf []byte
}

func (l *lineStream) emit(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		return
	}
	l.mu.Lock()
	l.buf = append(append(l.buf, b...), '\n')
	l.mu.Unlock()
	l.written.Set()
}

func (l *lineStream) take(p []byte) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := copy(p, l.buf)
	l.buf = l.buf[n:]
	return n
}

// Read waits for the next lines.
func (l *lineStream) Read(p []byte) (int, error) {
	alive := time.After(aliveEvery)
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		if n := l.take(p); n > 0 {
			return n, nil
		}
		select {
		case <-l.written:
		case <-l.ended:
			if n := l.take(p); n > 0 {
				return n, nil
			}
			return 0, io.EOF
		case <-alive:
			return copy(p, "\n"), nil
		case <-look.C:
			if l.draining() {
				l.cancel()
			}
		}
	}
}

func (l *lineStream) Close() error {
	l.cancel()
	<-l.ended
	return nil
}
