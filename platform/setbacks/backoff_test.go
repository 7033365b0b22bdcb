package setbacks

import (
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	want := []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60}
	for n, w := range want {
		if got := Backoff(n); got != w*time.Second {
			t.Errorf("Backoff(%d) = %v, want %v", n, got, w*time.Second)
		}
	}
}

// The pause after a failed start is at least as long as the start, and longer when the
// cause repeats.
func TestStartFailures(t *testing.T) {
	const s = time.Second
	for _, x := range []struct {
		what  string
		fails []string
		took  time.Duration
		want  []time.Duration
	}{
		{"at once", []string{"a", "a", "a", "a"}, 0, []time.Duration{1 * s, 2 * s, 4 * s, 8 * s}},
		{"one cause", []string{"a", "a", "a"}, 5 * s, []time.Duration{5 * s, 150 * s, 150 * s}},
		{"other numbers", []string{"tried 20 MiB", "tried 22 MiB"}, 5 * s, []time.Duration{5 * s, 150 * s}},
		{"other causes", []string{"a", "b", "a", "b"}, 5 * s, []time.Duration{5 * s, 5 * s, 5 * s, 8 * s}},
		{"long", []string{"a", "a", "a"}, 60 * s, []time.Duration{60 * s, 300 * s, 300 * s}},
		{"longer than the most", []string{"a", "a"}, 600 * s, []time.Duration{600 * s, 600 * s}},
	} {
		var f StartFailures
		for i, cause := range x.fails {
			if got := f.Add(cause, x.took); got != x.want[i] {
				t.Errorf("%s, failure %d: %v, want %v", x.what, i+1, got, x.want[i])
			}
		}
	}
}
