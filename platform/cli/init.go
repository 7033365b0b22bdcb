package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/platform/cli/initverb"
)

func (v platformVerbs) init() *cobra.Command {
	return initverb.New(initverb.Options{Terminal: v.Terminal, Sources: v.programs.Sources, GPUs: v.programs.GPUs, Folder: os.Getwd})
}
