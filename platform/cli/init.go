package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/cli/initverb"
)

func (v platformVerbs) init() *cobra.Command {
	sources := v.programs.Sources
	if sources == nil {
		sources = func() (map[string]loader.Source, func()) { return nil, func() {} }
	}
	return initverb.New(initverb.Options{Terminal: v.Terminal, Sources: sources, GPUs: v.programs.GPUs, Folder: os.Getwd})
}
