package study

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate"
)

// About describes how a page's results were made.
type About struct {
	Command string
	Trace   string // description of the replayed trace
	Fleet   string
	Seed    uint64
	Made    time.Time
	Version string
	Sizing  *Sizing
}

//go:embed page.html
var pageHTML string

// pageTemplate is parsed for the first page, not at every start of the program.
var pageTemplate = sync.OnceValue(func() *template.Template {
	functions := template.FuncMap{"seconds": Seconds, "count": Count, "hours": Hours, "largest": largestTeams,
		"columns": func() []Column { return Columns }}
	return template.Must(template.New("page").Funcs(functions).Parse(pageHTML))
})

// kinds are the uses of GPU-hours.
var kinds = []struct {
	name string // also the class in page.html
	of   func(simulate.GPUHours) float64
}{
	{"busy", func(h simulate.GPUHours) float64 { return h.Busy }},
	{"loading", func(h simulate.GPUHours) float64 { return h.Loading }},
	{"idle", func(h simulate.GPUHours) float64 { return h.Idle }},
	{"wasted", func(h simulate.GPUHours) float64 { return h.Wasted }},
	{"free", func(h simulate.GPUHours) float64 { return h.Free }},
}

func total(h simulate.GPUHours) (sum float64) {
	for _, k := range kinds {
		sum += max(0, k.of(h))
	}
	return sum
}

type label struct{ Class, Name string }

type policyRuns struct {
	label
	runs []Run
}

type page struct {
	About
	*Outcome
	ReadsFuture bool // a policy does
	Best        int  // index of the best run; -1 for none
	Policies    []policyRuns
	Curves      []*chart // by the number of GPUs; empty if only one was tried
	FirstTokens *chart
	Cold, Hours bars
	Kinds       []label // of GPU-hours
	HeldKinds   []label // those of GPUs that are held
	OverTime    []*chart
	TeamRuns    []Run // with more than one team
	Impossible  []string
}

// Page returns the outcome as one self-contained HTML page.
func (o *Outcome) Page(a About) string {
	p := &page{About: a, Outcome: o, Best: o.best(), Impossible: o.impossible()}
	p.ReadsFuture = slices.ContainsFunc(o.Runs, func(r Run) bool { return r.Policy.Future })
	for _, k := range kinds {
		p.Kinds = append(p.Kinds, label{k.name, k.name})
	}
	p.HeldKinds = p.Kinds[:4]
	for _, r := range o.Runs {
		i := slices.IndexFunc(p.Policies, func(w policyRuns) bool { return w.Name == r.Policy.Text })
		if i < 0 {
			i = len(p.Policies)
			p.Policies = append(p.Policies, policyRuns{label: label{colourOf(i), r.Policy.Text}})
		}
		p.Policies[i].runs = append(p.Policies[i].runs, r)
	}
	if a.Sizing != nil && a.Sizing.High > a.Sizing.Low {
		p.Curves = []*chart{p.firstTokensByGPUs(), p.hoursByGPUs()}
	}
	shown := p.shownRuns()
	p.FirstTokens, p.Cold, p.Hours = firstTokens(shown), coldShares(shown), hoursByPolicy(shown)
	for _, r := range shown {
		if len(r.Samples) > 1 {
			p.OverTime = append(p.OverTime, overTime(r))
		}
		if len(r.Teams) > 1 {
			p.TeamRuns = append(p.TeamRuns, r)
		}
	}
	var b strings.Builder
	if err := pageTemplate().Execute(&b, p); err != nil {
		panic(err) // page.html does not fit page
	}
	return b.String()
}

// shownRuns returns the runs shown in charts of single runs: one per policy, at the size
// that reaches the goal, or else the largest.
func (p *page) shownRuns() (out []Run) {
	maximum := 0
	for _, n := range p.Needs {
		maximum = max(maximum, n.GPUs)
	}
	for _, w := range p.Policies {
		best := w.runs[0]
		for _, r := range w.runs[1:] {
			if r.GPUs > best.GPUs && (maximum == 0 || best.GPUs < maximum) {
				best = r
			}
		}
		out = append(out, best)
	}
	return out
}

