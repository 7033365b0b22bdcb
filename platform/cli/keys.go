package cli

import (
	"context"
	"net/url"

	"github.com/spf13/cobra"

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
			n, err := cl.CreateKey(ctx, k)
			if err != nil {
				return err
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

// listKeys lists the keys of a team, of all with ""; want, when given, is the id of one.
func (m modelVerbs) listKeys(ctx context.Context, cl *api.Client, team, want string) error {
	k := tables.Keys(m.Terminal)
	k.Query = "?team=" + url.QueryEscape(team)
	return showList(ctx, m, cl, k, false, want)
}
