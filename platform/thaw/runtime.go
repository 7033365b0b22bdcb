package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/shim"
)

// maxTermination bounds the termination message in bytes; Kubernetes keeps 4096.
const maxTermination = 2048

// runShimCommand is `thaw runtime`: the shim in a model's pod. Its error goes into the
// termination message too.
func runShimCommand(ctx context.Context, c cli.RuntimeConfig, stdout, stderr io.Writer) error {
	err := runShim(ctx, c, stdout, stderr)
	if err != nil {
		message := strings.Join(strings.Fields(err.Error()), " ")
		// Kubernetes makes the file if it reads a termination message.
		if f, e := os.OpenFile(c.TerminationMessage, os.O_WRONLY|os.O_TRUNC, 0); e == nil {
			io.WriteString(f, message[:min(len(message), maxTermination)])
			f.Close()
		}
	}
	return err
}

func runShim(ctx context.Context, c cli.RuntimeConfig, stdout, stderr io.Writer) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if c.Install != "" {
		return shim.Install(exe, c.Install)
	}
	m, err := shim.Decode(c.Model)
	if err != nil {
		return &kit.Error{Exit: kit.ExitUsage, Err: err, Hint: "thaw deploy --to knative --dry-run -o yaml prints a pod with a right one"}
	}
	ip, err := shim.Address()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", c.Port))
	if err != nil {
		return &kit.Error{What: fmt.Sprintf("cannot listen on port %d", c.Port), Err: err}
	}
	c.Port = cmp.Or(c.Port, listener.Addr().(*net.TCPAddr).Port)
	c.Dir = cmp.Or(c.Dir, filepath.Join(os.TempDir(), fmt.Sprintf("thaw-%d", c.Port)))
	log := c.Open(stderr)
	defer log.Close()
	log.Info("thaw runtime", "version", cli.Version, "model", m.FullName(), "engine", m.Spec.Engine, "source", m.Spec.Source, "address",
		net.JoinHostPort(ip, fmt.Sprint(c.Port)), "sockets", c.Sockets)
	tuning, stopTuning := context.WithCancel(ctx)
	defer stopTuning()
	go httpserver.NewProcTuner().Run(tuning)
	err = shim.New(shim.Options{
		Model: m, Listener: listener, IP: ip, Port: c.Port, Sockets: c.Sockets, Dir: c.Dir, Caches: filepath.Join(os.TempDir(), "thaw-caches"),
		Exe: exe, Version: cli.Version,
		Environ: os.Environ(), LoaderTimeout: c.LoaderWait.Std(), NoImports: !c.ImportsAhead, NoNodeFork: !c.Warm,
		RefuseVulnerable: c.Vulnerable == "refuse", Out: stdout, Log: log.Logger,
	}).Run(ctx)
	switch {
	case errors.Is(err, shim.ErrNoLoader):
		return &kit.Error{Exit: kit.ExitUnavailable, Err: err,
			Hint: "kubectl get pods -n thaw-system -l app.kubernetes.io/component=loader -o wide says whether this node has one"}
	case err != nil:
		return &kit.Error{Exit: kit.ExitFailed, Err: err}
	}
	log.Info("drained")
	return nil
}