// Column is a column of the table of runs: its head, and the one of its shorter form, which
// programs' terminals have.
type Column struct {
	Title, Head string
	Wide        bool // left out of a short table
	Cell        func(Run) string
}

var Columns = []Column{
	{"policy", "POLICY", false, func(r Run) string { return r.Policy.Text }},
	{"GPUs", "GPUS", false, func(r Run) string { return strconv.Itoa(r.GPUs) }},
	{"requests", "REQUESTS", false, func(r Run) string { return Count(r.Requests) }},
	{"cold", "COLD", false, func(r Run) string { return Count(r.Cold) }},
	{"cold share", "SHARE", false, func(r Run) string { return strconv.FormatFloat(r.ColdShare*100, 'f', 2, 64) + "%" }},
	{"TTFT p50", "P50", false, func(r Run) string { return Seconds(r.TTFT.P50) }},
	{"p90", "P90", false, func(r Run) string { return Seconds(r.TTFT.P90) }},
	{"p99", "P99", false, func(r Run) string { return Seconds(r.TTFT.P99) }},
	{"max", "MAX", false, func(r Run) string { return Seconds(r.TTFT.Max) }},
	{"warm p99", "WARM-P99", true, func(r Run) string { return Seconds(r.TTFTWarm.P99) }},
	{"cold p50", "COLD-P50", false, func(r Run) string { return Seconds(r.TTFTCold.P50) }},
	{"cold p99", "COLD-P99", true, func(r Run) string { return Seconds(r.TTFTCold.P99) }},
	{"GPU-h busy", "BUSY-H", false, func(r Run) string { return Hours(r.GPUHours.Busy) }},
	{"idle", "IDLE-H", false, func(r Run) string { return Hours(r.GPUHours.Idle) }},
	{"loading", "LOAD-H", false, func(r Run) string { return Hours(r.GPUHours.Loading) }},
	{"wasted", "WASTE-H", false, func(r Run) string { return Hours(r.GPUHours.Wasted) }},
	{"evictions", "EVICTED", false, func(r Run) string { return Count(r.Evictions) }},
	{"thrash", "THRASH", false, func(r Run) string { return Count(r.Thrash) }},
	{"refused", "REFUSED", false, func(r Run) string { return Count(r.AllRefused()) }},
}

// best returns the index of the run with the least cold share, among policies that exist
// outside simulation; -1 in a sweep, or of a single run.
func (o *Outcome) best() int {
	best := -1
	for i, r := range o.Runs {
		if len(o.Runs) == 1 || r.GPUs != o.Runs[0].GPUs {
			return -1
		}
		if !r.Policy.Future && (best < 0 || r.Cold < o.Runs[best].Cold) {
			best = i
		}
	}
	return best
}

// firstTokensByGPUs draws the p99 of the time to first token against the number of GPUs.
func (p *page) firstTokensByGPUs() *chart {
	low, high := math.Inf(1), 0.1
	for _, r := range p.Runs {
		low, high = min(low, max(r.TTFT.P99, 0.01)), max(high, r.TTFT.P99)
	}
	if p.Goal > 0 {
		low, high = min(low, p.Goal.Seconds()), max(high, p.Goal.Seconds())
	}
	c := newChart("p99 of the time to first token by GPUs", p.gpuAxis(), axis{low: low / 1.3, high: high * 1.3, log: true}, "GPUs",
		"p99 of the time to first token", wholeNumber, formatSeconds)
	if p.Goal > 0 {
		c.Level = &mark{c.y.at(p.Goal.Seconds()), "goal " + Seconds(p.Goal.Seconds())}
	}
	for i, w := range p.Policies {
		c.line(i, w.Name, pointsOf(w.runs, func(r *Run) float64 { return max(r.TTFT.P99, 0.01) }), func(q point) string {
			return fmt.Sprintf("%s, %s GPUs: p99 %s", w.Name, wholeNumber(q.x), Seconds(q.y))
		})
	}
	return c
}

