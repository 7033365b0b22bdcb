package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
)

const (
	ProgressEvery = 200 * time.Millisecond
	plainEvery    = 5 * time.Second
	smoothOver    = 10 * time.Second // of the rate shown
	askAgain      = 20 * time.Second // less than the least lease of a wake
)

// ProgressLine is the progress of one thing on stderr: one line that is rewritten on a
// terminal, else a line per change of state or 5 s.
type ProgressLine struct {
	c     *command
	now   func() time.Time
	state string
	last  time.Time
	drawn bool
}

func (c *command) NewProgressLine() *ProgressLine { return &ProgressLine{c: c, now: c.now} }

// Show shows text; state is what must change for a plain line to be written early.
func (l *ProgressLine) Show(state, text string) {
	if l.c.Quiet {
		return
	}
	text = Plain(text)
	if l.c.ErrTTY {
		if w := l.c.width() - 1; utf8.RuneCountInString(text) > w {
			text = string([]rune(text)[:w])
		}
		fmt.Fprintf(l.c.Err, "\r\x1b[K%s", text)
		l.drawn = true
		return
	}
	now := l.now()
	if state == l.state && now.Sub(l.last) < plainEvery {
		return
	}
	l.state, l.last = state, now
	fmt.Fprintln(l.c.Err, text)
}

// Clear takes the rewritten line away.
func (l *ProgressLine) Clear() {
	if l.drawn {
		fmt.Fprint(l.c.Err, "\r\x1b[K")
		l.drawn = false
	}
}

// Rate is bytes a second, smoothed: what is shown must not jump with every block.
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

// calledOff is what a timeline says of a start that nobody waited for any more.
const calledOff = "called_off"

const barWide = 24

func Bar(percent int) string {
	n := min(max(percent, 0), 100) * barWide / 100
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", barWide-n) + "]"
}

// describeProgress is one cold start in one line.
func describeProgress(name string, t api.ColdStart, bytesPerSecond float64) string {
	p := t.Progress
	parts := []string{name, t.State.Word()}
	if p.Percent >= 0 {
		parts = append(parts, Bar(p.Percent), fmt.Sprintf("%d%%", p.Percent))
	}
	if p.Total > 0 && t.State == functions.Downloading {
		parts = append(parts, p.Bytes.Human()+"/"+p.Total.Human())
		if bytesPerSecond > 0 {
			parts = append(parts, functions.Bytes(bytesPerSecond).Human()+"/s")
		}
	}
	if t.ETA != nil && *t.ETA > 0 {
		parts = append(parts, "eta "+Seconds(t.ETA))
	}
	return strings.Join(parts, " ")
}

// follow shows a cold start until it is READY. An id of "" is a function that is
// up already.
func (c *command) follow(ctx context.Context, cl *api.Client, name functions.Name, id string) error {
	if id == "" {
		return nil
	}
	l := c.NewProgressLine()
	defer l.Clear()
	var r Rate
	asked := c.now()
	for unknown := 0; ; {
		// A start that nobody waits for is called off; this one is waited for.
		if now := c.now(); now.Sub(asked) > askAgain {
			w, err := cl.Wake(ctx, name, 0)
			if err != nil {
				return err
			}
			if asked = now; w.ColdStart == "" {
				return nil
			}
			id = w.ColdStart
		}
		t, err := cl.ColdStart(ctx, id)
		if s, ok := errors.AsType[*api.StatusError](err); ok && s.Status == 404 && unknown < 50 {
			// The wake is an ask; the loop takes a moment to begin.
			unknown++
		} else if err != nil {
			return err
		} else {
			switch {
			case t.Error == calledOff:
				return &Error{Exit: ExitUnavailable, What: "the start of " + shortName(name.String()) + " was called off"}
			case t.Error != "" || t.State == functions.Failed:
				return &Error{Exit: ExitFailed, What: shortName(name.String()) + " could not be loaded: " + t.Error, Hint: "thaw logs " + shortName(name.String()) + " shows what its engine said"}
			case t.State == functions.Ready:
				return nil
			case t.State.Over():
				return &Error{Exit: ExitUnavailable, What: "the start of " + shortName(name.String()) + " was called off"}
			}
			l.Show(string(t.State), describeProgress(shortName(name.String()), t, r.Add(c.now(), t.Progress.Bytes)))
		}
		if err := sleepContext(ctx, ProgressEvery); err != nil {
			return err
		}
	}
}
