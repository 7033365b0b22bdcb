package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/study"
)

// Kind is the kind of the result's document.
const Kind = "ScheduleBench"

// Parts are the parts of the benchmark in order.
var Parts = []string{"decision", "cold", "keep", "fair", "agree", "day"}

// Options of Run.
type Options struct {
	Parts    map[string]bool
	Traces   string // folder of the public traces; empty: skips cold and keep
	Exe      string // thaw
	Dir      string // for data and logs
	Source   string // folder of a small checkpoint, for agree
	Day      int    // requests of the simulated day
	Minutes  int    // minutes of the public day to replay; 0: all
	Rounds   int    // of each decision benchmark
	Asks     int    // requests of agree
	Models   int    // of decision and day
	Progress func(string)
}

// Result is the benchmark's result; skipped parts are absent.
type Result struct {
	report.Provenance
	Decision  *Decisions   `json:"decision,omitempty"`
	Cold      *Cold        `json:"cold,omitempty"`
	Keep      *Keep        `json:"keep_alive,omitempty"`
	Fair      *Fair        `json:"fairness,omitempty"`
	Agreement *Agreement   `json:"agreement,omitempty"`
	Day       *Day         `json:"day,omitempty"`
	Missing   []string     `json:"missing,omitempty"`
	Goals     report.Goals `json:"goals"`
}

// Run measures the selected parts.
func Run(ctx context.Context, o Options, r Result) (_ Result, err error) {
	for _, part := range Parts {
		if !o.Parts[part] {
			continue
		}
		o.Progress(part)
		switch part {
		case "decision":
			r.Decision, err = decisions(ctx, o)
		case "cold":
			r.Cold, err = measureColdShare(ctx, o)
		case "keep":
			r.Keep, err = measureKeepAlive(ctx, o)
		case "fair":
			r.Fair, err = measureFairness(ctx)
		case "agree":
			var a Agreement
			a, err = Agree(ctx, AgreeOptions{Exe: o.Exe, Dir: o.Dir, Source: o.Source, Requests: o.Asks, Seed: 2})
			r.Agreement = &a
		case "day":
			r.Day, err = simulateDay(ctx, o)
		}
		if errors.Is(err, errMissing) {
			r.Missing, err = append(r.Missing, part+": "+err.Error()), nil
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", part, err)
		}
	}
	r.checkGoals()
	return r, nil
}

// errMissing means that the public traces are missing.
var errMissing = errors.New("the public traces are not here: --traces or THAW_TRACES names their folder")

func times(v float64) string { return fmt.Sprintf("%.2fx", v) }

func (r *Result) checkGoals() {
	g := &r.Goals
	if d := r.Decision; d != nil {
		g.Add(d.WakeP99 < 1e-3, "a wake decision, p99", "under 1 ms", report.Millis(d.WakeP99))
		g.Add(d.FullP50 < 50e-3, "a full tick from scratch", "under 50 ms", report.Millis(d.FullP50))
	}
	if c := r.Cold; c != nil {
		g.Add(c.ToLRU <= 0.40, "cold share of "+c.Best+" to lru's", "at most 0.40x", times(c.ToLRU))
		g.Add(c.ToFuture <= 1.1, "cold share of "+c.Best+" to the greedy rule's that knows the future, weighed with costs", "at most 1.1x",
			times(c.ToFuture))
		g.Add(c.ToFurthest <= 1.1, "cold share of "+c.Best+" to the greedy rule's that knows the future, furthest first", "at most 1.1x",
			times(c.ToFurthest))
	}
	if k := r.Keep; k != nil {
		g.Add(k.Colds <= 0.5, "cold starts, learned to fixed 10 min", "at most 0.5x", times(k.Colds))
		g.Add(k.Idle <= 1.03, "idle minutes, learned to fixed 10 min", "at most 1.03x", times(k.Idle))
	}
	if f := r.Fair; f != nil {
		for _, c := range f.Cases {
			g.Add(c.Rise <= c.Bound, "rise of the other team's longest wait, "+c.Name, "at most "+study.Seconds(c.Bound), study.Seconds(c.Rise))
		}
	}
	if a := r.Agreement; a != nil {
		g.Add(a.LiveCold == a.SimCold, "cold requests, simulated to live", "equal", fmt.Sprintf("%d to %d", a.SimCold, a.LiveCold))
		g.Add(a.Ratio >= 0.85 && a.Ratio <= 1.15, "p50 of their waits, simulated to live", "within 15 %", times(a.Ratio))
	}
	if d := r.Day; d != nil && d.Requests > 9_900_000 {
		g.Add(d.Wall < 600, "a day of 10 million requests", "under 10 min", study.Seconds(d.Wall))
		g.Add(d.RSS < 4<<30, "its memory", "under 4 GiB", functions.Bytes(d.RSS).Human())
	}
}

