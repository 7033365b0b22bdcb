package main

import "testing"

// As few as the load needs: more at once, fewer after a while.
func TestCores(t *testing.T) {
	c := &cores{least: 1, most: 8, now: 8}
	for _, step := range []struct {
		looks int
		load  float64
		want  int
	}{
		{coresCalm - 1, 0.1, 8},
		{1, 0.1, 7},
		{6 * coresCalm, 0.1, 1},
		{100, 0.1, 1},
		{1, 0.95, 2},            // full
		{1, 1.9, 4},             // and again
		{1, 3.9, 8},             // all there are
		{1, 8, 8},               //
		{coresCalm - 1, 3.0, 8}, // calm, not for long enough
		{1, 7.0, 8},
		{coresCalm, 3.0, 7},
	} {
		got := 0
		for range step.looks {
			got = c.look(step.load)
		}
		if got != step.want {
			t.Fatalf("%+v: %d", step, got)
		}
	}
}
