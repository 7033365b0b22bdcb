package autoscale

import (
	"math"
	"time"
)

// Settings holds the windows over which a function's load is averaged, for the whole
// platform; the settings of one model are in its file (scale: min, max, target, idle). A
// zero field means the default. All are those of Knative's autoscaler, as the constants
// are, and Load.Scale returns the same (tested in platform/knative).
type Settings struct {
	// Stable is the long averaging window (60 s); Panic is the short one, which
	// detects a rise earlier (6 s, at most Stable). Both consist of buckets of
	// length Bucket (1 s).
	Stable, Panic, Bucket time.Duration

	// Every is the time between two evaluations (2 s): maxUp and maxDown are per
	// evaluation. Waiting requests count at once, without an evaluation.
	Every time.Duration
}

const (
	// threshold is the ratio of the replicas that the short window needs to the READY
	// ones at which a panic begins. In a panic nothing is scaled down; it ends
	// when the threshold was not reached for Stable.
	threshold = 2
	maxUp     = 1000.0 // bounds the growth per evaluation, as a multiple of the READY replicas
	maxDown   = 2      // bounds the reduction, as a divisor of them
)

func (s Settings) withDefaults() Settings {
	span := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	span(&s.Stable, time.Minute)
	span(&s.Bucket, time.Second)
	span(&s.Panic, s.Stable/10)
	span(&s.Every, 2*time.Second)
	s.Stable = min(max(s.Stable, s.Bucket), maxBuckets*s.Bucket)
	s.Panic = min(max(s.Panic, s.Bucket), s.Stable)
	return s
}

// Load holds the recent load of one function, from its first request until Over. It
// takes some 600 bytes with the default settings, and every call has constant cost. It
// is not safe for concurrent use.
type Load struct {
	settings Settings

	// A bucket holds the mean number of requests in flight during it, in units of
	// 1e-9: integers, so that sums do not drift. Moment t is in bucket t/Bucket, at
	// that index modulo the length of the ring, which is that of the long window.
	ring          []int64
	stable, short loadWindow
	last          int64 // the bucket written last
	any           bool  // a bucket was written

	// The step function passed to Observe.
	level int
	since time.Duration // load before it is in open or in the ring; 0: no Observe yet
	open  int64         // request-time in the bucket of since, up to since

	panicked   time.Duration // last time over the threshold; 0: no panic
	panicMost  int           // most replicas needed in this panic
	evaluation int64         // number of the last evaluation, plus one

	needed, desired int
}

// loadWindow is one window over the ring.
type loadWindow struct {
	buckets int64
	first   int64 // first bucket written since the window was empty
	sum     int64
}

const (
	bucketUnit    = 1e9
	maxLoad       = 1_000_000 // most requests in flight that a bucket can hold
	maxBuckets    = 3600      // most buckets in a window
	meanPrecision = 1e6       // means are rounded to six digits, so that rounding noise adds no replica
)

func NewLoad(a Settings) *Load {
	a = a.withDefaults()
	buckets := func(d time.Duration) int64 { return int64((d + a.Bucket - 1) / a.Bucket) }
	l := &Load{settings: a, stable: loadWindow{buckets: buckets(a.Stable)}, short: loadWindow{buckets: buckets(a.Panic)}}
	l.ring = make([]int64, l.stable.buckets)
	return l
}

// Adopt keeps ready replicas that were found running at now with unknown past load. It
// begins a panic, so they stay until a whole window is observed.
func (l *Load) Adopt(now time.Duration, ready int) {
	if ready > 1 {
		l.panicked, l.panicMost = now, max(l.panicMost, ready)
		l.desired = max(l.desired, ready)
	}
}

// Observe records that n requests are in flight from now on, waiting ones included.
// Calls must be in the order of time.
func (l *Load) Observe(now time.Duration, n int) {
	if l.since > 0 && now > l.since {
		l.closeBuckets(now)
	}
	l.since, l.level = max(now, l.since), min(max(n, 0), maxLoad)
}

// closeBuckets writes the buckets that ended before now. As with scraped load, the load
// of one second is written in the next.
func (l *Load) closeBuckets(now time.Duration) {
	b := l.settings.Bucket
	from, to := int64(l.since/b), int64(now/b)
	if from == to {
		l.open += int64(l.level) * int64(now-l.since)
		return
	}
	l.write(from+1, l.mean(l.open+int64(l.level)*int64(time.Duration(from+1)*b-l.since)))
	full := int64(l.level) * bucketUnit
	// After a long silence only the last window matters.
	for k := max(from+2, to-l.stable.buckets); k <= to; k++ {
		l.write(k, full)
	}
	l.open = int64(l.level) * int64(now-time.Duration(to)*b)
}

// mean converts the request-time of one bucket to its mean.
func (l *Load) mean(area int64) int64 {
	if l.settings.Bucket == time.Second {
		return area
	}
	return int64(math.Round(float64(area) / float64(l.settings.Bucket) * bucketUnit))
}

// write sets bucket k, which is later than the last one.
func (l *Load) write(k, v int64) {
	n := int64(len(l.ring))
	if gap := k - l.last; !l.any || gap >= n {
		clear(l.ring)
		l.stable.first, l.stable.sum, l.short.first, l.short.sum = k, 0, k, 0
		l.last, l.any = k, true
	} else {
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
	}
	l.ring[k%n] += v
	l.stable.sum += v
	l.short.sum += v
}

// mean is the mean of the last w.buckets buckets, bucket k included; while the window
// is not full, of those written so far.
func (w *loadWindow) mean(l *Load, k int64) float64 {
	gap := k - l.last
	if gap >= w.buckets {
		return 0
	}
	sum, n := w.sum, min(l.last-w.first+1, w.buckets)
	if gap > 0 {
		for i := int64(1); i <= gap; i++ {
			if at := l.last + i - w.buckets; at >= 0 {
				sum -= l.ring[at%int64(len(l.ring))]
			}
		}
		n = min(n, w.buckets-gap)
	}
	return math.Round(float64(sum)/bucketUnit/float64(n)*meanPrecision) / meanPrecision
}

// Means returns the average requests in flight over the long and the short window. ok
// is false if the long window has no observation.
func (l *Load) Means(now time.Duration) (stable, short float64, ok bool) {
	k := int64(now / l.settings.Bucket)
	if !l.any || k-l.last > l.stable.buckets {
		return 0, 0, false
	}
	return l.stable.mean(l, k), l.short.mean(l, k), true
}

// Scale returns how many replicas of target requests each the load needs, while ready
// are READY: up to needed are started, and up to desired are not scaled down. Between
// two evaluations (Every) it returns the last result.
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
	per := float64(max(target, 1))
	have := float64(max(ready, 1))
	up, down := maxUp*have, math.Floor(have/maxDown)
	long, rise := math.Ceil(stable/per), math.Ceil(short/per)
	held := int(min(max(long, down), up))

	switch over := rise/have >= threshold; {
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
	l.desired = held
	return l.needed, l.desired
}

// Over reports whether the Load holds no information any more: the caller may drop it
// until the function's next request.
func (l *Load) Over(now time.Duration) bool {
	if l.level > 0 || l.open > 0 || l.desired > 0 || l.panicked > 0 {
		return false
	}
	stable, _, ok := l.Means(now)
	return !ok || stable == 0 && l.stable.sum == 0
}

// AtOnce returns how many replicas of target requests each n requests need, some of which
// wait, while ready are READY: the averaging windows behind Scale react too slowly for them.
func AtOnce(n, ready, target int) int {
	return int(min(math.Ceil(float64(n)/float64(max(target, 1))), maxUp*float64(max(ready, 1))))
}
