package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/thaw-bench/schedule"
)

const aboutSchedule = `Measures the core: who gets the GPUs. Writes schedule.json and schedule.md.

Parts (--only): decision  a wake decision and a full tick at 10,000 models
                cold      cold share of a public day under each policy, beside
                          a rule that knows the future
                keep      a fixed 10 min of keep-alive against what was learned
                fair      what 10,000 requests of one team cost another
                agree     the same load live, on two agents, and simulated
                day       a simulated day of ten million requests

cold and keep need the folder of the public traces (--traces or THAW_TRACES).

Examples:
  bin/thaw-bench schedule --out bench/results
  bin/thaw-bench schedule --only decision,agree
  bin/thaw-bench schedule --only day --requests 1000000
  bin/thaw-bench schedule --quick
`

func runSchedule(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := bench.Flags("schedule", aboutSchedule, stderr)
	quick := f.Bool("quick", false, "little of everything: shows that it works, its numbers mean nothing")
	only := f.String("only", strings.Join(schedule.Parts, ","), "parts to run")
	traces := f.String("traces", os.Getenv("THAW_TRACES"), "folder of the public traces (or THAW_TRACES)")
	requests := f.Int("requests", 10_000_000, "requests of the day")
	minutes := f.Int("minutes", 0, "minutes of the public day to replay; 0: all")
	source := f.String("model", filepath.Join("functions", "shipped", "tiny"), "folder of a small checkpoint, for agree")
	thaw := f.String("thaw", filepath.Join("bin", "thaw"), "thaw to measure")
	reportFlags := bench.ReportFlags(f)
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	if *requests < 1 || *requests > 1_000_000_000 {
		return bench.UsageError(stderr, "--requests: 1 to 1000000000")
	}
	o := schedule.Options{Traces: *traces, Day: *requests, Rounds: 4000, Asks: 80, Models: 10_000, Minutes: *minutes}
	if *quick {
		o.Day, o.Rounds, o.Asks, o.Models, o.Minutes = min(*requests, 2000), 50, 12, 400, 20
	}
	if o.Parts, err = bench.SelectParts(stderr, *only, schedule.Parts); err != nil {
		return err
	}
	if o.Source, err = filepath.Abs(*source); err != nil {
		return err
	}
	if o.Exe, err = filepath.Abs(*thaw); err != nil {
		return err
	}
	dir, done, err := bench.Scratch(stderr)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	o.Dir = dir
	o.Progress = func(s string) { fmt.Fprintln(stderr, s) }
	r := schedule.Result{Provenance: report.NewProvenance(schedule.Kind, bench.CommandLine("schedule", args), time.Now())}
	if r, err = schedule.Run(ctx, o, r); err != nil {
		return err
	}
	return reportFlags.Write("schedule", r, r.Goals, stdout, stderr)
}
