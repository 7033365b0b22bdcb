package router

import (
	"context"
	"fmt"
	"strings"

	"github.com/thaw-dev/thaw/bench/report"
)

// Kind is the kind of the result's document.
const Kind = "RouterBench"

// Parts are the parts of the benchmark in order.
var Parts = []string{"decision", "labels"}

// Options of Run.
type Options struct {
	Parts     map[string]bool
	Rounds    int    // of each decision
	Checkouts string // folder of the sources: OWNER/NAME/PATH
	Texts     string // folder of the files that are named texts:FILE
	Progress  func(string)
}

// Result is the benchmark's result; skipped parts are absent.
type Result struct {
	report.Provenance
	Decisions []Decision   `json:"decisions,omitempty"`
	Labels    []Share      `json:"labels,omitempty"`
	Missing   []string     `json:"missing,omitempty"`
	Goals     report.Goals `json:"goals"`
}

// Run measures the selected parts.
func Run(ctx context.Context, o Options, r Result) (_ Result, err error) {
	for _, part := range Parts {
		if !o.Parts[part] {
			continue
		}
		o.Progress(part)
		switch part {
		case "decision":
			r.Decisions, err = measureDecisions(ctx, o.Rounds)
		case "labels":
			var prompts []Prompt
			if prompts, r.Missing, err = Load(o.Checkouts, o.Texts); err == nil {
				r.Labels, err = Check(prompts)
			}
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", part, err)
		}
	}
	r.checkGoals()
	return r, nil
}

// heldShare returns the share of the prompts of a label, of the held-out sources, that met
// the right rule, and their number.
func (r *Result) heldShare(label string) (share float64, all int) {
	right := 0
	for _, s := range r.Labels {
		if s.Held && s.Label == label {
			right, all = right+s.Right, all+s.All
		}
	}
	return float64(right) / float64(max(all, 1)), all
}

func (r *Result) checkGoals() {
	for _, d := range r.Decisions {
		if d.Goal > 0 {
			r.Goals.Add(d.P99 < d.Goal, d.Name+", p99", "under "+report.Millis(d.Goal), report.Millis(d.P99))
		}
	}
	if len(r.Labels) == 0 {
		return
	}
	for _, label := range Labels {
		share, all := r.heldShare(label)
		r.Goals.Add(share >= 0.8, "right rule, "+label+", held-out sources", "at least 80 %", fmt.Sprintf("%s of %d", percent(share), all))
	}
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// Tables returns the result as tables.
func (r Result) Tables() []report.Part {
	var out []report.Part
	if len(r.Decisions) > 0 {
		t := &report.Table{Head: []string{"one request", "p50", "p99", "max", "allocations"}}
		for _, d := range r.Decisions {
			t.Add(d.Name, report.Millis(d.P50), report.Millis(d.P99), report.Millis(d.Max), fmt.Sprintf("%.1f", d.Allocations))
		}
		out = append(out, report.Part{Heading: "Decisions", Table: t})
	}
	if len(r.Labels) > 0 {
		t := &report.Table{Head: []string{"source", "repository", "label", "held out", "prompts", "right", "went to"}}
		for _, s := range r.Labels {
			held := "no"
			if s.Held {
				held = "yes"
			}
			var wrong []string
			for _, rule := range Labels {
				if n := s.Rules[rule]; n > 0 && rule != s.Label {
					wrong = append(wrong, fmt.Sprintf("%s %d", rule, n))
				}
			}
			t.Add(s.Source, s.From, s.Label, held, s.All, percent(float64(s.Right)/float64(s.All)), strings.Join(wrong, ", "))
		}
		out = append(out, report.Part{Heading: "Labelled prompts", Table: t})
	}
	return append(out, r.Goals.Parts()...)
}

// Write writes router.json and router.md into dir.
func (r Result) Write(dir string) error {
	return report.Write(dir, "router", r, r.Page("The router", "Decisions are of a chat request with a prompt of 4 KiB, from its bytes to the record; reading the envelope, which every request needs, is not part of them. "+
		"The rules are structuredOutput, code, complexityAbove 0.5 and the default", r.Missing, r.Tables()))
}
