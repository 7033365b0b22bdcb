package inspect

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
)

// busySource asks every listing to wait.
type busySource struct {
	loader.Source
	wait  time.Duration
	asked int
}

func (b *busySource) Plan(context.Context, string, source.Globs) (source.Plan, error) {
	b.asked++
	return source.Plan{}, &source.Error{Kind: source.Unavailable, Detail: "answered 429", Busy: true, RetryAfter: b.wait}
}

// TestSourceThatAsksToWaitLong: a person waits for what is worked out, so that a source that asks
// for a long pause ends it at once, with the pause in the error.
func TestSourceThatAsksToWaitLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &busySource{wait: 5 * time.Minute}
		began := time.Now()
		_, err := Read(t.Context(), "s3://bucket/m", Options{Sources: map[string]loader.Source{"s3": b}})
		if err == nil || !strings.Contains(err.Error(), "answered 429, and asks to wait 5m0s") || b.asked != 1 || time.Since(began) > 0 {
			t.Errorf("asked %d times, after %s: %v", b.asked, time.Since(began), err)
		}
		b.wait, b.asked = 2*time.Second, 0
		if _, err := Read(t.Context(), "s3://bucket/m", Options{Sources: map[string]loader.Source{"s3": b}}); err == nil || b.asked != attempts {
			t.Errorf("asked %d times: %v", b.asked, err)
		}
	})
}
