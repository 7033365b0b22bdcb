package autoscale

import (
	"math"
	"time"
)

// Settings holds the settings of scaling by windows: how a function's load is
// averaged, and how fast its replicas follow. What differs by model is in the
// model's file (scale: min, max, target, idle); these are the platform's. They
// mean what Knative's autoscaler means by them, and with Patient and the same
// settings the numbers that come out are the same (platform/knative proves it).
// A zero field is the
// default, and so is a rate or threshold of 1 or less, with which nothing could
// move or everything would be a panic.
type Settings struct {
	// Stable is the span over which load is averaged (60 s), Panic the short one
	// that sees a rise before the long one does (6 s, at most Stable). Both are
	// counted in buckets of Bucket (1 s).
	Stable, Panic, Bucket time.Duration

	// Every is the time between two evaluations (2 s): MaxUp and MaxDown are
	// per evaluation. Waiting requests do not wait for one.
	Every time.Duration

	// Utilisation is the share of scale.target that a replica is meant to be at
	// (1: GPUs are expensive, and requests beyond it wait and count at once).
	Utilisation float64

	// Threshold begins a panic: the short window asks for so many times the
	// replicas that are READY (2). In a panic nothing is scaled down; it is over
	// when the threshold was not reached for Stable.
	Threshold float64

	// MaxUp is at most how many times the READY replicas one evaluation asks for
	// (1000), MaxDown at least what part of them it leaves (2: half).
	MaxUp, MaxDown float64

	// Delay is how long fewer must have been enough before there are fewer (0).
	Delay time.Duration

	// Patient leaves everything to the windows, as Knative does: held requests
	// count once a window has seen them, and what a panic holds is also started.
	// Otherwise held requests have replicas started at once, and panic, delay and
	// MaxDown only keep what is there.
	Patient bool
}

// withDefaults fills in the defaults.
func (a Settings) withDefaults() Settings {
	span := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	number := func(x *float64, above, v float64) {
		if !(*x > above) || math.IsInf(*x, 0) {
			*x = v
		}
	}
	span(&a.Stable, time.Minute)
	span(&a.Bucket, time.Second)
	span(&a.Panic, a.Stable/10)
	span(&a.Every, 2*time.Second)
	a.Stable = min(max(a.Stable, a.Bucket), maxBuckets*a.Bucket)
	a.Panic = min(max(a.Panic, a.Bucket), a.Stable)
	number(&a.Utilisation, 0, 1)
	number(&a.Threshold, 1, 2)
	number(&a.MaxUp, 1, 1000)
	number(&a.MaxDown, 1, 2)
	return a
}

// Load is what is remembered of one function's load, from its first request
// until Over. It is some 600 bytes at the default settings; every call costs
// the same however much was observed. It belongs to one goroutine.
type Load struct {
	settings Settings

	// A bucket holds the mean number of requests under way in it, in units of
	// 1e-9: whole numbers, so that sums do not drift. The bucket of moment t is
	// t/Bucket, in the ring modulo its length, which is that of the long window.
	ring          []int64
	stable, short loadWindow
	last          int64 // the bucket written last
	any           bool  // something was written

	// The step function that Observe is told.
	level int
	since time.Duration // what was before is in open, or in the ring; 0: not told yet
	open  int64         // request-time of the bucket of since, up to since

	panicked   time.Duration // last time over the threshold; 0: no panic
	panicMost  int           // asked for in this panic
	delayed    []delayedPeak // of the last Delay: largest first, each later than the one before
	evaluation int64         // the evaluation that was made last, plus one

	needed, desired int
}

// loadWindow is one window over the ring.
type loadWindow struct {
	buckets int64
	first   int64 // the first write since it was empty
	sum     int64
}

type delayedPeak struct {
	evaluation int64
	want       int
}

const (
	bucketUnit    = 1e9
	maxLoad       = 1_000_000 // requests under way that a bucket can hold
	maxBuckets    = 3600      // buckets in a window
	meanPrecision = 1e6       // a mean is told to six digits, so that noise is no replica
)

// NewLoad remembers nothing yet.
func NewLoad(a Settings) *Load {
	a = a.withDefaults()
	buckets := func(d time.Duration) int64 { return int64((d + a.Bucket - 1) / a.Bucket) }
	l := &Load{settings: a, stable: loadWindow{buckets: buckets(a.Stable)}, short: loadWindow{buckets: buckets(a.Panic)}}
	l.ring = make([]int64, l.stable.buckets)
	return l
}

// Adopt has so many replicas found running at now, of a past that is not known:
// they are kept until the window knows better, which is what a panic does.
func (l *Load) Adopt(now time.Duration, ready int) {
	if ready > 1 {
		l.panicked, l.panicMost = now, max(l.panicMost, ready)
		l.desired = max(l.desired, ready)
	}
}

// Observe notes that from now on n requests are under way, held ones included.
// Calls are in the order of time.
func (l *Load) Observe(now time.Duration, n int) {
	if l.since > 0 && now > l.since {
		l.closeBuckets(now)
	}
	l.since, l.level = max(now, l.since), min(max(n, 0), maxLoad)
}

// closeBuckets writes down the buckets that are over at now. As where load is scraped,
// what happened in one second is known, and written, in the next.
func (l *Load) closeBuckets(now time.Duration) {
	b := l.settings.Bucket
	from, to := int64(l.since/b), int64(now/b)
	if from == to {
		l.open += int64(l.level) * int64(now-l.since)
		return
	}
	l.write(from+1, l.mean(l.open+int64(l.level)*int64(time.Duration(from+1)*b-l.since)))
	full := int64(l.level) * bucketUnit
	// Of a long silence only the last window matters.
	for k := max(from+2, to-l.stable.buckets); k <= to; k++ {
		l.write(k, full)
	}
	l.open = int64(l.level) * int64(now-time.Duration(to)*b)
}

