package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

func (m modelVerbs) agentsVerb() *cobra.Command {
	cmd := kit.VerbGroup(&cobra.Command{Use: "agents", Short: "Let agents of other machines join, and remove them", GroupID: "own",
		Example: `  thaw agents token > join-token
  thaw agents list
  thaw agents rm gpu-2`})
	var r api.JoinTokenRequest
	var expiry time.Duration
	token := &cobra.Command{
		Use: "token", Short: "Make a join token and print it, this once", Args: kit.ExactArgs(),
		Long: `Make a join token: with it one agent may join, once, until it expires. The agent then
has a certificate of its own, and the token is worth nothing.`,
		Example: `  thaw agents token > join-token         then: thaw agent --server URL --token-file join-token
  thaw agents token --name gpu-2         for that agent alone, also in place of one of that name
  thaw agents token --expires 24h`,
		RunE: m.remote(queryTimeout, func(ctx context.Context, cl *api.Client, _ []string) error {
			r.Expiry = functions.Duration(expiry)
			t, err := api.Request[api.JoinToken](ctx, cl, "POST", "/api/v1/agents/tokens", r)
			if err != nil {
				return err
			}
			return m.PrintDocument("JoinToken", t.Token, t, func() {
				m.Remark("thaw agent --server %s --token-file FILE, once, until %s", t.Server, t.Expires.Local().Format(time.DateTime))
				fmt.Fprintln(m.Out, kit.Plain(t.Token))
			})
		}),
	}
	token.Flags().StringVar(&r.Agent, "name", "",
		"the agent that may join; it replaces one of that name (default: any, under a name that is not taken)")
	token.Flags().DurationVar(&expiry, "expires", time.Hour, "how long it may be used, at most a week; it ends with the server's process too")
	ls := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "The agents that have joined", Args: kit.ExactArgs(),
		Example: `  thaw agents list`,
		RunE: m.remote(queryTimeout, func(ctx context.Context, cl *api.Client, _ []string) error {
			return showList(ctx, m, cl, tables.Agents(m.Terminal), false, "")
		}),
	}
	rm := &cobra.Command{
		Use: "rm NAME...", Short: "Remove agents: the server listens to them no more until they join again",
		Args:    kit.UpToArgs("the name of an agent", 0),
		Example: `  thaw agents rm gpu-2`,
		RunE:    m.deleteEach(tables.Agents(m.Terminal).Path, "removed"),
	}
	cmd.AddCommand(token, ls, rm)
	return cmd
}

// deleteEach makes the body of a verb that removes items, its arguments, of the list at path and prints what was done.
func (m modelVerbs) deleteEach(path, done string) verbBody {
	return m.remote(queryTimeout, func(ctx context.Context, cl *api.Client, args []string) error {
		for _, id := range args {
			if strings.HasPrefix(id, "sk-") {
				return kit.Usage("thaw keys list has the ids", "that is a key itself, and its id is wanted")
			}
			if err := cl.Delete(ctx, path, id); err != nil {
				return err
			}
			fmt.Fprintln(m.Out, kit.Plain(id), done)
		}
		return nil
	})
}