// hoursByGPUs draws the GPU-hours against the number of GPUs.
func (p *page) hoursByGPUs() *chart {
	hours := 0.0
	for _, r := range p.Runs {
		hours = max(hours, total(r.GPUHours))
	}
	c := newChart("GPU-hours by GPUs", p.gpuAxis(), axis{high: hours * 1.05}, "GPUs", "GPU-hours held by models, and all there are (dotted)",
		wholeNumber, formatNumber)
	for i, w := range p.Policies {
		c.line(i, w.Name, pointsOf(w.runs, func(r *Run) float64 { return total(r.GPUHours) - r.GPUHours.Free }), func(q point) string {
			return fmt.Sprintf("%s, %s GPUs: %s GPU-hours held by models", w.Name, wholeNumber(q.x), Hours(q.y))
		})
	}
	if len(p.Policies) > 0 {
		c.line(7, "all GPU-hours", pointsOf(p.Policies[0].runs, func(r *Run) float64 { return total(r.GPUHours) }), nil)
		c.Lines[len(c.Lines)-1].Dashes = "2 4"
	}
	return c
}

func (p *page) gpuAxis() axis {
	return axis{low: float64(p.Sizing.Low), high: float64(p.Sizing.High)}
}

func pointsOf(runs []Run, of func(*Run) float64) []point {
	return functions.ConvertAll(runs, func(r Run) point { return point{float64(r.GPUs), of(&r)} })
}

func firstTokens(runs []Run) *chart {
	low, high := 0.01, 1.0
	for _, r := range runs {
		high = max(high, r.TTFT.Max)
	}
	c := newChart("Distribution of the time to first token", axis{low: low, high: high * 1.05, log: true}, axis{high: 1},
		"time to first token", "share of requests", formatSeconds, percent)
	for i, r := range runs {
		var ps []point
		for _, s := range r.TTFTSteps {
			if s.Seconds >= low {
				ps = append(ps, point{s.Seconds, s.Share})
			}
		}
		c.line(i, r.Policy.Text, ps, nil)
	}
	return c
}

func coldShares(runs []Run) bars {
	var rows []bar
	for i, r := range runs {
		rows = append(rows, bar{Label: r.Policy.Text, Note: share(r.ColdShare) + ", p99 " + Seconds(r.TTFTCold.P99),
			Parts: []part{{label: label{colourOf(i), "cold share"}, value: r.ColdShare}}})
	}
	return newBars("Cold share", rows, share)
}

func hoursByPolicy(runs []Run) bars {
	var rows []bar
	for _, r := range runs {
		b := bar{Label: r.Policy.Text, Note: Hours(total(r.GPUHours)) + " h"}
		for _, k := range kinds {
			b.Parts = append(b.Parts, part{label: label{k.name, k.name}, value: max(0, k.of(r.GPUHours))})
		}
		rows = append(rows, b)
	}
	return newBars("GPU-hours by policy", rows, func(v float64) string { return Hours(v) + " GPU-hours" })
}

// overTime draws how many GPUs a run held for what, over its samples.
func overTime(r Run) *chart {
	end := r.Samples[len(r.Samples)-1].At
	unit, text := 3600.0, "hours"
	if end < 2*3600 {
		unit, text = 60, "minutes"
	}
	c := newChart("GPUs over time under "+r.Policy.Text, axis{high: end / unit}, axis{high: float64(max(r.GPUs, 1))}, text, "GPUs",
		formatNumber, formatNumber)
	c.Policy = r.Policy.Text
	low := make([]point, len(r.Samples))
	for i, s := range r.Samples {
		low[i].x = s.At / unit
	}
	for _, k := range kinds[:4] {
		top := slices.Clone(low)
		for i, s := range r.Samples {
			top[i].y += k.of(s.GPUs)
		}
		c.area(k.name, low, top)
		low = top
	}
	return c
}

func largestTeams(all []simulate.Team) []simulate.Team {
	teams := slices.SortedFunc(slices.Values(all), func(a, b simulate.Team) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Name, b.Name))
	})
	return teams[:min(len(teams), 20)]
}

// impossible lists at most 50 models that no node can hold.
func (o *Outcome) impossible() (lines []string) {
	for _, r := range o.Runs {
		for _, m := range r.Impossible {
			line := fmt.Sprintf("%s on %s: %s", m.Name, functions.GPUCount(r.GPUs), m.Why)
			if len(lines) < 50 && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
