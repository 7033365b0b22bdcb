package loader

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// sourceLimiter is the way to one source, shared by all stagings from it: how many
// ranges may be in flight, when the source wants to be left alone, and how fast
// ranges have been. First come, first served, those in a hurry before those
// that are not.
type sourceLimiter struct {
	mu          sync.Mutex // guards all below
	control     concurrencyController
	inFlight    int             // ranges in flight
	waiting     [2][]chan error // by Priority
	pausedUntil time.Time       // nobody asks before
	wake        *time.Timer     // at until
	measured    time.Time
	starved     bool      // somebody waited since looked, or all were out
	throttled   bool      // since looked
	firstBytes  ring      // seconds to the first byte
	rates       ring      // bytes a second after it
	spreads     ring      // of what they usually take, what ranges took
	hedgeBudget int64     // bytes that came, less hedgePart times those asked for twice
	earlier     linkStats // as it was in an earlier process; zero where nothing is known
	compared    bool      // whether it still is as it was

	counted atomic.Int64 // bytes since looked
}

// urgentLanes ranges may be in flight for bytes that a reader waits for and for
// second requests.
const urgentLanes = 4

// measureEvery is how often a link's rate is measured.
const measureEvery = 150 * time.Millisecond

func newSourceLimiter(most int, was linkStats) *sourceLimiter {
	l := &sourceLimiter{control: newController(startRanges, minRanges, most), earlier: was}
	if was.Streams > 0 {
		l.control = resumedController(was.Streams, minRanges, most)
	}
	return l
}

// stats is what the link is like now, for the next process; ok is false where
// too little is known.
func (l *sourceLimiter) stats() (p linkStats, ok bool) {
	usual, ok := l.typical()
	l.mu.Lock()
	defer l.mu.Unlock()
	return linkStats{Streams: l.control.best(), First: usual.first.Seconds(), Rate: usual.rate}, ok && l.control.throttleScore == 0
}

// expected is how ranges are, as far as requests are planned by it: before enough
// have gone, as they were in an earlier process.
func (l *sourceLimiter) expected() (first time.Duration, rate float64, ok bool) {
	if usual, ok := l.typical(); ok {
		return usual.first, usual.rate, true
	}
	return time.Duration(l.earlier.First * float64(time.Second)), l.earlier.Rate, l.earlier.Streams > 0
}

// Ranges in flight to begin with, and at least.
const (
	startRanges = 16
	minRanges   = 2
)

// acquire waits until one more range may be in flight. urgent ones may go
// beyond the limit by a few.
func (l *sourceLimiter) acquire(ctx context.Context, p Priority, urgent bool) error {
	l.mu.Lock()
	limit := l.control.limit
	if urgent {
		limit += urgentLanes
		p = High
	}
	if l.inFlight < limit && !l.paused(time.Now()) {
		l.occupy()
		l.mu.Unlock()
		return nil
	}
	l.starved = true
	c := make(chan error, 1)
	if urgent {
		l.waiting[p] = slices.Insert(l.waiting[p], 0, c)
	} else {
		l.waiting[p] = append(l.waiting[p], c)
	}
	l.mu.Unlock()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	for q := range l.waiting {
		if i := slices.Index(l.waiting[q], c); i >= 0 {
			l.waiting[q] = slices.Delete(l.waiting[q], i, i+1)
			l.mu.Unlock()
			return context.Cause(ctx)
		}
	}
	l.mu.Unlock()
	// It was let in in the same moment.
	l.release()
	return context.Cause(ctx)
}

// paused reports whether the source wants to be left alone; the caller holds
// mu.
func (l *sourceLimiter) paused(now time.Time) bool {
	if !now.Before(l.pausedUntil) {
		return false
	}
	if l.wake == nil {
		l.wake = time.AfterFunc(l.pausedUntil.Sub(now), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.wake = nil
			l.admit(time.Now())
		})
	}
	return true
}

func (l *sourceLimiter) occupy() {
	l.inFlight++
	if l.inFlight >= l.control.limit {
		l.starved = true
	}
}

