package simulate

import (
	"math"
	"math/bits"
	"time"
)

// histogram counts durations in 64 linear buckets per power of two, so a quantile is off
// by less than 1 %. Below 64 µs each microsecond has a bucket. Its memory grows with the
// largest duration.
type histogram struct {
	counts []uint32
	n      uint64
	max    time.Duration
}

const subBuckets = 64

func bucket(d time.Duration) int {
	us := uint64(max(d, 0) / time.Microsecond)
	if us < subBuckets {
		return int(us)
	}
	shift := bits.Len64(us) - 7 // us>>shift is 64 to 127
	return subBuckets*shift + int(us>>shift)
}

func bucketMiddle(i int) time.Duration {
	if i < 2*subBuckets {
		return time.Duration(i) * time.Microsecond
	}
	shift := i/subBuckets - 1
	low := uint64(i-subBuckets*shift) << shift
	return time.Duration(low+1<<shift/2) * time.Microsecond
}

func (h *histogram) add(d time.Duration) {
	i := bucket(d)
	for len(h.counts) <= i {
		h.counts = append(h.counts, make([]uint32, subBuckets)...)
	}
	if h.counts[i] < math.MaxUint32 {
		h.counts[i]++
	}
	h.n++
	h.max = max(h.max, d)
}

// quantile returns the q-quantile; 0 if the histogram is empty.
func (h *histogram) quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	want := max(uint64(math.Ceil(q*float64(h.n))), 1)
	var seen uint64
	for i, c := range h.counts {
		if seen += uint64(c); seen >= want {
			return min(bucketMiddle(i), h.max)
		}
	}
	return h.max
}

// Quantiles are quantiles of durations in seconds.
type Quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func (h *histogram) quantiles() Quantiles {
	sec := func(d time.Duration) float64 { return round(d.Seconds()) }
	return Quantiles{sec(h.quantile(0.5)), sec(h.quantile(0.9)), sec(h.quantile(0.99)), sec(h.max)}
}

// round rounds to six decimals, so that the JSON shows the microseconds measured.
func round(f float64) float64 { return math.Round(f*1e6) / 1e6 }
