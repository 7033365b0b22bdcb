package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

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
	return facts.List(), facts.Why, nil
}

func runBench(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return exitError(bench.Main(ctx, args, stdout, stderr))
}

// terminateWait bounds the time between SIGTERM and SIGKILL.
const terminateWait = 10 * time.Second

// siblingProgram runs the program name from this program's folder, not from PATH, where it
// may be of another version. Its exit code is returned in the error.
func siblingProgram(name string) func(context.Context, []string, io.Reader, io.Writer, io.Writer) error {
	return func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("where %s lies: %w", name, err)
		}
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		return runProgram(ctx, filepath.Join(filepath.Dir(self), name), args, stdin, stdout, stderr)
	}
}

func runProgram(ctx context.Context, path string, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = terminateWait
	err := cmd.Run()
	if errors.Is(err, fs.ErrNotExist) {
		return &kit.Error{Exit: kit.ExitFailed, What: fmt.Sprintf("the program for clusters is not beside this one: there is no %s", path),
			Hint: "make build makes both; keep them in one folder"}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return &kit.Error{Exit: exit.ExitCode()} // the program has printed the cause
	}
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}
