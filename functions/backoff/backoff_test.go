package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestNext(t *testing.T) {
	b := Backoff{First: 100 * time.Millisecond, Max: 300 * time.Millisecond}
	for range 2 {
		for _, want := range []time.Duration{100, 200, 300, 300} {
			if got := b.Next(); got != want*time.Millisecond {
				t.Errorf("%v, want %v", got, want*time.Millisecond)
			}
		}
		b.Reset()
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if !Sleep(ctx, 2*time.Second) || time.Since(start) != 2*time.Second {
			t.Errorf("slept %v", time.Since(start))
		}
		if Sleep(ctx, 2*time.Second) || time.Since(start) != 3*time.Second {
			t.Errorf("a context that ended did not end the pause: %v", time.Since(start))
		}
		if Sleep(ctx, 0) {
			t.Error("no pause, but the context has ended")
		}
	})
}
