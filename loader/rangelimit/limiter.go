package rangelimit

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Limiter limits the requests to one source, over all its stagings: how many
// ranges are in flight, and until when the source asked for a pause. It also measures
// them. Waiters are served in order, High before Low.
type Limiter struct {
	mu           sync.Mutex // guards all below
	control      controller
	inFlight     int             // ranges in flight
	waiting      [2][]chan error // by Priority
	pausedUntil  time.Time       // the source asked for a pause until then
	wake         *time.Timer     // at until
	measured     time.Time
	limitReached bool  // the limit was reached since measured
	throttled    bool  // since measured
	firstBytes   ring  // seconds to the first byte
	rates        ring  // bytes a second after it
	spreads      ring  // duration relative to the typical one
	hedgeBudget  int64 // bytes that came, less hedgePart times those requested twice
	earlier      Link  // measured by an earlier process; zero if unknown
	compared     bool  // earlier was compared with this process

	counted atomic.Int64 // bytes since measured
}

// UrgentExtra is how many more ranges may be in flight for readers and for hedges.
const UrgentExtra = 4

// measureEvery is the interval at which the rate is measured.
const measureEvery = 150 * time.Millisecond

type Priority int

// High: a request waits for the staging. Low: none does.
const (
	High Priority = iota
	Low
)

// New returns a limiter of at most maximum ranges, which begins with what an earlier
// process measured of the source.
func New(maximum int, was Link) *Limiter {
	l := &Limiter{control: newController(cmp.Or(was.Streams, startRanges), minRanges, maximum), earlier: was}
	if was.Streams > 0 {
		l.control.state = resting // before another number is tried
	}
	return l
}

// Link returns what the next process should know; ok is false if too few ranges were
// measured.
func (l *Limiter) Link() (p Link, ok bool) {
	typical, ok := l.Typical()
	l.mu.Lock()
	defer l.mu.Unlock()
	return Link{Streams: l.control.best(), First: typical.First.Seconds(), Rate: typical.Rate}, ok && l.control.throttleScore == 0
}

// Expected returns the first-byte time and rate by which requests are planned:
// measured, or from an earlier process.
func (l *Limiter) Expected() (first time.Duration, rate float64, ok bool) {
	if typical, ok := l.Typical(); ok {
		return typical.First, typical.Rate, true
	}
	return time.Duration(l.earlier.First * float64(time.Second)), l.earlier.Rate, l.earlier.Streams > 0
}

// Ranges in flight at the start, and at least.
const (
	startRanges = 16
	minRanges   = 2
)

// Acquire waits until one more range may be in flight. Urgent ones may exceed the
// limit by UrgentExtra.
func (l *Limiter) Acquire(ctx context.Context, p Priority, urgent bool) error {
	l.mu.Lock()
	limit := l.control.limit
	if urgent {
		limit += UrgentExtra
		p = High
	}
	if l.inFlight < limit && !l.paused(time.Now()) {
		l.occupy()
		l.mu.Unlock()
		return nil
	}
	l.limitReached = true
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
	// It was admitted at the same moment.
	l.Release()
	return context.Cause(ctx)
}

// paused reports whether the source asked for a pause; the caller holds mu.
func (l *Limiter) paused(now time.Time) bool {
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

func (l *Limiter) occupy() {
	l.inFlight++
	if l.inFlight >= l.control.limit {
		l.limitReached = true
	}
}

// admit lets waiters in up to the limit; the caller holds mu.
func (l *Limiter) admit(now time.Time) {
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

func (l *Limiter) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight--
	l.admit(time.Now())
}

// CountBytes counts bytes as they leave the socket.
func (l *Limiter) CountBytes(n int64) { l.counted.Add(n) }

// Throttle notes that the source asked for fewer requests, and to pause for wait. All
// ranges get that answer at once: it counts once.
func (l *Limiter) Throttle(now time.Time, wait time.Duration) {
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

// Measure takes a sample every measureEvery.
func (l *Limiter) Measure(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.measured.IsZero() || now.Sub(l.measured) > 20*measureEvery {
		l.hedgeBudget += l.counted.Swap(0)
		l.measured, l.limitReached, l.throttled = now, false, false
		return
	}
	d := now.Sub(l.measured)
	if d < measureEvery {
		return
	}
	n := l.counted.Swap(0)
	l.hedgeBudget += n
	l.control.step(sample{at: now, rate: float64(n) / d.Seconds(), busy: l.limitReached, throttled: l.throttled})
	l.measured, l.limitReached, l.throttled = now, l.inFlight >= l.control.limit, false
	l.admit(now)
}

// RecordRange records a finished range: the time to its first byte, and the n bytes
// that came in the time rest after it.
func (l *Limiter) RecordRange(first time.Duration, n int64, remaining time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if typical := l.firstBytes.at(0.5) + float64(n)/l.rates.at(0.5); l.rates.n > 0 && typical > 0 {
		l.spreads.add((first + remaining).Seconds() / typical)
	}
	l.firstBytes.add(first.Seconds())
	if n >= 64<<10 && remaining > 0 {
		l.rates.add(float64(n) / remaining.Seconds())
	}
	if !l.compared && l.rates.n >= minSamples {
		// A source farther away than before takes more ranges to fill the link.
		if l.compared = true; l.earlier.Streams > 0 && l.firstBytes.at(0.5) > distanceFactor*l.earlier.First {
			l.control.reset()
		}
	}
}

const (
	minSamples     = 8 // ranges before typical is known
	distanceFactor = 2
)

// RangeStats describes typical ranges: the median time to the first byte, the median
// rate after it, and how many times the typical duration 9 of 10 take at most.
type RangeStats struct {
	First        time.Duration
	Rate         float64
	SpreadFactor float64
}

// Typical returns RangeStats; ok is false while too few ranges were measured.
func (l *Limiter) Typical() (h RangeStats, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rates.n < minSamples {
		return RangeStats{}, false
	}
	return RangeStats{First: time.Duration(l.firstBytes.at(0.5) * float64(time.Second)), Rate: l.rates.at(0.5),
		SpreadFactor: max(1, l.spreads.at(0.9))}, true
}

// Limit is how many ranges may be in flight, urgent ones aside.
func (l *Limiter) Limit() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.control.limit
}

// Bounds of bytes requested twice: 1 in hedgePart, and firstHedgeBudget at any time.
const (
	hedgePart        = 25 // one in 25 bytes
	firstHedgeBudget = 16 << 20
)

// SpendHedge takes n bytes from the hedge budget; false if they exceed it.
func (l *Limiter) SpendHedge(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.hedgeBudget/hedgePart+firstHedgeBudget {
		return false
	}
	l.hedgeBudget -= n * hedgePart
	return true
}

// RefundHedge returns bytes that did not come twice.
func (l *Limiter) RefundHedge(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hedgeBudget += n * hedgePart
}

// ring holds the last samples.
type ring struct {
	v [32]float64
	n int // ever added
}

func (r *ring) add(x float64) {
	r.v[r.n%len(r.v)] = x
	r.n++
}

// at is the q-quantile.
func (r *ring) at(q float64) float64 {
	have := r.v
	s := have[:min(r.n, len(have))]
	if len(s) == 0 {
		return 0
	}
	slices.Sort(s)
	return s[int(q*float64(len(s)-1)+0.5)]
}
