package kit

import (
	"testing"
	"time"
)

func TestShortSpans(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", 350 * time.Microsecond: "350µs", 1300 * time.Nanosecond: "1µs", 999 * time.Microsecond: "999µs", 1400 * time.Microsecond: "1ms", 2 * time.Second: "2s"} {
		if got := Span(d); got != want {
			t.Errorf("%d ns: %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int]string{0: "0 GPUs", 1: "1 GPU", 2: "2 GPUs"} {
		if got := CountOf(n, "GPU"); got != want {
			t.Error(got)
		}
	}
}
