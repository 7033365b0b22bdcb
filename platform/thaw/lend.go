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
	"sync"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/nodeloader"
	"github.com/thaw-dev/thaw/platform/shim"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/forkserver/pods"
)

// lendToPods is `thaw lend`: the interpreter of a node.
func lendToPods(ctx context.Context, c cli.LendConfig, stdout, stderr io.Writer) error {
	log := logger(stderr, c.LogFormat, c.Level())
	if c.Dir == "" {
		c.Dir = filepath.Join(os.TempDir(), "thaw-lend")
	}
	environ := shim.Inherited(os.Environ())
	programs := engine.Programs{Environ: func() []string { return environ }}
	cmd, err := programs.Prepare(engine.Request{Spec: functions.ModelSpec{Engine: functions.Engine(c.Engine)}, Name: "any", Path: "/", Port: 1, Scratch: c.Dir})
	if err != nil {
		return &cli.Error{Exit: cli.ExitUsage, Err: err, Hint: "thaw lend runs in the engine's own image"}
	}
	env, err := forkserver.Look(cmd.Argv[0])
	if err != nil {
		return &cli.Error{Exit: cli.ExitUsage, Err: err}
	}
	o := pods.Options{
		Store: c.Store, Argv: env.Python, Program: env.Program, Row: forkserver.Row(c.Engine), Env: forkserver.Scrub(engine.Environ(cmd.Env)), Dir: c.Dir,
		Who: nodeloader.Pod, Log: log,
	}
	if c.AllowLocal {
		o.Who = nodeloader.Anyone
	}
	h := pods.New(o)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	if c.Addr != "off" {
		l, err := net.Listen("tcp", c.Addr)
		if err != nil {
			return &cli.Error{What: "cannot listen on " + c.Addr, Err: err, Hint: "another address, or none: --addr HOST:PORT or --addr off"}
		}
		beside.Go(func() { face(ctx, l, howLent(h), log) })
	}
	fmt.Fprintf(stdout, "interpreter of %s, socket %s\n", env.Program, forkserver.Lent(c.Store))
	err = h.Run(ctx)
	if errors.Is(err, pods.ErrUnable) {
		return &cli.Error{Exit: cli.ExitUnavailable, Err: err, Hint: "runtime/forkserver/pods.md lists the capabilities and the kernel that it takes; thaw-knative install --warm-image gives it those"}
	}
	return err
}

// howLent answers probes.
func howLent(h *pods.Host) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !h.Ready() {
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, "the interpreter is not ready\n")
			return
		}
		forked, refused := h.Counts()
		fmt.Fprintf(w, "ready; %d forked, %d refused\n", forked, refused)
	})
	return mux
}
