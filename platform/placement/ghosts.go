package placement

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Ghosts are who was evicted lately. They notice who comes back soon after, the
// mark of thrash, and say for how long such a one is to be left alone. The zero
// value remembers nobody. It is for one goroutine, and bounded.
type Ghosts struct {
	seen map[functions.Name]*evictedFunction
}

type evictedFunction struct {
	at      Instant // evicted; 0 it was loaded since
	bounced Instant // the last time it came back soon
	times   int     // in a row
}

const (
	missedWithin      = 2 * time.Minute  // who is back within, or within four times the way back, was missed
	maxStay           = 5 * time.Minute  // nobody is left alone for longer
	forgetBounceAfter = 10 * time.Minute // after which a bounce is forgotten
	maxGhosts         = 4096
)

// Evicted notes that name made way while idle.
func (g *Ghosts) Evicted(name functions.Name, now Instant) {
	if g.seen == nil {
		g.seen = map[functions.Name]*evictedFunction{}
	}
	x := g.seen[name]
	if x == nil {
		if len(g.seen) >= maxGhosts {
			g.dropOldest(now)
		}
		x = &evictedFunction{}
		g.seen[name] = x
	}
	x.at = now
}

// Loaded notes that name is started or woken, which takes back. Missed is that
// it was evicted so short ago that it should not have been; stay is for how long
// it is then to be left alone, from now: the way back and as long again, doubled
// with each time in a row, and five minutes at most.
func (g *Ghosts) Loaded(name functions.Name, back time.Duration, now Instant) (missed bool, stay time.Duration) {
	x := g.seen[name]
	if x == nil || x.at == 0 {
		return false, 0
	}
	gone := now - x.at
	x.at = 0
	if now-x.bounced > forgetBounceAfter {
		x.times = 0
	}
	if gone > max(missedWithin, 4*back) {
		if x.times == 0 {
			delete(g.seen, name)
		}
		return false, 0
	}
	x.bounced = now
	x.times++
	return true, back + min(max(back, 10*time.Second)<<min(x.times-1, 10), maxStay)
}

// dropOldest forgets those that nothing depends on any more, and if those are too few
// whoever was evicted first.
func (g *Ghosts) dropOldest(now Instant) {
	var first functions.Name
	var since Instant = -1
	for name, x := range g.seen {
		last := max(x.at, x.bounced)
		if now-last > forgetBounceAfter {
			delete(g.seen, name)
			continue
		}
		if since < 0 || last < since || last == since && lessName(name, first) {
			first, since = name, last
		}
	}
	if len(g.seen) >= maxGhosts {
		delete(g.seen, first)
	}
}

func lessName(a, b functions.Name) bool {
	return a.Team < b.Team || a.Team == b.Team && a.Name < b.Name
}
