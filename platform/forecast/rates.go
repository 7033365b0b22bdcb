package forecast

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// RateGauge estimates a rate in bytes per second. Each sample is a lower bound,
// because transfers share a link or a disk; the estimate is the largest of the last
// eight.
type RateGauge struct {
	last [8]float64
	n    int
}

// minSampleBytes is the smallest transfer used as a sample: below it latency dominates.
const minSampleBytes = 1 << 20

func (g *RateGauge) Add(rate float64) {
	g.last[g.n%len(g.last)] = rate
	g.n++
}

// Peak is the estimate, 0 without samples.
func (g *RateGauge) Peak() float64 { return slices.Max(g.last[:]) }

// AddTransfer records a transfer. It returns false if the transfer is too small for a
// sample.
func (g *RateGauge) AddTransfer(bytes functions.Bytes, took time.Duration) bool {
	if bytes < minSampleBytes || took <= time.Millisecond {
		return false
	}
	g.Add(float64(bytes) / took.Seconds())
	return true
}
