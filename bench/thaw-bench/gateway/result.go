package gateway

import (
	"fmt"

	"github.com/thaw-dev/thaw/bench/report"
)

// Kind is the kind of the result's document.
const Kind = "GatewayBench"

// Cost is one gateway under one load.
type Cost struct {
	Gateway string    `json:"gateway"`
	Load    string    `json:"load"`
	Micros  []float64 `json:"cpu_us_per_request"` // one per round
	Median  float64   `json:"median_us"`
	Ratio   float64   `json:"ratio_to_nginx,omitempty"`
	Checked int       `json:"answers_checked"`
	Wrong   int       `json:"answers_wrong"`
}

// Held is the memory of queued requests.
type Held struct {
	Stream     bool    `json:"stream"`
	Requests   int     `json:"requests"`
	Before     int64   `json:"rss_before_bytes"`
	After      int64   `json:"rss_after_bytes"`
	PerRequest float64 `json:"bytes_per_request"`
	Left       float64 `json:"all_left_noticed_seconds"` // from the clients' disconnects until none is queued
}

// Release is the delay from an engine's readiness to the arrival of queued requests, by
// the engine's clock from the write of its warm-up answer.
type Release struct {
	Wakes   int            `json:"wakes"`
	First   report.Summary `json:"first_held_byte_seconds"`
	Waiters int            `json:"waiters"`
	Last    report.Summary `json:"last_waiter_seconds"`
}

// ZeroToOne is a local cold start of an engine that is ready at once.
type ZeroToOne struct {
	Total report.Summary `json:"request_to_answer_seconds"`
	Own   report.Summary `json:"engine_alone_exec_to_answer_seconds"`
	Added float64        `json:"added_seconds"` // difference of the medians
}

// Result is the benchmark's document. Parts that were skipped are nil.
type Result struct {
	report.Provenance
	Engine    string       `json:"engine"`
	Missing   []string     `json:"peers_not_found,omitempty"`
	CPU       []Cost       `json:"cpu,omitempty"`
	Held      []Held       `json:"held,omitempty"`
	Release   *Release     `json:"release,omitempty"`
	ZeroToOne *ZeroToOne   `json:"zero_to_one,omitempty"`
	Goals     report.Goals `json:"goals"`
}

// ratios sets each gateway's ratio to nginx under the same load.
func ratios(costs []Cost) {
	base := map[string]float64{}
	for i := range costs {
		costs[i].Median = report.Quantile(costs[i].Micros, 0.5)
		if costs[i].Gateway == Nginx {
			base[costs[i].Load] = costs[i].Median
		}
	}
	for i := range costs {
		if b := base[costs[i].Load]; b > 0 {
			costs[i].Ratio = costs[i].Median / b
		}
	}
}

// checkGoals compares the result with the goals.
func checkGoals(r Result) report.Goals {
	var goals report.Goals
	add := goals.Add
	for _, c := range r.CPU {
		if c.Gateway == Thaw && c.Ratio > 0 {
			add(c.Ratio <= 1.5, "CPU per request, "+c.Load, "at most 1.5x nginx", fmt.Sprintf("%.2fx", c.Ratio))
		}
	}
	if x := r.Release; x != nil {
		add(x.First.P99 < 0.001, fmt.Sprintf("readiness to the first held byte, p99 of %d wakes", x.Wakes), "under 1 ms",
			report.Millis(x.First.P99))
		if x.Waiters > 0 {
			add(x.Last.Max < 0.050, fmt.Sprintf("the last of %d waiters, %d at once", x.Waiters, heldTarget), "under 50 ms",
				report.Millis(x.Last.Max))
		}
	}
	if x := r.ZeroToOne; x != nil {
		add(x.Added < 0.050, "local 0→1 above the engine's own start", "under 50 ms", report.Millis(x.Added))
	}
	return goals
}

// Tables returns the result as tables with headings.
func (r Result) Tables() []report.Part {
	var out []report.Part
	if len(r.CPU) > 0 {
		t := &report.Table{Head: []string{"load", "gateway", "CPU µs a request, median", "lowest", "highest", "ratio to nginx", "answers checked", "wrong"}}
		for _, c := range r.CPU {
			ratio := "–"
			if c.Ratio > 0 {
				ratio = fmt.Sprintf("%.2f", c.Ratio)
			}
			t.Add(c.Load, c.Gateway, fmt.Sprintf("%.1f", c.Median), fmt.Sprintf("%.1f", report.Quantile(c.Micros, 0)),
				fmt.Sprintf("%.1f", report.Quantile(c.Micros, 1)), ratio, c.Checked, c.Wrong)
		}
		out = append(out, report.Part{Heading: "CPU of the gateway's processes", Table: t})
	}
	if len(r.Held) > 0 {
		t := &report.Table{Head: []string{"held requests", "count", "memory each", "resident before", "with all held", "all noticed to have left after"}}
		for _, h := range r.Held {
			kind := "plain"
			if h.Stream {
				kind = "streams"
			}
			mib := func(b int64) string { return fmt.Sprintf("%.1f MiB", float64(b)/(1<<20)) }
			t.Add(kind, h.Requests, fmt.Sprintf("%.1f KiB", h.PerRequest/1024), mib(h.Before), mib(h.After), report.Millis(h.Left))
		}
		out = append(out, report.Part{Heading: "Memory of held requests", Table: t})
	}
	summary := func(t *report.Table, what string, s report.Summary) {
		t.Add(what, s.N, report.Millis(s.P50), report.Millis(s.P90), report.Millis(s.P99), report.Millis(s.Max))
	}
	head := []string{"", "n", "p50", "p90", "p99", "max"}
	if x := r.Release; x != nil {
		t := &report.Table{Head: head}
		summary(t, "first held byte", x.First)
		if x.Waiters > 0 {
			summary(t, fmt.Sprintf("last of %d waiters, %d at once", x.Waiters, heldTarget), x.Last)
		}
		out = append(out, report.Part{Heading: "From the engine's readiness (its own clock) to held requests arriving", Table: t})
	}
	if x := r.ZeroToOne; x != nil {
		t := &report.Table{Head: head}
		summary(t, "request to answer, from zero replicas", x.Total)
		summary(t, "the engine alone, exec to answer", x.Own)
		out = append(out, report.Part{Heading: "A local 0→1 of an engine that is up at once", Table: t})
	}
	return append(out, r.Goals.Parts()...)
}

// Markdown returns the report as a page.
func (r Result) Markdown() string {
	return r.Page("What a request through thaw costs",
		"Engine: "+r.Engine+". Interleaved rounds, medians; every answer compared byte for byte with what the engine sent.",
		r.Missing, r.Tables())
}

// Write writes gateway.json and gateway.md.
func (r Result) Write(dir string) error { return report.Write(dir, "gateway", r, r.Markdown()) }
