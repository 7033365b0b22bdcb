// Command thaw-bench is the developers' benchmark program: it measures thaw beside other
// gateways, loaders and routers.
//
//	make thaw thaw-bench
//	bin/thaw-bench gateway --out bench/results
//
// It is a module of its own; go.work beside it has its commands use the packages of thaw as
// they are compiled for thaw itself. `thaw bench coldstart` is the benchmark for users.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/thaw-dev/thaw/bench"
)

const usage = `Measures thaw beside its peers and writes reports.

Examples:
  bin/thaw-bench gateway --out bench/results
  bin/thaw-bench gateway --quick --only cpu
  bin/thaw-bench loader --out bench/results
  bin/thaw-bench schedule --out bench/results
  bin/thaw-bench ember
  bin/thaw-bench router --only decision
  bin/thaw-bench socket --only typing

Benchmarks:
  gateway     CPU, memory and latency of the data path beside nginx and others
  loader      bytes from a blob store to the disk beside azblob, curl and aria2c
  schedule    who gets the GPUs: cold shares, decisions, fairness, the simulator
  ember       the embedded engine: starts, tokens per second, CPU per token
  router      decisions: their time, and the right rule on labelled prompts
  socket      typing-time sessions: memory, CPU per word, first tokens
  compose     Compositions and batches: CPU per call, loads, cancelling

  bin/thaw-bench BENCHMARK --help lists its flags.
`

var verbs = map[string]bench.Verb{
	"gateway":  {Run: runGateway},
	"loader":   {Run: runLoader},
	"schedule": {Run: runSchedule},
	"ember":    {Run: runEmber},
	"router":   {Run: runRouter},
	"socket":   {Run: runSocket},
	"compose":  {Run: runCompose},
	// Children of the benchmarks:
	"blobs":        {Run: runBlobs, Hidden: true},
	"ceilings":     {Run: runCeilings, Hidden: true},
	"download":     {Run: runDownload, Hidden: true},
	"echo":         {Run: runEcho, Hidden: true},
	"engine":       {Run: runEngine, Hidden: true},
	"ember-engine": {Run: runEmberEngine, Hidden: true},
	"front":        {Run: runFront, Hidden: true},
	"proxy":        {Run: runProxy, Hidden: true},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program; it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return bench.Run(ctx, usage, verbs, args, stdout, stderr)
}
