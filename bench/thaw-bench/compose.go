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
	"github.com/thaw-dev/thaw/bench/thaw-bench/compose"
)

const aboutCompose = `Measures Compositions and batches. Writes compose.json and compose.md.

Parts (--only): cost      processor time of thaw serve for a call of a Composition,
                          beside a request by name (Linux)
                cancel    a client leaves a debate in its second round
                ensemble  five cold members and a coordinator on two GPUs, live
                          and simulated, beside clients without a Composition
                batch     lines over five models on one GPU with interactive
                          requests, live and simulated, beside a naive client

Live parts start thaw serve with engines that generate nothing and take two
seconds to load; the GPUs are ones that thaw serve is told of.

Examples:
  bin/thaw-bench compose --out bench/results
  bin/thaw-bench compose --only ensemble
  bin/thaw-bench compose --quick
`

func runCompose(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := bench.Flags("compose", aboutCompose, stderr)
	quick := f.Bool("quick", false, "little of everything: shows that it works, its numbers mean nothing")
	only := f.String("only", strings.Join(compose.Parts, ","), "parts to run")
	thaw := f.String("thaw", filepath.Join("bin", "thaw"), "thaw to measure")
	reportFlags := bench.ReportFlags(f)
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	o := compose.Whole()
	if *quick {
		o = compose.Quick()
	}
	if o.Parts, err = bench.SelectParts(stderr, *only, compose.Parts); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if o.Thaw, err = filepath.Abs(*thaw); err != nil {
		return err
	}
	dir, done, err := bench.Scratch(stderr)
	if err != nil {
		return err
	}
	defer func() { done(err) }()
	o.Dir, o.Engine = dir, []string{self, "engine"}
	o.Progress = func(s string) { fmt.Fprintln(stderr, s) }
	r := compose.Result{Load: loadAverage(), Provenance: report.NewProvenance(compose.Kind, bench.CommandLine("compose", args), time.Now())}
	if r, err = compose.Run(ctx, o, r); err != nil {
		return err
	}
	return reportFlags.Write("compose", r, r.Goals, stdout, stderr)
}
