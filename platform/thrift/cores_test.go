package thrift

import "testing"

// As few as the load needs: more after a moment, fewer after a while, and not
// again soon where fewer did not do.
func TestCores(t *testing.T) {
	c := &Cores{least: 1, most: 4, now: 1, patience: coresCalm, lowered: coresRest}
	for i, step := range []struct {
		looks int
		load  float64
		want  int
	}{
		{100, 0.5, 1},
		{coresFull - 1, 1, 1}, // a moment is not enough
		{1, 0.5, 1},
		{coresFull, 1, 2},
		{coresFull, 2, 4},
		{100, 4, 4},
		{coresCalm - 1, 0.5, 4},
		{1, 0.5, 3},
		{2 * coresCalm, 0.5, 1},
		{coresFull, 1, 2},       // that was wrong
		{2*coresCalm - 1, 1, 2}, // so the next try comes later
		{1, 1, 1},
		{coresFull, 1, 2},
		{4*coresCalm - 1, 1, 2}, // and later
		{1, 1, 1},
		{coresRest, 0.5, 1}, // it held: what was is forgotten
		{coresFull, 1, 2},
		{coresCalm, 1, 1},
	} {
		got := 0
		for range step.looks {
			got = c.look(step.load)
		}
		if got != step.want {
			t.Fatalf("step %d, %+v: %d", i, step, got)
		}
	}
}
