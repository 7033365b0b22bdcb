package report

import (
	"math"
	"slices"
)

// Quantile returns the q-quantile (0 to 1) of values by linear interpolation; 0 if there
// are none. values need not be sorted.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Clone(values)
	slices.Sort(s)
	at := q * float64(len(s)-1)
	low := int(math.Floor(at))
	if low+1 >= len(s) {
		return s[len(s)-1]
	}
	return s[low] + (at-float64(low))*(s[low+1]-s[low])
}

// Summary summarises a list of values, in their own unit.
type Summary struct {
	N   int     `json:"n"`
	Min float64 `json:"min"`
	P25 float64 `json:"p25"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Summarize returns the summary of values.
func Summarize(values []float64) Summary {
	return Summary{
		N: len(values), Min: Quantile(values, 0), P25: Quantile(values, 0.25), P50: Quantile(values, 0.5),
		P90: Quantile(values, 0.9), P99: Quantile(values, 0.99), Max: Quantile(values, 1),
	}
}
