package study

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// The charts are inline SVG without script, font or URL. The title of a mark has its
// exact value; browsers show it on hover.
const (
	chartWide = 760
	chartHigh = 300
	leftEdge  = 64
	rightEdge = 20
	topEdge   = 26
	lowEdge   = 46
)

// axis maps values to coordinates. A logarithmic one starts above 0.
type axis struct {
	low, high float64
	log       bool
	from, to  float64 // coordinates
}

func (a axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log10(max(v, a.low)), math.Log10(low), math.Log10(high)
	}
	if high <= low {
		return a.from
	}
	return a.from + (min(max(v, low), high)-low)/(high-low)*(a.to-a.from)
}

// marks returns the grid lines: powers of ten, or round numbers.
func (a axis) marks() (out []float64) {
	if a.log {
		steps := []float64{1, 3}
		if math.Log10(a.high/a.low) > 4 {
			steps = steps[:1]
		}
		for p := math.Floor(math.Log10(a.low)); p <= math.Ceil(math.Log10(a.high)); p++ {
			for _, m := range steps {
				if v := m * math.Pow(10, p); v >= a.low*0.999 && v <= a.high*1.001 {
					out = append(out, v)
				}
			}
		}
		return out
	}
	step := roundStep(a.high - a.low)
	for v := math.Ceil(a.low/step) * step; v <= a.high+step/1000; v += step {
		out = append(out, v)
	}
	return out
}

// roundStep divides a span into four to ten round steps.
func roundStep(span float64) float64 {
	if !(span > 0) {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(span/4)))
	for _, m := range []float64{1, 2, 5} {
		if span/(unit*m) <= 7 {
			return unit * m
		}
	}
	return unit * 10
}

// chart is a diagram with two axes.
type chart struct {
	b    strings.Builder
	x, y axis
}

func newChart(label string, x, y axis, xName, yName string, xFormat, yFormat func(float64) string) *chart {
	c := &chart{x: x, y: y}
	c.x.from, c.x.to = leftEdge, chartWide-rightEdge
	c.y.from, c.y.to = chartHigh-lowEdge, topEdge
	fmt.Fprintf(&c.b, `<svg role="img" aria-label="%s" viewBox="0 0 %d %d">`, html.EscapeString(label), chartWide, chartHigh)
	for _, v := range c.y.marks() {
		y := c.y.at(v)
		fmt.Fprintf(&c.b, `<line class="grid" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/><text class="dim" x="%d" y="%.1f" text-anchor="end">%s</text>`,
			leftEdge, y, chartWide-rightEdge, y, leftEdge-8, y+4, html.EscapeString(yFormat(v)))
	}
	for _, v := range c.x.marks() {
		x := c.x.at(v)
		fmt.Fprintf(&c.b, `<line class="grid" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/><text class="dim" x="%.1f" y="%d" text-anchor="middle">%s</text>`,
			x, topEdge, x, chartHigh-lowEdge, x, chartHigh-lowEdge+16, html.EscapeString(xFormat(v)))
	}
	fmt.Fprintf(&c.b, `<text class="dim" x="%d" y="%d" text-anchor="end">%s</text><text class="dim" x="%d" y="12">%s</text>`,
		chartWide-rightEdge, chartHigh-8, html.EscapeString(xName), 4, html.EscapeString(yName))
	return c
}

// point is a point of a line or of an area's edge.
type point struct{ x, y float64 }

// line draws a curve of colour n; dots mark its points.
func (c *chart) line(n int, name string, points []point, dots func(p point) string) {
	if len(points) == 0 {
		return
	}
	// Dashes keep lines visible that lie on top of each other.
	dash := []string{"", ` stroke-dasharray="9 4"`, ` stroke-dasharray="3 3"`, ` stroke-dasharray="12 3 3 3"`}[n%4]
	fmt.Fprintf(&c.b, `<polyline class="l c%d"%s points="`, n%colours, dash)
	for _, p := range points {
		fmt.Fprintf(&c.b, "%.1f,%.1f ", c.x.at(p.x), c.y.at(p.y))
	}
	fmt.Fprintf(&c.b, `"><title>%s</title></polyline>`, html.EscapeString(name))
	if dots == nil {
		return
	}
	for _, p := range points {
		fmt.Fprintf(&c.b, `<circle class="f c%d" cx="%.1f" cy="%.1f" r="4"><title>%s</title></circle>`, n%colours, c.x.at(p.x), c.y.at(p.y), html.EscapeString(dots(p)))
	}
}

