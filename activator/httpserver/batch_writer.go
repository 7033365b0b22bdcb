package httpserver

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions/coalesce"
)

// BatchWriter buffers log lines and writes them in few calls: one write per request is
// a tenth of the request's cost. Lines of the last 50 ms before a kill -9 are lost, so
// only request logs go through it.
type BatchWriter struct {
	w io.Writer

	mu  sync.Mutex
	buf []byte

	pending coalesce.Signal // set when buf is no longer empty; read by Run
}

const (
	batchFor   = 50 * time.Millisecond // how long a line is buffered at most
	batchBytes = 64 << 10              // bytes buffered before Write flushes them itself
)

// NewBatchWriter makes a writer to w; Run must be running for lines to come out.
func NewBatchWriter(w io.Writer) *BatchWriter {
	return &BatchWriter{w: w, pending: coalesce.NewSignal()}
}

// Write buffers p.
func (l *BatchWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if len(l.buf) >= batchBytes {
		l.flush()
	} else if len(l.buf) == len(p) {
		l.pending.Set()
	}
	return len(p), nil
}

// flush writes the buffer; mu must be held. Errors are dropped: a failing log must
// not fail a request.
func (l *BatchWriter) flush() {
	if len(l.buf) > 0 {
		l.w.Write(l.buf)
		l.buf = l.buf[:0]
	}
}

// Run flushes the buffer until ctx ends, and then once more.
func (l *BatchWriter) Run(ctx context.Context) error {
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
		case <-l.pending:
		}
		pause.Reset(batchFor)
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
