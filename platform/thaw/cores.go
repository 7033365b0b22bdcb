package main

import (
	"context"
	"os"
	"runtime"
	"time"
)

// cores keeps Go on as few processors as the load needs. Go wakes an idle
// processor for each goroutine that becomes ready, and lets it spin for a while
// in case there is more: on a proxy, whose goroutines each run for microseconds,
// that is up to a third of all it uses, taken from the engines beside it.
// Whoever sets GOMAXPROCS knows better, and is left alone.
type cores struct {
	least, most int
	now         int
	calm        int // looks in a row at which fewer would have done
}

const (
	coresEvery = 100 * time.Millisecond
	coresCalm  = 10 // looks before one is given up
)

func newCores() *cores {
	n := runtime.GOMAXPROCS(0)
	// Of many cores one more is kept: a disk that stalls holds up the processor
	// that asked it.
	c := &cores{least: min(n, max(1, n/4)), most: n}
	c.now = c.least
	return c
}

// look takes the load since the last look, in cores, and says how many to use:
// twice as many at once where they are full, one fewer after a while in which
// one fewer would have done: what is measured is more than it will be then.
func (c *cores) look(load float64) int {
	switch {
	case load > 0.92*float64(c.now) && c.now < c.most:
		c.now, c.calm = min(2*c.now, c.most), 0
	case c.now > c.least && load < 0.8*float64(c.now-1):
		if c.calm++; c.calm >= coresCalm {
			c.now, c.calm = c.now-1, 0
		}
	default:
		c.calm = 0
	}
	return c.now
}

// Run looks until ctx ends, and then gives back what there was.
func (c *cores) Run(ctx context.Context) error {
	if os.Getenv("GOMAXPROCS") != "" || c.most == 1 {
		return nil
	}
	defer runtime.GOMAXPROCS(c.most)
	t := time.NewTicker(coresEvery)
	defer t.Stop()
	runtime.GOMAXPROCS(c.now)
	used, at, set := processorTime(), time.Now(), c.now
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		u, now := processorTime(), time.Now()
		if n := c.look(float64(u-used) / float64(now.Sub(at))); n != set {
			runtime.GOMAXPROCS(n)
			set = n
		}
		used, at = u, now
	}
}
