package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/thaw-dev/thaw/bench"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/nodestore"
	"github.com/thaw-dev/thaw/runtime/ember"
	"github.com/thaw-dev/thaw/runtime/gpu"
	"github.com/thaw-dev/thaw/runtime/supervisor"
)

// programs are the implementations of the verbs that run something.
func programs() cli.Programs {
	return cli.Programs{
		Serve:     serve,
		Agent:     runAgent,
		Keep:      runSupervisor,
		Loader:    runNodeLoader,
		WarmHost:  runWarmHost,
		Runtime:   runShimCommand,
		Engines:   map[string]func(context.Context, []string, io.Writer, io.Writer) error{"ember": emberEngine},
		Bench:     runBench,
		Knative:   siblingProgram("thaw-knative"),
		OpenStore: openStore,
		Sources:   nodestore.OpenSources,
		GPUs:      listGPUs,
	}
}

// runSupervisor is `thaw keep`: the process that is the parent of engines.
func runSupervisor(ctx context.Context, c cli.KeepConfig, stderr io.Writer) error {
	log := kit.LogSettings{}.Open(stderr)
	defer log.Close()
	return supervisor.Run(ctx, supervisor.Options{Socket: c.Socket, Dir: c.Dir, Orphan: c.OrphanTimeout, Log: log.Logger})
}

func emberEngine(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return exitError(ember.Main(ctx, args, os.Getenv, stdout, stderr))
}

// exitError ends thaw with the exit code of a program that has printed the cause itself.
func exitError(code int) error {
	if code == 0 {
		return nil
	}
	return &kit.Error{Exit: code}
}

// openStore opens the store below a data folder, without a server or an agent. Errors are
// returned; only severe ones are logged.
func openStore(o cli.LocalStoreOptions) (cli.LocalStore, error) {
	so := nodestore.Options{Data: o.Data, Budget: o.Budget, Log: kit.LogSettings{LogLevel: "error"}.Logger(o.Log)}
	if len(o.Peers) > 0 {
		secure, err := peerTLS(o.Certs)
		if err != nil {
			return nil, err
		}
		so.Peering = &nodestore.Peering{Nodes: o.Peers, TLS: secure}
	}
	s, err := nodestore.Open(so)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func listGPUs() ([]functions.GPU, string, error) {
	facts, err := gpu.Open()
	if err != nil {
		return nil, "", fmt.Errorf("the GPU driver does not answer: %w", err)
	}
	defer facts.Close()
	return facts.List(), facts.Why(), nil
}

func runBench(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return exitError(bench.Main(ctx, args, stdout, stderr))
}
