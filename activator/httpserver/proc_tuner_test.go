package httpserver

import "testing"

// The tuner adds processors after a short overload, releases them after a longer calm,
// and waits longer after a release that proved wrong.
func TestProcTuner(t *testing.T) {
	c := &ProcTuner{least: 1, most: 4, now: 1, patience: calmLooks, lowered: maxCalmLooks}
	for i, step := range []struct {
		looks int
		load  float64
		want  int
	}{
		{100, 0.5, 1},
		{fullLooks - 1, 1, 1}, // a moment is not enough
		{1, 0.5, 1},
		{fullLooks, 1, 2},
		{fullLooks, 2, 4},
		{100, 4, 4},
		{calmLooks - 1, 0.5, 4},
		{1, 0.5, 3},
		{2 * calmLooks, 0.5, 1},
		{fullLooks, 1, 2},       // that was wrong
		{2*calmLooks - 1, 1, 2}, // so the next try comes later
		{1, 1, 1},
		{fullLooks, 1, 2},
		{4*calmLooks - 1, 1, 2}, // and later
		{1, 1, 1},
		{maxCalmLooks, 0.5, 1}, // it held: what was is forgotten
		{fullLooks, 1, 2},
		{calmLooks, 1, 1},
	} {
		got := 0
		for range step.looks {
			got = c.observe(step.load)
		}
		if got != step.want {
			t.Fatalf("step %d, %+v: %d", i, step, got)
		}
	}
}
