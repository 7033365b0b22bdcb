package cli

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/platform/cli/doctor"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

func (c *connection) doctor() *cobra.Command {
	cmd := doctor.New(doctor.Options{
		Terminal: c.Terminal, Version: Version, Getenv: c.programs.Getenv, GPUs: c.programs.GPUs,
		Embedded:    func(engine string) bool { return c.programs.Engines[engine] != nil },
		DataFolders: c.keys.dataFolders, Client: c.client, WithHint: c.withHint,
		ServerNamed:   func() bool { return cmp.Or(c.server, c.programs.Getenv("THAW_SERVER")) != "" },
		DefaultServer: DefaultServer, IsLocal: isLocal, QueryTimeout: queryTimeout,
	})
	c.toKnative(cmd, cluster{
		flags: func(f *kit.FlagSet) {
			f.StringP("namespace", "n", "", "whose pods are meant")
			f.StringArrayP("filename", "f", nil, "file or folder of model files: what these need as well; may be repeated")
			new(kit.RenderFlags).Register(f, c.programs.Getenv, "", 0)
		},
		never: []string{"functions"},
	})
	return cmd
}
