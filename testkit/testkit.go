// Package testkit has helpers for the tests of several packages. Only tests import it.
package testkit

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// Timeout is the timeout for an expected event, long enough for a slow CI machine.
const Timeout = time.Minute

// Eventually polls ok until it is true and fails the test after Soon. what names the
// awaited state.
func Eventually(t testing.TB, description string, ok func() bool) {
	t.Helper()
	end := time.After(Timeout)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within %v: %s", Timeout, description)
		}
	}
}

// Buffer is a bytes.Buffer whose Write and String may be called concurrently.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns all bytes written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
