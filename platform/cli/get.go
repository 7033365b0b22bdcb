package cli

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

// Kinds are the words that get takes.
func Kinds() []string {
	return []string{"functions", "models", "routers", "remotes", "replicas", "nodes", "teams", "coldstarts", "events", "keys"}
}

func (m modelVerbs) get() *cobra.Command {
	words := Kinds()
	var follow bool
	cmd := &cobra.Command{
		Use: "get KIND [NAME]", GroupID: "own",
		Short: "List functions (models, routers, remotes), replicas, nodes, teams, coldstarts, events or keys",
		Example: `  thaw get functions
  thaw get routers
  thaw get nodes -o wide
  thaw get events --watch
  thaw get functions tiny -o yaml`,
		ValidArgs: words,
		Args:      kit.UpToArgs("", 2),
		RunE: m.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			args = append(args, "", "") // what is not given
			word, want := cmp.Or(args[0], "functions"), args[1]
			if !slices.Contains(words, word) && slices.Contains(words, word+"s") {
				word += "s"
			}
			if word == "pod" || word == "pods" {
				return kit.Usage("did you mean replicas?", "%q is no kind", word)
			}
			if !slices.Contains(words, word) {
				return kit.Usage(kit.DidYouMean(word, words, 1, "one of "+strings.Join(words, ", ")), "%q is no kind", functions.Clip(word))
			}
			kindOf := map[string]string{"models": functions.KindModel, "routers": functions.KindRouter, "remotes": functions.KindRemote}[word]
			if (word == "functions" || kindOf != "") && want != "" && !follow {
				name, err := m.name(ctx, cl, want)
				if err != nil {
					return err
				}
				f, err := cl.Function(ctx, name)
				if err != nil {
					return err
				}
				if kindOf != "" && f.Kind != kindOf {
					return &kit.Error{Exit: kit.ExitNotFound, What: fmt.Sprintf("%s is a %s", f.Name, f.Kind), Hint: "thaw get functions " + want}
				}
				return kit.PrintOne(m.Terminal, tables.Functions(), f)
			}
			switch word {
			case "functions", "models", "routers", "remotes":
				return m.listFunctions(ctx, cl, kindOf, follow, want)
			case "replicas":
				return showList(ctx, m, cl, tables.Replicas(m.Terminal), follow, want)
			case "nodes":
				return showList(ctx, m, cl, tables.Nodes(m.Terminal), follow, want)
			case "teams":
				return showList(ctx, m, cl, tables.Teams(), follow, want)
			case "coldstarts":
				return showList(ctx, m, cl, tables.ColdStarts(m.Terminal), follow, want)
			case "events":
				return showList(ctx, m, cl, tables.Events(m.Terminal), follow, want)
			}
			if follow {
				return kit.Usage("thaw keys list", "keys cannot be watched")
			}
			return m.listKeys(ctx, cl, m.cluster.Namespace, want)
		}),
	}
	watchFlag(cmd, &follow)
	// Without a kind a cluster lists its models as Kubernetes has them.
	m.toKnative(cmd, cluster{asks: true, flags: func(f *kit.FlagSet) {
		namespaceFlag(f)
		f.BoolP("all-namespaces", "A", false, "of all namespaces; as without --namespace, where a KIND is named")
	}})
	return cmd
}

func watchFlag(cmd *cobra.Command, follow *bool) {
	cmd.Flags().BoolVarP(follow, "watch", "w", false, "go on, with a line for every change")
}

// showList lists or watches one kind; want, when given, is the name of one.
func showList[T any](ctx context.Context, m modelVerbs, cl *api.Client, k kit.Kind[T], follow bool, want string) error {
	is := func(v T) bool {
		return (k.Owner == nil || m.cluster.shows(k.Owner(v))) && (k.Keep == nil || k.Keep(v)) &&
			(want == "" || k.Name(v) == want || tables.ShortName(k.Name(v)) == want)
	}
	if follow {
		return tables.Watch(ctx, m.Terminal, cl, k, is)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, queryTimeout)
		defer cancel()
	}
	items, err := api.GetItems[T](ctx, cl, k.Path+k.Query)
	if err != nil {
		return err
	}
	if want == "" {
		return kit.PrintList(m.Terminal, k, slices.DeleteFunc(items, func(v T) bool { return !is(v) }))
	}
	var names []string
	for _, v := range items {
		if is(v) {
			return kit.PrintOne(m.Terminal, k, v)
		}
		names = append(names, k.Name(v))
	}
	word := strings.TrimSuffix(strings.ToLower(k.Word), "status")
	return &kit.Error{Exit: kit.ExitNotFound, What: fmt.Sprintf("there is no %s %s", word, functions.Clip(want)),
		Hint: kit.DidYouMean(want, names, 3, "thaw get "+path.Base(k.Path)+" lists them")}
}

// listFunctions lists or watches the functions of a kind, of all with "".
func (m modelVerbs) listFunctions(ctx context.Context, cl *api.Client, kind string, follow bool, want string) error {
	k := tables.Functions()
	k.Keep = func(f api.Function) bool { return kind == "" || f.Kind == kind }
	return showList(ctx, m, cl, k, follow, want)
}

func (m modelVerbs) ps() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "ps", Short: "List replicas, and functions with queued requests", GroupID: "use", Args: kit.ExactArgs(),
		Example: `  thaw ps
  thaw ps --watch
  thaw ps --to knative -n ml    of a team on a cluster, by way of its API server
  thaw ps -o json`,
		RunE: m.remote(0, func(ctx context.Context, cl *api.Client, _ []string) error {
			err := showList(ctx, m, cl, tables.Replicas(m.Terminal), follow, "")
			if err != nil || follow || m.Output != "table" && m.Output != "wide" {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, queryTimeout)
			defer cancel()
			all, err := cl.Functions(ctx)
			if err != nil {
				return err
			}
			for _, f := range all {
				if f.Queued > 0 && m.cluster.shows(f.Team) {
					m.Remark("%d wait for %s: %s", f.Queued, tables.ShortName(f.Name), cmp.Or(f.Problem, f.State.Word()))
				}
			}
			return nil
		}),
	}
	watchFlag(cmd, &follow)
	return m.asksKnative(cmd)
}

func (m modelVerbs) models() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "models", Short: "List all functions: models, cold ones too, routers and remotes", GroupID: "use", Args: kit.ExactArgs(),
		Example: `  thaw models
  thaw models --watch
  thaw models -o name`,
		RunE: m.remote(0, func(ctx context.Context, cl *api.Client, _ []string) error {
			return m.listFunctions(ctx, cl, "", follow, "")
		}),
	}
	watchFlag(cmd, &follow)
	return m.asksKnative(cmd)
}
