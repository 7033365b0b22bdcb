package forecast

import (
	"encoding/csv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// azureDay is a real day of 990 functions: for each, the minutes in which it was
// used, in order.
func azureDay(tb testing.TB) [][]int {
	tb.Helper()
	dir := os.Getenv("THAW_TRACES")
	if dir == "" {
		tb.Skip("THAW_TRACES is not set: want the folder with azure-functions-990x1440min.csv")
	}
	f, err := os.Open(filepath.Join(dir, "azure-functions-990x1440min.csv"))
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.ReuseRecord = true
	var out [][]int
	for {
		row, err := r.Read()
		if err == io.EOF {
			return out[1:]
		}
		if err != nil {
			tb.Fatal(err)
		}
		var minutes []int
		for i, s := range row[3:] {
			if n, _ := strconv.Atoi(s); n > 0 {
				minutes = append(minutes, i)
			}
		}
		out = append(out, minutes)
	}
}

const day = 1440

type account struct{ cold, uses, idle int }

func (a *account) add(cold bool, idle int) {
	a.uses++
	a.idle += idle
	if cold {
		a.cold++
	}
}

// replayKeep replays the day minute by minute: a use is cold unless a window covers
// it; minutes held without use are idle. by[half] counts each half of the day.
func replayKeep(tr [][]int, windows func(f int) []Window, end func(f int, idle time.Duration)) (all account, by [2]account) {
	for f, minutes := range tr {
		for i, m := range minutes {
			if i == 0 {
				all.add(true, 0)
				by[m*2/day].add(true, 0)
				continue
			}
			gap := m - minutes[i-1] - 1
			ws := windows(f)
			cold, idle := held(ws, gap)
			all.add(cold, idle)
			by[m*2/day].add(cold, idle)
			end(f, time.Duration(gap)*time.Minute)
		}
		if n := len(minutes); n > 0 {
			_, idle := held(windows(f), day-1-minutes[n-1])
			all.idle += idle
			by[1].idle += idle
		}
	}
	return all, by
}

// held returns the cost of an idle time of gap minutes: windows count in whole
// minutes, partly covered ones included.
func held(ws []Window, gap int) (cold bool, idle int) {
	cold = true
	for _, w := range ws {
		from, to := int(w.From/time.Minute), int(math.Ceil(w.To.Minutes()))
		if from > gap {
			break
		}
		if gap <= to {
			cold = false
		}
		idle += min(gap, to) - from
	}
	return cold, idle
}

// epoch is a midnight in UTC.
var epoch = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

func at(minute int) time.Time { return epoch.Add(time.Duration(minute) * time.Minute) }

func named(f int) functions.Name { return functions.Name{Team: "t", Name: "f" + strconv.Itoa(f)} }

// standard is the fixed keep-alive that learned ones are compared with, also used for
// functions without history.
const standard = 10 * time.Minute

// fixedKeep and learnedKeep replay the day. A start ahead counts as idle for the 20 s
// that loading takes on average (8 s, and 20 GiB at 2 GiB/s).
func fixedKeep(tr [][]int) (account, [2]account) {
	return replayKeep(tr, func(int) []Window { return []Window{{0, standard}} }, func(int, time.Duration) {})
}

func learnedKeep(tr [][]int, ahead bool) (account, [2]account) {
	h := New()
	clock := epoch
	return replayKeep(tr, func(f int) []Window {
		name := named(f)
		if h.functions[name] == nil {
			clock = epoch
			h.Begin(name, clock)
			h.End(name, clock)
		}
		ws := h.Windows(name, WorthOf(standard, 20*time.Second, ahead))
		if ws == nil {
			return []Window{{0, standard}}
		}
		return ws
	}, func(f int, idle time.Duration) {
		// One function after the other: predictions depend on its own past only.
		clock = clock.Add(idle)
		h.Begin(named(f), clock)
		h.End(named(f), clock)
	})
}

// TestLearnedKeepAlive: at most half the cold starts of a fixed keep-alive of ten
// minutes, for at most 1.03 of its idle minutes.
func TestLearnedKeepAlive(t *testing.T) {
	tr := azureDay(t)
	fixed, fh := fixedKeep(tr)
	for _, ahead := range []bool{true, false} {
		a, h := learnedKeep(tr, ahead)
		cold, idle := float64(a.cold)/float64(fixed.cold), float64(a.idle)/float64(fixed.idle)
		t.Logf("learned, starts ahead %v: %d cold (%.2f %%) of %d uses, %d idle minutes; fixed 10 min: %d (%.2f %%), %d; ratios: cold %.3f, "+
			"idle %.3f; by half of the day: %.3f/%.3f, %.3f/%.3f", ahead,
			a.cold, 100*float64(a.cold)/float64(a.uses), a.uses, a.idle, fixed.cold, 100*float64(fixed.cold)/float64(fixed.uses), fixed.idle, cold,
			idle,
			float64(h[0].cold)/float64(fh[0].cold), float64(h[0].idle)/float64(fh[0].idle), float64(h[1].cold)/float64(fh[1].cold),
			float64(h[1].idle)/float64(fh[1].idle))
		if ahead && (cold > 0.5 || idle > 1.03) {
			t.Errorf("cold %.3f of fixed (want at most 0.5), idle %.3f (want at most 1.03)", cold, idle)
		}
	}
}

// outcome counts the uses of a replay with limited memory.
type outcome struct{ cold, uses int }

func (o outcome) share() float64 { return float64(o.cold) / float64(o.uses) }

// replayEvict replays the day with room for a share of all functions: sizes are drawn
// from {1,3,8,16,28,64} GiB, and a load costs 8 s and the size at 2 GiB/s. The
// functions of a minute are used in random order; without room for one, those of the
// highest score are evicted until there is. use is called after each use.
func replayEvict(tr [][]int, share float64, seed uint64, score func(f, minute int, perByte float64) float64,
	use func(f, minute int)) (by [2]outcome) {
	r := rand.New(rand.NewPCG(seed, 1))
	sizes := []float64{1, 3, 8, 16, 28, 64}
	size, cost := make([]float64, len(tr)), make([]float64, len(tr))
	total := 0.0
	for f := range size {
		size[f] = sizes[r.IntN(len(sizes))]
		cost[f] = 8 + size[f]/2
		total += size[f]
	}
	room := share * total
	minutes := make([][]int, day)
	for f, ms := range tr {
		for _, m := range ms {
			minutes[m] = append(minutes[m], f)
		}
	}
	in := make([]bool, len(tr))
	for m, fs := range minutes {
		o := &by[m*2/day]
		r.Shuffle(len(fs), func(i, j int) { fs[i], fs[j] = fs[j], fs[i] })
		for _, f := range fs {
			o.uses++
			if !in[f] {
				o.cold++
				for room < size[f] {
					out, worst := -1, math.Inf(-1)
					for j := range in {
						if in[j] {
							if s := score(j, m, cost[j]/size[j]); s > worst {
								out, worst = j, s
							}
						}
					}
					in[out] = false
					room += size[out]
				}
				room -= size[f]
				in[f] = true
			}
			use(f, m)
		}
	}
	return by
}

func lru(tr [][]int, share float64, seed uint64) [2]outcome {
	used, n := make([]int, len(tr)), 0
	return replayEvict(tr, share, seed, func(f, _ int, _ float64) float64 { return -float64(used[f]) }, func(f, _ int) { n++; used[f] = n })
}

// clairvoyant is the greedy rule with knowledge of the future: it evicts the function
// with the farthest next use, over the cost of loading it per byte.
func clairvoyant(tr [][]int, share float64, seed uint64) [2]outcome {
	next := make([]int, len(tr))
	return replayEvict(tr, share, seed, func(f, m int, perByte float64) float64 {
		wait := 1e9
		if next[f] < len(tr[f]) {
			wait = max(0.5, float64(tr[f][next[f]]-m))
		}
		return wait / perByte
	}, func(f, _ int) { next[f]++ })
}

// nextUse is the same rule with predicted uses. A use lasts its minute, so a function
// used in this one is at least a minute away.
func nextUse(tr [][]int, share float64, seed uint64) [2]outcome {
	h := New()
	names, used, wait, asked := make([]functions.Name, len(tr)), make([]int, len(tr)), make([]float64, len(tr)), make([]int, len(tr))
	for f := range names {
		names[f], used[f], asked[f] = named(f), -1, -1
	}
	return replayEvict(tr, share, seed, func(f, m int, perByte float64) float64 {
		if asked[f] != m {
			next, _ := h.NextUse(names[f], at(max(m, used[f]+1)))
			wait[f], asked[f] = next.Sub(at(m)).Minutes(), m
		}
		return wait[f] / perByte
	}, func(f, m int) {
		h.Begin(names[f], at(m))
		h.End(names[f], at(m+1))
		used[f], asked[f] = m, -1
	})
}

// TestNextUse: at 13 % of all sizes, the share of cold uses is at most 0.40 of that of
// LRU and at most 1.1 of that of the greedy rule with knowledge of the future.
func TestNextUse(t *testing.T) {
	tr := azureDay(t)
	seeds := uint64(5)
	if testing.Short() {
		seeds = 1
	}
	for seed := uint64(1); seed <= seeds; seed++ {
		l, c, n := lru(tr, 0.13, seed), clairvoyant(tr, 0.13, seed), nextUse(tr, 0.13, seed)
		all := func(by [2]outcome) float64 {
			return outcome{by[0].cold + by[1].cold, by[0].uses + by[1].uses}.share()
		}
		ofLRU, ofBest := all(n)/all(l), all(n)/all(c)
		t.Logf("sizes of seed %d: LRU %.1f %%, clairvoyant %.1f %%, next use %.1f %%: %.3f of LRU's, %.3f of the clairvoyant's; by half of "+
			"the day: %.3f and %.3f, %.3f and %.3f", seed,
			100*all(l), 100*all(c), 100*all(n), ofLRU, ofBest, n[0].share()/l[0].share(), n[0].share()/c[0].share(), n[1].share()/l[1].share(),
			n[1].share()/c[1].share())
		if ofLRU > 0.40 || ofBest > 1.1 {
			t.Errorf("seed %d: %.3f of LRU's (want at most 0.40), %.3f of the clairvoyant's (want at most 1.1)", seed, ofLRU, ofBest)
		}
	}
}
