package forecast

import (
	"slices"
	"time"
)

// Window is a part of an idle time, counted from its begin.
type Window struct {
	From, To time.Duration
}

// Worth sets the cost of cold starts against that of holding a function idle.
type Worth struct {
	Cold  time.Duration // idle time that is as expensive as one cold start
	Start time.Duration // duration of a start ahead, which costs as much as idle time
	Ahead bool          // starts ahead are allowed; else the first window is the only one
}

// WorthOf is the usual Worth of a function with the standard keep-alive idle: a cold
// start is as expensive as three of it. A fixed keep-alive prices a cold start at one
// idle without knowing the next use; with a forecast the price may be higher, and
// still the idle time in total is less.
func WorthOf(idle, start time.Duration, ahead bool) Worth {
	return Worth{Cold: 3 * idle, Start: start, Ahead: ahead}
}

const (
	maxWindows  = 8
	startMargin = 16 // a start ahead leaves a 16th of the idle time for error
	lateMargin  = 16 // a window extends a 16th beyond its last point
)

// point is an age at which idle times ended.
type point struct {
	at     float64
	n      float64 // number of idle times that ended here
	beyond float64 // number of idle times that last at least until here
	held   float64 // least cost so far with this point in a window
	gone   float64 // least cost so far with this point in no window
	from   byte    // transition that led to held
	left   byte    // transition that led to gone
	own    bool    // observed, not of the prior, for which nothing is started
}

const (
	heldThroughout byte = iota // READY since the previous point
	heldAgain                  // stopped after the previous point, which was in a window
	startedAhead               // started ahead; the previous point was in no window
)

// windows computes the windows of least cost by dynamic programming over the points at
// which idle times ended, eight windows at most.
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
	rest := 3 * start // shorter gaps are not worth a stop and a start
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
	// Trace back from the cheaper of the two ends.
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
		out = append(out, Window{}) // an empty first window: no keep-alive
	}
	slices.Reverse(out)
	return out
}

// points lists the ages at which observed idle times and the prior end, in order.
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
