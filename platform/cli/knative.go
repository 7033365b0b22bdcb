package cli

import (
	"github.com/spf13/cobra"
)

// forKnative are the flags of deploy that only a cluster understands.
var forKnative = []string{"namespace", "kubeconfig", "context", "thaw-image", "image", "store", "request-timeout"}

// toKnative gives deploy its other way: --to knative hands everything to the
// program for clusters, which reads the files itself.
func (c *command) toKnative(cmd *cobra.Command) {
	var to string
	f := cmd.Flags()
	f.StringVar(&to, "to", "", "knative: a cluster instead of a server; with it:")
	f.String("namespace", "", "for models whose file names none")
	f.String("kubeconfig", "", "file that leads to the cluster [KUBECONFIG]")
	f.String("context", "", "context of it")
	f.String("thaw-image", "", "image whose entry point is thaw [THAW_IMAGE]")
	f.StringArray("image", nil, "ENGINE=IMAGE to run an engine from; may be repeated")
	f.String("store", "", "folder of the loader on each node (default /var/lib/thaw)")
	f.Duration("request-timeout", 0, "the longest a request may take (default 10m)")
	server := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch to {
		case "":
			for _, name := range forKnative {
				if f.Changed(name) {
					return usage("add --to knative, or leave it out", "--%s is for clusters", name)
				}
			}
			return server(cmd, args)
		case "knative":
		default:
			return usage("--to knative, or leave it out", "%q is no place to deploy to", clip(to))
		}
		for _, name := range []string{"wait", "server", "key", "data"} {
			if cmd.Flag(name).Changed {
				return usage("leave it out", "--%s is for servers, and the model goes to a cluster", name)
			}
		}
		if c.Knative == nil {
			return &Error{Exit: ExitFailed, What: "this build knows no clusters"}
		}
		return c.Knative(cmd.Context(), passed(cmd, append([]string{"filename", "dry-run", "output", "timeout"}, forKnative...)), c.in, c.out, c.err)
	}
}

// passed spells the named flags of deploy as they were given.
func passed(cmd *cobra.Command, names []string) []string {
	args := []string{"deploy"}
	for _, name := range names {
		flag := cmd.Flag(name)
		if !flag.Changed {
			continue
		}
		values := []string{flag.Value.String()}
		if list, many := flag.Value.(interface{ GetSlice() []string }); many {
			values = list.GetSlice()
		}
		for _, v := range values {
			args = append(args, "--"+name+"="+v)
		}
	}
	return args
}