// area fills between two edges with the same x values.
func (c *chart) area(class, name string, low, high []point) {
	fmt.Fprintf(&c.b, `<polygon class="%s" points="`, class)
	for _, p := range high {
		fmt.Fprintf(&c.b, "%.1f,%.1f ", c.x.at(p.x), c.y.at(p.y))
	}
	for i := len(low) - 1; i >= 0; i-- {
		fmt.Fprintf(&c.b, "%.1f,%.1f ", c.x.at(low[i].x), c.y.at(low[i].y))
	}
	fmt.Fprintf(&c.b, `"><title>%s</title></polygon>`, html.EscapeString(name))
}

// level draws a dashed horizontal line.
func (c *chart) level(y float64, name string) {
	at := c.y.at(y)
	fmt.Fprintf(&c.b, `<line class="level" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/><text class="dim" x="%d" y="%.1f" text-anchor="end">%s</text>`,
		leftEdge, at, chartWide-rightEdge, at, chartWide-rightEdge-4, at-5, html.EscapeString(name))
}

func (c *chart) String() string { return c.b.String() + "</svg>" }

// part is one segment of a bar.
type part struct {
	class string
	name  string
	value float64
}

// bar is one row of a bar chart.
type bar struct {
	label, note string
	parts       []part
}

// drawBars draws rows of stacked segments.
func drawBars(label string, rows []bar, text func(float64) string) string {
	const row, high = 30, 18
	maximum, widest := 0.0, 4
	for _, r := range rows {
		sum := 0.0
		for _, p := range r.parts {
			sum += p.value
		}
		maximum = max(maximum, sum)
		widest = max(widest, len(r.label))
	}
	left := float64(min(widest*8+16, 260))
	const right = 150
	scale := (chartWide - left - right) / max(maximum, 1e-9)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg role="img" aria-label="%s" viewBox="0 0 %d %d">`, html.EscapeString(label), chartWide, len(rows)*row+6)
	for i, r := range rows {
		y, x := i*row+4, left
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="end">%s</text>`, left-10, y+14, html.EscapeString(r.label))
		for _, p := range r.parts {
			w := p.value * scale
			if w <= 0 {
				continue
			}
			fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s: %s %s</title></rect>`,
				p.class, x, y, max(w, 0.5), high, html.EscapeString(r.label), html.EscapeString(p.name), html.EscapeString(text(p.value)))
			x += w
		}
		fmt.Fprintf(&b, `<text class="dim" x="%.1f" y="%d">%s</text>`, x+8, y+14, html.EscapeString(r.note))
	}
	b.WriteString("</svg>")
	return b.String()
}

// legend draws colour names from alternating classes and names.
func legend(pairs ...string) string {
	var b strings.Builder
	b.WriteString(`<p class="legend">`)
	for i := 0; i+1 < len(pairs); i += 2 {
		fmt.Fprintf(&b, `<span><i class="%s"></i>%s</span>`, pairs[i], html.EscapeString(pairs[i+1]))
	}
	b.WriteString("</p>")
	return b.String()
}

// formatNumber formats an axis label with up to three decimals.
func formatNumber(v float64) string { return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64) }

func percent(v float64) string { return formatNumber(v*100) + " %" }

// formatSeconds formats a power of ten, or three times one, of seconds.
func formatSeconds(v float64) string {
	if v < 0.9995 {
		return formatNumber(v*1e3) + " ms"
	}
	return formatNumber(v) + " s"
}

func share(v float64) string { return strconv.FormatFloat(v*100, 'f', precision(v*100), 64) + " %" }

// precision returns the decimals for about three significant digits.
func precision(v float64) int {
	switch {
	case v == 0 || v >= 100:
		return 0
	case v >= 10:
		return 1
	}
	return 2
}

// Seconds formats a number of seconds for people.
func Seconds(v float64) string {
	switch {
	case v <= 0:
		return "0"
	case v < 0.0995:
		return strconv.FormatFloat(v*1e3, 'g', 2, 64) + " ms"
	case v < 0.9995:
		return strconv.FormatFloat(v*1e3, 'f', 0, 64) + " ms"
	case v < 99.5:
		return strconv.FormatFloat(v, 'g', 3, 64) + " s"
	case v < 3600:
		return strconv.FormatFloat(math.Round(v/6)/10, 'f', -1, 64) + " min"
	}
	return strconv.FormatFloat(math.Round(v/360)/10, 'f', -1, 64) + " h"
}

// Count formats a number with thousands separators.
func Count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Hours formats a number of hours.
func Hours(v float64) string { return strconv.FormatFloat(v, 'f', precision(v), 64) }
