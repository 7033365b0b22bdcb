package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

func (m modelVerbs) wake() *cobra.Command {
	var lease time.Duration
	var wait bool
	cmd := &cobra.Command{
		Use: "wake NAME", Short: "Start a model ahead of requests", GroupID: "use", Args: kit.ExactArgs("the name of a model"),
		Example: `  thaw wake tiny --wait
  thaw wake ml/llama --lease 2h
  thaw wake ml/llama:pirate     # its adapter too; on a cluster a request loads that`,
		ValidArgsFunction: m.completeNames,
		RunE: m.named(0, func(ctx context.Context, cl *api.Client, name functions.Name) error {
			w, err := cl.Wake(ctx, name, lease)
			if err != nil {
				return err
			}
			if wait {
				if err := m.followColdStart(ctx, cl, name, w.ColdStart); err != nil {
					return err
				}
				w.State = functions.Ready
			}
			if w.State == functions.Failed {
				m.Remark("its last start failed, which thaw describe %s explains; --wait tells the end of this one", tables.ShortName(w.Function))
			}
			return m.printWoken(w)
		}),
	}
	cmd.Flags().DurationVar(&lease, "lease", 0, "keep it that long without requests; 0 is its own idle time")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is ready")
	return m.asksKnative(cmd)
}

func (p printer) printWoken(w api.WakeReply) error {
	return p.PrintDocument("Woken", w.Function, w, func() { fmt.Fprintln(p.Out, kit.Plain(tables.ShortName(w.Function)+" "+w.State.Word())) })
}

func (m modelVerbs) stop() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "stop NAME", Short: "Drain a model's replicas; the next request starts it again", GroupID: "use",
		Args: kit.ExactArgs("the name of a model"),
		Example: `  thaw stop tiny
  thaw stop tiny --wait`,
		ValidArgsFunction: m.completeNames,
		RunE: m.named(0, func(ctx context.Context, cl *api.Client, name functions.Name) error {
			w, err := api.Request[api.WakeReply](ctx, cl, "POST", api.FunctionPath(name)+"/stop", nil)
			if err != nil {
				return err
			}
			for wait {
				all, err := cl.Replicas(ctx)
				if err != nil {
					return err
				}
				if !slices.ContainsFunc(all, func(r functions.Replica) bool { return r.Function == w.Function && !r.State.Over() }) {
					w.State = functions.Unloaded
					break
				}
				if !backoff.Sleep(ctx, progressEvery) {
					return ctx.Err()
				}
			}
			return m.printWoken(w)
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until no replica is left")
	return m.asksKnative(cmd)
}

func (m modelVerbs) rm() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Remove deployed functions", GroupID: "own", Args: kit.UpToArgs("the name of a function", 0),
		Example: `  thaw rm ml/llama
  thaw rm ml/llama --to knative`,
		Long: `Remove deployed models, routers and remotes, and drain the replicas of the models.
Functions of the --functions folder belong to you: remove their files there.`,
		ValidArgsFunction: m.completeNames,
		RunE: m.named(queryTimeout, func(ctx context.Context, cl *api.Client, name functions.Name) error {
			if err := cl.Delete(ctx, "/api/v1/functions/"+name.Team, name.Name); err != nil {
				return err
			}
			if m.Output == "name" {
				fmt.Fprintln(m.Out, name)
			} else {
				fmt.Fprintln(m.Out, name, "removed")
			}
			return nil
		}),
	}
	m.toKnative(cmd, cluster{flags: func(f *kit.FlagSet) { f.StringP("namespace", "n", "", "of names that say none") }})
	return cmd
}

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
				all, err := api.GetItems[functions.Prewarm](ctx, cl, "/api/v1/prewarm")
				if err != nil {
					return err
				}
				return kit.PrintList(m.Terminal, m.prewarmKind(), all)
			}
			if lasts <= 0 {
				return kit.Usage("thaw prewarm NAME --for 10m", "--for %v is no time to come", lasts)
			}
			name, err := m.name(ctx, cl, args[0])
			if err != nil {
				return err
			}
			p, err := api.Request[api.Prewarmed](ctx, cl, "POST", "/api/v1/prewarm",
				api.PrewarmRequest{Model: name.String(), Until: m.Now().Add(lasts), Tier: tier})
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
