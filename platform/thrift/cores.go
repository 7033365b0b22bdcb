package thrift

import (
	"context"
	"os"
	"runtime"
	"time"
)

// Cores keeps Go on as few processors as the load needs. Go wakes an idle
// processor for each goroutine that becomes ready, and lets it spin for a while
// in case there is more: on a proxy, whose goroutines each run for microseconds,
// that is up to a third of all it uses, taken from the engines beside it.
// Whoever sets GOMAXPROCS knows better, and is left alone.
type Cores struct {
	least, most int
	now         int
	full, calm  int // looks in a row that say more, or fewer
	patience    int // looks of calm before one is given up
	lowered     int // looks since one was
}

const (
	coresEvery = 100 * time.Millisecond
	coresFull  = 3   // looks before there are more
	coresCalm  = 10  // looks before one is given up, at first
	coresRest  = 600 // and at most, where giving up proved wrong
)

func NewCores() *Cores {
	n := runtime.GOMAXPROCS(0)
	// Of many cores one more is kept: a disk that stalls holds up the processor
	// that asked it.
	c := &Cores{least: min(n, max(1, n/4)), most: n, patience: coresCalm, lowered: coresRest}
	c.now = c.least
	return c
}

// look takes the load since the last look, in cores, and says how many to use:
// twice as many where they were full for a moment; one fewer after a while in
// which that might have done. What is measured on many is more than it would be
// on fewer, so the only way to know is to try; after a try that failed the next
// one waits twice as long.
func (c *Cores) look(load float64) int {
	c.lowered++
	switch {
	case load > 0.95*float64(c.now) && c.now < c.most:
		c.calm = 0
		if c.full++; c.full < coresFull {
			break
		}
		if c.lowered < coresRest {
			c.patience = min(2*c.patience, coresRest)
		} else {
			c.patience = coresCalm
		}
		c.now, c.full = min(2*c.now, c.most), 0
	case c.now > c.least && load < 1.1*float64(c.now-1):
		c.full = 0
		if c.calm++; c.calm >= c.patience {
			c.now, c.calm, c.lowered = c.now-1, 0, 0
		}
	default:
		c.full, c.calm = 0, 0
	}
	return c.now
}

// Run looks until ctx ends, and then gives back what there was.
func (c *Cores) Run(ctx context.Context) error {
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
