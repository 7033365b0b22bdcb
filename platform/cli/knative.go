package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// ClusterFlags select a cluster and a team there, which is a namespace: of names that have
// none, and the one whose objects lists show; "": lists show those of all teams.
type ClusterFlags struct{ Kubeconfig, Context, Namespace string }

// shows reports whether lists show what belongs to a function, TEAM/NAME, or a team; what
// belongs to none is shown where no team is named.
func (c ClusterFlags) shows(owner string) bool {
	team, _, _ := strings.Cut(owner, "/")
	return c.Namespace == "" || team == c.Namespace
}

// cluster describes how a verb runs on a cluster instead of a server.
type cluster struct {
	flags  func(*kit.FlagSet) // for clusters only, beside those that select one
	passed []string           // flags of the verb that mean the same there
	never  []string           // flags that make no sense there
	asks   bool               // all its flags are passed: the controller is called as a server
}

// toKnative adds --to knative to a verb: thaw-knative then runs its verb of the same
// name.
func (c *connection) toKnative(cmd *cobra.Command, target cluster) {
	own := cmd.Flags()
	only := pflag.NewFlagSet("", pflag.ContinueOnError)
	only.String("kubeconfig", "", "file that leads to the cluster [KUBECONFIG]")
	only.String("context", "", "context of it")
	if target.flags != nil {
		target.flags(only)
	}
	var to string
	own.StringVar(&to, "to", "", "knative: a cluster instead of a server")
	pass := append([]string{"output", "timeout"}, target.passed...)
	only.VisitAll(func(flag *kit.Flag) {
		flag.Usage += "; with --to knative"
		pass = append(pass, flag.Name)
	})
	own.AddFlagSet(only)
	server := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if c.programs.Client != nil {
			value := func(name string) string { return cmd.Flag(name).Value.String() }
			c.cluster = ClusterFlags{value("kubeconfig"), value("context"), value("namespace")}
			if n := c.cluster.Namespace; n != "" && !functions.IsLabel(n) {
				return kit.Usage("the name of a namespace, which is the team", "%q cannot be a namespace", kit.Plain(n))
			}
			return server(cmd, args)
		}
		switch to {
		case "":
			var wrong error
			only.VisitAll(func(flag *kit.Flag) {
				if flag.Changed && wrong == nil {
					hint := "add --to knative, or leave it out"
					if cmd.Flags().Lookup("tail") != nil && flag.Shorthand == "n" {
						hint = "--tail N prints the last N lines; for a cluster's namespace add --to knative"
					}
					wrong = kit.Usage(hint, "--%s is for clusters", flag.Name)
				}
			})
			if wrong != nil {
				return wrong
			}
			return server(cmd, args)
		case "knative":
		default:
			return kit.Usage("--to knative, or leave it out", "%q is no place that thaw knows", functions.Clip(to))
		}
		never := append([]string{"server", "data"}, target.never...)
		if !target.asks {
			never = append(never, "key")
		}
		for _, name := range never {
			if cmd.Flag(name).Changed {
				return kit.Usage("leave it out", "--%s is for servers, and --to knative means a cluster", name)
			}
		}
		names := pass
		if target.asks {
			names = nil
			cmd.Flags().Visit(func(flag *kit.Flag) {
				if flag.Name != "to" {
					names = append(names, flag.Name)
				}
			})
		}
		return c.programs.Knative(cmd.Context(), passedArgs(cmd, args, names), c.In, c.Out, c.Err)
	}
}

// passedArgs spells the verb, what it is about and the named flags as they were given.
func passedArgs(cmd *cobra.Command, words, names []string) []string {
	args := append(strings.Fields(cmd.CommandPath())[1:], words...)
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

// asksKnative adds --to knative to a verb that only calls a server: the controller of
// the cluster is called instead.
func (c *connection) asksKnative(cmd *cobra.Command) *cobra.Command {
	c.toKnative(cmd, cluster{asks: true, flags: namespaceFlag})
	return cmd
}

// namespaceFlag registers --namespace of verbs that call the controller.
func namespaceFlag(f *kit.FlagSet) {
	f.StringP("namespace", "n", "", "namespace, which is the team: of names that have none, and whose objects are listed")
}
