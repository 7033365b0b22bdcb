package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

func (c modelVerbs) wake() *cobra.Command {
	var lease time.Duration
	var wait bool
	cmd := &cobra.Command{
		Use: "wake NAME", Short: "Start a model ahead of requests", GroupID: "use", Args: kit.ExactArgs("the name of a model"),
		Example: `  thaw wake tiny --wait
  thaw wake ml/llama --lease 2h
  thaw wake ml/llama:pirate     # its adapter too; on a cluster a request loads that`,
		ValidArgsFunction: c.completeNames,
		RunE: c.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			name, err := c.name(ctx, cl, args[0])
			if err != nil {
				return err
			}
			w, err := cl.Wake(ctx, name, lease)
			if err != nil {
				return err
			}
			if wait {
				if err := c.followColdStart(ctx, cl, name, w.ColdStart); err != nil {
					return err
				}
				w.State = functions.Ready
			}
			return c.printWoken(w)
		}),
	}
	cmd.Flags().DurationVar(&lease, "lease", 0, "keep it that long without requests; 0 is its own idle time")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is ready")
	return c.asksKnative(cmd)
}

func (c printer) printWoken(w api.WakeReply) error {
	return c.PrintDocument("Woken", w.Function, w, func() { fmt.Fprintln(c.Out, kit.Plain(shortName(w.Function)+" "+w.State.Word())) })
}

func (c modelVerbs) stop() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use: "stop NAME", Short: "Drain a model's replicas; the next request starts it again", GroupID: "use", Args: kit.ExactArgs("the name of a model"),
		Example: `  thaw stop tiny
  thaw stop tiny --wait`,
		ValidArgsFunction: c.completeNames,
		RunE: c.remote(0, func(ctx context.Context, cl *api.Client, args []string) error {
			name, err := c.name(ctx, cl, args[0])
			if err != nil {
				return err
			}
			w, err := cl.Stop(ctx, name)
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
				if err := sleepContext(ctx, progressEvery); err != nil {
					return err
				}
			}
			return c.printWoken(w)
		}),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until no replica is left")
	return c.asksKnative(cmd)
}

func sleepContext(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (c modelVerbs) rm() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm NAME...", Short: "Remove deployed functions", GroupID: "own", Args: kit.UpToArgs("the name of a function", 0),
		Example: `  thaw rm ml/llama
  thaw rm ml/llama --to knative`,
		Long: `Remove deployed models, routers and remotes, and drain the replicas of the models.
Functions of the --functions folder belong to you: remove their files there.`,
		ValidArgsFunction: c.completeNames,
		RunE: c.remote(queryTimeout, func(ctx context.Context, cl *api.Client, args []string) error {
			for _, word := range args {
				name, err := c.name(ctx, cl, word)
				if err != nil {
					return err
				}
				if err := cl.Remove(ctx, name); err != nil {
					return err
				}
				if c.Output == "name" {
					fmt.Fprintln(c.Out, name)
				} else {
					fmt.Fprintln(c.Out, name, "removed")
				}
			}
			return nil
		}),
	}
	c.toKnative(cmd, cluster{flags: func(f *kit.FlagSet) { f.StringP("namespace", "n", "", "of names that say none") }})
	return cmd
}
