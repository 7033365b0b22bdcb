package main

import (
	"cmp"
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
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/nodeloader"
	"github.com/thaw-dev/thaw/platform/shim"
	"github.com/thaw-dev/thaw/platform/telemetry"
	"github.com/thaw-dev/thaw/runtime/engine"
	"github.com/thaw-dev/thaw/runtime/forkserver"
	"github.com/thaw-dev/thaw/runtime/forkserver/pods"
)

// runWarmHost is `thaw warm-host`: the interpreter of a node.
func runWarmHost(ctx context.Context, c cli.WarmHostConfig, stdout, stderr io.Writer) error {
	log := c.Open(stderr)
	defer log.Close()
	c.Dir = cmp.Or(c.Dir, filepath.Join(os.TempDir(), "thaw-warm-host"))
	environ := shim.InheritedVariables(os.Environ())
	programs := engine.Programs{Environ: func() []string { return environ }}
	cmd, err := programs.Prepare(engine.Request{Spec: functions.ModelSpec{Engine: functions.Engine(c.Engine)}, Name: "any", Path: "/", Port: 1,
		Scratch: c.Dir})
	if err != nil {
		return &kit.Error{Exit: kit.ExitUsage, Err: err, Hint: "thaw warm-host runs in the engine's own image"}
	}
	env, err := forkserver.FindEnvironment(cmd.Argv[0])
	if err != nil {
		return &kit.Error{Exit: kit.ExitUsage, Err: err}
	}
	o := pods.Options{
		Sockets: c.Sockets, Argv: env.Python, Program: env.Program, Row: forkserver.ImportList(c.Engine),
		Env: forkserver.ParentEnviron(engine.Environ(cmd.Env)), Dir: c.Dir,
		IdentifyPod: nodeloader.IdentifyPod, Log: log.Logger,
	}
	if c.AllowLocal {
		o.IdentifyPod = nodeloader.IdentifyAny
	}
	h := pods.New(o)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel()
	if c.Addr != "off" {
		l, err := net.Listen("tcp", c.Addr)
		if err != nil {
			return &kit.Error{What: "cannot listen on " + c.Addr, Err: err, Hint: "another address, or none: --addr HOST:PORT or --addr off"}
		}
		probes.Go(func() { telemetry.Serve(ctx, l, warmHostHandler(h), log.Logger) })
	}
	fmt.Fprintf(stdout, "interpreter of %s, socket %s\n", env.Program, forkserver.HostSocket(c.Sockets))
	err = h.Run(ctx)
	if errors.Is(err, pods.ErrUnable) {
		return &kit.Error{Exit: kit.ExitUnavailable, Err: err,
			Hint: "runtime/forkserver/pods.md lists the capabilities and the kernel that it takes; thaw-knative install --warm-image gives it those"}
	}
	return err
}

func warmHostHandler(h *pods.Host) http.Handler {
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
