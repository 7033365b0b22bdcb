package simulate

import (
	"math"
	"math/bits"
	"time"
)

// histogram counts spans in buckets that are linear inside each power of two: 64
// of them, so a quantile is off by less than one in a hundred. Spans below 64 µs
// are told apart by the microsecond. It is as large as its largest span wants.
type histogram struct {
	counts []uint32
	n      uint64
	max    time.Duration
}

const fine = 64

func bucket(d time.Duration) int {
	us := uint64(max(d, 0) / time.Microsecond)
	if us < fine {
		return int(us)
	}
	shift := bits.Len64(us) - 7 // us>>shift is 64 to 127
	return fine*shift + int(us>>shift)
}

// middle of a bucket.
func middle(i int) time.Duration {
	if i < 2*fine {
		return time.Duration(i) * time.Microsecond
	}
	shift := i/fine - 1
	low := uint64(i-fine*shift) << shift
	return time.Duration(low+1<<shift/2) * time.Microsecond
}

func (h *histogram) add(d time.Duration) {
	i := bucket(d)
	for len(h.counts) <= i {
		h.counts = append(h.counts, make([]uint32, fine)...)
	}
	if h.counts[i] < math.MaxUint32 {
		h.counts[i]++
	}
	h.n++
	h.max = max(h.max, d)
}

// quantile of what was added; 0 if nothing was.
func (h *histogram) quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	want := max(uint64(math.Ceil(q*float64(h.n))), 1)
	var seen uint64
	for i, c := range h.counts {
		if seen += uint64(c); seen >= want {
			return min(middle(i), h.max)
		}
	}
	return h.max
}

// Quantiles of spans, in seconds.
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

// round to six digits after the point: what is printed is what was measured.
func round(f float64) float64 { return math.Round(f*1e6) / 1e6 }
