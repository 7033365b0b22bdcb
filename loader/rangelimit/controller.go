package rangelimit

import "time"

// controller finds how many ranges in flight bring the most bytes a second
// from one source (hill climbing). It grows while that pays, tries fewer where the
// rate stays the same, and backs off while the source throttles. It keeps what it
// found for a while before it tries again, longer after each failed try. It is a pure
// value: samples in, limit out.
type controller struct {
	min, max int

	limit         int
	base          throughput // throughput that a try is compared with
	failedTries   int        // in a row
	state         controllerState
	skip          int       // samples to skip: they belong to the last limit
	until         time.Time // end of resting
	tryFewer      bool      // the next try is with fewer ranges
	missedOnce    bool      // the last sample was against the try
	throttleScore float64   // throttled samples, decaying
}

type throughput struct {
	ranges int
	rate   float64 // bytes a second
}

type controllerState int

const (
	growing controllerState = iota // no try has failed yet
	resting
	trying
)

type sample struct {
	at   time.Time
	rate float64 // bytes a second since the last sample
	busy bool    // the limit was reached and more was to do
	// throttled: the source asked for less since the last sample.
	throttled bool
}

const (
	minRest       = 4 * time.Second
	maxRest       = time.Minute
	throttleFor   = 5 * time.Second // rest after a cut
	throttleScore = 3               // score that cuts the limit; a single burst does not
	minGainPart   = 0.25            // part of the ideal gain that more ranges must bring
	sameRate      = 0.98            // part of the rate that counts as equal
)

func newController(start, minimum, maximum int) controller {
	minimum = min(minimum, maximum)
	return controller{min: minimum, max: maximum, limit: max(minimum, min(start, maximum)), skip: 1}
}

// resumedController starts from the number found by an earlier process, and rests
// before it tries another.
func resumedController(start, minimum, maximum int) controller {
	p := newController(start, minimum, maximum)
	p.state = resting
	return p
}

// reset forgets what an earlier process found, unless this one has tested it already.
func (c *controller) reset() {
	if c.failedTries == 0 && c.throttleScore == 0 {
		c.state, c.base, c.until = growing, throughput{}, time.Time{}
	}
}

// best is the number to start with next time.
func (c *controller) best() int {
	if c.state == growing || c.base.ranges == 0 {
		return c.limit
	}
	return c.base.ranges
}

// step takes a sample into account.
func (c *controller) step(m sample) {
	if m.throttled {
		c.throttleScore++
	} else {
		c.throttleScore = max(0, c.throttleScore-0.25)
	}
	if c.throttleScore >= throttleScore {
		c.throttleScore = 0
		c.limit = max(c.min, c.limit*2/3)
		c.rest(m.at, throttleFor)
		c.base, c.tryFewer = throughput{}, false
		return
	}
	if m.throttled || !m.busy {
		// The limit did not bound the rate: nothing is learnt.
		c.skip = max(c.skip, 1)
		return
	}
	if c.skip > 0 {
		c.skip--
		return
	}
	now := throughput{c.limit, m.rate}
	if c.base.ranges == 0 {
		c.base = now
		switch {
		case c.state == growing:
			c.setLimit(c.limit * 2)
		case c.until.IsZero():
			c.rest(m.at, minRest)
		}
		return
	}
	switch {
	case c.state == resting && c.limit == c.base.ranges:
		c.base.rate += (m.rate - c.base.rate) / 4
		if !m.at.Before(c.until) {
			c.state = trying
			if c.tryFewer {
				c.setLimit(c.limit * 3 / 4)
			} else {
				c.setLimit(c.limit * 3 / 2)
			}
		}
	case c.limit > c.base.ranges:
		gain := float64(c.limit)/float64(c.base.ranges) - 1
		if m.rate >= c.base.rate*(1+minGainPart*gain) {
			c.base, c.failedTries = now, 0
			c.setLimit(c.limit * 2)
			return
		}
		c.rejectTry(m.at)
	case c.limit < c.base.ranges:
		if m.rate >= c.base.rate*sameRate {
			c.base, c.failedTries = now, 0
			c.setLimit(c.limit * 3 / 4)
			return
		}
		c.rejectTry(m.at)
	default:
		c.revert(m.at)
	}
}

// setLimit sets a limit to be measured.
func (c *controller) setLimit(limit int) {
	c.limit = max(c.min, min(limit, c.max))
	c.skip, c.missedOnce = 1, false
}

// rejectTry ends a try after two samples in a row against it: ranges that start
// together also end together, and one sample may fall between.
func (c *controller) rejectTry(now time.Time) {
	if c.missedOnce {
		c.revert(now)
		return
	}
	c.missedOnce = true
}

// revert ends a try: back to the limit before it; the next try goes the other way.
func (c *controller) revert(now time.Time) {
	c.limit = c.base.ranges
	c.tryFewer = !c.tryFewer
	c.failedTries++
	c.rest(now, min(maxRest, minRest<<min(c.failedTries-1, 4)))
}

func (c *controller) rest(now time.Time, d time.Duration) {
	c.state, c.until, c.skip = resting, now.Add(d), 1
}
