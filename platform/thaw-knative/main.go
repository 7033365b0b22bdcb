// Command thaw-knative is thaw for Kubernetes: the controller, the activator and the installer, the
// verbs for models, teams and keys on a cluster, and doctor; other verbs (logs, explain, wake,
// stop) it asks of the controller. It is a program of its own because the libraries of Kubernetes
// would cost every start of thaw 18 ms and 21 MiB; thaw deploy --to knative runs it from beside
// itself.
//
// It has the verbs for models on a cluster, and the parts of thaw that run there
// (see parts): this package is their wiring.
package main

import (
	"context"
	"errors"
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

// partCommand is a part of a cluster with the settings in *config: it runs until its
// context ends and has flags of its own only.
func (c *command) partCommand(use, short, examples string, config any, check func() error, run func(context.Context) error) *kit.Command {
	cmd := &kit.Command{Use: use, Short: short, Example: examples, GroupID: "part", Args: kit.ExactArgs()}
	load := kit.BindSettings(cmd, config, "", c.getenv, check, "thaw-knative "+use+" --help shows every setting")
	cmd.RunE = func(cmd *kit.Command, _ []string) error {
		if _, err := load(); err != nil {
			return err
		}
		return run(cmd.Context())
	}
	return cmd
}

// errNoToken is the error of a part without the token of the control stream.
var errNoToken = errors.New("--token-file is missing: the file of the Secret thaw-control-tls")

// readToken reads the token of the control stream.
func readToken(file string) (string, error) {
	token, err := kit.ReadToken(file)
	if err != nil {
		err = &kit.Error{Err: err, Hint: "--token-file names a file with the token of the Secret thaw-control-tls"}
	}
	return token, err
}

// defaultID fills in the name of this host where id is empty.
func defaultID(id *string) {
	if *id == "" {
		*id, _ = os.Hostname()
	}
}
