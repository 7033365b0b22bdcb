package study

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

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

// pageStyle supports light and dark mode; neighbouring colours are distinct for
// red-green colour-blind readers.
const pageStyle = `
:root{color-scheme:light dark;--paper:#f6f8fa;--card:#fff;--ink:#1d2733;--dim:#5b6773;--line:#d9dfe5;--soft:#eef2f6;
--c0:#2f7fd1;--c1:#d9801a;--c2:#1f9d8a;--c3:#c2407a;--c4:#7a5cc4;--c5:#8a7a10;--c6:#c9473c;--c7:#5f6f7f;
--busy:#1f9d8a;--idle:#8fb8e0;--loading:#e0a33a;--wasted:#c9473c;--free:#dfe5ea;--goal:#c9473c}
@media (prefers-color-scheme:dark){:root{--paper:#0c1116;--card:#12181f;--ink:#e6ebf0;--dim:#9aa7b4;--line:#2b3641;--soft:#18212a;
--c0:#5aa2ec;--c1:#f0a94a;--c2:#41c4b0;--c3:#e26a9f;--c4:#a58bea;--c5:#cdbb4b;--c6:#ef7a6f;--c7:#a3b1be;
--busy:#37b8a4;--idle:#3d6a98;--loading:#d79a3c;--wasted:#e0685e;--free:#26303a;--goal:#ef7a6f}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:2.5rem 1.25rem 4rem;background:var(--paper);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.6rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:0 0 .2rem}
p{margin:.3rem 0;color:var(--dim);overflow-wrap:anywhere}p.answer{color:var(--ink);font-size:1.05rem}
code{font:13px ui-monospace,SFMono-Regular,Menlo,monospace}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1.1rem 1.3rem 1.2rem;margin-top:1.2rem}
svg{display:block;width:100%;height:auto;margin-top:.7rem;font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
svg text{fill:var(--ink)}svg .dim{fill:var(--dim)}.grid{stroke:var(--line);stroke-width:1}.level{stroke:var(--goal);stroke-width:1.5;stroke-dasharray:5 4}
.paid polyline{stroke-dasharray:2 4}.l{fill:none;stroke-width:2.2;stroke-linejoin:round}.scroll{overflow-x:auto;margin-top:.6rem}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(22rem,1fr));gap:0 1.5rem}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;width:100%}th{font-weight:600;color:var(--dim)}
th,td{padding:.32rem .7rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}
tbody tr:last-child td{border-bottom:0}tbody tr.best td{background:var(--soft)}tr.bound td{color:var(--dim);font-style:italic}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;font-size:13px;margin-top:.5rem}.legend i{display:inline-block;width:.75rem;height:.75rem;border-radius:3px;margin-right:.4rem;vertical-align:-1px;border:0}
`

const colours = 8

func colourRules() string {
	var b strings.Builder
	for i := range colours {
		fmt.Fprintf(&b, ".l.c%[1]d{stroke:var(--c%[1]d)}.f.c%[1]d{fill:var(--c%[1]d)}i.c%[1]d{background:var(--c%[1]d)}\n", i)
	}
	for _, k := range kinds {
		fmt.Fprintf(&b, "svg .%[1]s{fill:var(--%[1]s)}i.%[1]s{background:var(--%[1]s)}\n", k.class)
	}
	return b.String()
}

// kinds are the uses of GPU-hours.
var kinds = []struct {
	class, name string
	of          func(simulate.GPUHours) float64
}{
	{"busy", "busy", func(h simulate.GPUHours) float64 { return h.Busy }},
	{"loading", "loading", func(h simulate.GPUHours) float64 { return h.Loading }},
	{"idle", "idle", func(h simulate.GPUHours) float64 { return h.Idle }},
	{"wasted", "wasted", func(h simulate.GPUHours) float64 { return h.Wasted }},
	{"free", "free", func(h simulate.GPUHours) float64 { return h.Free }},
}

// page is a page in construction.
type page struct {
	strings.Builder
	o *Outcome
	a About
}

// Page returns the outcome as one self-contained HTML page.
func (o *Outcome) Page(a About) string {
	p := &page{o: o, a: a}
	p.head()
	p.answers()
	p.table()
	if a.Sizing != nil && a.Sizing.High > a.Sizing.Low {
		p.curve()
	}
	at := o.shownRuns()
	p.firstTokens(at)
	p.cold(at)
	p.hours(at)
	p.overTime(at)
	p.teams(at)
	p.impossible()
	p.WriteString("</body></html>\n")
	return p.String()
}

