// Command thaw-knative is thaw for Kubernetes: the controller, the activator and the
// installer, and the verbs for models on a cluster. It is a program of its own because the
// libraries of Kubernetes would cost every start of thaw 18 ms and 21 MiB; thaw deploy --to
// knative runs it from beside itself.
//
// It has the verbs for models on a cluster, and the parts of thaw that run there
// (see parts): this package is their wiring.
package main

import (
	"context"
	"io"
	"os"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

func main() {
	os.Exit(kit.UntilSignal(func(ctx context.Context) int { return run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr) }))
}

// run is the program as tests call it.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	c := &command{Terminal: kit.NewTerminal(nil, stdout, stderr, getenv), getenv: getenv}
	return c.Report(ctx, c.execute(ctx, args))
}
