package compose

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate"
)

// Ways to send the lines of a simulated batch.
const (
	noLines = iota
	lowLines
	naiveLines
)

const (
	chatModels = 3
	visitEvery = 6 * time.Minute // of interactive use: the mean time between visits
	chatIdle   = time.Minute     // after which an interactive model is stopped
)

// batchRun is one simulation of a batch's lines beside interactive use.
type batchRun struct {
	first map[uint64]time.Duration // of interactive requests in the order of their arrival: from arrival to first token
	at    []time.Duration          // their arrivals
	end   time.Duration            // of the last line
	loads loads
	lines int // that were answered
}

// simulateBatch runs the lines of a batch at low priority, by the naive client and not at
// all, beside the same interactive use. The 99th percentiles are of the requests that came
// while the batch ran, over all seeds.
func simulateBatch(ctx context.Context, o *Options) (*Batch, error) {
	b := &Batch{Models: len(members), GPUs: 1}
	var alone, with, naive []float64
	for seed := range uint64(o.Seeds) {
		var runs [3]batchRun
		for way := range runs {
			x, err := simulateLines(ctx, way, o.SimulatedLines, seed+1)
			if err != nil {
				return nil, err
			}
			if want := o.SimulatedLines; way != noLines && x.lines != want {
				return nil, fmt.Errorf("%d of %d lines were answered", x.lines, want)
			}
			runs[way] = x
		}
		low, other := &runs[lowLines], &runs[naiveLines]
		for i, at := range low.at {
			if at < low.end {
				alone, with = append(alone, runs[noLines].first[uint64(i)].Seconds()), append(with, low.first[uint64(i)].Seconds())
				naive = append(naive, other.first[uint64(i)].Seconds())
			}
		}
		b.Lines, b.NaiveLines = b.Lines+low.lines, b.NaiveLines+other.lines
		b.Seconds, b.NaiveTook = b.Seconds+(low.end-staged).Seconds(), b.NaiveTook+(other.end-staged).Seconds()
		b.Loads.merge(&low.loads)
		b.NaiveLoads.merge(&other.loads)
		o.Progress(fmt.Sprintf("simulated batch: seed %d: %d loads in %v, naively %d in %v", seed+1, low.loads.all(),
			(low.end - staged).Round(time.Second), other.loads.all(), (other.end - staged).Round(time.Second)))
	}
	b.Interactive = len(with)
	b.Alone, b.With, b.WithNaive = report.Quantile(alone, 0.99), report.Quantile(with, 0.99), report.Quantile(naive, 0.99)
	b.AloneP50, b.WithP50 = report.Quantile(alone, 0.5), report.Quantile(with, 0.5)
	b.finish()
	return b, nil
}

func (l *loads) merge(o *loads) {
	if l.Starts == nil {
		l.Starts = map[string]int{}
	}
	l.Seconds += o.Seconds
	for name, n := range o.Starts {
		l.Starts[name] += n
	}
}

// visits is interactive use: visits of one to eight requests to a model.
func visits(models []string, from, until time.Duration, seed uint64) (out []simulate.Request) {
	draw := rand.New(rand.NewPCG(seed, 28))
	for at := from; at < until; at += time.Duration(draw.ExpFloat64() * float64(visitEvery)) {
		m := models[draw.IntN(len(models))]
		for i := range 1 + draw.IntN(8) {
			out = append(out, simulate.Request{At: at + time.Duration(i)*4*time.Second, Function: fullName(m), Input: tokens, Output: answer})
		}
	}
	slices.SortStableFunc(out, func(a, b simulate.Request) int { return int(a.At - b.At) })
	return out
}

// simulateLines simulates interactive use until a day after the start, with n lines in one
// way from the time when all checkpoints are staged.
func simulateLines(ctx context.Context, way, n int, seed uint64) (x batchRun, err error) {
	var chats []string
	var models []*functions.Model
	for i := range chatModels {
		chats = append(chats, fmt.Sprint(chat, i+1))
		models = append(models, simulatedModel(chats[i], chatIdle))
	}
	for _, m := range members {
		models = append(models, simulatedModel(m, 5*time.Minute))
	}
	line := func(i int) simulate.Request {
		return simulate.Request{Function: fullName(members[i%len(members)]), Input: tokens, Output: answer, Low: way == lowLines}
	}
	use := visits(chats, staged, 24*time.Hour, seed)
	interactive := map[functions.Name]bool{}
	for _, c := range chats {
		interactive[fullName(c)] = true
	}
	x.first = map[uint64]time.Duration{}
	var problem error
	sent, begun := 0, false
	begin := func(st *simulate.State) {
		order := map[uint64]uint64{}
		for i, q := range use {
			x.at = append(x.at, q.At)
			st.At(q.At, func() { order[st.Ask(q)] = uint64(i) })
		}
		for i, m := range models { // stages the checkpoints
			st.At(time.Duration(i)*5*time.Minute, func() { st.Ask(simulate.Request{Function: m.FullName(), Output: 1}) })
		}
		send := func() {
			sent++
			q := line(sent - 1)
			st.After(time.Millisecond, func() { st.Ask(q) })
		}
		st.At(staged, func() {
			begun = true
			first := map[int]int{noLines: 0, lowLines: n, naiveLines: min(n, naiveAtOnce)}[way]
			for range first {
				send()
			}
		})
		st.OnRequestEnd = func(e simulate.RequestEnd) {
			switch {
			case !begun:
			case e.Code != "":
				problem = fmt.Errorf("a request for %s ended as %s: %s", e.Function, e.Code, e.Message)
			case interactive[e.Function]:
				x.first[order[e.ID]] = e.First - e.Arrived
			default:
				x.lines, x.end = x.lines+1, st.Now()
				if way == naiveLines && sent < n {
					send()
				}
			}
		}
	}
	_, err = simulate.Run(ctx, simulate.Config{
		Fleet: newFleet(1), Functions: models, Requests: noRequests, Seed: seed, Until: simulatedDays * 24 * time.Hour, Begin: begin,
		Event: func(e functions.Event) {
			if begun {
				x.loads.add(e, members)
			}
		},
	})
	if err == nil {
		err = problem
	}
	return x, err
}

const simulatedDays = 10 // by then the naive client is through
