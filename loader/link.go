package loader

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// link is the way to one source, shared by all stagings from it: how many
// ranges may be in flight, when the source wants to be left alone, and how fast
// ranges have been. First come, first served, those in a hurry before those
// that are not.
type link struct {
	mu      sync.Mutex // guards all below
	pace    pace
	out     int             // ranges in flight
	waiting [2][]chan error // by Priority
	until   time.Time       // nobody asks before
	wake    *time.Timer     // at until
	looked  time.Time
	starved bool  // somebody waited since looked, or all were out
	refused bool  // since looked
	firsts  ring  // seconds to the first byte
	rates   ring  // bytes a second after it
	spreads ring  // of what they usually take, what ranges took
	spare   int64 // bytes that came, less hedgePart times those asked for twice
	was     past  // as it was in an earlier process; zero where nothing is known
	judged  bool  // whether it still is as it was

	counted atomic.Int64 // bytes since looked
}

// extra ranges may be in flight for bytes that a reader waits for and for
// second requests.
const extra = 4

// lookEvery is how often a link's rate is measured.
const lookEvery = 150 * time.Millisecond

func newLink(most int, was past) *link {
	l := &link{pace: newPace(startStreams, leastStreams, most), was: was}
	if was.Streams > 0 {
		l.pace = foundPace(was.Streams, leastStreams, most)
	}
	return l
}

// past is what the link is like now, for the next process; ok is false where
// too little is known.
func (l *link) past() (p past, ok bool) {
	usual, ok := l.usual()
	l.mu.Lock()
	defer l.mu.Unlock()
	return past{Streams: l.pace.found(), First: usual.first.Seconds(), Rate: usual.rate}, ok && l.pace.noes == 0
}

// ranges is how ranges are, as far as requests are planned by it: before enough
// have gone, as they were in an earlier process.
func (l *link) ranges() (first time.Duration, rate float64, ok bool) {
	if usual, ok := l.usual(); ok {
		return usual.first, usual.rate, true
	}
	return time.Duration(l.was.First * float64(time.Second)), l.was.Rate, l.was.Streams > 0
}

// Ranges in flight to begin with, and at least.
const (
	startStreams = 16
	leastStreams = 2
)

// acquire waits until one more range may be in flight. urgent ones may go
// beyond the limit by a few.
func (l *link) acquire(ctx context.Context, p Priority, urgent bool) error {
	l.mu.Lock()
	limit := l.pace.limit
	if urgent {
		limit += extra
		p = High
	}
	if l.out < limit && !l.closed(time.Now()) {
		l.take()
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

// closed reports whether the source wants to be left alone; the caller holds
// mu.
func (l *link) closed(now time.Time) bool {
	if !now.Before(l.until) {
		return false
	}
	if l.wake == nil {
		l.wake = time.AfterFunc(l.until.Sub(now), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.wake = nil
			l.admit(time.Now())
		})
	}
	return true
}

func (l *link) take() {
	l.out++
	if l.out >= l.pace.limit {
		l.starved = true
	}
}

// admit lets in who waits, as far as that goes; the caller holds mu.
func (l *link) admit(now time.Time) {
	for l.out < l.pace.limit {
		p := 0
		if len(l.waiting[p]) == 0 {
			p = 1
		}
		if len(l.waiting[p]) == 0 || l.closed(now) {
			return
		}
		l.take()
		l.waiting[p][0] <- nil
		l.waiting[p] = l.waiting[p][1:]
	}
}

func (l *link) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out--
	l.admit(time.Now())
}

// got counts bytes as they leave the socket.
func (l *link) got(n int64) { l.counted.Add(n) }

// throttle says that the source asked for less, and for how long it wants to be
// left alone. All ranges were told the same: that counts once.
func (l *link) throttle(now time.Time, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = true
	if until := now.Add(wait); until.After(l.until) {
		l.until = until
		if l.wake != nil {
			l.wake.Reset(wait)
		}
	}
}

// look measures the link, if it is time.
func (l *link) look(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.looked.IsZero() || now.Sub(l.looked) > 20*lookEvery {
		l.spare += l.counted.Swap(0)
		l.looked, l.starved, l.refused = now, false, false
		return
	}
	d := now.Sub(l.looked)
	if d < lookEvery {
		return
	}
	n := l.counted.Swap(0)
	l.spare += n
	l.pace.step(measure{at: now, rate: float64(n) / d.Seconds(), busy: l.starved, throttled: l.refused})
	l.looked, l.starved, l.refused = now, l.out >= l.pace.limit, false
	l.admit(now)
}

// finished tells how a range went: the time to its first byte, and the bytes
// that came in the time after it.
func (l *link) finished(first time.Duration, n int64, rest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if usual := l.firsts.at(0.5) + float64(n)/l.rates.at(0.5); l.rates.n > 0 && usual > 0 {
		l.spreads.add((first + rest).Seconds() / usual)
	}
	l.firsts.add(first.Seconds())
	if n >= 64<<10 && rest > 0 {
		l.rates.add(float64(n) / rest.Seconds())
	}
	if !l.judged && l.rates.n >= enough {
		// Farther away than it was, it takes more ranges to fill.
		if l.judged = true; l.was.Streams > 0 && l.firsts.at(0.5) > fartherBy*l.was.First {
			l.pace.forget()
		}
	}
}

const (
	enough    = 8 // ranges, to say how they usually go
	fartherBy = 2
)

// habit is how ranges go on a link: the time to the first byte and the rate
// after it of the one in the middle, and how many times as long nine of ten
// take at most.
type habit struct {
	first  time.Duration
	rate   float64
	spread float64
}

// usual is how ranges go on this link; ok is false as long as too few went.
func (l *link) usual() (h habit, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rates.n < enough {
		return habit{}, false
	}
	return habit{first: time.Duration(l.firsts.at(0.5) * float64(time.Second)), rate: l.rates.at(0.5), spread: max(1, l.spreads.at(0.9))}, true
}

func (l *link) limit() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pace.limit
}

// A part of all bytes may be asked for twice, and a little at any time.
const (
	hedgePart  = 25 // one in so many
	hedgeFirst = 16 << 20
)

// spend takes n bytes out of what may be asked for twice.
func (l *link) spend(n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > l.spare/hedgePart+hedgeFirst {
		return false
	}
	l.spare -= n * hedgePart
	return true
}

// refund gives back what of it did not come twice.
func (l *link) refund(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spare += n * hedgePart
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
