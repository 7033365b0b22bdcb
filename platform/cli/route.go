package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/decision"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

func (m modelVerbs) route() *cobra.Command {
	var file, router, path string
	cmd := &cobra.Command{
		Use: "route [-f request.json | TEXT]", Short: "What a Router would send a request to, without sending it", GroupID: "own",
		Args: kit.UpToArgs("", 1),
		Long: `Decide about a request as the server would now, and print the decision: the rule
that matched, the state of its targets, and what was seen in the request. No model
is asked and nothing is counted or recorded.

TEXT is the only message of a chat. A file is the body of any request, as it would
be sent; its model names the Router unless --router does. - is standard input.`,
		Example: `  thaw route "Fix this: panic: runtime error: index out of range"
  thaw route -f request.json --router ml/auto
  thaw route "where is my invoice" -o json`,
		RunE: m.remote(queryTimeout, func(ctx context.Context, cl *api.Client, args []string) error {
			body, err := decision.ReadBody(m.In, file, args)
			if err != nil {
				return err
			}
			return m.printDecision(cl.Route(ctx, router, path, body))
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the body of the request; - is standard input")
	cmd.Flags().StringVar(&router, "router", "", "the Router, NAME or TEAM/NAME (default: the model of the file, else auto)")
	cmd.Flags().StringVar(&path, "path", "/v1/chat/completions", "the path that the request would be sent to")
	return cmd
}

func (m modelVerbs) printDecision(rec functions.RouteRecord, err error) error {
	if err != nil {
		return err
	}
	return decision.Print(m.Terminal, tables.ShortName(rec.Router), rec)
}
