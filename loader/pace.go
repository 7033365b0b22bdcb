package loader

import "time"

// pace finds how many ranges in flight bring the most bytes a second from one
// source. It is a value that is told what came and says how many: growing as
// long as that pays, fewer where as much comes with fewer, fewer soon when the
// source goes on asking for it. What it found is kept for a while before it tries
// again, and for longer each time a try was in vain.
type pace struct {
	min, max int

	limit int
	base  level // what a try is compared with
	tries int   // in vain, one after another
	state paceState
	skip  int       // samples to pass over: they tell of another limit
	until time.Time // the end of a rest
	down  bool      // the next try is one with fewer
	doubt bool      // the last look spoke against the try
	noes  float64   // looks at which the source had asked for less; old ones fade
}

type level struct {
	streams int
	rate    float64 // bytes a second
}

type paceState int

const (
	growing paceState = iota // never tried in vain yet
	resting
	trying
)

// measure is one look at a link.
type measure struct {
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
	noesCut     = 3               // a burst is waited out; a source that goes on refusing gets fewer
	gainPart    = 0.25            // of what more streams could have brought at best
	sameRate    = 0.98            // this much is as much
)

func newPace(start, least, most int) pace {
	least = min(least, most)
	return pace{min: least, max: most, limit: max(least, min(start, most)), skip: 1}
}

// foundPace begins with what was found before, and looks at it for a while before
// it tries another.
func foundPace(start, least, most int) pace {
	p := newPace(start, least, most)
	p.state = resting
	return p
}

// forget goes on as if nothing had been found before: the link is another by now. One
// that has been looked at since, and tried in vain, is not.
func (p *pace) forget() {
	if p.tries == 0 && p.noes == 0 {
		p.state, p.base, p.until = growing, level{}, time.Time{}
	}
}

// found is the number to begin with next time.
func (p *pace) found() int {
	if p.state == growing || p.base.streams == 0 {
		return p.limit
	}
	return p.base.streams
}

// step takes one look into account.
func (p *pace) step(m measure) {
	if m.throttled {
		p.noes++
	} else {
		p.noes = max(0, p.noes-0.25)
	}
	if p.noes >= noesCut {
		p.noes = 0
		p.limit = max(p.min, p.limit*2/3)
		p.rest(m.at, throttleFor)
		p.base, p.down = level{}, false
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
	now := level{p.limit, m.rate}
	if p.base.streams == 0 {
		p.base = now
		switch {
		case p.state == growing:
			p.try(p.limit * 2)
		case p.until.IsZero():
			p.rest(m.at, restMin)
		}
		return
	}
	switch {
	case p.state == resting && p.limit == p.base.streams:
		p.base.rate += (m.rate - p.base.rate) / 4
		if !m.at.Before(p.until) {
			p.state = trying
			if p.down {
				p.try(p.limit * 3 / 4)
			} else {
				p.try(p.limit * 3 / 2)
			}
		}
	case p.limit > p.base.streams:
		wish := float64(p.limit)/float64(p.base.streams) - 1
		if m.rate >= p.base.rate*(1+gainPart*wish) {
			p.base, p.tries = now, 0
			p.try(p.limit * 2)
			return
		}
		p.against(m.at)
	case p.limit < p.base.streams:
		if m.rate >= p.base.rate*sameRate {
			p.base, p.tries = now, 0
			p.try(p.limit * 3 / 4)
			return
		}
		p.against(m.at)
	default:
		p.back(m.at)
	}
}

// try sets a limit to be measured; one that is none rests.
func (p *pace) try(limit int) {
	p.limit = max(p.min, min(limit, p.max))
	p.skip, p.doubt = 1, false
}

// against ends a try that two looks in a row speak against: ranges that begin
// together also end together, and one look may fall between.
func (p *pace) against(now time.Time) {
	if p.doubt {
		p.back(now)
		return
	}
	p.doubt = true
}

// back ends a try: to the limit before it, and the other way next time.
func (p *pace) back(now time.Time) {
	p.limit = p.base.streams
	p.down = !p.down
	p.tries++
	p.rest(now, min(restMax, restMin<<min(p.tries-1, 4)))
}

func (p *pace) rest(now time.Time, d time.Duration) {
	p.state, p.until, p.skip = resting, now.Add(d), 1
}

// stretch is how many bytes one request should ask for, so that waiting for its
// first byte is a twentieth of it, in whole blocks.
func stretch(first time.Duration, rate float64, block, most int64) int64 {
	n := int64(20*first.Seconds()*rate) / block * block
	return max(block, min(n, most/block*block))
}
