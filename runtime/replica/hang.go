package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/engine"
)

// hangDetector decides from an engine's metrics, and from what our own requests show of
// it, whether it may hang. It is pure: times are arguments.
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

	hasFlow   bool              // a reading had a counter of tokens
	traffic   functions.Traffic // of our requests, at the last call of observe or working
	servedAt  time.Time         // when a request of ours was last seen in flight
	clearedAt time.Time         // when a probe was last answered
}

func newHangDetector(hang, first time.Duration, now time.Time) *hangDetector {
	return &hangDetector{hang: hang, first: first, progressAt: now, answeredAt: now}
}

// observe processes one reading, requested at asked and received at now; its counts
// are those at asked. t is what our requests show at now. It returns why the engine may
// hang, or "".
func (w *hangDetector) observe(requestedAt, now time.Time, m engine.Metrics, err error, t functions.Traffic) string {
	w.hasFlow = w.hasFlow || err == nil && m.Flow
	busy := w.working(now, t)
	w.suspectAt = time.Time{}
	reason := w.judge(requestedAt, now, m, err)
	if busy {
		return ""
	}
	return reason
}

// working reports whether our requests show that the engine works, whatever a probe
// finds: a byte came within the hang deadline or, of an engine whose tokens are not
// counted, a request waits for its first byte and has not waited for firstToken.
func (w *hangDetector) working(now time.Time, t functions.Traffic) bool {
	w.traffic = t
	if t.InFlight > 0 {
		w.servedAt = now
	}
	if t.InFlight > 0 && now.Sub(t.LastByte) < w.hang {
		return true
	}
	return !w.hasFlow && !t.Waiting.IsZero() && now.Sub(w.silentSince()) < w.first
}

// silentSince is when the silence began in which our oldest request waits for its first
// byte. Requests that come and leave while the engine answers nothing at all do not
// shorten it.
func (w *hangDetector) silentSince() time.Time {
	since := w.traffic.Waiting
	if w.answeredAt.Before(since) {
		since = w.answeredAt
	}
	return latest(since, w.traffic.LastByte, w.clearedAt)
}

// overdue returns what has not come since a time, if that is longer ago than the bound,
// which a deadline of the model file sets.
func (w *hangDetector) overdue(now, since time.Time, bound time.Duration, deadline, missing string, requests int) string {
	if w.suspectAt = since.Add(bound); now.Before(w.suspectAt) {
		return ""
	}
	text := fmt.Sprintf("%s for %s", missing, now.Sub(since).Round(time.Second))
	if requests > 0 {
		text += fmt.Sprintf(" with %d requests running", requests)
	}
	return fmt.Sprintf("%s (deadlines.%s: %s)", text, deadline, bound)
}

// unanswered judges an engine whose /metrics are not answered.
func (w *hangDetector) unanswered(now time.Time) string {
	const metrics = "/metrics not answered"
	switch {
	case w.hasFlow:
		return w.overdue(now, w.answeredAt, w.hang, "hang", metrics, 0)
	case !w.traffic.Waiting.IsZero():
		return w.overdue(now, w.silentSince(), w.first, "firstToken", "no byte", w.traffic.InFlight)
	case w.traffic.InFlight > 0:
		return w.overdue(now, latest(w.answeredAt, w.traffic.LastByte), w.hang, "hang", "no byte", w.traffic.InFlight)
	}
	return w.overdue(now, latest(w.answeredAt, w.servedAt), w.hang, "hang", metrics, 0)
}

// uncounted judges an engine that answers, but counts no tokens: its requests may hang.
func (w *hangDetector) uncounted(now time.Time) string {
	if w.traffic.InFlight == 0 {
		return ""
	}
	since := latest(w.traffic.LastByte, w.clearedAt)
	if !w.traffic.Waiting.IsZero() {
		since = w.silentSince()
	}
	return w.overdue(now, since, w.first, "firstToken", "no byte", w.traffic.InFlight)
}

func latest(t time.Time, more ...time.Time) time.Time {
	for _, m := range more {
		if m.After(t) {
			t = m
		}
	}
	return t
}

// judge is observe by the reading alone.
func (w *hangDetector) judge(requestedAt, now time.Time, m engine.Metrics, err error) string {
	if err != nil && !errors.Is(err, engine.ErrNoMetrics) {
		return w.unanswered(now)
	}
	w.answeredAt = now
	if err != nil || !m.Flow {
		return w.uncounted(now)
	}
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
	// Running requests without a token may have long prompts. The counter of first
	// tokens, if the engine has one, shows whether there are any.
	fresh := !w.tokensCame
	if m.Counted && w.idleSeen {
		fresh = m.Running == 0 || m.Running > open-w.idleBacklog
	}
	if fresh {
		return w.overdue(now, w.progressAt, w.first, "firstToken", "no token", m.Running)
	}
	return w.overdue(now, w.progressAt, w.hang, "hang", "no token", m.Running)
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
func (w *hangDetector) cleared(now time.Time) {
	w.progressAt, w.answeredAt, w.clearedAt = now, now, now
}
