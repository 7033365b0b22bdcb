package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Bar is one row of a waterfall. Times are seconds from the chart's zero.
type Bar struct {
	Label    string
	Start    float64
	Duration float64
	Class    string // colour: a phase's name, or "total"
}

// Waterfall is a chart of phases that follow each other in time.
type Waterfall struct {
	Title string
	Sub   string
	Bars  []Bar
}

// style supports light and dark mode; neighbouring colours are distinct for red-green
// colour-blind readers.
const style = `
.w{font:13px system-ui,-apple-system,"Segoe UI",sans-serif}
.w .paper{fill:#fff}.w text{fill:#1d2733}.w .dim{fill:#5b6773}.w .grid{stroke:#d9dfe5}
.w .queue{fill:#8a97a5}.w .place{fill:#5f6f7f}.w .stage{fill:#2f7fd1}.w .spawn{fill:#e08a1e}.w .load{fill:#7a5cc4}.w .warmup{fill:#c2407a}.w .first_token{fill:#1f9d8a}.w .total{fill:#33485c}
@media (prefers-color-scheme:dark){
.w .paper{fill:#12181f}.w text{fill:#e6ebf0}.w .dim{fill:#9aa7b4}.w .grid{stroke:#2b3641}
.w .queue{fill:#74828f}.w .place{fill:#a3b1be}.w .stage{fill:#5aa2ec}.w .spawn{fill:#f0a94a}.w .load{fill:#a58bea}.w .warmup{fill:#e26a9f}.w .first_token{fill:#41c4b0}.w .total{fill:#c3d0dc}}
`

const (
	wide    = 760
	left    = 130 // width of the labels
	right   = 90  // width of the times after the bars
	row     = 26
	header  = 58
	footer  = 34
	barHigh = 14
)

// SVG returns the chart as a standalone document.
func (w Waterfall) SVG() string {
	end := 0.0
	for _, b := range w.Bars {
		end = math.Max(end, b.Start+b.Duration)
	}
	step := tickStep(end)
	high := header + row*len(w.Bars) + footer
	scale := float64(wide-left-right) / math.Max(end, 1e-9)
	x := func(t float64) float64 { return left + t*scale }

	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" class="w" role="img" aria-label="%s" viewBox="0 0 %d %d" width="%d" height="%d"><style>%s</style>`,
		html.EscapeString(w.Title), wide, high, wide, high, style)
	fmt.Fprintf(&s, `<rect class="paper" width="%d" height="%d" rx="8"/>`, wide, high)
	fmt.Fprintf(&s, `<text x="16" y="24" font-size="15" font-weight="600">%s</text>`, html.EscapeString(w.Title))
	fmt.Fprintf(&s, `<text class="dim" x="16" y="43" font-size="12">%s</text>`, html.EscapeString(w.Sub))
	bottom := header + row*len(w.Bars)
	for i := 0; float64(i)*step <= end*1.0001 && i < 50; i++ {
		t := float64(i) * step
		fmt.Fprintf(&s, `<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, x(t), header, x(t), bottom)
		fmt.Fprintf(&s, `<text class="dim" x="%.1f" y="%d" font-size="11" text-anchor="middle">%s</text>`, x(t), bottom+18, formatAxis(t, step))
	}
	for i, b := range w.Bars {
		y := header + row*i
		fmt.Fprintf(&s, `<text x="16" y="%d">%s</text>`, y+17, html.EscapeString(b.Label))
		// A phase of microseconds stays visible.
		width := math.Max(b.Duration*scale, 1.5)
		fmt.Fprintf(&s, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="2"/>`, html.EscapeString(b.Class), x(b.Start), y+6, width, barHigh)
		fmt.Fprintf(&s, `<text class="dim" x="%.1f" y="%d" font-size="12">%s</text>`, x(b.Start)+width+6, y+17, Millis(b.Duration))
	}
	s.WriteString(`</svg>`)
	return s.String()
}

// tickStep returns 1, 2 or 5 times a power of ten, for four to ten lines.
func tickStep(end float64) float64 {
	if end <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(end/4)))
	for _, m := range []float64{1, 2, 5} {
		if end/(unit*m) <= 8 {
			return unit * m
		}
	}
	return unit * 10
}

// formatAxis formats a label of the time axis in a unit that suits the step.
func formatAxis(t, step float64) string {
	switch {
	case t == 0:
		return "0"
	case step >= 1:
		return fmt.Sprintf("%g s", math.Round(t))
	case step >= 1e-3:
		return fmt.Sprintf("%g ms", math.Round(t*1e3))
	}
	return fmt.Sprintf("%g µs", math.Round(t*1e6))
}
