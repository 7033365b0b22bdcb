package kit

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

const (
	plainEvery = 5 * time.Second
	smoothOver = 10 * time.Second // of the rate shown
)

// ProgressLine shows progress on stderr: on a terminal one line that is rewritten,
// else a line per change of state or 5 s.
type ProgressLine struct {
	t     *Terminal
	state string
	last  time.Time
	drawn bool
}

func (t *Terminal) NewProgressLine() *ProgressLine { return &ProgressLine{t: t} }

// Show shows text. Without a terminal a change of state writes a line at once.
func (l *ProgressLine) Show(state, text string) {
	if l.t.Quiet {
		return
	}
	text = Plain(text)
	if l.t.ErrTTY {
		fmt.Fprintf(l.t.Err, "\r\x1b[K%s", fitColumns(text, l.t.width()-1))
		l.drawn = true
		return
	}
	now := l.t.Now()
	if state == l.state && now.Sub(l.last) < plainEvery {
		return
	}
	l.state, l.last = state, now
	fmt.Fprintln(l.t.Err, text)
}

// bar is what Bar draws, and the blank after it.
var bar = regexp.MustCompile(fmt.Sprintf(`\[[#.]{%d}\] ?`, barWide))

// fitColumns makes text fit into so many columns: first it leaves out the bar, whose percentage
// stands beside it, then it cuts the end.
func fitColumns(text string, columns int) string {
	if widthOf(text) > columns {
		text = bar.ReplaceAllString(text, "")
	}
	if widthOf(text) <= columns {
		return text
	}
	r := []rune(text)
	for len(r) > 0 && widthOf(string(r)) >= columns {
		r = r[:len(r)-1]
	}
	return string(r) + "…"
}

// Clear erases the rewritten line.
func (l *ProgressLine) Clear() {
	if l.drawn {
		fmt.Fprint(l.t.Err, "\r\x1b[K")
		l.drawn = false
	}
}

// Rate is bytes a second, smoothed: the display must not jump with every block.
type Rate struct {
	at    time.Time
	bytes functions.Bytes
	value float64
}

func (r *Rate) Add(now time.Time, bytes functions.Bytes) float64 {
	if dt := now.Sub(r.at); !r.at.IsZero() && dt > 0 && bytes >= r.bytes {
		weight := min(1, dt.Seconds()/smoothOver.Seconds()*2)
		if r.value == 0 {
			weight = 1
		}
		r.value += weight * (float64(bytes-r.bytes)/dt.Seconds() - r.value)
	}
	r.at, r.bytes = now, bytes
	return r.value
}

const barWide = 24

func Bar(percent int) string {
	n := min(max(percent, 0), 100) * barWide / 100
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", barWide-n) + "]"
}

const SegmentWidth = 40

// Segment draws with mark where a part of end seconds lies in them; it is at least one mark wide.
func Segment(mark string, start, duration, end float64) string {
	from, to := 0, 0
	if end > 0 {
		from = min(max(int(start/end*SegmentWidth), 0), SegmentWidth-1)
		to = min(max(int((start+duration)/end*SegmentWidth+0.5), from+1), SegmentWidth)
	}
	return strings.Repeat(" ", from) + strings.Repeat(mark, to-from)
}
