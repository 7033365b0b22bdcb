package loader

import "time"

// concurrencyController finds how many ranges in flight bring the most bytes a second
// from one source (hill climbing). It grows while that pays, tries fewer where the
// rate stays the same, and backs off while the source throttles. It keeps what it
// found for a while before it tries again, longer after each failed try. It is a pure
// value: samples in, limit out.
type concurrencyController struct {
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

// linkSample is one measurement of a source.
type linkSample struct {
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

func newController(start, minimum, maximum int) concurrencyController {
	minimum = min(minimum, maximum)
	return concurrencyController{min: minimum, max: maximum, limit: max(minimum, min(start, maximum)), skip: 1}
}

// resumedController starts from the number found by an earlier process, and rests
// before it tries another.
func resumedController(start, minimum, maximum int) concurrencyController {
	p := newController(start, minimum, maximum)
	p.state = resting
	return p
}

// reset forgets what an earlier process found, unless this one has tested it already.
func (p *concurrencyController) reset() {
	if p.failedTries == 0 && p.throttleScore == 0 {
		p.state, p.base, p.until = growing, throughput{}, time.Time{}
	}
}

// best is the number to start with next time.
func (p *concurrencyController) best() int {
	if p.state == growing || p.base.ranges == 0 {
		return p.limit
	}
	return p.base.ranges
}

// step takes a sample into account.
func (p *concurrencyController) step(m linkSample) {
	if m.throttled {
		p.throttleScore++
	} else {
		p.throttleScore = max(0, p.throttleScore-0.25)
	}
	if p.throttleScore >= throttleScore {
		p.throttleScore = 0
		p.limit = max(p.min, p.limit*2/3)
		p.rest(m.at, throttleFor)
		p.base, p.tryFewer = throughput{}, false
		return
	}
	if m.throttled || !m.busy {
		// The limit did not bound the rate: nothing is learnt.
		p.skip = max(p.skip, 1)
		return
	}
	if p.skip > 0 {
		p.skip--
		return
	}
	now := throughput{p.limit, m.rate}
	if p.base.ranges == 0 {
		p.base = now
		switch {
		case p.state == growing:
			p.setLimit(p.limit * 2)
		case p.until.IsZero():
			p.rest(m.at, minRest)
		}
		return
	}
	switch {
	case p.state == resting && p.limit == p.base.ranges:
		p.base.rate += (m.rate - p.base.rate) / 4
		if !m.at.Before(p.until) {
			p.state = trying
			if p.tryFewer {
				p.setLimit(p.limit * 3 / 4)
			} else {
				p.setLimit(p.limit * 3 / 2)
			}
		}
	case p.limit > p.base.ranges:
		gain := float64(p.limit)/float64(p.base.ranges) - 1
		if m.rate >= p.base.rate*(1+minGainPart*gain) {
			p.base, p.failedTries = now, 0
			p.setLimit(p.limit * 2)
			return
		}
		p.rejectTry(m.at)
	case p.limit < p.base.ranges:
		if m.rate >= p.base.rate*sameRate {
			p.base, p.failedTries = now, 0
			p.setLimit(p.limit * 3 / 4)
			return
		}
		p.rejectTry(m.at)
	default:
		p.revert(m.at)
	}
}

// setLimit sets a limit to be measured.
func (p *concurrencyController) setLimit(limit int) {
	p.limit = max(p.min, min(limit, p.max))
	p.skip, p.missedOnce = 1, false
}

// rejectTry ends a try after two samples in a row against it: ranges that start
// together also end together, and one sample may fall between.
func (p *concurrencyController) rejectTry(now time.Time) {
	if p.missedOnce {
		p.revert(now)
		return
	}
	p.missedOnce = true
}

// revert ends a try: back to the limit before it; the next try goes the other way.
func (p *concurrencyController) revert(now time.Time) {
	p.limit = p.base.ranges
	p.tryFewer = !p.tryFewer
	p.failedTries++
	p.rest(now, min(maxRest, minRest<<min(p.failedTries-1, 4)))
}

func (p *concurrencyController) rest(now time.Time, d time.Duration) {
	p.state, p.until, p.skip = resting, now.Add(d), 1
}

// rangeBytes is how many bytes one request should ask for, in whole blocks, so that
// the wait for its first byte is 1/20 of it.
func rangeBytes(first time.Duration, rate float64, block, maximum int64) int64 {
	n := int64(20*first.Seconds()*rate) / block * block
	return max(block, min(n, maximum/block*block))
}
