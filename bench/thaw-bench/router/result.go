package router

import (
	"context"
	"fmt"

	"github.com/thaw-dev/thaw/bench/report"
)

// Kind is the kind of the result's document.
const Kind = "RouterBench"

// Parts are the parts of the benchmark in order.
var Parts = []string{"decision", "labels", "requests", "hedge"}

// Options of Run.
type Options struct {
	Parts     map[string]bool
	Rounds    int    // of each decision
	Checkouts string // folder of the sources: OWNER/NAME/PATH
	Texts     string // folder of the files that are named texts:FILE

	// Of the parts that run the platform.

	Thaw          string   // bin/thaw
	Engine        []string // the benchmarks' engine without --addr
	Dir           string   // for data and logs
	RequestRounds int      // in each of which every kind of request is sent
	Requests      int      // of each kind, in a round
	Hedges        int      // cold models

	Progress func(string)
}

// Result is the benchmark's result; skipped parts are absent.
type Result struct {
	report.Provenance
	Decisions []Decision   `json:"decisions,omitempty"`
	Labels    []Share      `json:"labels,omitempty"`
	Missing   []string     `json:"missing,omitempty"`
	Requests  []Cost       `json:"requests,omitempty"`
	Hedge     *Hedge       `json:"hedge,omitempty"`
	Load      string       `json:"load_average"` // of the machine over a minute, at the start
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
		case "requests":
			r.Requests, err = measureRequests(ctx, &o)
		case "hedge":
			r.Hedge, err = measureHedge(ctx, &o)
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
	for _, c := range r.Requests {
		if c.Goal != "" {
			got := fmt.Sprintf("%.1f µs", c.Median)
			if c.Goal != hitGoal {
				got = fmt.Sprintf("%+.1f µs", c.Added)
			}
			r.Goals.Add(c.Met, "CPU of the gateway, "+c.Name, c.Goal, got)
		}
	}
	if h := r.Hedge; h != nil {
		for _, q := range []struct {
			name         string
			own, through float64
		}{{"p50", h.Sibling.P50, h.First.P50}, {"p90", h.Sibling.P90, h.First.P90}} {
			added := q.through - q.own
			r.Goals.Add(added <= firstTokenGoal.Seconds(), "hedge, first token beside the sibling's own, "+q.name,
				"at most "+report.Millis(firstTokenGoal.Seconds())+" more", fmt.Sprintf("%+.2f ms", 1000*added))
		}
		r.Goals.Add(h.Ready.P50 <= startShare*h.Usual.P50, "hedge, the cold model READY, p50",
			fmt.Sprintf("at most %.1fx its start by name (%s)", startShare, report.Millis(h.Usual.P50)),
			report.Millis(h.Ready.P50))
	}
	for _, label := range Labels {
		if len(r.Labels) == 0 {
			return
		}
		share, all := r.heldShare(label)
		r.Goals.Add(share >= 0.8, "right rule, "+label+", held-out sources", "at least 80 %", fmt.Sprintf("%s of %d", percent(share), all))
	}
}

// earlierHoldOuts lists what was right when each hold-out was evaluated, before anything was
// fitted on it; the sixth was evaluated by the rules that the model replaced as well.
func earlierHoldOuts() *report.Table {
	t := &report.Table{Head: []string{"hold-out", "decided by", Extraction, Code, Reasoning, General}}
	for _, row := range [][]any{
		{"first", "rules", "81.2 %", "98.8 %", "81.1 %", "95.7 %"},
		{"second", "rules", "58.9 %", "78.8 %", "87.3 %", "89.0 %"},
		{"third", "rules", "0.0 %", "100.0 %", "75.1 %", "95.2 %"},
		{"fourth", "rules", "70.8 %", "79.5 %", "72.7 %", "93.6 %"},
		{"fifth", "rules", "60.4 %", "100.0 %", "62.1 %", "88.6 %"},
		{"sixth", "rules", "37.2 %", "87.5 %", "88.7 %", "80.6 %"},
		{"sixth", "model", "55.8 %", "95.0 %", "89.2 %", "81.2 %"},
		{"seventh", "model", "92.2 %", "87.5 %", "78.2 %", "81.3 %"},
		{"eighth", "model", "92.1 %", "98.7 %", "100.0 %", "79.3 %"},
		{"ninth", "model", "85.1 %", "84.4 %", "58.3 %", "79.4 %"},
		{"tenth", "model", "89.6 %", "98.2 %", "85.0 %", "80.9 %"},
	} {
		t.Add(row...)
	}
	return t
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
			t.Add(s.Source, s.From, s.Label, held, s.All, percent(float64(s.Right)/float64(s.All)), s.wrong())
		}
		out = append(out, report.Part{Heading: "Labelled prompts", Table: t},
			report.Part{Heading: "Hold-outs, each evaluated once", Table: earlierHoldOuts()})
	}
	if len(r.Requests) > 0 {
		t := &report.Table{Head: []string{"one request", "CPU µs of the gateway, median", "lowest", "highest", "more than by name"}}
		for _, c := range r.Requests {
			t.Add(c.Name, fmt.Sprintf("%.1f", c.Median), fmt.Sprintf("%.1f", report.Quantile(c.Micros, 0)),
				fmt.Sprintf("%.1f", report.Quantile(c.Micros, 1)), fmt.Sprintf("%+.1f", c.Added))
		}
		out = append(out, report.Part{Heading: "Whole requests", Table: t})
	}
	if h := r.Hedge; h != nil {
		t := &report.Table{Head: []string{"", "n", "p50", "p90", "p99", "max"}}
		for _, x := range []struct {
			what string
			s    report.Summary
		}{
			{"first token of the sibling, by name", h.Sibling}, {"first token through the Router, from the sibling", h.First},
			{"READY after a request by name", h.Usual}, {"READY after the hedged request", h.Ready},
		} {
			t.Add(x.what, x.s.N, report.Millis(x.s.P50), report.Millis(x.s.P90), report.Millis(x.s.P99), report.Millis(x.s.Max))
		}
		out = append(out, report.Part{Heading: "A cold model and a warm sibling, cold: hedge", Table: t})
	}
	return append(out, r.Goals.Parts()...)
}

// Write writes router.json and router.md into dir.
func (r Result) Write(dir string) error {
	return report.Write(dir, "router", r, r.Page("The router", "Decisions are of a chat request with a prompt of 4 KiB, from its bytes to "+
		"the record; reading the envelope, which every request needs, is not part of them. "+
		"The rules are structuredOutput, code, complexityAbove 0.5 and the default. "+
		"Whole requests are plain, with a prompt of 4 KiB, to an engine that answers at once (testkit/fake), in interleaved rounds, and every "+
		"answer is checked; the CPU is that of thaw serve. "+
		"A hedge is of an engine that is up at once. "+
		"Load average of the machine at the start: "+r.Load, r.Missing, r.Tables()))
}
