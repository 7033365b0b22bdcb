package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/runtime/engine"
)

// hangDetector decides from an engine's metrics whether to suspect that it hangs.
// It is pure: readings and times in, verdict out.
type hangDetector struct {
	hang  time.Duration // no token for so long once tokens flowed
	first time.Duration // no token for so long before a request's first

	moved   time.Time // when a token last came, or a request into an idle engine
	heard   time.Time // when /metrics last answered
	tokens  float64
	flowed  bool // tokens came since the engine became busy
	busy    bool
	seen    bool      // there was a reading
	calm    bool      // there was one of an idle engine, so settled holds
	settled int       // first tokens less finished requests, when it was idle
	due     time.Time // when a suspicion would be due, as things are; zero for none
}

func newHangDetector(hang, first time.Duration, now time.Time) *hangDetector {
	return &hangDetector{hang: hang, first: first, moved: now, heard: now}
}

// observe takes one reading, asked for at one time and had at another: what it
// shows of tokens it shows of the first; what it returns, if not "", is the suspicion.
func (w *hangDetector) observe(asked, now time.Time, m engine.Metrics, err error) string {
	w.due = time.Time{}
	switch {
	case errors.Is(err, engine.ErrNoMetrics):
		w.heard = now
		return ""
	case err != nil:
		w.due = w.heard.Add(w.hang)
		if silent := now.Sub(w.heard); silent >= w.hang {
			return fmt.Sprintf("/metrics not answered for %s", silent.Round(time.Second))
		}
		return ""
	}
	w.heard = now
	first := !w.seen
	w.seen = true
	open := m.FirstTokens - m.Finished
	if m.Running+m.Waiting == 0 {
		w.busy, w.flowed, w.moved, w.tokens = false, false, asked, m.Tokens
		w.calm, w.settled = true, open
		return ""
	}
	w.due = asked.Add(w.hang)
	if !w.busy {
		// Tokens may have come, and stopped, since the last look.
		w.busy, w.flowed, w.moved, w.tokens = true, !first && m.Tokens != w.tokens, asked, m.Tokens
		return ""
	}
	if m.Tokens != w.tokens { // less: it was restarted behind our back
		w.flowed, w.moved, w.tokens = true, asked, m.Tokens
		return ""
	}
	if !m.Flow {
		w.due = time.Time{}
		return ""
	}
	// Requests that run and have had no token yet may be long prompts; where
	// the engine counts first tokens we know whether there are such.
	fresh := !w.flowed
	if m.Counted && w.calm {
		fresh = m.Running == 0 || m.Running > open-w.settled
	}
	bound := w.hang
	if fresh {
		bound = w.first
	}
	w.due = w.moved.Add(bound)
	if still := now.Sub(w.moved); still >= bound {
		return fmt.Sprintf("no token for %s with %d requests running", still.Round(time.Second), m.Running)
	}
	return ""
}

// next is how long the next look may wait.
func (w *hangDetector) next(now time.Time) time.Duration {
	if !w.busy && w.due.IsZero() {
		return pollEvery
	}
	d := busyEvery
	if left := w.due.Sub(now); !w.due.IsZero() && left > 0 && left < d {
		d = left
	}
	return max(d, 20*time.Millisecond)
}

// cleared: the suspicion was wrong; the next comes no sooner than a whole
// deadline from now.
func (w *hangDetector) cleared(now time.Time) { w.moved, w.heard = now, now }
