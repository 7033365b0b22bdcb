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

	progressAt  time.Time // when the last token came, or a request to an idle engine
	answeredAt  time.Time // the last answer of /metrics
	tokens      float64
	tokensCame  bool // tokens came since the engine became busy
	busy        bool
	hasReading  bool      // a reading was made
	idleSeen    bool      // a reading of an idle engine was made, so settled is valid
	idleBacklog int       // first tokens less finished requests, when it was idle
	suspectAt   time.Time // when the engine becomes suspected without further tokens; zero for never
}

func newHangDetector(hang, first time.Duration, now time.Time) *hangDetector {
	return &hangDetector{hang: hang, first: first, progressAt: now, answeredAt: now}
}

// observe processes one reading, requested at asked and received at now; its counts
// are those at asked. It returns why the engine may hang, or "".
func (w *hangDetector) observe(requestedAt, now time.Time, m engine.Metrics, err error) string {
	w.suspectAt = time.Time{}
	switch {
	case errors.Is(err, engine.ErrNoMetrics):
		w.answeredAt = now
		return ""
	case err != nil:
		w.suspectAt = w.answeredAt.Add(w.hang)
		if silent := now.Sub(w.answeredAt); silent >= w.hang {
			return fmt.Sprintf("/metrics not answered for %s", silent.Round(time.Second))
		}
		return ""
	}
	w.answeredAt = now
	first := !w.hasReading
	w.hasReading = true
	open := m.FirstTokens - m.Finished
	if m.Running+m.Waiting == 0 {
		w.busy, w.tokensCame, w.progressAt, w.tokens = false, false, requestedAt, m.Tokens
		w.idleSeen, w.idleBacklog = true, open
		return ""
	}
	w.suspectAt = requestedAt.Add(w.hang)
	if !w.busy {
		// Tokens may have come, and stopped, since the last reading.
		w.busy, w.tokensCame, w.progressAt, w.tokens = true, !first && m.Tokens != w.tokens, requestedAt, m.Tokens
		return ""
	}
	if m.Tokens != w.tokens { // less: the engine was restarted
		w.tokensCame, w.progressAt, w.tokens = true, requestedAt, m.Tokens
		return ""
	}
	if !m.Flow {
		w.suspectAt = time.Time{}
		return ""
	}
	// Running requests without a token may have long prompts. The counter of first
	// tokens, if the engine has one, shows whether there are any.
	fresh := !w.tokensCame
	if m.Counted && w.idleSeen {
		fresh = m.Running == 0 || m.Running > open-w.idleBacklog
	}
	bound := w.hang
	if fresh {
		bound = w.first
	}
	w.suspectAt = w.progressAt.Add(bound)
	if silent := now.Sub(w.progressAt); silent >= bound {
		return fmt.Sprintf("no token for %s with %d requests running", silent.Round(time.Second), m.Running)
	}
	return ""
}

// next is the time until the next reading.
func (w *hangDetector) next(now time.Time) time.Duration {
	if !w.busy && w.suspectAt.IsZero() {
		return pollEvery
	}
	d := busyEvery
	if left := w.suspectAt.Sub(now); !w.suspectAt.IsZero() && left > 0 && left < d {
		d = left
	}
	return max(d, 20*time.Millisecond)
}

// cleared records that a probe was answered; the next suspicion is a whole deadline
// away.
func (w *hangDetector) cleared(now time.Time) { w.progressAt, w.answeredAt = now, now }
