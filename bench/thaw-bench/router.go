package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/bench"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/thaw-bench/router"
)

const aboutRouter = `Measures how a Router decides. Writes router.json and router.md.

Parts (--only): decision  the time of a decision about a prompt of 4 KiB: by the
                          rules alone, and with the complexity score
                labels    labelled prompts of public sources that meet the
                          right rule; nothing is fitted on those held out
                requests  processor time of thaw serve per request: by the name of
                          a model, through Routers, from the cache (Linux)
                hedge     a cold model with a warm sibling: first tokens, and the
                          start of the cold one

labels, --fit and --cross need the sources: a folder of checkouts OWNER/NAME of the
repositories that bench/thaw-bench/router/sources.go names (--sources), and one with the
files that it names texts:FILE (--texts). A source that is not there is left out.

--fit FILE fits the model of categories of requests on the sources that are not
held out, and measures nothing. --cross prints how the prompts of each of their
repositories are judged by a model fitted without it (some minutes).

Examples:
  bin/thaw-bench router --sources DIR --texts DIR --out bench/results
  bin/thaw-bench router --only decision
  bin/thaw-bench router --sources DIR --texts DIR --fit activator/router/category/weights.bin
  bin/thaw-bench router --quick
`

func runRouter(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := bench.Flags("router", aboutRouter, stderr)
	quick := f.Bool("quick", false, "little of everything: shows that it works, its numbers mean nothing")
	only := f.String("only", strings.Join(router.Parts, ","), "parts to run")
	sources := f.String("sources", os.Getenv("THAW_PROMPTS"), "folder of checkouts of the sources (or THAW_PROMPTS)")
	texts := f.String("texts", os.Getenv("THAW_TEXTS"), "folder of the texts (or THAW_TEXTS)")
	fit := f.String("fit", "", "fit the weights and write them to this `file`")
	cross := f.Bool("cross", false, "judge each repository by a model fitted without it")
	thaw := f.String("thaw", filepath.Join("bin", "thaw"), "thaw to measure")
	reportFlags := bench.ReportFlags(f)
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	o := router.Options{Rounds: 100_000, RequestRounds: 20, Requests: 4000, Hedges: 60, Checkouts: *sources, Texts: *texts,
		Progress: func(s string) { fmt.Fprintln(stderr, s) }}
	if *quick {
		o.Rounds, o.RequestRounds, o.Requests, o.Hedges = 100, 1, 100, 2
	}
	if o.Parts, err = bench.SelectParts(stderr, *only, router.Parts); err != nil {
		return err
	}
	if *fit != "" || *cross {
		prompts, missing, err := router.Load(*sources, *texts)
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			return fmt.Errorf("fitting needs every source; not found: %s (--sources, --texts)", strings.Join(missing, ", "))
		}
		if *cross {
			return crossValidate(prompts, o.Progress, stdout)
		}
		return os.WriteFile(*fit, router.Fit(prompts), 0o644)
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
	r := router.Result{Load: loadAverage(), Provenance: report.NewProvenance(router.Kind, bench.CommandLine("router", args), time.Now())}
	if r, err = router.Run(ctx, o, r); err != nil {
		return err
	}
	return reportFlags.Write("router", r, r.Goals, stdout, stderr)
}

func crossValidate(prompts []router.Prompt, progress func(string), stdout io.Writer) error {
	shares, err := router.Cross(prompts, progress)
	if err != nil {
		return err
	}
	repositories, labels := router.CrossTables(shares)
	return errors.Join(repositories.Text(stdout), labels.Text(stdout))
}

func runFront(ctx context.Context, args []string, _, stderr io.Writer) error {
	f := bench.Flags("front", "The HTTP server of the gateway alone (for the benches).\n", stderr)
	addr := f.String("addr", "127.0.0.1:8002", "address to listen on")
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	return router.Front(ctx, *addr)
}
