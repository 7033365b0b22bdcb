package orchestrator

import (
	"time"

	"github.com/thaw-dev/thaw/platform/placement"
)

// clock converts between times and Instants. Instants leave out the time in which the
// process did not run. It is protected by the mutex of world.
type clock struct {
	timeNow  func() time.Time
	began    time.Time         // Instants count from here
	lastTurn placement.Instant // start of the last turn
}

func (c *clock) now() placement.Instant { return c.timeNow().Sub(c.began) }

// instant converts a time of another package. Both carry monotonic readings.
func (c *clock) instant(t time.Time) placement.Instant {
	if t.IsZero() {
		return 0
	}
	return max(t.Sub(c.began), 1)
}

func (c *clock) wallTime(t placement.Instant) time.Time { return c.began.Add(t) }

// advance begins a turn. Time in which the process did not run (a suspended laptop,
// SIGSTOP, a clock set forward) is skipped and returned: it counts for no silence, idle
// time or lease. If the clock was set back, time continues from the last reading.
func (c *clock) advance() (skipped time.Duration) {
	if c.lastTurn > 0 {
		switch gap := c.now() - c.lastTurn; {
		case gap > clockJumpAfter:
			skipped = gap
			c.began = c.began.Add(gap - tick)
		case gap < 0:
			c.began = c.began.Add(gap)
		}
	}
	c.lastTurn = c.now()
	return skipped
}