// mean over one bucket of request-time in it.
func (l *Load) mean(area int64) int64 {
	if l.settings.Bucket == time.Second {
		return area
	}
	return int64(math.Round(float64(area) / float64(l.settings.Bucket) * bucketUnit))
}

// Record adds a mean measured elsewhere: x requests were under way in the bucket that
// ended at now. Several means of one bucket add up, as parts of the load. Callers of
// Observe do not use it.
func (l *Load) Record(now time.Duration, x float64) {
	if !(x > 0) { // nothing, or no number
		x = 0
	}
	l.write(int64(now/l.settings.Bucket), int64(math.Round(min(x, maxLoad)*bucketUnit)))
}

func (l *Load) write(k, v int64) {
	n := int64(len(l.ring))
	switch gap := k - l.last; {
	case !l.any || gap >= n:
		clear(l.ring)
		l.stable.first, l.stable.sum, l.short.first, l.short.sum = k, 0, k, 0
		l.last, l.any = k, true
	case gap > 0:
		for i := l.last + 1; i <= k; i++ {
			if i >= l.short.buckets {
				l.short.sum -= l.ring[(i-l.short.buckets)%n]
			}
			l.stable.sum -= l.ring[i%n]
			l.ring[i%n] = 0
		}
		if gap >= l.short.buckets {
			l.short.first, l.short.sum = k, 0
		}
		l.last = k
	case -gap >= n || k < 0:
		return // of before the window
	default:
		l.stable.first = min(l.stable.first, k)
		if -gap < l.short.buckets {
			l.short.first = min(l.short.first, k)
		}
	}
	l.ring[k%n] += v
	l.stable.sum += v
	if l.last-k < l.short.buckets {
		l.short.sum += v
	}
}

// mean of the last buckets of s before and with the one of now. While the
// window is not full it is that of what there is.
func (s *loadWindow) mean(l *Load, k int64) float64 {
	gap := k - l.last
	if gap >= s.buckets {
		return 0
	}
	sum, n := s.sum, min(l.last-s.first+1, s.buckets)
	if gap > 0 {
		for i := int64(1); i <= gap; i++ {
			if at := l.last + i - s.buckets; at >= 0 {
				sum -= l.ring[at%int64(len(l.ring))]
			}
		}
		n = min(n, s.buckets-gap)
	}
	return math.Round(float64(sum)/bucketUnit/float64(n)*meanPrecision) / meanPrecision
}

// Means are the requests under way on average over the long and the short
// window. ok is false where nothing was observed for the long one.
func (l *Load) Means(now time.Duration) (stable, short float64, ok bool) {
	k := int64(now / l.settings.Bucket)
	if !l.any || k-l.last > l.stable.buckets {
		return 0, 0, false
	}
	return l.stable.mean(l, k), l.short.mean(l, k), true
}

// Scale says how many replicas at target requests each the load asks for, while
// ready of them are READY: needed are to be started where they are missing,
// desired are not to be scaled down. Between two evaluations (Every) it says what
// the last one said.
func (l *Load) Scale(now time.Duration, ready, target int) (needed, desired int) {
	if l.since > 0 && now > l.since {
		l.closeBuckets(now)
		l.since = now
	}
	turn := int64(now/l.settings.Every) + 1
	if turn == l.evaluation {
		return l.needed, l.desired
	}
	stable, short, ok := l.Means(now)
	if !ok {
		return l.needed, l.desired
	}
	l.evaluation = turn
	per := float64(max(target, 1)) * l.settings.Utilisation
	have := float64(max(ready, 1))
	up, down := math.Ceil(l.settings.MaxUp*have), math.Floor(have/l.settings.MaxDown)
	long, rise := math.Ceil(stable/per), math.Ceil(short/per)
	held := int(min(max(long, down), up))

	switch over := rise/have >= l.settings.Threshold; {
	case over:
		l.panicked = now
	case l.panicked > 0 && l.panicked+l.settings.Stable < now:
		l.panicked, l.panicMost = 0, 0
	}
	l.needed = int(min(long, up))
	if l.panicked > 0 {
		l.needed = max(l.needed, int(min(rise, up)))
		l.panicMost = max(l.panicMost, held, int(min(rise, up)))
		held = l.panicMost
	}
	l.desired = l.delayedWant(held)
	return l.needed, l.desired
}

// delayedWant is the most that was wanted in the last Delay.
func (l *Load) delayedWant(want int) int {
	if l.settings.Delay <= 0 {
		return want
	}
	keep := int64((l.settings.Delay + l.settings.Every - 1) / l.settings.Every)
	n := len(l.delayed)
	for n > 0 && l.delayed[n-1].want <= want {
		n--
	}
	l.delayed = append(l.delayed[:n], delayedPeak{l.evaluation, want})
	old := 0
	for l.evaluation-l.delayed[old].evaluation >= keep {
		old++
	}
	if old > 0 {
		l.delayed = l.delayed[:copy(l.delayed, l.delayed[old:])]
	}
	return l.delayed[0].want
}

// Over reports whether there is nothing left to remember: the function can be
// without a Load until its next request.
func (l *Load) Over(now time.Duration) bool {
	if l.level > 0 || l.open > 0 || l.desired > 0 || l.panicked > 0 {
		return false
	}
	stable, _, ok := l.Means(now)
	return !ok || stable == 0 && l.stable.sum == 0
}
