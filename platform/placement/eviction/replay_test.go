package eviction

import (
	"encoding/csv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// day is one function of the trace: the minutes in which it was used, and its random
// size and reload cost.
type day struct {
	minutes []int
	size    functions.Bytes
	back    time.Duration
}

// readDay reads the public trace of 990 functions and gives each a size and a reload
// cost, as its README states: 8 s, and the size at 2 GiB a second.
func readDay(t *testing.T) []day {
	dir := os.Getenv("THAW_TRACES")
	if dir == "" {
		t.Skip("THAW_TRACES names no folder with traces")
	}
	file, err := os.Open(filepath.Join(dir, "azure-functions-990x1440min.csv"))
	if err != nil {
		t.Fatal("the trace is not there: ", err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	sizes := []functions.Bytes{1, 3, 8, 16, 28, 64}
	var out []day
	for _, row := range rows[1:] {
		f := day{size: sizes[rnd.IntN(len(sizes))] * gib}
		f.back = 8*time.Second + time.Duration(float64(f.size)/(2<<30)*float64(time.Second))
		for m, x := range row[3:] {
			if n, _ := strconv.Atoi(x); n > 0 {
				f.minutes = append(f.minutes, m)
			}
		}
		out = append(out, f)
	}
	return out
}

// priced combines the predicted gap with the rate of use, which improves on the median
// gap alone.
func priced(k Kept, next, now time.Duration) time.Duration {
	rate, _ := k.rate(now)
	chance := rate / UsesDecay.Seconds()
	if next > 0 {
		gap, _ := gapBetween(next, now)
		chance += 1 / (20*time.Minute + gap).Seconds()
	}
	return now + time.Duration(float64(time.Second)/chance)
}

// predict predicts a function's next use from the median of its last gaps; if it is
// overdue, of those gaps that were longer than it has been idle.
func predict(used []int, minute int) time.Duration {
	last := used[len(used)-1]
	var gaps []int
	for i := max(1, len(used)-64); i < len(used); i++ {
		if g := used[i] - used[i-1]; g > minute-last {
			gaps = append(gaps, g)
		}
	}
	if len(gaps) == 0 {
		return 0
	}
	slices.Sort(gaps)
	return at(last + gaps[len(gaps)/2])
}

func at(minute int) time.Duration { return time.Hour + time.Duration(minute)*time.Minute }

// replay returns the share of cold uses and the seconds they waited, with room for this
// part of all bytes.
func replay(fs []day, room float64, score func(f, used int, k Kept, now time.Duration) float64) (cold float64, waited time.Duration) {
	var total, held functions.Bytes
	for _, f := range fs {
		total += f.size
	}
	limit := functions.Bytes(room * float64(total))
	kept := make([]Kept, len(fs))
	in, next := make([]bool, len(fs)), make([]int, len(fs))
	uses, misses := 0, 0
	rnd := rand.New(rand.NewPCG(7, 7))
	order := rnd.Perm(len(fs))
	for m := range 1440 {
		rnd.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, i := range order {
			f := &fs[i]
			if next[i] >= len(f.minutes) || f.minutes[next[i]] != m {
				continue
			}
			next[i]++
			uses++
			k := &kept[i]
			now := at(m)
			k.Uses = k.Uses*math.Exp(-(now-k.UsesAt).Seconds()/UsesDecay.Seconds()) + 1
			k.Used, k.UsesAt, k.WayBack, k.Bytes = now, now, f.back, f.size
			if in[i] {
				continue
			}
			misses++
			waited += f.back
			for held+f.size > limit {
				worst, least := -1, math.Inf(1)
				for j := range fs {
					if in[j] {
						if s := score(j, next[j], kept[j], now); s < least {
							worst, least = j, s
						}
					}
				}
				in[worst] = false
				held -= fs[worst].size
			}
			in[i] = true
			held += f.size
		}
	}
	return float64(misses) / float64(uses), waited
}

// TestOnATrace: the cold shares of each policy on a day of 990 functions, with a simple
// prediction, beside the greedy rule with knowledge of the future.
func TestOnATrace(t *testing.T) {
	fs := readDay(t)
	cold, waited := map[string]float64{}, map[string]time.Duration{}
	run := func(name string, score func(f, used int, k Kept, now time.Duration) float64) {
		cold[name], waited[name] = replay(fs, 0.13, score)
	}
	for e := range Policy(len(policyNames)) {
		type guess struct {
			now, next time.Duration
		}
		guesses := make([]guess, len(fs))
		run(e.String(), func(f, used int, k Kept, now time.Duration) float64 {
			if e == NextUse {
				if g := &guesses[f]; g.now != now || k.Used == now {
					*g = guess{now, predict(fs[f].minutes[:used], int((now-time.Hour)/time.Minute))}
				}
				k.Next = priced(k, guesses[f].next, now)
			}
			s, _ := e.Score(k, now)
			return s
		})
	}
	run("future", func(f, used int, k Kept, now time.Duration) float64 {
		k.Next = 0
		if used < len(fs[f].minutes) {
			k.Next = at(fs[f].minutes[used])
		}
		s, _ := Future.Score(k, now)
		return s
	})
	run("latest", func(f, used int, k Kept, now time.Duration) float64 { // the one needed last is evicted first
		if used >= len(fs[f].minutes) {
			return 0
		}
		return 1 / max(at(fs[f].minutes[used])-now, 30*time.Second).Seconds()
	})
	best := "lru"
	for _, name := range policyNames {
		t.Logf("%-9s cold %.3f, %.2f of lru's, %.2f of the future's; waited %v", name, cold[name], cold[name]/cold["lru"],
			cold[name]/cold["future"], waited[name])
		if cold[name] < cold[best] {
			best = name
		}
	}
	for _, name := range []string{"future", "latest"} {
		t.Logf("%-9s cold %.3f, %.2f of lru's; waited %v", name, cold[name], cold[name]/cold["lru"], waited[name])
	}
	if cold[best] > 0.40*cold["lru"] {
		t.Errorf("the best, %s, has %.3f cold: above 0.40 of lru's %.3f", best, cold[best], cold["lru"])
	}
	if cold[best] > 1.1*cold["latest"] {
		t.Errorf("the best, %s, has %.3f cold: above 1.1 of %.3f, those of one who knows who is needed last", best, cold[best], cold["latest"])
	}
	if cold["next-use"] > 0.40*cold["lru"] || cold["gdsf"] > 0.40*cold["lru"] {
		t.Error("next-use and gdsf are to stay below 0.40 of lru's cold share")
	}
}
