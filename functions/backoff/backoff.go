// Package backoff computes the pauses between retries, doubled up to a maximum until a success
// resets them, without jitter, and sleeps until a context ends; the caller makes and bounds the
// attempts.
package backoff

import (
	"context"
	"time"
)

// Backoff doubles from First to Max. The zero wait is First; not safe for concurrent use.
type Backoff struct {
	First, Max time.Duration

	next time.Duration
}

// Next is the pause before the next attempt: First, then twice the last one, at most Max.
func (b *Backoff) Next() time.Duration {
	d := min(max(b.next, b.First), b.Max)
	b.next = min(2*d, b.Max)
	return d
}

// Reset makes First the next pause, after an attempt that succeeded.
func (b *Backoff) Reset() { b.next = 0 }

// Sleep pauses for d. It returns false at once when ctx ends.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