// admit lets in who waits, as far as that goes; the caller holds mu.
func (l *sourceLimiter) admit(now time.Time) {
	for l.inFlight < l.control.limit {
		p := 0
		if len(l.waiting[p]) == 0 {
			p = 1
		}
		if len(l.waiting[p]) == 0 || l.paused(now) {
			return
		}
		l.occupy()
		l.waiting[p][0] <- nil
		l.waiting[p] = l.waiting[p][1:]
	}
}

func (l *sourceLimiter) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight--
	l.admit(time.Now())
}

// countBytes counts bytes as they leave the socket.
func (l *sourceLimiter) countBytes(n int64) { l.counted.Add(n) }

// throttle says that the source asked for less, and for how long it wants to be
// left alone. All ranges were told the same: that counts once.
func (l *sourceLimiter) throttle(now time.Time, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.throttled = true
	if until := now.Add(wait); until.After(l.pausedUntil) {
		l.pausedUntil = until
		if l.wake != nil {
			l.wake.Reset(wait)
		}
	}
}

// measure measures the link, if it is time.
func (l *sourceLimiter) measure(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.measured.IsZero() || now.Sub(l.measured) > 20*measureEvery {
		l.hedgeBudget += l.counted.Swap(0)
		l.measured, l.starved, l.throttled = now, false, false
		return
	}
	d := now.Sub(l.measured)
	if d < measureEvery {
		return
	}
	n := l.counted.Swap(0)
	l.hedgeBudget += n
	l.control.step(linkSample{at: now, rate: float64(n) / d.Seconds(), busy: l.starved, throttled: l.throttled})
	l.measured, l.starved, l.throttled = now, l.inFlight >= l.control.limit, false
	l.admit(now)
}

// recordRange tells how a range went: the time to its first byte, and the bytes
// that came in the time after it.
func (l *sourceLimiter) recordRange(first time.Duration, n int64, rest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if usual := l.firstBytes.at(0.5) + float64(n)/l.rates.at(0.5); l.rates.n > 0 && usual > 0 {
		l.spreads.add((first + rest).Seconds() / usual)
	}
	l.firstBytes.add(first.Seconds())
	if n >= 64<<10 && rest > 0 {
		l.rates.add(float64(n) / rest.Seconds())
	}
	if !l.compared && l.rates.n >= minSamples {
		// Farther away than it was, it takes more ranges to fill.
		if l.compared = true; l.earlier.Streams > 0 && l.firstBytes.at(0.5) > fartherBy*l.earlier.First {
			l.control.reset()
		}
	}
}

const (
	minSamples = 8 // ranges, to say how they usually go
	fartherBy  = 2
)

// rangeStats is how ranges go on a link: the time to the first byte and the rate
// after it of the one in the middle, and how many times as long nine of ten
// take at most.
type rangeStats struct {
	first  time.Duration
	rate   float64
	spread float64
}

// typical is how ranges go on this link; ok is false as long as too few went.
func (l *sourceLimiter) typical() (h rangeStats, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rates.n < minSamples {
		return rangeStats{}, false
	}
	return rangeStats{first: time.Duration(l.firstBytes.at(0.5) * float64(time.Second)), rate: l.rates.at(0.5), spread: max(1, l.spreads.at(0.9))}, true
}

func (l *sourceLimiter) limit() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.control.limit
}

// A part of all bytes may be asked for twice, and a little at any time.
const (
	hedgePart  = 25 // one in so many
	hedgeFirst = 16 << 20
)

// spendHedge takes n bytes out of what may be asked for twice.
func (l *sourceLimiter) spendHedge(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.hedgeBudget/hedgePart+hedgeFirst {
		return false
	}
	l.hedgeBudget -= n * hedgePart
	return true
}

// refundHedge gives back what of it did not come twice.
func (l *sourceLimiter) refundHedge(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hedgeBudget += n * hedgePart
}

// ring holds the last few samples.
type ring struct {
	v [32]float64
	n int // ever added
}

func (r *ring) add(x float64) {
	r.v[r.n%len(r.v)] = x
	r.n++
}

// at is the sample that the part q of all is below.
func (r *ring) at(q float64) float64 {
	have := r.v
	s := have[:min(r.n, len(have))]
	if len(s) == 0 {
		return 0
	}
	slices.Sort(s)
	return s[int(q*float64(len(s)-1)+0.5)]
}
