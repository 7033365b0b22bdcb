package loader

import (
	"context"
	"sync"
)

// lanes hands out the block buffers, which bound both the ranges in flight and
// the memory they take. First come, first served, those in a hurry before
// those that are not.
type lanes struct {
	block int64

	mu      sync.Mutex // guards all below
	free    [][]byte
	unmade  int
	waiting [2][]chan []byte // by Priority
}

func newLanes(n int, block int64) *lanes { return &lanes{block: block, unmade: n} }

// acquire waits for a buffer.
func (l *lanes) acquire(ctx context.Context, p Priority) ([]byte, error) {
	l.mu.Lock()
	if n := len(l.free); n > 0 {
		b := l.free[n-1]
		l.free = l.free[:n-1]
		l.mu.Unlock()
		return b, nil
	}
	if l.unmade > 0 {
		l.unmade--
		l.mu.Unlock()
		return make([]byte, l.block), nil
	}
	c := make(chan []byte, 1)
	l.waiting[p] = append(l.waiting[p], c)
	l.mu.Unlock()
	select {
	case b := <-c:
		return b, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	for i, w := range l.waiting[p] {
		if w == c {
			l.waiting[p] = append(l.waiting[p][:i], l.waiting[p][i+1:]...)
			l.mu.Unlock()
			return nil, context.Cause(ctx)
		}
	}
	l.mu.Unlock()
	// It was handed over in the same moment.
	l.release(<-c)
	return nil, context.Cause(ctx)
}

func (l *lanes) release(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p := range l.waiting {
		if len(l.waiting[p]) > 0 {
			l.waiting[p][0] <- b
			l.waiting[p] = l.waiting[p][1:]
			return
		}
	}
	l.free = append(l.free, b)
}

// trim lets the memory of buffers that are not out go.
func (l *lanes) trim() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unmade += len(l.free)
	l.free = nil
}
