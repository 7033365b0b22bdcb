package placement

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Future is a bound of simulations, not a policy to run: the greedy rule with
// knowledge of the future. NextUse is exact, 0 means never, and a replica is worth its
// way back over its bytes and the time until then.
const Future Eviction = 255

// Furthest knows the future too and looks at nothing else: the replica needed last is
// evicted first, whatever its size and cost. A bound, not a policy to run.
const Furthest Eviction = 254

// evictions are the policies by their names.
var evictions = [...]string{LRU: "lru", LFU: "lfu", GDSF: "gdsf", NextUse: "next-use"}

func (e Eviction) String() string {
	switch e {
	case Future:
		return "future"
	case Furthest:
		return "furthest"
	}
	if int(e) < len(evictions) {
		return evictions[e]
	}
	return fmt.Sprintf("eviction(%d)", uint8(e))
}

// Evictions are the names ParseEviction knows, the default first.
func Evictions() []string { return slices.Clone(evictions[:]) }

// ParseEviction reads the name of an eviction policy; "" is the default. The
// error lists the choices.
func ParseEviction(s string) (Eviction, error) {
	if s == "" {
		return LRU, nil
	}
	if i := slices.Index(evictions[:], s); i >= 0 {
		return Eviction(i), nil
	}
	return 0, fmt.Errorf("%.40q is no eviction policy: one of %s", s, strings.Join(evictions[:], ", "))
}

// UsesDecay is the time constant with which activations of long ago count less
// in Function.Uses. Three hours tell apart functions used all day from those used
// this morning only; on a day of a public trace of functions anything between one
// and four does as well.
const UsesDecay = 3 * time.Hour

// Kept is what an eviction policy knows of something that holds room.
type Kept struct {
	Used    Instant         // its last use
	Uses    float64         // activations, decayed as of UsesAt; 0: one, at Used
	UsesAt  Instant         // 0: Used
	Next    Instant         // when it is likely to be used next; 0 unknown
	WayBack time.Duration   // until it is READY again, once it has gone a rung down
	Bytes   functions.Bytes // what it frees
}

// Score is what it is worth, for each byte, to keep k: the lowest goes first.
// It holds until then (0: for as long as nothing of k changes), so that lists
// ordered by it stay in order.
//
//   - LRU: the time of the last use.
//   - LFU: the activations, decaying (a counter that does not would keep what was
//     popular last year; Knuth and others since).
//   - GDSF: activations times the seconds of the way back, over bytes: the
//     Greedy-Dual-Size-Frequency of Cherkasova (HP Labs, 1998) with its ageing
//     term, the inflation L, left out. There L ages what is popular no more;
//     here the decay of Uses does that, by time and not by evictions, which on
//     a storm of one-time functions flush the popular ones with it. Replayed on
//     a day of 990 functions at 13 % of their bytes, L makes 0.39 cold and the
//     decay 0.23, with the same costs.
//   - NextUse: the chance per second to be used next, times the seconds of the way
//     back, over bytes. What a second of stay earns is the seconds of waiting it
//     saves if the use falls into it; a byte kept for a gap g and one use saves
//     back/(bytes·g), the greedy rule with knowledge of the future.
//     The chance is 1/(2 min + gap), with the gap that history names: not the
//     likeliest one, a median, which makes 0.5 cold on that day, but the price of
//     a use, which counts as well (package forecast): that makes 0.19, where the
//     future, known, makes 0.18. Counted once more beside it, the rate makes 0.22.
//     Where history names none, the rate is all there is.
func (e Eviction) Score(k Kept, now Instant) (score float64, until Instant) {
	switch {
	case e == LRU:
		return k.Used.Seconds(), 0
	case (e == Future || e == Furthest) && k.Next == 0:
		return 0, 0
	case e == Furthest:
		gap, change := gapBetween(k.Next, now)
		return 1 / gap.Seconds(), change
	case e == Future:
		gap, change := gapBetween(k.Next, now)
		return k.WayBack.Seconds() / toGiB(k.Bytes) / gap.Seconds(), change
	}
	rate, until := k.rate(now)
	if e == LFU {
		return rate, until
	}
	cost := k.WayBack.Seconds() / toGiB(k.Bytes)
	if e == GDSF {
		return rate * cost, until
	}
	if k.Next > 0 {
		gap, change := gapBetween(k.Next, now)
		return cost / (predictionError + gap).Seconds(), change
	}
	return rate / UsesDecay.Seconds() * cost, until
}

// toGiB is bytes in GiB, never so small that all else drowns in it.
func toGiB(b functions.Bytes) float64 { return max(float64(b)/(1<<30), 1.0/64) }

const (
	rateStep = UsesDecay / 32 // a decay is counted in steps, between which nothing changes order
	rateEnd  = 32 * 12        // steps after which nothing is left to decay
)

func (k *Kept) rate(now Instant) (uses float64, until Instant) {
	uses, at := k.Uses, k.UsesAt
	if at == 0 {
		at = k.Used
	}
	if uses <= 0 {
		uses, at = 1, k.Used
	}
	n := max(now-at, 0) / rateStep
	if n < rateEnd {
		until = at + (n+1)*rateStep
	}
	return uses * math.Exp(-float64(min(n, rateEnd))/32), until
}

const (
	predictionError = 2 * time.Minute  // how far predictions of a next use are off
	shortGap        = 15 * time.Second // gaps below are alike
)

// gapSteps are where the length of a gap is taken to change: each a quarter longer.
var gapSteps = func() (edges [64]time.Duration) {
	at := float64(shortGap)
	for i := range edges {
		edges[i] = time.Duration(at)
		at *= 1.25
	}
	return edges
}()

// gapBetween is the gap from now to next, in steps, and when it changes. An overdue
// use is expected later and later, by as much as it is late.
func gapBetween(next, now Instant) (gap time.Duration, change Instant) {
	late := now > next
	g := next - now
	if late {
		g = -g
	}
	i, _ := slices.BinarySearch(gapSteps[:], g) // the first edge that is not below g
	if i == len(gapSteps) {
		if !late {
			return gapSteps[i-1], next - gapSteps[i-1]
		}
		return gapSteps[i-1], 0
	}
	switch {
	case late:
		change = next + gapSteps[i] + 1
	case i > 0:
		change = next - gapSteps[i-1]
	default:
		change = next + gapSteps[0] + 1
	}
	return gapSteps[i], change
}
