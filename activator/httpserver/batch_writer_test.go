package httpserver

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Lines are written whole, in order, within twice batchFor, and none is lost.
func TestBatchWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &journal{}
		l := NewBatchWriter(out)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		l.Write([]byte("one\n"))
		l.Write([]byte("two\n"))
		synctest.Wait()
		if out.String() != "" {
			t.Errorf("written at once: %q", out.String())
		}
		<-time.After(2 * batchFor)
		synctest.Wait()
		if out.String() != "one\ntwo\n" {
			t.Errorf("after a moment: %q", out.String())
		}
		long := strings.Repeat("x", batchBytes) + "\n"
		l.Write([]byte(long)) // too much to keep
		l.Write([]byte("last\n"))
		cancel()
		<-done
		if want := "one\ntwo\n" + long + "last\n"; out.String() != want {
			t.Errorf("at the end: %d bytes, want %d", len(out.String()), len(want))
		}
	})
}

// journal is written by one goroutine and read by another.
type journal struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}
