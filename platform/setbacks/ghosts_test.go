package setbacks

import (
	"fmt"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

func TestGhosts(t *testing.T) {
	name := functions.Name{Team: "a", Name: "m"}
	const back = 20 * time.Second
	var g Ghosts
	now := time.Duration(time.Hour)
	if missed, _ := g.Loaded(name, back, now); missed {
		t.Error("a function that was never evicted was missed")
	}
	// Repeated thrash: the protection grows each time, up to a bound.
	var last time.Duration
	for i := range 12 {
		g.Evicted(name, now)
		now += 30 * time.Second
		missed, stay := g.Loaded(name, back, now)
		if !missed || stay < last || stay < 2*back || stay > maxStay+back {
			t.Fatalf("bounce %d: %v, %v after %v", i, missed, stay, last)
		}
		last = stay
	}
	if last != maxStay+back {
		t.Errorf("in the end it stays %v", last)
	}
	if missed, _ := g.Loaded(name, back, now); missed {
		t.Error("one eviction is missed once")
	}
	// After a long time the bounces are forgotten.
	now += time.Hour
	g.Evicted(name, now)
	now += 10 * time.Second
	if missed, stay := g.Loaded(name, back, now); !missed || stay != 2*back {
		t.Errorf("an hour later: %v %v", missed, stay)
	}
	// A function with a long start counts as thrashing for longer.
	for _, c := range []struct {
		gone, back time.Duration
		missed     bool
	}{
		{missedWithin, 0, true}, {missedWithin + 1, 0, false}, {missedWithin + 1, time.Minute, true}, {4*time.Minute + 1, time.Minute, false},
	} {
		var g Ghosts
		g.Evicted(name, now)
		if missed, _ := g.Loaded(name, c.back, now+c.gone); missed != c.missed {
			t.Errorf("gone for %v, %v to come back: missed %v", c.gone, c.back, missed)
		}
	}
	// The number of entries is bounded, and the newest stay.
	for i := range 3 * maxGhosts {
		g.Evicted(functions.Name{Team: "b", Name: fmt.Sprint(i)}, now+time.Duration(i))
	}
	if len(g.seen) > maxGhosts {
		t.Errorf("%d are remembered", len(g.seen))
	}
	if missed, _ := g.Loaded(functions.Name{Team: "b", Name: fmt.Sprint(3*maxGhosts - 1)}, 0, now+time.Second); !missed {
		t.Error("the last one is forgotten")
	}
}
