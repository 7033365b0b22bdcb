package describe

import (
	"fmt"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// PrintComposed prints what a Composition of this name did: its calls beneath each other, with the
// phases of the cold starts that are in starts, by their ids.
func PrintComposed(c *kit.Terminal, name string, rec functions.CompositionRecord, starts map[string]api.ColdStart) error {
	return c.PrintDocument("Composed", rec.ID, rec, func() {
		row := func(key, format string, args ...any) {
			fmt.Fprintf(c.Out, "%-10s %s\n", key, kit.Plain(fmt.Sprintf(format, args...)))
		}
		fmt.Fprintf(c.Out, "%s: %s\n\n", kit.Plain(name), kit.Plain(string(rec.Pattern)))
		row("request", "%s", rec.ID)
		row("time", "%s", rec.Time)
		switch {
		case rec.Code == 0:
			row("answer", "under way")
		case rec.Error != "":
			row("answer", "%d: %s", rec.Code, rec.Error)
		default:
			row("answer", "%d after %s", rec.Code, kit.Seconds(&rec.Seconds))
		}
		if a := rec.Agreement; a != nil {
			words := ""
			if a.Exact {
				words = ", and that is the answer"
			}
			row("agreement", "%d of %d answers are equal%s", a.Agree, a.Answers, words)
		}
		if rec.PlanError != "" {
			row("plan", "each member got the whole request: %s", rec.PlanError)
		}
		if rec.AnsweredBy != "" {
			row("text", "of %s: the coordinator's was empty", rec.AnsweredBy)
		}
		var prompt, completion int64
		for _, x := range rec.Calls {
			prompt, completion = prompt+x.Prompt, completion+x.Completion
		}
		row("tokens", "%d in, %d out", prompt, completion)
		if rec.Cost > 0 {
			row("cost", "%s", FormatMoney(rec.Cost))
		}
		for _, l := range rec.LeftOut {
			row("left out", "%s (%s): %s", l.Member, title(l.Role, l.Step, l.Round), l.Reason)
		}
		fmt.Fprintln(c.Out)
		printCalls(c, &rec, starts)
	})
}

// title is the part of a call in its pattern.
func title(role, step string, round int) string {
	if step != "" {
		role += " " + step
	}
	if round > 1 {
		role += fmt.Sprintf(", round %d", round)
	}
	return role
}

// printCalls draws the calls beneath each other.
func printCalls(c *kit.Terminal, rec *functions.CompositionRecord, starts map[string]api.ColdStart) {
	end := rec.Seconds
	names := 0
	for _, x := range rec.Calls {
		end = max(end, x.Start+x.Duration)
		names = max(names, len(x.Member)+3+len(title(x.Role, x.Step, x.Round)))
	}
	for _, x := range rec.Calls {
		mark := "="
		if x.Final {
			mark = "#"
		}
		line := fmt.Sprintf("%s, %d tokens", kit.Seconds(&x.Duration), x.Completion)
		if x.Error != "" {
			line = fmt.Sprintf("%s, failed: %s", kit.Seconds(&x.Duration), x.Error)
		}
		fmt.Fprintf(c.Out, "  %-*s |%-*s| %s\n", names, kit.Plain(x.Member+" ("+title(x.Role, x.Step, x.Round)+")"), kit.SegmentWidth,
			kit.Segment(mark, x.Start, x.Duration, end), kit.Plain(line))
		if !x.Cold {
			continue
		}
		phases := functions.ConvertAll(starts[x.ColdStart].Phases, func(p functions.Span) string {
			return string(p.Phase) + " " + kit.Seconds(&p.Duration)
		})
		words := "cold start " + x.ColdStart
		if len(phases) > 0 {
			words += ": " + strings.Join(phases, ", ")
		}
		fmt.Fprintf(c.Out, "  %-*s  %s\n", names, "", kit.Plain(words))
	}
}
