// Command thaw is the platform without Kubernetes in one binary: server, agent,
// supervisor of engines, the embedded engine, and the verbs of its API. This package
// is wiring and nothing else.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/thaw-dev/thaw/platform/cli"
)

func main() {
	os.Exit(runUntilSignal(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// runUntilSignal runs the program until it ends. The first SIGINT or SIGTERM ends the
// context, which drains; a second one ends the process at once.
func runUntilSignal(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // restores the default action: a second signal kills
	return run(ctx, args, stdin, stdout, stderr)
}

// run is the program as tests call it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Main(ctx, args, stdin, stdout, stderr, programs())
}
