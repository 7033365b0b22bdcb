// Command thaw is thaw without Kubernetes in one binary: server, agent, supervisor of
// engines, the embedded engine, and the verbs of its API. This package is wiring and
// nothing else.
package main

import (
	"context"
	"io"
	"os"

	"github.com/thaw-dev/thaw/platform/cli"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

func main() {
	os.Exit(kit.UntilSignal(func(ctx context.Context) int { return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr) }))
}

// run is the program as tests call it.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return cli.Main(ctx, args, stdin, stdout, stderr, programs())
}
