package forecast

import (
	"math"
	"slices"
	"time"
)

const (
	perOctave = 32
	octaves   = 21 // from 1 s to 2^21-1 s, 24 days
	topBin    = perOctave * octaves
	maxBins   = 48
	maxCount  = 1 << 14 // of one bin; at that all counts are halved
)

// binSpans are the middles of the bins: 2^(i/32) - 1 seconds. Below a second they are
// finer than needed, at no cost: only non-empty bins are stored.
var binSpans = func() (t [topBin + 1]time.Duration) {
	for i := range t {
		t[i] = time.Duration((math.Exp2(float64(i)/perOctave) - 1) * float64(time.Second))
	}
	return t
}()

// binOf is the bin whose middle is nearest to d.
func binOf(d time.Duration) uint16 {
	if d <= 0 {
		return 0
	}
	i := int(math.Log2(1+d.Seconds())*perOctave + 0.5)
	return uint16(min(i, topBin))
}

// binUpperEdge is the longest time that still falls into a bin.
func binUpperEdge(bin uint16) time.Duration {
	if bin >= topBin {
		return math.MaxInt64
	}
	return (binSpans[bin] + binSpans[bin+1]) / 2
}

// bin is the count of idle times of about one length.
type bin struct {
	at, n uint16
}

// idleTimes is a histogram of idle times, sparse and sorted.
type idleTimes struct {
	bins  []bin
	total uint32
}

func (t *idleTimes) add(d time.Duration) {
	at := binOf(d)
	i, found := slices.BinarySearchFunc(t.bins, at, func(b bin, at uint16) int { return int(b.at) - int(at) })
	t.total++
	if found {
		if t.bins[i].n++; t.bins[i].n >= maxCount {
			t.halve()
		}
		return
	}
	t.bins = slices.Insert(t.bins, i, bin{at, 1})
	if len(t.bins) > maxBins {
		t.merge()
	}
}

// merge joins the two neighbouring bins whose counts move the least.
func (t *idleTimes) merge() {
	best, least := 0, math.MaxInt
	for i := 0; i+1 < len(t.bins); i++ {
		a, b := t.bins[i], t.bins[i+1]
		if moved := int(min(a.n, b.n)) * int(b.at-a.at); moved < least {
			best, least = i, moved
		}
	}
	a, b := t.bins[best], t.bins[best+1]
	n := int(a.n) + int(b.n)
	a.at = uint16((int(a.at)*int(a.n) + int(b.at)*int(b.n) + n/2) / n)
	a.n = uint16(min(n, maxCount))
	t.bins[best] = a
	t.bins = slices.Delete(t.bins, best+1, best+2)
}

// halve halves all counts, so that new idle times weigh more than old ones.
func (t *idleTimes) halve() {
	t.total = 0
	t.bins = slices.DeleteFunc(t.bins, func(b bin) bool { return b.n < 2 })
	for i := range t.bins {
		t.bins[i].n /= 2
		t.total += uint32(t.bins[i].n)
	}
}

// The prior of every function: one idle time, all that is known after a single use, and
// soon outweighed by observed ones.
const (
	priorCount   = 1.0            // weight of the prior, in idle times
	priorNever   = 0.5            // share of the prior that ends beyond each next octave
	minPrice     = time.Minute    // lower bound of a price
	priorHorizon = 48 * time.Hour // the prior has no points beyond
)

// price returns the price of the next use at an age: the least expected holding time
// per use, over all horizons. own is the weight of the function's own idle times in it.
func (t *idleTimes) price(age time.Duration) (buys time.Duration, own float64) {
	age = max(age, 0)
	i := 0
	for i < len(t.bins) && binUpperEdge(t.bins[i].at) < age {
		i++
	}
	var known float64
	for _, b := range t.bins[i:] {
		known += float64(b.n)
	}
	total := known + priorCount
	own = known / total

	alive, rest := total, priorCount
	at := float64(age)
	next := max(at*2, float64(time.Minute)) // next point of the prior
	spent, hit := total*float64(minPrice), 0.0
	best := math.Inf(1)
	for {
		var x, n float64
		switch {
		case i < len(t.bins) && float64(binSpans[t.bins[i].at]) <= next:
			x, n = max(float64(binSpans[t.bins[i].at]), at), float64(t.bins[i].n)
			i++
		case next <= float64(priorHorizon) || hit == 0:
			x, n = next, rest*(1-priorNever)
			rest -= n
			next *= 2
		case i < len(t.bins):
			next = math.Inf(1)
			continue
		default:
			return time.Duration(min(best, math.MaxInt64/4)), own
		}
		spent += alive * (x - at)
		at = x
		hit += n
		alive -= n
		best = min(best, spent/hit)
	}
}
