package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/cli/initverb"
)

func (c platformVerbs) init() *cobra.Command {
	sources := c.programs.Sources
	if sources == nil {
		sources = func() (map[string]loader.Source, func()) { return nil, func() {} }
	}
	return initverb.New(initverb.Options{Terminal: c.Terminal, Sources: sources, GPUs: c.programs.GPUs, Folder: os.Getwd})
}