// shownRuns returns the runs shown in charts of single runs: one per policy, at the size
// that reaches the goal, or else the largest.
func (o *Outcome) shownRuns() (out []Run) {
	var names []string
	for _, r := range o.Runs {
		if !slices.Contains(names, r.Policy.Text) {
			names = append(names, r.Policy.Text)
		}
	}
	maximum := 0
	for _, n := range o.Needs {
		maximum = max(maximum, n.GPUs)
	}
	for _, w := range names {
		var best *Run
		for i := range o.Runs {
			r := &o.Runs[i]
			if r.Policy.Text == w && (best == nil || r.GPUs > best.GPUs && (maximum == 0 || best.GPUs < maximum)) {
				best = r
			}
		}
		out = append(out, *best)
	}
	return out
}

func (p *page) f(format string, args ...any) { fmt.Fprintf(&p.Builder, format, args...) }

func (p *page) head() {
	version := ""
	if p.a.Version != "" {
		version = ", thaw " + escapeHTML(p.a.Version)
	}
	p.f(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark"><title>thaw simulate</title>
<style>%s%s</style></head><body>
<h1>thaw simulate</h1>
<p>%s</p>
<p>%s</p>
<p><code>%s</code></p>
<p>%s, seed %d%s</p>
`, pageStyle, colourRules(), escapeHTML(p.a.Trace), escapeHTML(p.a.Fleet), escapeHTML(p.a.Command), escapeHTML(p.a.Made.UTC().Format("2006-01-02 15:04 UTC")), p.a.Seed, version)
}

func escapeHTML(s string) string { return html.EscapeString(s) }

func (p *page) open(title, text string) {
	p.f("<section><h2>%s</h2>\n", escapeHTML(title))
	if text != "" {
		p.f("<p>%s</p>\n", escapeHTML(text))
	}
}

func (p *page) close() { p.WriteString("</section>\n") }

func (p *page) answers() {
	if len(p.o.Needs) == 0 {
		return
	}
	p.open("How many GPUs", "")
	for _, n := range p.o.Needs {
		p.f("<p class=\"answer\">%s</p>\n", escapeHTML(n.Sentence(p.o.Goal, p.a.Sizing)))
	}
	p.close()
}

// Column is a column of the table of runs: its head, and the one of its shorter form, which
// programs' terminals have.
type Column struct {
	Title, Head string
	Wide        bool // left out of a short table
	Cell        func(Run) string
}

// Columns are the columns of the table of runs.
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

func (p *page) table() {
	text := "TTFT is the time from a request's arrival to its first token. Cold requests found no replica READY and waited for one."
	if slices.ContainsFunc(p.o.Runs, func(r Run) bool { return r.Policy.Future }) {
		text += " " + Clairvoyant + " is told by the trace what comes: a bound, which nothing that runs can be."
	}
	p.open("Side by side", text)
	p.WriteString(`<div class="scroll"><table><thead><tr>`)
	for _, c := range Columns {
		p.f("<th>%s</th>", c.Title)
	}
	p.WriteString("</tr></thead><tbody>\n")
	best := p.o.best()
	for i := range p.o.Runs {
		r := &p.o.Runs[i]
		class := ""
		switch {
		case r.Policy.Future:
			class = ` class="bound"`
		case i == best && len(p.o.Runs) > 1:
			class = ` class="best"`
		}
		p.f("<tr%s>", class)
		for _, c := range Columns {
			p.f("<td>%s</td>", escapeHTML(c.Cell(*r)))
		}
		p.WriteString("</tr>\n")
	}
	p.WriteString("</tbody></table></div>\n")
	p.close()
}

// best returns the index of the run with the least cold share, among policies that exist
// outside simulation; -1 in a sweep.
func (o *Outcome) best() int {
	best := -1
	for i, r := range o.Runs {
		if r.GPUs != o.Runs[0].GPUs {
			return -1
		}
		if !r.Policy.Future && (best < 0 || r.Cold < o.Runs[best].Cold) {
			best = i
		}
	}
	return best
}

func (o *Outcome) byPolicy() (names []string, runs map[string][]Run) {
	runs = map[string][]Run{}
	for _, r := range o.Runs {
		if runs[r.Policy.Text] == nil {
			names = append(names, r.Policy.Text)
		}
		runs[r.Policy.Text] = append(runs[r.Policy.Text], r)
	}
	return names, runs
}

func (p *page) curve() {
	p.open("How many do I need", "The 99th percentile of the time to first token, and what it costs, by the number of GPUs.")
	words, runs := p.o.byPolicy()
	low, high, share0 := math.Inf(1), 0.1, 0.0
	for _, r := range p.o.Runs {
		low, high, share0 = min(low, max(r.TTFT.P99, 0.01)), max(high, r.TTFT.P99), max(share0, r.ColdShare)
	}
	if p.o.Goal > 0 {
		low, high = min(low, p.o.Goal.Seconds()), max(high, p.o.Goal.Seconds())
	}
	x := axis{low: float64(p.a.Sizing.Low), high: float64(p.a.Sizing.High)}
	whole := func(v float64) string { return strconv.Itoa(int(math.Round(v))) }
	c := newChart("p99 of the time to first token by GPUs", x, axis{low: low / 1.3, high: high * 1.3, log: true}, "GPUs",
		"p99 of the time to first token", whole, formatSeconds)
	if p.o.Goal > 0 {
		c.level(p.o.Goal.Seconds(), "goal "+Seconds(p.o.Goal.Seconds()))
	}
	var names []string
	for i, w := range words {
		names = append(names, fmt.Sprintf("c%d", i%colours), w)
		c.line(i, w, pointsOf(runs[w], func(r *Run) float64 { return max(r.TTFT.P99, 0.01) }), func(q point) string {
			return fmt.Sprintf("%s, %s GPUs: p99 %s", w, whole(q.x), Seconds(q.y))
		})
	}
	p.WriteString(c.String())
	hours := 0.0
	for _, r := range p.o.Runs {
		hours = max(hours, total(r.GPUHours))
	}
	c = newChart("GPU-hours by GPUs", x, axis{high: hours * 1.05}, "GPUs", "GPU-hours held by models, and all there are (dotted)", whole,
		formatNumber)
	for i, w := range words {
		c.line(i, w, pointsOf(runs[w], func(r *Run) float64 { return total(r.GPUHours) - r.GPUHours.Free }), func(q point) string {
			return fmt.Sprintf("%s, %s GPUs: %s GPU-hours held by models", w, whole(q.x), Hours(q.y))
		})
	}
	if len(words) > 0 {
		c.b.WriteString(`<g class="paid">`)
		c.line(7, "all GPU-hours", pointsOf(runs[words[0]], func(r *Run) float64 { return total(r.GPUHours) }), nil)
		c.b.WriteString(`</g>`)
	}
	p.WriteString(c.String())
	p.WriteString(legend(names...))
	p.close()
}

func total(h simulate.GPUHours) (sum float64) {
	for _, k := range kinds {
		sum += max(0, k.of(h))
	}
	return sum
}

func pointsOf(runs []Run, of func(*Run) float64) (out []point) {
	for i := range runs {
		out = append(out, point{float64(runs[i].GPUs), of(&runs[i])})
	}
	return out
}

func (p *page) firstTokens(runs []Run) {
	low, high := 0.01, 1.0
	for _, r := range runs {
		high = max(high, r.TTFT.Max)
	}
	p.open("Time to first token",
		"How many of a hundred requests had their first token within a time; to the right of the knee are the cold ones.")
	c := newChart("Distribution of the time to first token", axis{low: low, high: high * 1.05, log: true}, axis{high: 1},
		"time to first token", "share of requests", formatSeconds, percent)
	var names []string
	for i, r := range runs {
		var ps []point
		for _, s := range r.TTFTSteps {
			if s.Seconds >= low {
				ps = append(ps, point{s.Seconds, s.Share})
			}
		}
		c.line(i, r.Policy.Text, ps, nil)
		names = append(names, fmt.Sprintf("c%d", i%colours), r.Policy.Text)
	}
	p.WriteString(c.String())
	p.WriteString(legend(names...))
	p.close()
}

func (p *page) cold(runs []Run) {
	p.open("Cold requests",
		"Share of requests that waited for a replica, and how long the middle one and the slowest hundredth waited for their first token.")
	var rows []bar
	for i, r := range runs {
		rows = append(rows, bar{r.Policy.Text, share(r.ColdShare) + ", p99 " + Seconds(r.TTFTCold.P99), []part{{fmt.Sprintf("f c%d", i%colours), "cold share", r.ColdShare}}})
	}
	p.WriteString(drawBars("Cold share", rows, share))
	p.close()
}

func (p *page) hours(runs []Run) {
	p.open("GPU-hours", "What the GPUs were held for. Wasted is what was loaded and never served anybody, and the way down.")
	var rows []bar
	var names []string
	for _, k := range kinds {
		names = append(names, k.class, k.name)
	}
	for _, r := range runs {
		b := bar{label: r.Policy.Text, note: Hours(total(r.GPUHours)) + " h"}
		for _, k := range kinds {
			b.parts = append(b.parts, part{k.class, k.name, max(0, k.of(r.GPUHours))})
		}
		rows = append(rows, b)
	}
	p.WriteString(drawBars("GPU-hours by policy", rows, func(v float64) string { return Hours(v) + " GPU-hours" }))
	p.WriteString(legend(names...))
	p.close()
}

func (p *page) overTime(runs []Run) {
	if !slices.ContainsFunc(runs, func(r Run) bool { return len(r.Samples) > 1 }) {
		return
	}
	p.open("GPUs over time", "")
	for _, r := range runs {
		if len(r.Samples) < 2 {
			continue
		}
		end := r.Samples[len(r.Samples)-1].At
		unit, text := 3600.0, "hours"
		if end < 2*3600 {
			unit, text = 60, "minutes"
		}
		p.f("<p>%s</p>\n", escapeHTML(r.Policy.Text))
		c := newChart("GPUs over time under "+r.Policy.Text, axis{high: end / unit}, axis{high: float64(max(r.GPUs, 1))}, text, "GPUs",
			formatNumber, formatNumber)
		low := make([]point, len(r.Samples))
		for i, s := range r.Samples {
			low[i].x = s.At / unit
		}
		for _, k := range kinds[:4] {
			top := slices.Clone(low)
			for i, s := range r.Samples {
				top[i].y += k.of(s.GPUs)
			}
			c.area(k.class, k.name, low, top)
			low = top
		}
		p.WriteString(c.String())
	}
	var names []string
	for _, k := range kinds[:4] {
		names = append(names, k.class, k.name)
	}
	p.WriteString(legend(names...))
	p.close()
}

// mostTeams is the largest number of teams shown.
const mostTeams = 20

func (p *page) teams(runs []Run) {
	if !slices.ContainsFunc(runs, func(r Run) bool { return len(r.Teams) > 1 }) {
		return
	}
	p.open("Teams", "Waiting at the gate and GPU-hours held, for the "+strconv.Itoa(mostTeams)+
		" that ask most. Evictions are those its functions had others suffer, and suffered.")
	for _, r := range runs {
		teams := slices.SortedFunc(slices.Values(r.Teams), func(a, b simulate.Team) int {
			return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Name, b.Name))
		})
		p.f(`<p>%s</p><div class="scroll"><table><thead><tr><th>team</th><th>requests</th><th>cold</th><th>wait p50</th><th>p99</th><th>max</th><th>GPU-hours</th><th>refused</th><th>evicted others</th><th>was evicted</th></tr></thead><tbody>`+"\n", escapeHTML(r.Policy.Text))
		for _, t := range teams[:min(len(teams), mostTeams)] {
			p.f("<tr><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n",
				escapeHTML(t.Name), Count(t.Requests), Count(t.Cold),
				Seconds(t.WaitP50), Seconds(t.WaitP99), Seconds(t.WaitMax), Hours(t.GPUHours), Count(t.Refused), Count(t.Inflicted), Count(t.Suffered))
		}
		p.WriteString("</tbody></table></div>\n")
	}
	p.close()
}

func (p *page) impossible() {
	seen := map[string]bool{}
	var lines []string
	for _, r := range p.o.Runs {
		for _, m := range r.Impossible {
			line := fmt.Sprintf("%s on %s: %s", m.Name, gpuCount(r.GPUs), m.Why)
			if !seen[line] {
				seen[line] = true
				lines = append(lines, line)
			}
		}
	}
	if len(lines) == 0 {
		return
	}
	p.open("Models that no node can hold", "Requests for them were left out.")
	for _, l := range lines[:min(len(lines), 50)] {
		p.f("<p>%s</p>\n", escapeHTML(l))
	}
	p.close()
}
