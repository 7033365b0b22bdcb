// Package testkit has helpers for the tests of several packages (waiting for a condition, HTTP
// servers, a buffer for output), and tests of the source tree itself: its names, comments, lines
// and package map. Only tests import it.
package testkit

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// Timeout is the timeout for an expected event, long enough for a slow CI machine.
const Timeout = time.Minute

// Eventually polls check until it is true, and fails the test if it is not within Timeout.
// what names the awaited state; the failure also has what a check that returns it last saw.
// It is for the test's own goroutine.
func Eventually[C func() bool | func() (ok bool, saw string)](t testing.TB, what string, check C) {
	t.Helper()
	EventuallyWithin(t, Timeout, what, check)
}

// longestPause is the longest time between two looks of Eventually; the first ones follow
// each other faster.
const longestPause = 25 * time.Millisecond

// EventuallyWithin is Eventually for what takes a real engine or a cluster longer.
func EventuallyWithin[C func() bool | func() (ok bool, saw string)](t testing.TB, bound time.Duration, what string, check C) {
	t.Helper()
	look, sees := any(check).(func() (bool, string))
	if !sees {
		look = func() (bool, string) { return any(check).(func() bool)(), "" }
	}
	end := time.After(bound)
	// A check may read all of /proc: longer pauses leave processor time to what is awaited.
	pause := 2 * time.Millisecond
	for late := false; ; {
		ok, saw := look()
		switch {
		case ok:
			return
		case late && sees:
			t.Fatalf("not within %v: %s; last seen: %s", bound, what, saw)
		case late:
			t.Fatalf("not within %v: %s", bound, what)
		}
		select {
		case <-time.After(pause):
			pause = min(pause*5/4, longestPause)
		case <-end:
			late = true // one more look: the machine may have stood still
		}
	}
}

// ShortenExits makes programs that the tests start exit at once. With the race detector a
// program otherwise sleeps for a second before it exits.
func ShortenExits() { os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0")) }

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

// Missing ends a test that needs what this machine does not have: the test is skipped, and
// fails where THAW_REQUIRE=all.
func Missing(t testing.TB, reason ...any) {
	t.Helper()
	if os.Getenv("THAW_REQUIRE") == "all" {
		t.Fatal(append([]any{"THAW_REQUIRE=all, and this machine cannot:"}, reason...)...)
	}
	t.Skip(reason...)
}
