package cli

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

func (m modelVerbs) keysVerb() *cobra.Command {
	cmd := kit.VerbGroup(&cobra.Command{Use: "keys", Short: "Make, list and end keys", GroupID: "own",
		Example: `  thaw keys create --team ml --name laptop
  thaw keys list
  thaw keys rm 0f3a9c`})
	var k api.KeyRequest
	create := &cobra.Command{
		Use: "create --team T", Short: "Make a key and print it, this once", Args: kit.ExactArgs(),
		Example: `  thaw keys create --team ml --name laptop
  thaw keys create --team ml --to knative
  export THAW_KEY=$(thaw keys create --team ml)`,
		RunE: m.remote(queryTimeout, func(ctx context.Context, cl *api.Client, _ []string) error {
			if k.Team == "" {
				return kit.Usage("thaw keys create --team NAME", "--team is missing")
			}
			teams, listErr := api.GetItems[api.Team](ctx, cl, tables.Teams().Path)
			n, err := api.Request[api.NewKey](ctx, cl, "POST", "/api/v1/keys", k)
			if err != nil {
				return err
			}
			if names := functions.ConvertAll(teams, func(t api.Team) string { return t.Name }); listErr == nil && !slices.Contains(names, n.Team) {
				m.remarkNewTeam(n, names)
			}
			return kit.PrintKey(m.Terminal, n.ID, n.Team, n.Secret, n)
		}),
	}
	create.Flags().StringVar(&k.Team, "team", "", "the team whose models it may use")
	create.Flags().StringVar(&k.Name, "name", "", "label for lists")
	create.Flags().BoolVar(&k.Admin, "admin", false, "it may also deploy, wake, stop and make keys")
	var team string
	ls := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "All keys, without their secrets", Args: kit.ExactArgs(),
		Example: `  thaw keys list --team ml`,
		RunE: m.remote(queryTimeout, func(ctx context.Context, cl *api.Client, _ []string) error {
			return m.listKeys(ctx, cl, team, "")
		}),
	}
	ls.Flags().StringVar(&team, "team", "", "only this team's")
	rm := &cobra.Command{
		Use: "rm ID...", Short: "End keys at once", Args: kit.UpToArgs("the id of a key", 0),
		Example: `  thaw keys rm 0f3a9c`,
		RunE:    m.deleteEach(tables.Keys(m.Terminal).Path, "ended"),
	}
	// On a cluster a key is an entry of the Secret thaw-keys in the team's namespace.
	sameAsTeam := func(f *kit.FlagSet) { f.StringP("namespace", "n", "", "the same as --team") }
	m.toKnative(create, cluster{flags: sameAsTeam, passed: []string{"team", "name"}, never: []string{"admin"}})
	m.toKnative(ls, cluster{flags: sameAsTeam, passed: []string{"team"}})
	m.toKnative(rm, cluster{flags: func(f *kit.FlagSet) {
		sameAsTeam(f)
		f.String("team", "", "whose keys they are; all are looked at where none is said")
	}})
	cmd.AddCommand(create, ls, rm)
	return cmd
}

// remarkNewTeam says that a key is for a team that has neither a file nor a model, which may
// be a slip of the pen.
func (m modelVerbs) remarkNewTeam(k api.NewKey, teams []string) {
	known := "no team is known yet"
	if len(teams) > 0 {
		slices.Sort(teams)
		known = "known are " + strings.Join(teams, ", ")
	}
	m.Remark("the team %q has no file and no model yet; %s; thaw keys rm %s ends this key", k.Team, known, k.ID)
	if near := functions.Nearest(k.Team, teams, 1); len(near) > 0 {
		m.Remark("did you mean %s?", near[0])
	}
}

// listKeys lists the keys of a team, of all with ""; want, when given, is the id of one.
func (m modelVerbs) listKeys(ctx context.Context, cl *api.Client, team, want string) error {
	k := tables.Keys(m.Terminal)
	k.Query = "?team=" + url.QueryEscape(team)
	return showList(ctx, m, cl, k, false, want)
}
