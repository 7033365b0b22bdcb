package compose

import (
	"context"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/bench/report"
)

// Kind is the kind of the result's document.
const Kind = "ComposeBench"

// Parts are the parts of the benchmark in order.
var Parts = []string{"cost", "cancel", "ensemble", "batch"}

// Options of Run. Whole and Quick make the counts.
type Options struct {
	Parts    map[string]bool
	Thaw     string   // bin/thaw
	Engine   []string // the benchmarks' engine without --addr and --load
	Dir      string   // for data and logs
	Progress func(string)

	Rounds         int // of the cost
	Compositions   int // in each of them
	Cancels        int
	Ensembles      int // rounds of each way, live
	EnsembleSeeds  int // rounds of each way, simulated
	Seeds          int // of simulated batches
	SimulatedLines int // of a batch, for each seed
	Lines          int // of the live batch
	NaiveLines     int // of those, that the naive client sends live
	Visits         int // of interactive use beside the live batch
	VisitRequests  int // in each of them: one to a cold model, and those that follow
	Shorten        int // divides the times that live engines load
}

// Whole is the options of the benchmark, Quick those that show that all parts run.
func Whole() Options {
	return Options{Rounds: 8, Compositions: 500, Cancels: 4, Ensembles: 2, EnsembleSeeds: 12, Seeds: 2, SimulatedLines: 10_000,
		Lines: 1000, NaiveLines: 12, Visits: 4, VisitRequests: 55, Shorten: 1}
}

// Quick is described at Whole.
func Quick() Options {
	return Options{Rounds: 1, Compositions: 10, Cancels: 1, Ensembles: 1, EnsembleSeeds: 1, Seeds: 1, SimulatedLines: 200,
		Lines: 50, NaiveLines: 10, Visits: 1, VisitRequests: 5, Shorten: 20}
}

func (o *Options) load(d time.Duration) time.Duration { return d / time.Duration(max(1, o.Shorten)) }

// Result is the benchmark's result; skipped parts are absent.
type Result struct {
	report.Provenance
	Cost              *Cost        `json:"cost,omitempty"`
	Cancel            *Cancel      `json:"cancel,omitempty"`
	Ensemble          *Ensemble    `json:"ensemble,omitempty"`
	SimulatedEnsemble *Ensemble    `json:"simulated_ensemble,omitempty"`
	Batch             *Batch       `json:"batch,omitempty"`
	SimulatedBatch    *Batch       `json:"simulated_batch,omitempty"`
	Load              string       `json:"load_average"` // of the machine over a minute, at the start
	Goals             report.Goals `json:"goals"`
}

// Run measures the selected parts.
func Run(ctx context.Context, o Options, r Result) (_ Result, err error) {
	for _, part := range Parts {
		if !o.Parts[part] {
			continue
		}
		o.Progress(part)
		switch part {
		case "cost":
			r.Cost, err = measureCost(ctx, &o)
		case "cancel":
			r.Cancel, err = measureCancel(ctx, &o)
		case "ensemble":
			if r.SimulatedEnsemble, err = simulateEnsemble(ctx, &o); err == nil {
				r.Ensemble, err = measureEnsemble(ctx, &o)
			}
		case "batch":
			if r.SimulatedBatch, err = simulateBatch(ctx, &o); err == nil {
				r.Batch, err = measureBatch(ctx, &o)
			}
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", part, err)
		}
	}
	r.checkGoals()
	return r, nil
}

func (r *Result) checkGoals() {
	if c := r.Cost; c != nil {
		r.Goals.Add(c.AddedP50 < c.Goal, "CPU of a Composition's call beyond a request by name, median", fmt.Sprintf("under %.0f µs", c.Goal),
			fmt.Sprintf("%+.1f µs", c.AddedP50))
	}
	if c := r.Cancel; c != nil {
		r.Goals.Add(c.Ended.Max < cancelGoal.Seconds(),
			"all calls of a debate ended after its client left in round two, slowest",
			"within "+report.Millis(cancelGoal.Seconds()), report.Millis(c.Ended.Max))
	}
	for _, x := range []struct {
		where string
		e     *Ensemble
		b     *Batch
	}{{"simulated", r.SimulatedEnsemble, r.SimulatedBatch}, {"live", r.Ensemble, r.Batch}} {
		if e := x.e; e != nil {
			w := &e.Ways[asComposition]
			r.Goals.Add(w.most() == 1 && len(w.Starts) == e.Models, "ensemble, "+x.where+": loads of a model",
				"1 of each", fmt.Sprintf("%d at most, %d models", w.most(), len(w.Starts)))
			r.Goals.Add(e.Ratio <= ensembleGoal, "ensemble, "+x.where+": time beside the better of the other ways",
				fmt.Sprintf("at most %.2fx", ensembleGoal), fmt.Sprintf("%.2fx", e.Ratio))
		}
		if b := x.b; b != nil {
			r.Goals.Add(b.Share <= loadGoal,
				"batch, "+x.where+": GPU seconds in loads for a line, beside the naive client's",
				fmt.Sprintf("at most %.0f %%", 100*loadGoal), fmt.Sprintf("%.2f %%", 100*b.Share))
			if b.Interactive > 0 {
				r.Goals.Add(b.With <= p99Goal*b.Alone,
					"batch, "+x.where+": interactive first token beside that without the batch, p99 of "+fmt.Sprint(b.Interactive),
					fmt.Sprintf("at most %.1fx", p99Goal), fmt.Sprintf("%.2fx", b.With/b.Alone))
			}
		}
	}
}

