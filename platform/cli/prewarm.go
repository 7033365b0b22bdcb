package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

func (m modelVerbs) prewarm() *cobra.Command {
	var lasts time.Duration
	var tier string
	cmd := &cobra.Command{
		Use: "prewarm [NAME]", Short: "Announce requests for a model; without a name, list the announcements", GroupID: "use",
		Args: kit.UpToArgs("", 1),
		Long: `Announce that requests for a model will come. The model is started where no queued
request needs the memory, and kept until the time is over or it is used; requests
for other models come first. Each team has a budget of GPU time for this
(thaw serve --prewarm-budget). Without a name the announcements are listed.

thaw wake --lease starts a model regardless of other requests.`,
		Example: `  thaw prewarm tiny
  thaw prewarm ml/llama --for 30m
  thaw prewarm llama --tier nvme      # only its bytes, on the disk of a node
  thaw prewarm llama --tier memory    # and in the memory of the node
  thaw prewarm -o json`,
		ValidArgsFunction: m.completeNames,
		RunE: m.remote(queryTimeout, func(ctx context.Context, cl *api.Client, args []string) error {
			if len(args) == 0 {
				all, err := cl.Prewarms(ctx)
				if err != nil {
					return err
				}
				return kit.PrintList(m.Terminal, m.prewarmKind(), all.Items)
			}
			if lasts <= 0 {
				return kit.Usage("thaw prewarm NAME --for 10m", "--for %v is no time to come", lasts)
			}
			name, err := m.name(ctx, cl, args[0])
			if err != nil {
				return err
			}
			p, err := cl.Prewarm(ctx, name, m.Now().Add(lasts), tier)
			if err != nil {
				return err
			}
			return m.PrintDocument("Prewarmed", p.ID, p, func() {
				fmt.Fprintln(m.Out, kit.Plain(fmt.Sprintf("%s: %s (until %s); %s of GPU time left for more",
					tables.ShortName(p.Function), p.Will, p.Until.Local().Format("15:04:05"),
					(time.Duration(p.Left)*time.Second).String())))
			})
		}),
	}
	cmd.Flags().DurationVar(&lasts, "for", 10*time.Minute, "how long it is foreseen, at most 24h")
	cmd.Flags().StringVar(&tier, "tier", "gpu", "how near: gpu (ready), memory or nvme (its bytes there)")
	return cmd
}

func (p printer) prewarmKind() kit.Kind[functions.Prewarm] {
	return kit.Kind[functions.Prewarm]{Word: "Prewarm", Columns: []kit.Column[functions.Prewarm]{
		kit.WideCol("ID", func(w functions.Prewarm) string { return w.ID }),
		kit.Col("MODEL", func(w functions.Prewarm) string { return tables.ShortName(w.Function) }),
		kit.Col("TIER", func(w functions.Prewarm) string { return w.Tier }),
		kit.Col("STATE", func(w functions.Prewarm) string { return w.State }),
		kit.Col("BY", func(w functions.Prewarm) string { return w.By }),
		kit.Col("WHY", func(w functions.Prewarm) string { return w.Why }),
		kit.Col("FOR", func(w functions.Prewarm) string { return kit.Span(max(0, w.Until.Sub(p.Now()).Truncate(time.Second))) }),
	}, Name: func(w functions.Prewarm) string { return w.ID }}
}
