package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/describe"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

func (m modelVerbs) describeTeam() *cobra.Command {
	return &cobra.Command{
		Use: "team NAME", Short: "What one team may take of the fleet, and has taken", Args: kit.ExactArgs("the name of a team"),
		Example: `  thaw describe team ml
  thaw describe team ml --to knative     where a team is a namespace
  thaw describe team ml -o json`,
		RunE: m.remote(queryTimeout, func(ctx context.Context, cl *api.Client, args []string) error {
			teams, err := api.GetItems[api.Team](ctx, cl, tables.Teams().Path)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(teams, func(t api.Team) bool { return t.Name == args[0] })
			if i < 0 {
				names := functions.ConvertAll(teams, func(t api.Team) string { return t.Name })
				e := &kit.Error{Exit: kit.ExitNotFound, What: "there is no team " + functions.Clip(args[0])}
				if len(names) > 0 {
					e.Hint = "there is " + kit.Plain(strings.Join(names[:min(len(names), 10)], ", "))
				}
				return e
			}
			return m.PrintDocument("TeamStatus", teams[i].Name, teams[i], func() { m.printTeam(teams[i]) })
		}),
	}
}

func (p printer) printTeam(t api.Team) {
	row := func(key, format string, args ...any) {
		if key != "" {
			key += ":"
		}
		fmt.Fprintf(p.Out, "%-15s %s\n", key, kit.Plain(fmt.Sprintf(format, args...)))
	}
	bound := func(n int) string {
		if n <= 0 {
			return "unlimited"
		}
		return fmt.Sprint(n)
	}
	row("Name", "%s", t.Name)
	row("Functions", "%d", t.Functions)
	row("Requests", "%d, %d of them held", t.Active, t.Held)
	row("GPUs", "%d held, %.2f lately; %d guaranteed, at most %s", t.TeamUse.GPUs, t.RecentGPUs, t.GPUs.Guaranteed, bound(t.GPUs.Max))
	row("GPU time today", "%s", tables.GPUTime(t))
	if t.Resets != nil {
		row("Begins anew", "in %s", kit.Span(t.Resets.Sub(p.Now())))
	}
	row("GPU time", "%.0f s in all", t.Total)
	row("Spent today", "%s", describe.FormatMoney(t.Spent))
	row("Evictions", "%d of others for this team, %d of this team's for others", t.EvictionsInflicted, t.EvictionsSuffered)
	row("Thrash", "%d evicted and missed soon after", t.Thrash)
	l := t.Limits
	of := func(n *int) string { // what is left
		if n == nil {
			return ""
		}
		return fmt.Sprintf(", %d left", *n)
	}
	row("May have", "%s requests at once, %s held, %s a minute%s", bound(l.Concurrent), bound(l.HeldRequests), bound(l.RequestsPerMinute),
		of(t.Requests))
	row("", "%s tokens a minute%s", bound(l.TokensPerMinute), of(t.Tokens))
	row("", "%s cold starts an hour%s", bound(l.ColdStartsPerHour), of(t.ColdStarts))
	left := ""
	if t.Left != nil {
		left = fmt.Sprintf(", %.0f left", *t.Left)
	}
	row("", "%s GPU-seconds a day%s", bound(l.GPUSecondsPerDay), left)
	store := "unlimited bytes"
	if l.StoreBytes > 0 {
		store = l.StoreBytes.Human()
	}
	row("", "%s of the store", store)
	if l.SpendPerDay > 0 {
		row("", "%s spent a day", describe.FormatMoney(l.SpendPerDay))
	}
	if t.Data != "" {
		row("Data", "%s", t.Data)
	}
}
