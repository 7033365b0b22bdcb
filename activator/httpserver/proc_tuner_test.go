package httpserver

import "testing"

// The tuner adds processors after a short overload, releases them after a longer calm,
// and waits longer after a release that proved wrong.
func TestProcTuner(t *testing.T) {
	c := &ProcTuner{minProcs: 1, maxProcs: 4, now: 1, releaseAfter: firstReleaseAfter, lowered: maxReleaseAfter}
	for i, step := range []struct {
		observations int
		load         float64
		want         int
	}{
		{100, 0.5, 1},
		{raiseAfter - 1, 1, 1}, // a moment is not enough
		{1, 0.5, 1},
		{raiseAfter, 1, 2},
		{raiseAfter, 2, 4},
		{100, 4, 4},
		{firstReleaseAfter - 1, 0.5, 4},
		{1, 0.5, 3},
		{2 * firstReleaseAfter, 0.5, 1},
		{raiseAfter, 1, 2},              // that was wrong
		{2*firstReleaseAfter - 1, 1, 2}, // so the next try comes later
		{1, 1, 1},
		{raiseAfter, 1, 2},
		{4*firstReleaseAfter - 1, 1, 2}, // and later
		{1, 1, 1},
		{maxReleaseAfter, 0.5, 1}, // it held: what was is forgotten
		{raiseAfter, 1, 2},
		{firstReleaseAfter, 1, 1},
	} {
		got := 0
		for range step.observations {
			got = c.observe(step.load)
		}
		if got != step.want {
			t.Fatalf("step %d, %+v: %d", i, step, got)
		}
	}
}
