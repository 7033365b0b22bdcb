package httpserver

import (
	"context"
	"os"
	"runtime"
	"time"
)

// ProcTuner sets GOMAXPROCS to as few processors as the load needs.
//
// Go wakes an idle processor for each goroutine that becomes ready and lets it spin.
// In a proxy, whose goroutines each run for microseconds, that costs CPU that the
// engines beside it need: on two cores 46 in place of 39 µs for a JSON request, 334
// in place of 204 µs for a stream of 64 chunks. A GOMAXPROCS in the environment
// turns the tuner off.
type ProcTuner struct {
	least, most int
	now         int
	full, calm  int // consecutive observations that call for more, or for fewer
	patience    int // calm observations before one processor is released
	lowered     int // observations since one was released
}

const (
	tuneEvery    = 100 * time.Millisecond
	fullLooks    = 3   // full observations before more are used
	calmLooks    = 10  // calm observations before one is released, at first
	maxCalmLooks = 600 // and at most, after releases that proved wrong
)

// NewProcTuner makes a tuner; it starts nothing.
func NewProcTuner() *ProcTuner {
	n := runtime.GOMAXPROCS(0)
	// At least a quarter of many cores: a stalled disk blocks the processor that
	// waits for it.
	c := &ProcTuner{least: min(n, max(1, n/4)), most: n, patience: calmLooks, lowered: maxCalmLooks}
	c.now = c.least
	return c
}

// observe takes the load since the last observation, in cores, and returns how many
// processors to use: twice as many after a short overload; one fewer after a longer
// time in which one fewer would have done. A load measured on many processors is
// higher than on fewer, so releasing one is an attempt; after a failed attempt the
// next comes after twice the time.
func (c *ProcTuner) observe(load float64) int {
	c.lowered++
	switch {
	case load > 0.95*float64(c.now) && c.now < c.most:
		c.calm = 0
		if c.full++; c.full < fullLooks {
			break
		}
		if c.lowered < maxCalmLooks {
			c.patience = min(2*c.patience, maxCalmLooks)
		} else {
			c.patience = calmLooks
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

// Run adjusts GOMAXPROCS until ctx ends and then restores it.
func (c *ProcTuner) Run(ctx context.Context) error {
	if os.Getenv("GOMAXPROCS") != "" || c.most == 1 {
		return nil
	}
	defer runtime.GOMAXPROCS(c.most)
	t := time.NewTicker(tuneEvery)
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
		if n := c.observe(float64(u-used) / float64(now.Sub(at))); n != set {
			runtime.GOMAXPROCS(n)
			set = n
		}
		used, at = u, now
	}
}
