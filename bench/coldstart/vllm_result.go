package coldstart

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
)

// reduce computes the rows and the goals.
func (r *EngineResult) reduce() {
	by := func(method string, of func(Take) float64) (v []float64) {
		for _, t := range r.Takes {
			if t.Method == method {
				v = append(v, of(t))
			}
		}
		return v
	}
	first := func(t Take) float64 { return t.FirstToken }
	cpu := func(t Take) float64 { return t.CPU }
	r.Methods = nil
	for _, name := range []string{HandStarted, WithoutForkServer, WithForkServer, Forked} {
		w := Method{Method: name, FirstToken: report.Summarize(by(name, first)), CPU: report.Summarize(by(name, cpu))}
		if baseline := report.Quantile(by(HandStarted, first), 0.5); baseline > 0 {
			w.Ratio = w.FirstToken.P50 / baseline
		}
		if baseline := report.Quantile(by(HandStarted, cpu), 0.5); baseline > 0 {
			w.CPURatio = w.CPU.P50 / baseline
		}
		r.Methods = append(r.Methods, w)
	}
	through, alone := by(WithForkServer, first), by(Forked, first)
	var adds []float64
	for i := range min(len(through), len(alone)) {
		adds = append(adds, through[i]-alone[i])
	}
	r.Adds = report.Summarize(adds)
	r.Goals = nil
	goal := r.Goals.Add
	goal(r.Methods[2].Ratio <= 0.10, "zero to first token, warm interpreter, against vllm serve by hand (p50)", "at most 0.10x",
		fmt.Sprintf("%.3fx", r.Methods[2].Ratio))
	goal(r.Methods[1].Ratio <= 1.02, "the same without a warm interpreter", "at most 1.02x", fmt.Sprintf("%.3fx", r.Methods[1].Ratio))
	// A difference below the scatter of the starts is not judged.
	got, enough := fmt.Sprintf("%.0f ms", r.Adds.P50*1e3), r.Adds.N >= minRounds && r.Adds.P90-r.Adds.P25 < noisySeconds
	if !enough {
		got += fmt.Sprintf(", but %d rounds from %.0f to %.0f ms cannot tell", r.Adds.N, r.Adds.Min*1e3, r.Adds.Max*1e3)
	}
	goal(enough && r.Adds.P50 < 0.050, "what thaw adds to the engine's own time after the fork (p50)", "under 50 ms", got)
	if r.Memory != nil {
		goal(r.Memory.Ratio <= 0.5, fmt.Sprintf("memory of %d engines from one parent against as many plain", served3), "at most 0.5x",
			fmt.Sprintf("%.2fx", r.Memory.Ratio))
	}
	if slices.ContainsFunc(r.Takes, func(t Take) bool { return t.Method == WithForkServer && t.Start != functions.StartWarm }) {
		goal(false, "every warm start was one", "all", "some were plain, see their notes")
	}
}

// Table returns the result as a table.
func (r EngineResult) Table() *report.Table {
	t := &report.Table{Head: []string{"way", "first token p50", "p90", "to by hand", "processor p50", "to by hand"}}
	for _, w := range r.Methods {
		t.Add(w.Method, fmt.Sprintf("%.2f s", w.FirstToken.P50), fmt.Sprintf("%.2f s", w.FirstToken.P90), fmt.Sprintf("%.3fx", w.Ratio),
			fmt.Sprintf("%.2f s", w.CPU.P50), fmt.Sprintf("%.3fx", w.CPURatio))
	}
	return t
}

// Judged returns the goals as a table.
func (r EngineResult) Judged() *report.Table {
	return r.Goals.Table()
}

// Parts returns the phases of the median start of a way.
func (r EngineResult) Parts(method string) *report.Table {
	t := &report.Table{Head: []string{"phase or part", "begins", "takes"}}
	var takes []Take
	for _, x := range r.Takes {
		if x.Method == method && x.Timeline != nil {
			takes = append(takes, x)
		}
	}
	if len(takes) == 0 {
		return t
	}
	slices.SortFunc(takes, func(a, b Take) int {
		if a.FirstToken < b.FirstToken {
			return -1
		}
		return 1
	})
	for _, s := range takes[(len(takes)-1)/2].Timeline.Phases {
		t.Add(string(s.Phase), report.Millis(s.Start), report.Millis(s.Duration))
		for _, p := range s.Parts {
			t.Add("- "+p.Name, report.Millis(p.Start), report.Millis(p.Duration))
		}
	}
	return t
}

// Write writes coldstart-vllm.json and coldstart-vllm.md.
func (r EngineResult) Write(dir string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Cold starts of vLLM %s\n\n%s · commit %s · %s\n\n`%s`\n\n", r.Version, r.At.Format("2006-01-02 15:04 UTC"), r.Commit,
		r.Machine, r.Command)
	b.WriteString(r.Table().Markdown() + "\n" + r.Judged().Markdown() + "\n")
	fmt.Fprintf(&b, "The imports that a warm interpreter does once took it %.1f s.", r.Imports)
	if m := r.Memory; m != nil {
		fmt.Fprintf(&b, " Alone it has %d MiB; with %d engines all have %d MiB, %d plain ones %d MiB (PSS).", m.Parent>>20, served3, m.Warm>>20,
			served3, m.Plain>>20)
	}
	b.WriteString("\n\nEach round takes every way once; first token is from asking to the first text, by the client's clock. Processor " +
		"time is that of all processes of the way until then.\n")
	for _, method := range []string{WithForkServer, WithoutForkServer} {
		fmt.Fprintf(&b, "\n## Where the time goes: %s, median start\n\n%s", method, r.Parts(method).Markdown())
	}
	return errors.Join(report.WriteJSON(dir, "coldstart-vllm.json", r), report.WriteFile(dir, "coldstart-vllm.md", []byte(b.String())))
}
