package eviction

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Policy orders idle replicas and cached objects for eviction.
type Policy uint8

const (
	LRU     Policy = iota // the least recently used
	LFU                   // the least often used, with decaying counts
	GDSF                  // Greedy-Dual-Size-Frequency: frequency times reload cost over size, aged (Cherkasova 1998)
	NextUse               // predicted next use, the latest first, weighted by the measured reload cost per byte
)

// Future is an upper bound for simulations, not a policy to run: the greedy rule with
// knowledge of the future. Kept.Next is exact, 0 means never, and the score is the
// reload time over the bytes and the time until Next.
const Future Policy = 255

// Furthest also knows the future and ignores size and cost: the replica needed last is
// evicted first. It is a bound for simulations, not a policy to run.
const Furthest Policy = 254

var policyNames = [...]string{LRU: "lru", LFU: "lfu", GDSF: "gdsf", NextUse: "next-use"}

func (p Policy) String() string {
	switch p {
	case Future:
		return "future"
	case Furthest:
		return "furthest"
	}
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("eviction(%d)", uint8(p))
}

// Parse parses the name of an eviction policy; "" is the default. The error
// lists the choices.
func Parse(s string) (Policy, error) {
	if s == "" {
		return LRU, nil
	}
	if i := slices.Index(policyNames[:], s); i >= 0 {
		return Policy(i), nil
	}
	return 0, fmt.Errorf("%.40q is no eviction policy: one of %s", s, strings.Join(policyNames[:], ", "))
}

// UsesDecay is the time constant of the exponential decay of Kept.Uses. Three
// hours distinguish functions used all day from those used this morning only; on a
// day of a public trace any value between one and four hours does as well.
const UsesDecay = 3 * time.Hour

// Kept is the input of an eviction policy for one replica or cached object.
type Kept struct {
	Used    time.Duration
	Uses    float64         // activations, decayed as of UsesAt; 0: one, at Used
	UsesAt  time.Duration   // 0: Used
	Next    time.Duration   // likely next use; 0 unknown
	WayBack time.Duration   // time to READY again after its eviction, from sleep or from a store
	Bytes   functions.Bytes // freed by evicting it
}

// Score is the value of keeping k, per byte; the lowest is evicted first. It is valid
// until that moment (0: until k changes), so lists ordered by it stay in order.
//
//   - LRU: the time of the last use.
//   - LFU: the activations, decaying (a counter without decay would keep functions
//     that were popular last year; Knuth and others since).
//   - GDSF: activations times the reload seconds, over bytes: the
//     Greedy-Dual-Size-Frequency of Cherkasova (HP Labs, 1998) without its ageing
//     term, the inflation L. There L ages entries that are no longer popular; here
//     the decay of Uses does that, by time and not by evictions: in a storm of
//     one-time functions, L would flush the popular ones as well. Replayed on a day
//     of 990 functions at 13 % of their bytes, 0.39 of the uses are cold with L and
//     0.23 with the decay, with the same costs.
//   - NextUse: the probability per second of the next use, times the reload seconds,
//     over bytes. A second of residence saves the wait for a reload if the use falls
//     into it; a byte kept for a gap g until one use saves reload/(bytes·g), the
//     greedy rule with knowledge of the future.
//     The probability is 1/(2 min + gap), with the gap that package forecast
//     predicts. It is not the median gap, with which 0.5 of the uses are cold on that
//     day, but the price of a use (package forecast): 0.19, where the known future
//     has 0.18. Multiplied by the rate of use as well, it would be 0.22.
//     Without a predicted gap, only the rate is used.
func (p Policy) Score(k Kept, now time.Duration) (score float64, until time.Duration) {
	switch {
	case p == LRU:
		return k.Used.Seconds(), 0
	case (p == Future || p == Furthest) && k.Next == 0:
		return 0, 0
	case p == Furthest:
		gap, change := gapBetween(k.Next, now)
		return 1 / gap.Seconds(), change
	case p == Future:
		gap, change := gapBetween(k.Next, now)
		return k.WayBack.Seconds() / GiB(k.Bytes) / gap.Seconds(), change
	}
	rate, until := k.rate(now)
	if p == LFU {
		return rate, until
	}
	cost := k.WayBack.Seconds() / GiB(k.Bytes)
	if p == GDSF {
		return rate * cost, until
	}
	if k.Next > 0 {
		gap, change := gapBetween(k.Next, now)
		return cost / (predictionError + gap).Seconds(), change
	}
	return rate / UsesDecay.Seconds() * cost, until
}

// GiB converts to GiB, at least 1/64 so that small sizes do not dominate scores.
func GiB(b functions.Bytes) float64 { return max(float64(b)/(1<<30), 1.0/64) }

const (
	rateStep = UsesDecay / 32 // the decay advances in steps; between them the order is stable
	rateEnd  = 32 * 12        // steps after which the decay is complete
)

func (k *Kept) rate(now time.Duration) (uses float64, until time.Duration) {
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
	predictionError = 2 * time.Minute  // typical error of predicted next uses
	shortGap        = 15 * time.Second // shorter gaps are treated alike
)

// gapSteps are the discrete gap lengths, each a quarter longer than the one before.
var gapSteps = func() (edges [64]time.Duration) {
	at := float64(shortGap)
	for i := range edges {
		edges[i] = time.Duration(at)
		at *= 1.25
	}
	return edges
}()

// gapBetween returns the gap from now to next, in steps, and when it changes. The gap
// of an overdue use is the time by which it is late.
func gapBetween(next, now time.Duration) (gap time.Duration, change time.Duration) {
	late := now > next
	g := next - now
	if late {
		g = -g
	}
	i, _ := slices.BinarySearch(gapSteps[:], g) // the first step that is at least g
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
