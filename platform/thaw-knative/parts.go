package main

import (
	"context"
	"errors"
	"os"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

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

// defaultID fills in the name of this host where id is empty.
func defaultID(id *string) {
	if *id == "" {
		*id, _ = os.Hostname()
	}
}
