package study

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// The edges of a chart's area, as page.html draws it.
const (
	chartWidth = 760
	leftEdge   = 64
	rightEdge  = 740
	topEdge    = 26
	lowEdge    = 254
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
	return roundTenth(a.from + (min(max(v, low), high)-low)/(high-low)*(a.to-a.from))
}

func (a axis) labelled(format func(float64) string) []mark {
	return functions.ConvertAll(a.marks(), func(v float64) mark { return mark{a.at(v), format(v)} })
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

// roundTenth rounds a coordinate to what can be seen.
func roundTenth(v float64) float64 { return math.Round(v*10) / 10 }

// chart is a diagram with two axes. Its fields are in coordinates.
type chart struct {
	Label, XName, YName string
	Policy              string // of the run that is shown; "" for all
	XMarks, YMarks      []mark
	Level               *mark // a dashed horizontal line; nil for none
	Areas, Lines        []curve
	x, y                axis
}

// mark is a labelled position on an axis.
type mark struct {
	At   float64
	Text string
}

// curve is a line, or the edge of an area.
type curve struct {
	label
	Dashes string
	Points string // X,Y X,Y …
	Dots   []dot
}

// dot is a marked point of a line.
type dot struct {
	X, Y float64
	Text string
}

func newChart(label string, x, y axis, xName, yName string, xFormat, yFormat func(float64) string) *chart {
	x.from, x.to = leftEdge, rightEdge
	y.from, y.to = lowEdge, topEdge
	return &chart{Label: label, XName: xName, YName: yName, x: x, y: y, XMarks: x.labelled(xFormat), YMarks: y.labelled(yFormat)}
}

// point is a point of a line or of an area's edge, in values.
type point struct{ x, y float64 }

const colours = 8

// colourOf returns the class of the colour of the n-th policy.
func colourOf(n int) string { return "c" + strconv.Itoa(n%colours) }

// line draws a curve of colour n; dots, if not nil, labels its points.
func (c *chart) line(n int, name string, points []point, dots func(p point) string) {
	if len(points) == 0 {
		return
	}
	// Dashes keep lines visible that lie on top of each other.
	dashes := []string{"none", "9 4", "3 3", "12 3 3 3"}[n%4]
	l := curve{label: label{colourOf(n), name}, Dashes: dashes, Points: c.coordinates(points)}
	for _, p := range points {
		if dots != nil {
			l.Dots = append(l.Dots, dot{c.x.at(p.x), c.y.at(p.y), dots(p)})
		}
	}
	c.Lines = append(c.Lines, l)
}

func (c *chart) coordinates(points []point) string {
	var b strings.Builder
	for _, p := range points {
		fmt.Fprintf(&b, "%v,%v ", c.x.at(p.x), c.y.at(p.y))
	}
	return b.String()
}

// area fills between two edges with the same x values.
func (c *chart) area(name string, low, high []point) {
	back := slices.Clone(low)
	slices.Reverse(back)
	c.Areas = append(c.Areas, curve{label: label{name, name}, Points: c.coordinates(slices.Concat(high, back))})
}

// bars are rows of stacked segments.
type bars struct {
	Label    string
	Height   int
	LabelEnd float64 // where the rows' labels end
	Rows     []bar
}

type bar struct {
	Label, Note string
	Y           int
	NoteX       float64
	Parts       []part
}

type part struct {
	label
	Text     string
	Y        int
	X, Width float64
	value    float64
}

// newBars lays out rows of which labels, notes and the values of parts are set.
func newBars(title string, rows []bar, text func(float64) string) bars {
	const rowHeight, noteWidth = 30, 150
	maximum, widest := 1e-9, 4
	for _, r := range rows {
		sum := 0.0
		for _, p := range r.Parts {
			sum += p.value
		}
		maximum, widest = max(maximum, sum), max(widest, len(r.Label))
	}
	left := float64(min(widest*8+16, 260))
	scale := (chartWidth - left - noteWidth) / maximum
	for i := range rows {
		r := &rows[i]
		r.Parts = slices.DeleteFunc(r.Parts, func(p part) bool { return p.value <= 0 })
		r.Y = i*rowHeight + 4
		x := left
		for j := range r.Parts {
			p := &r.Parts[j]
			p.X, p.Y, p.Width = roundTenth(x), r.Y, roundTenth(max(p.value*scale, 0.5))
			p.Text = fmt.Sprintf("%s: %s %s", r.Label, p.Name, text(p.value))
			x += p.value * scale
		}
		r.NoteX = roundTenth(x + 8)
	}
	return bars{Label: title, Height: len(rows)*rowHeight + 6, LabelEnd: left - 10, Rows: rows}
}

func wholeNumber(v float64) string { return strconv.Itoa(int(math.Round(v))) }

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

func Hours(v float64) string { return strconv.FormatFloat(v, 'f', precision(v), 64) }
