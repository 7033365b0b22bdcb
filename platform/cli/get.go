package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

const manyColdStarts = 1000

func (m modelVerbs) get() *cobra.Command {
	words := []string{"functions", "models", "routers", "remotes", "replicas", "nodes", "teams", "coldstarts", "events", "keys"}
	var follow bool
	cmd := &cobra.Command{
		Use: "get KIND [NAME]", Short: "List functions (models, routers, remotes), replicas, nodes, teams, coldstarts, events or keys", GroupID: "own",
		Example: `  thaw get functions
  thaw get routers
  thaw get nodes -o wide
  thaw get events --watch
  thaw get functions tiny -o yaml`,
		ValidArgs: words,
		Args:      kit.UpToArgs("", 2),
		RunE: m.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			word := "functions"
			if len(args) > 0 {
				word = args[0]
			}
			if !slices.Contains(words, word) && slices.Contains(words, word+"s") {
				word += "s"
			}
			if !slices.Contains(words, word) {
				return kit.Usage(kit.DidYouMean(word, words, 1, "one of "+strings.Join(words, ", ")), "%q is no kind", functions.Clip(word))
			}
			kindOf := map[string]string{"models": functions.KindModel, "routers": functions.KindRouter, "remotes": functions.KindRemote}[word]
			if (word == "functions" || kindOf != "") && len(args) == 2 && !follow {
				name, err := m.name(ctx, cl, args[1])
				if err != nil {
					return err
				}
				f, err := cl.Function(ctx, name)
				if err != nil {
					return err
				}
				if kindOf != "" && f.Kind != kindOf {
					return &kit.Error{Exit: kit.ExitNotFound, What: fmt.Sprintf("%s is a %s", f.Name, f.Kind), Hint: "thaw get functions " + args[1]}
				}
				return kit.PrintOne(m.Terminal, m.functionKind(), f)
			}
			var want string
			if len(args) == 2 {
				want = args[1]
			}
			switch word {
			case "functions", "models", "routers", "remotes":
				k := m.functionKind()
				k.Keep = func(f api.Function) bool { return kindOf == "" || f.Kind == kindOf }
				return showList(ctx, m.printer, cl, k, follow, want, cl.Functions)
			case "replicas":
				return showList(ctx, m.printer, cl, m.replicaKind(), follow, want, cl.Replicas)
			case "nodes":
				return showList(ctx, m.printer, cl, m.nodeKind(), follow, want, cl.Nodes)
			case "teams":
				return showList(ctx, m.printer, cl, m.teamKind(), follow, want, cl.Teams)
			case "coldstarts":
				return showList(ctx, m.printer, cl, m.coldStartKind(), follow, want, func(ctx context.Context) ([]api.ColdStart, error) { return cl.ColdStarts(ctx, manyColdStarts) })
			case "events":
				return showList(ctx, m.printer, cl, m.eventKind(), follow, want, func(ctx context.Context) ([]functions.Event, error) { return cl.Events(ctx, 0) })
			}
			if follow {
				return kit.Usage("thaw keys list", "keys cannot be watched")
			}
			return showList(ctx, m.printer, cl, m.keyKind(), false, want, func(ctx context.Context) ([]auth.Key, error) { return cl.Keys(ctx, "") })
		}),
	}
	watchFlag(cmd, &follow)
	// Without a kind a cluster lists its models as Kubernetes has them.
	m.toKnative(cmd, cluster{asks: true, flags: func(f *kit.FlagSet) {
		f.StringP("namespace", "n", "", "namespace, which is the team; of models, where no KIND is said")
		f.BoolP("all-namespaces", "A", false, "of all namespaces; likewise")
	}})
	return cmd
}

func watchFlag(cmd *cobra.Command, follow *bool) {
	cmd.Flags().BoolVarP(follow, "watch", "w", false, "go on, with a line for every change")
}

// showList lists or watches one kind; want, when given, is the name of one.
func showList[T any](ctx context.Context, c printer, cl *api.Client, k kit.Kind[T], follow bool, want string, get func(context.Context) ([]T, error)) error {
	is := func(v T) bool {
		return (k.Keep == nil || k.Keep(v)) && (want == "" || k.Name(v) == want || shortName(k.Name(v)) == want)
	}
	if follow {
		return watchList(ctx, c, cl, k, is)
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	items, err := get(ctx)
	if err != nil {
		return err
	}
	if want == "" {
		return kit.PrintList(c.Terminal, k, slices.DeleteFunc(items, func(v T) bool { return !is(v) }))
	}
	var names []string
	for _, v := range items {
		if is(v) {
			return kit.PrintOne(c.Terminal, k, v)
		}
		names = append(names, k.Name(v))
	}
	return &kit.Error{Exit: kit.ExitNotFound, What: fmt.Sprintf("there is no %s %s", strings.ToLower(k.Word), functions.Clip(want)), Hint: kit.DidYouMean(want, names, 3, "")}
}

func (m modelVerbs) ps() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use: "ps", Short: "List replicas, and functions with queued requests", GroupID: "use", Args: kit.ExactArgs(),
		Example: `  thaw ps
  thaw ps --watch
  thaw ps --to knative          of a cluster, by way of its API server
  thaw ps -o json`,
		RunE: m.remote(0, func(ctx context.Context, cl *api.Client, _ []string) error {
			if follow {
				return watchList(ctx, m.printer, cl, m.replicaKind(), nil)
			}
			ctx, cancel := context.WithTimeout(ctx, queryTimeout)
			defer cancel()
			replicas, err := cl.Replicas(ctx)
			if err != nil {
				return err
			}
			if err := kit.PrintList(m.Terminal, m.replicaKind(), replicas); err != nil || m.Output != "table" && m.Output != "wide" {
				return err
			}
			all, err := cl.Functions(ctx)
			if err != nil {
				return err
			}
			for _, f := range all {
				if f.Queued > 0 {
					why := f.State.Word()
					if f.Problem != "" {
						why = f.Problem
					}
					m.Remark("%d wait for %s: %s", f.Queued, shortName(f.Name), why)
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
			return showList(ctx, m.printer, cl, m.functionKind(), follow, "", cl.Functions)
		}),
	}
	watchFlag(cmd, &follow)
	return m.asksKnative(cmd)
}
