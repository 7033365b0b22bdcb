package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/describe"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/cli/tables"
)

type description struct {
	Function  api.Function        `json:"function"`
	Replicas  []functions.Replica `json:"replicas"`
	ColdStart *api.ColdStart      `json:"coldStart,omitempty"`
	Events    []functions.Event   `json:"events"`
}

const describedEvents = 10

func (m modelVerbs) describe() *cobra.Command {
	v := &cobra.Command{
		Use: "describe NAME", Short: "Everything about one function, with its last cold start, or about one team", GroupID: "own",
		Args: kit.ExactArgs("the name of a function"),
		Example: `  thaw describe tiny
  thaw describe ml/llama -o json
  thaw describe team ml`,
		ValidArgsFunction: m.completeNames,
		RunE: m.named(queryTimeout, func(ctx context.Context, cl *api.Client, name functions.Name) error {
			f, err := cl.Function(ctx, name)
			if err != nil {
				return err
			}
			d := description{Function: f}
			replicas, err := cl.Replicas(ctx)
			if err != nil {
				return err
			}
			d.Replicas = functions.Filter(replicas, func(r functions.Replica) bool { return r.Function == f.Name })
			if id := f.ColdStart; id != "" {
				if t, err := cl.ColdStart(ctx, id); err == nil {
					d.ColdStart = &t
				}
			}
			if d.Events, err = cl.Events(ctx, f.Name, ""); err != nil {
				return err
			}
			d.Events = d.Events[max(0, len(d.Events)-describedEvents):]
			return m.PrintDocument("Description", f.Name, d, func() { m.printDescription(d) })
		}),
	}
	m.asksKnative(v)
	v.AddCommand(m.asksKnative(m.describeTeam()))
	return v
}

func (p printer) printDescription(d description) {
	f := d.Function
	row := func(key, format string, args ...any) {
		fmt.Fprintf(p.Out, "%-11s %s\n", key+":", kit.Plain(fmt.Sprintf(format, args...)))
	}
	row("Name", "%s", f.Name)
	row("State", "%s", tables.StateWithPercent(f))
	if f.Problem != "" {
		row("Problem", "%s", f.Problem)
	}
	row("Requests", "%d active, %d queued", f.Active, f.Queued)
	if !describe.WriteKind(row, f) {
		row("Engine", "%s", f.Engine)
		row("Source", "%s", f.Source)
	}
	row("From", "%s", f.Origin)
	if s := f.Spec; s != nil {
		row("Scale", "min %d, max %d, target %d, idle %s", s.Scale.Min, s.Scale.Max, s.Scale.Target, s.Scale.Idle)
		row("Resources", "%s, %s each; %s of memory", kit.CountOf(s.Resources.GPUs, "GPU"), s.Resources.GPUMemory.Human(),
			s.Resources.Memory.Human())
		row("Queue", "%s, %s, %s", kit.CountOf(s.Queue.Requests, "request"), s.Queue.Bytes.Human(), s.Queue.Wait)
		row("Deadlines", "stage %s, start %s, first token %s, hang %s, drain %s", s.Deadlines.Stage, s.Deadlines.Start, s.Deadlines.FirstToken,
			s.Deadlines.Hang, s.Deadlines.Drain)
		for _, a := range s.Adapters {
			state, note := "not loaded", ""
			for _, r := range d.Replicas {
				if slices.Contains(r.Adapters, a.Name) {
					state = "loaded"
				}
				if n := r.Notes[a.Name]; n != "" {
					note = "; " + n
				}
			}
			row("Adapter", "%s:%s from %s, %s%s", f.Model, a.Name, a.Source, state, note)
		}
	}
	if f.Expected != nil {
		row("Cold start", "%s expected", kit.Seconds(f.Expected))
	}
	printSection(p, "Replicas", tables.Replicas(p.Terminal), d.Replicas)
	if d.ColdStart != nil {
		fmt.Fprintln(p.Out, "\nLast cold start")
		p.waterfall(*d.ColdStart)
	}
	printSection(p, "Events", tables.Events(p.Terminal), d.Events)
}

// printSection prints a table below its title, unless it is empty.
func printSection[T any](p printer, title string, k kit.Kind[T], items []T) {
	if len(items) > 0 {
		fmt.Fprintln(p.Out, "\n"+title)
		kit.PrintTable(p.Out, k, items, p.Output == "wide", nil)
	}
}

// waterfall draws the phases of a cold start beneath each other.
func (p printer) waterfall(t api.ColdStart) {
	end := t.Total
	for _, phase := range t.Phases {
		end = max(end, phase.Start+phase.Duration)
	}
	fmt.Fprintf(p.Out, "%s: %s, %s, %s\n", kit.Plain(t.ID), t.State.Word(), kit.Seconds(&t.Total), p.Since(t.Began)+" ago")
	switch {
	case t.Start != "" && t.StartNote != "":
		fmt.Fprintf(p.Out, "  the engine was started %s; %s\n", kit.Plain(t.Start), kit.Plain(t.StartNote))
	case t.Start != "":
		fmt.Fprintf(p.Out, "  the engine was started %s\n", kit.Plain(t.Start))
	case t.StartNote != "":
		fmt.Fprintf(p.Out, "  %s\n", kit.Plain(t.StartNote))
	}
	if t.Retried != "" {
		fmt.Fprintf(p.Out, "  started once more, after idle models were evicted: %s\n", kit.Plain(t.Retried))
	}
	line := func(name, mark string, start, duration float64, share string) {
		fmt.Fprintf(p.Out, "  %-12s |%-*s| %s%s\n", kit.Plain(name), kit.SegmentWidth, kit.Segment(mark, start, duration, end),
			kit.Seconds(&duration), share)
	}
	for _, phase := range t.Phases {
		line(string(phase.Phase), "=", phase.Start, phase.Duration, "")
		for _, q := range phase.Parts { // as the engine's own log tells them
			line("  "+q.Name, "-", q.Start, q.Duration, fmt.Sprintf(", %.0f %%", 100*q.Duration/max(end, 1e-9)))
		}
	}
	if t.Error != "" {
		fmt.Fprintf(p.Out, "  failed: %s\n", kit.Plain(t.Error))
	}
}