// Tables returns the result as tables.
func (r Result) Tables() []report.Part {
	var out []report.Part
	if c := r.Cost; c != nil {
		t := &report.Table{Head: []string{"processor time of thaw serve, µs", "median", "lowest", "highest"}}
		for _, x := range []struct {
			name   string
			values []float64
		}{
			{"a request by name", c.Named}, {fmt.Sprintf("a Composition's request, with its %d calls", c.Calls), c.Whole}, {"of that, for each call", c.Call}, {"a call, beyond a request by name", c.Added},
		} {
			t.Add(x.name, fmt.Sprintf("%.1f", report.Quantile(x.values, 0.5)), fmt.Sprintf("%.1f", report.Quantile(x.values, 0)),
				fmt.Sprintf("%.1f", report.Quantile(x.values, 1)))
		}
		out = append(out, report.Part{Heading: "A call of a Composition", Table: t})
	}
	if c := r.Cancel; c != nil {
		t := &report.Table{Head: []string{"", "n", "p50", "max"}}
		t.Add(fmt.Sprintf("all %d calls ended after the client left", c.Members), c.Ended.N, report.Millis(c.Ended.P50),
			report.Millis(c.Ended.Max))
		out = append(out, report.Part{Heading: "A debate that is left in round two", Table: t})
	}
	for _, x := range []struct {
		where string
		e     *Ensemble
	}{{"simulated", r.SimulatedEnsemble}, {"live", r.Ensemble}} {
		if x.e != nil {
			out = append(out, report.Part{Heading: "An ensemble of 5 and a coordinator on 2 GPUs, cold, " + x.where, Table: x.e.table()})
		}
	}
	for _, x := range []struct {
		where string
		b     *Batch
	}{{"simulated", r.SimulatedBatch}, {"live", r.Batch}} {
		if x.b != nil {
			out = append(out, report.Part{Heading: "A batch over 5 models on 1 GPU, " + x.where, Table: x.b.table()})
		}
	}
	return append(out, r.Goals.Parts()...)
}

func (e *Ensemble) table() *report.Table {
	t := &report.Table{Head: []string{"way", "rounds", "time, median", "time, longest", "loads of one model at most", "GPU seconds in loads, a round"}}
	for i := range e.Ways {
		w := &e.Ways[i]
		t.Add(w.Name, len(w.Seconds), fmt.Sprintf("%.2f s", w.Median),
			fmt.Sprintf("%.2f s", report.Quantile(w.Seconds, 1)), w.most(),
			fmt.Sprintf("%.1f", w.GPU/float64(len(w.Seconds))))
	}
	return t
}

func (b *Batch) table() *report.Table {
	t := &report.Table{Head: []string{"", "lines", "loads", "GPU seconds in loads", "of a line", "seconds in all", "interactive p50", "interactive p99"}}
	seconds := func(s float64) string {
		if s == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f s", s)
	}
	t.Add("interactive requests alone", "", "", "", "", "", seconds(b.AloneP50), seconds(b.Alone))
	t.Add("the batch", b.Lines, b.Loads.all(), fmt.Sprintf("%.0f", b.Loads.Seconds),
		fmt.Sprintf("%.4f", b.Loads.Seconds/float64(b.Lines)), fmt.Sprintf("%.0f", b.Seconds), seconds(b.WithP50),
		seconds(b.With))
	t.Add(fmt.Sprintf("a client that sends them in order, %d at a time", naiveAtOnce), b.NaiveLines, b.NaiveLoads.all(),
		fmt.Sprintf("%.0f", b.NaiveLoads.Seconds), fmt.Sprintf("%.4f", b.NaiveLoads.Seconds/float64(b.NaiveLines)),
		fmt.Sprintf("%.0f", b.NaiveTook), "", seconds(b.WithNaive))
	return t
}

// about is the description of the page.
const about = "The cost is the processor time of thaw serve, user and system, of plain requests to an engine that answers at once " +
	"(testkit/fake), in interleaved rounds; a Composition's request is divided by its calls, five members and the coordinator, whose " +
	"prompt has all answers; every answer is checked. " +
	"A debate is left while the engines work on their second answers, which would take 4 s; the end is when no engine has a request, and " +
	"each must have seen its client leave. " +
	"An ensemble of six equal models on two GPUs loads in three turns, the better of the other ways in four, because its coordinator loads " +
	"after the last answer. No order does better: five loads L and answers g of members on two GPUs take 3L + 3g, and the coordinator's " +
	"answer follows, so at least 3L + 4g beside 4L + 4g. The simulated L is about 11.4 s alone and g 2.1 s, which gives 0.79x; 0.75x would " +
	"need answers that take no time. " +
	"A live L is 2 s and g 0.2 s. There the other ways wait as well: a replica that is READY for less than a second is not evicted, " +
	"because its client may ask it again, and a Composition says when it will not. Without that wait the live ratio would be 0.77x at best. " +
	"Live ensembles and batches have engines that are ready 2 s after their start, on GPUs that thaw serve is told of, and each time a " +
	"thaw serve of its own. " +
	"Simulated ones have checkpoints in host memory, whose copies to the two GPUs share a rate, vLLM's times and a seed per round. " +
	"The lines of a simulated batch are requests of priority low, all at once; the live batch goes through the Files and Batch API, and " +
	"each line must be in the output once. " +
	"Simulated interactive use is visits of 1 to 8 requests to 3 other models, every 6 min on average; the live one is visits to " +
	"models of their own, each while lines of a model run: a request to the cold model and then more, one after the other. The same " +
	"requests go to a second thaw serve without a batch at the same times; as more than 1 % of them are cold, the p99 is that of cold " +
	"requests. " +
	"The naive client of the live batch sends its first lines alone; loads are compared per line. "

// Write writes compose.json and compose.md into dir.
func (r Result) Write(dir string) error {
	return report.Write(dir, "compose", r,
		r.Page("Compositions and batches", about+"Load average of the machine at the start: "+r.Load, nil, r.Tables()))
}
