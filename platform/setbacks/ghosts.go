package setbacks

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Ghosts remember recently evicted functions. They detect thrash, a function that is
// needed again soon after its eviction, and return how long it then keeps its
// replicas. Moments are those of placement.Instant. The zero value is empty. Ghosts are
// bounded and not safe for concurrent use.
type Ghosts struct {
	seen map[functions.Name]*evictedFunction
}

type evictedFunction struct {
	at      time.Duration // time of the eviction; 0: loaded since
	bounced time.Duration // last time it was needed again too soon
	times   int           // consecutive bounces
}

const (
	missedWithin      = 2 * time.Minute // a start within this or four cold starts means evicted too early
	maxStay           = 5 * time.Minute // bound of the time a function is kept
	forgetBounceAfter = 10 * time.Minute
	maxGhosts         = 4096
)

// Evicted records that name was evicted while idle.
func (g *Ghosts) Evicted(name functions.Name, now time.Duration) {
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

// Loaded records that name is started or woken, which takes back. missed reports that
// it was evicted too early. stay is then how long to keep it: the start and as long
// again, doubled with each consecutive miss, at most five minutes more.
func (g *Ghosts) Loaded(name functions.Name, back time.Duration, now time.Duration) (missed bool, stay time.Duration) {
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

// dropOldest drops expired entries, or the oldest one if the map is still full.
func (g *Ghosts) dropOldest(now time.Duration) {
	var first functions.Name
	var since time.Duration = -1
	for name, x := range g.seen {
		last := max(x.at, x.bounced)
		if now-last > forgetBounceAfter {
			delete(g.seen, name)
			continue
		}
		if since < 0 || last < since || last == since && name.Compare(first) < 0 {
			first, since = name, last
		}
	}
	if len(g.seen) >= maxGhosts {
		delete(g.seen, first)
	}
}
