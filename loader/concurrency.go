package loader

import "time"

// concurrencyController finds how many ranges in flight bring the most bytes a second from one
// source. It is a value that is told what came and says how many: growing as
// long as that pays, fewer where as much comes with fewer, fewer soon when the
// source goes on asking for it. What it found is kept for a while before it tries
// again, and for longer each time a try was in vain.
type concurrencyController struct {
	min, max int

	limit         int
	base          throughput // what a try is compared with
	failedTries   int        // in vain, one after another
	state         controllerState
	skip          int       // samples to pass over: they tell of another limit
	until         time.Time // the end of a rest
	tryFewer      bool      // the next try is one with fewer
	missedOnce    bool      // the last look spoke against the try
	throttleScore float64   // looks at which the source had asked for less; old ones fade
}

type throughput struct {
	ranges int
	rate   float64 // bytes a second
}

type controllerState int

const (
	growing controllerState = iota // never tried in vain yet
	resting
	trying
)

// linkSample is one look at a link.
type linkSample struct {
	at   time.Time
	rate float64 // bytes a second since the last look
	busy bool    // all that were allowed were in flight, and more was to do
	// throttled: the source asked for less since the last look.
	throttled bool
}

const (
	restMin     = 4 * time.Second
	restMax     = time.Minute
	throttleFor = 5 * time.Second // nothing is tried that soon after a cut
	throttleCut = 3               // a burst is waited out; a source that goes on refusing gets fewer
	gainPart    = 0.25            // of what more streams could have brought at best
	sameRate    = 0.98            // this much is as much
)

func newController(start, least, most int) concurrencyController {
	least = min(least, most)
	return concurrencyController{min: least, max: most, limit: max(least, min(start, most)), skip: 1}
}

// resumedController begins with what was found before, and looks at it for a while before
// it tries another.
func resumedController(start, least, most int) concurrencyController {
	p := newController(start, least, most)
	p.state = resting
	return p
}

// reset goes on as if nothing had been found before: the link is another by now. One
// that has been looked at since, and tried in vain, is not.
func (p *concurrencyController) reset() {
	if p.failedTries == 0 && p.throttleScore == 0 {
		p.state, p.base, p.until = growing, throughput{}, time.Time{}
	}
}

// best is the number to begin with next time.
func (p *concurrencyController) best() int {
	if p.state == growing || p.base.ranges == 0 {
		return p.limit
	}
	return p.base.ranges
}

// step takes one look into account.
func (p *concurrencyController) step(m linkSample) {
	if m.throttled {
		p.throttleScore++
	} else {
		p.throttleScore = max(0, p.throttleScore-0.25)
	}
	if p.throttleScore >= throttleCut {
		p.throttleScore = 0
		p.limit = max(p.min, p.limit*2/3)
		p.rest(m.at, throttleFor)
		p.base, p.tryFewer = throughput{}, false
		return
	}
	if m.throttled || !m.busy {
		// What came was not bounded by the limit: nothing is learnt.
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
			p.rest(m.at, restMin)
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
		wish := float64(p.limit)/float64(p.base.ranges) - 1
		if m.rate >= p.base.rate*(1+gainPart*wish) {
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

// setLimit sets a limit to be measured; one that is none rests.
func (p *concurrencyController) setLimit(limit int) {
	p.limit = max(p.min, min(limit, p.max))
	p.skip, p.missedOnce = 1, false
}

// rejectTry ends a try that two looks in a row speak against: ranges that begin
// together also end together, and one look may fall between.
func (p *concurrencyController) rejectTry(now time.Time) {
	if p.missedOnce {
		p.revert(now)
		return
	}
	p.missedOnce = true
}

// revert ends a try: to the limit before it, and the other way next time.
func (p *concurrencyController) revert(now time.Time) {
	p.limit = p.base.ranges
	p.tryFewer = !p.tryFewer
	p.failedTries++
	p.rest(now, min(restMax, restMin<<min(p.failedTries-1, 4)))
}

func (p *concurrencyController) rest(now time.Time, d time.Duration) {
	p.state, p.until, p.skip = resting, now.Add(d), 1
}

// rangeBytes is how many bytes one request should ask for, so that waiting for its
// first byte is a twentieth of it, in whole blocks.
func rangeBytes(first time.Duration, rate float64, block, most int64) int64 {
	n := int64(20*first.Seconds()*rate) / block * block
	return max(block, min(n, most/block*block))
}
