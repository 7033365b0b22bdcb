package thrift

import (
	"context"
	"io"
	"sync"
	"time"
)

// Lines gathers what is logged and writes it in few calls: a write for each
// request is a tenth of what the request costs. What was logged in the last
// moment before a kill -9 is lost with it; everything else that logs writes
// through.
type Lines struct {
	w io.Writer

	mu  sync.Mutex
	buf []byte

	news chan struct{} // there is something, for Run
}

const (
	linesFor  = 50 * time.Millisecond // the longest a line is kept
	linesMost = 64 << 10              // bytes gathered before a writer writes itself
)

func NewLines(w io.Writer) *Lines { return &Lines{w: w, news: make(chan struct{}, 1)} }

// Write keeps p for later.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if len(l.buf) >= linesMost {
		l.flush()
	} else if len(l.buf) == len(p) {
		select {
		case l.news <- struct{}{}:
		default:
		}
	}
	return len(p), nil
}

// flush writes what is kept; the lock is held. An error is nobody's to hear: a
// log that cannot be written must not fail a request.
func (l *Lines) flush() {
	if len(l.buf) > 0 {
		l.w.Write(l.buf)
		l.buf = l.buf[:0]
	}
}

// Run writes until ctx ends, and then the rest.
func (l *Lines) Run(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.flush()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.news:
		}
		pause.Reset(linesFor)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		l.mu.Lock()
		l.flush()
		l.mu.Unlock()
	}
}
