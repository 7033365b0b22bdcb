package forecast

import (
	"time"
)

// Window is a stretch of an idle time, counted from its begin.
type Window struct {
	From, To time.Duration
}

// Worth is what holding is measured with.
type Worth struct {
	Cold  time.Duration // so much idle time is one cold start worth
	Start time.Duration // a start ahead takes so long, and holds as much as being idle
	Ahead bool          // starts ahead are allowed: else there is one window, the first
}

// WorthOf is the usual worth of holding a function whose standard keep-alive is
// idle: one cold start is worth three of it. A fixed keep-alive says
// that holding for longer than idle is not worth a cold start, not knowing when
// the next use comes; with a forecast each cold start may cost more, for less
// holding in all.
func WorthOf(idle, start time.Duration, ahead bool) Worth {
	return Worth{Cold: 3 * idle, Start: start, Ahead: ahead}
}

const (
	maxWindows  = 8
	startMargin = 16 // a start ahead leaves a 16th of the idle time for error
	lateMargin  = 16 // and what is held is held a 16th longer
)

// point is a moment at which idle times have ended.
type point struct {
	at     float64
	n      float64 // of them, as many
	beyond float64 // idle times that last at least until then
	held   float64 // cheapest so far with this point covered
	gone   float64 // and without
	from   byte    // how the cheapest covering came about
	left   byte    // where the cheapest without came from
	own    bool    // not of the imagined one: on that nothing is started
}

const (
	heldThroughout byte = iota // held since the point before
	heldAgain                  // let go after the point before, which was covered
	startedAhead               // started ahead; the point before was not covered
)

// windows are the stretches in which holding is worth its price, by dynamic
// programming over the points at which idle times have ended.
func (t *idleTimes) windows(w Worth, buf []point) []Window {
	out := t.worth(w, buf)
	for tries := 0; len(out) > maxWindows && tries < 8; tries++ {
		w.Start = 2*w.Start + time.Minute
		out = t.worth(w, buf)
	}
	return out[:min(len(out), maxWindows)]
}

func (t *idleTimes) worth(w Worth, buf []point) []Window {
	ps := t.points(buf[:0])
	cold, start := float64(w.Cold), float64(w.Start)
	rest := 3 * start // let go for less, it would be up and down
	prev := point{}
	for i := range ps {
		p := &ps[i]
		tail := prev.at / lateMargin
		hold := prev.held + p.beyond*(p.at-prev.at)
		p.held, p.from = hold, heldThroughout
		if w.Ahead && p.own {
			ahead := p.beyond * (p.at/startMargin + start)
			if head := p.at - p.at/startMargin - start; head > prev.at+tail+rest {
				if c := prev.held + p.beyond*tail + ahead; c < p.held {
					p.held, p.from = c, heldAgain
				}
				if i > 0 {
					if c := prev.gone + ahead; c < p.held {
						p.held, p.from = c, startedAhead
					}
				}
			}
		}
		p.gone, p.left = prev.held+p.beyond*tail, heldAgain
		if i > 0 && prev.gone < p.gone {
			p.gone, p.left = prev.gone, startedAhead
		}
		p.gone += p.n * cold
		prev = *p
	}
	// Back from the cheaper end.
	covered := len(ps) > 0 && prev.held <= prev.gone
	var out []Window
	open := false
	for i := len(ps) - 1; i >= 0; i-- {
		p := &ps[i]
		if !covered {
			covered = p.left == heldAgain
			continue
		}
		if !open {
			out = append(out, Window{To: time.Duration(p.at + p.at/lateMargin)})
			open = true
		}
		if p.from != heldThroughout {
			out[len(out)-1].From = time.Duration(max(p.at-p.at/startMargin-start, 0))
			open = false
		}
		covered = p.from != startedAhead
	}
	if n := len(out); n == 0 || out[n-1].From > 0 {
		out = append(out, Window{}) // not held at all at first
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}

// points are the ends of the idle times that were, and of the imagined one.
func (t *idleTimes) points(ps []point) []point {
	left := float64(t.total) + priorCount
	rest, next := priorCount, time.Minute
	i := 0
	add := func(at time.Duration, n float64, own bool) {
		ps = append(ps, point{at: float64(at), n: n, beyond: left, own: own})
		left -= n
	}
	for i < len(t.bins) || next <= priorHorizon {
		if i < len(t.bins) && (binSpans[t.bins[i].at] <= next || next > priorHorizon) {
			add(binSpans[t.bins[i].at], float64(t.bins[i].n), true)
			i++
			continue
		}
		n := rest * (1 - priorNever)
		rest -= n
		add(next, n, false)
		next *= 2
	}
	return ps
}
