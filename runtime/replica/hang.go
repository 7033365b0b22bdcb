package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/runtime/engine"
)

// hangDetector decides from an engine's metrics whether it may hang. It is pure:
// times are arguments.
type hangDetector struct {
	hang  time.Duration // longest time without a token once tokens came
	first time.Duration // longest time before a request's first token

	moved   time.Time // when the last token came, or a request to an idle engine
	heard   time.Time // the last answer of /metrics
	tokens  float64
	flowed  bool // tokens came since the engine became busy
	busy    bool
	seen    bool      // a reading was made
	calm    bool      // a reading of an idle engine was made, so settled is valid
	settled int       // first tokens less finished requests, when it was idle
	due     time.Time // when the engine becomes suspected without further tokens; zero for never
}

func newHangDetector(hang, first time.Duration, now time.Time) *hangDetector {
	return &hangDetector{hang: hang, first: first, moved: now, heard: now}
}

// observe processes one reading, requested at asked and received at now; its counts
// are those at asked. It returns why the engine may hang, or "".
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
		// Tokens may have come, and stopped, since the last reading.
		w.busy, w.flowed, w.moved, w.tokens = true, !first && m.Tokens != w.tokens, asked, m.Tokens
		return ""
	}
	if m.Tokens != w.tokens { // less: the engine was restarted
		w.flowed, w.moved, w.tokens = true, asked, m.Tokens
		return ""
	}
	if !m.Flow {
		w.due = time.Time{}
		return ""
	}
	// Running requests without a token may have long prompts. The counter of first
	// tokens, if the engine has one, shows whether there are any.
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

// next is the time until the next reading.
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

// cleared records that a probe was answered; the next suspicion is a whole deadline
// away.
func (w *hangDetector) cleared(now time.Time) { w.moved, w.heard = now, now }