// Tables returns the result as tables.
func (r Result) Tables() []report.Part {
	var out []report.Part
	if d := r.Decision; d != nil {
		t := &report.Table{Head: []string{fmt.Sprintf("%s models, %s GPUs", study.Count(int64(d.Models)), study.Count(int64(d.GPUs))), "p50", "p99", "max", "allocations"}}
		t.Add("a wake decision", report.Millis(d.WakeP50), report.Millis(d.WakeP99), report.Millis(d.WakeMax), fmt.Sprintf("%.1f", d.WakeAllocs))
		t.Add("a full tick from scratch", report.Millis(d.FullP50), report.Millis(d.FullP99), report.Millis(d.FullMax),
			fmt.Sprintf("%.0f", d.FullAllocs))
		out = append(out, report.Part{Heading: "Decisions", Table: t})
	}
	if c := r.Cold; c != nil {
		t := &report.Table{Head: []string{"policy", "requests", "cold", "cold share", "to lru", "to clairvoyant", "evictions", "TTFT p99"}}
		for _, x := range c.Rows {
			t.Add(x.Policy, study.Count(x.Requests), study.Count(x.Cold), fmt.Sprintf("%.1f %%", 100*x.Share),
				times(x.ToLRU), times(x.ToFuture), study.Count(x.Evictions), study.Seconds(x.P99))
		}
		out = append(out, report.Part{Heading: c.About, Table: t})
	}
	if k := r.Keep; k != nil {
		t := &report.Table{Head: []string{"keep-alive", "requests", "cold", "to fixed", "idle minutes", "to fixed"}}
		for _, x := range k.Rows {
			t.Add(x.Policy, study.Count(x.Requests), study.Count(x.Cold), times(x.Colds), study.Count(int64(x.Minutes)), times(x.Idle))
		}
		out = append(out, report.Part{Heading: k.About, Table: t})
	}
	if f := r.Fair; f != nil {
		t := &report.Table{Head: []string{"one GPU, 10,000 queued by a team", "other's longest wait alone", "beside the queue", "rise", "bound"}}
		for _, c := range f.Cases {
			t.Add(c.Name, study.Seconds(c.Alone), study.Seconds(c.Beside), study.Seconds(c.Rise), study.Seconds(c.Bound))
		}
		out = append(out, report.Part{Heading: "Fairness: the bound is one service time and one switch", Table: t})
	}
	if a := r.Agreement; a != nil {
		out = append(out, report.Part{Heading: "Agreement with a live platform of two agents", Table: a.Table()})
	}
	if d := r.Day; d != nil {
		t := &report.Table{Head: []string{"a day", "requests", "models", "GPUs", "wall", "CPU", "peak memory", "cold", "TTFT p99"}}
		t.Add("thaw simulate", study.Count(d.Requests), study.Count(int64(d.Models)), study.Count(int64(d.GPUs)),
			study.Seconds(d.Wall), study.Seconds(d.CPU), functions.Bytes(d.RSS).Human(), study.Count(d.Cold),
			study.Seconds(d.P99))
		out = append(out, report.Part{Heading: "A day simulated", Table: t})
	}
	return append(out, r.Goals.Parts()...)
}

// Markdown returns the report as a page.
func (r Result) Markdown() string {
	about := []string{
		"Everything but the decisions is `thaw simulate`'s platform: the same core, loop and gate on a virtual clock.",
		"Cold requests found no READY replica and waited for one.",
	}
	return r.Page("The core", strings.Join(about, " "), r.Missing, r.Tables())
}

// Write writes schedule.json and schedule.md.
func (r Result) Write(dir string) error { return report.Write(dir, "schedule", r, r.Markdown()) }
