package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/thaw-dev/thaw/bench"
	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/thaw-bench/gateway"
	"github.com/thaw-dev/thaw/testkit/fake"
)

const aboutGateway = `Measures what a request through thaw costs, beside nginx, a plain ReverseProxy
and vllm-router (those that are found), in front of an engine that answers at
once. Writes gateway.json and gateway.md. Needs Linux for processor time and
memory.

Parts (--only): cpu      processor time of each gateway for plain answers and streams
                held     memory of each of 10,000 held requests
                release  from the engine's readiness to the first held byte, and
                         what a local 0→1 adds to the engine's own start
                waiters  the last of 1,000 requests waiting for one wake

Examples:
  bin/thaw-bench gateway --out bench/results
  bin/thaw-bench gateway --quick --only cpu
  bin/thaw-bench gateway --vllm-router ./venv/bin/vllm-router
`

// Counts of a full benchmark, and of a short one that only checks that all parts run.
var (
	wholeBench = gateway.Options{Rounds: 5, JSON: 20000, SSE: 5000, Paced: 1024, Held: 10000, Wakes: 100, Waiters: 1000, Turns: 5}
	quickBench = gateway.Options{Rounds: 1, JSON: 300, SSE: 100, Paced: 32, Held: 200, Wakes: 3, Waiters: 50, Turns: 1}
)

func runGateway(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f := bench.Flags("gateway", aboutGateway, stderr)
	quick := f.Bool("quick", false, "few of everything: shows that it works, its numbers mean nothing")
	only := f.String("only", "cpu,held,release,waiters", "parts to run")
	rounds := f.Int("rounds", 0, "rounds of each load on each gateway (5)")
	nginx := f.String("nginx", "", "nginx to measure (found on PATH)")
	router := f.String("vllm-router", "", "vllm-router to measure (found on PATH)")
	thaw := f.String("thaw", filepath.Join("bin", "thaw"), "thaw to measure")
	reportFlags := bench.ReportFlags(f)
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	o := wholeBench
	if *quick {
		o = quickBench
	}
	if *rounds > 0 {
		o.Rounds = *rounds
	}
	parts, err := bench.SelectParts(stderr, *only, []string{"cpu", "held", "release", "waiters"})
	if err != nil {
		return err
	}
	if !parts["cpu"] {
		o.Rounds = 0
	}
	if !parts["held"] {
		o.Held = 0
	}
	if !parts["release"] {
		o.Wakes = 0
	}
	if !parts["waiters"] {
		o.Waiters = 0
	}
	if o.Self, err = os.Executable(); err != nil {
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
	o.Dir, o.Nginx, o.Router = dir, *nginx, *router
	o.Progress = func(s string) { fmt.Fprintln(stderr, s) }
	r := gateway.Result{Provenance: report.NewProvenance(gateway.Kind, bench.CommandLine("gateway", args), time.Now())}
	if r, err = gateway.Run(ctx, o, r); err != nil {
		return err
	}
	return reportFlags.Write("gateway", r, r.Goals, stdout, stderr)
}

func runEngine(ctx context.Context, args []string, _, stderr io.Writer) error {
	f := bench.Flags("engine", "An engine that generates nothing (for the benches).\n", stderr)
	addr := f.String("addr", "127.0.0.1:8000", "address to listen on")
	ready := f.String("ready-file", "", "say that it is loading until this file exists")
	loads := f.Duration("load", 0, "say that it is loading for so long")
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	e := fake.New(fake.Options{ReadyFile: *ready, Load: *loads})
	ln, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	return e.Serve(ctx, ln)
}

func runProxy(ctx context.Context, args []string, _, stderr io.Writer) error {
	f := bench.Flags("proxy", "A plain ReverseProxy (for the benches).\n", stderr)
	addr := f.String("addr", "127.0.0.1:8001", "address to listen on")
	to := f.String("to", "127.0.0.1:8000", "host:port of the engine")
	if err := bench.Parse(f, args); err != nil {
		return err
	}
	if err := gateway.Proxy(ctx, *addr, *to); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
