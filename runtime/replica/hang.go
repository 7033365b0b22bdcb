package replica

import (
	"errors"
	"fmt"
	"slices"
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
func (h *hangDetector) observe(requestedAt, now time.Time, m engine.Metrics, err error, t functions.Traffic) string {
	h.hasFlow = h.hasFlow || err == nil && m.Flow
	busy := h.working(now, t)
	h.suspectAt = time.Time{}
	reason := h.judge(requestedAt, now, m, err)
	if busy {
		return ""
	}
	return reason
}

// working reports whether our requests show that the engine works, whatever a probe
// finds: a byte came within the hang deadline or, of an engine whose tokens are not
// counted, a request waits for its first byte and has not waited for firstToken.
func (h *hangDetector) working(now time.Time, t functions.Traffic) bool {
	h.traffic = t
	if t.InFlight > 0 {
		h.servedAt = now
	}
	if t.InFlight > 0 && now.Sub(t.LastByte) < h.hang {
		return true
	}
	return !h.hasFlow && !t.Waiting.IsZero() && now.Sub(h.silentSince()) < h.first
}

// silentSince is when the silence began in which our oldest request waits for its first
// byte. Requests that come and leave while the engine answers nothing at all do not
// shorten it.
func (h *hangDetector) silentSince() time.Time {
	since := h.traffic.Waiting
	if h.answeredAt.Before(since) {
		since = h.answeredAt
	}
	return latest(since, h.traffic.LastByte, h.clearedAt)
}

// overdue returns what has not come since a time, if that is longer ago than the bound,
// which a deadline of the model file sets.
func (h *hangDetector) overdue(now, since time.Time, bound time.Duration, deadline, missing string, requests int) string {
	if h.suspectAt = since.Add(bound); now.Before(h.suspectAt) {
		return ""
	}
	text := fmt.Sprintf("%s for %s", missing, now.Sub(since).Round(time.Second))
	if requests > 0 {
		text += fmt.Sprintf(" with %d requests running", requests)
	}
	return fmt.Sprintf("%s (deadlines.%s: %s)", text, deadline, bound)
}

// unanswered judges an engine whose /metrics are not answered.
func (h *hangDetector) unanswered(now time.Time) string {
	const metrics = "/metrics not answered"
	switch {
	case h.hasFlow:
		return h.overdue(now, h.answeredAt, h.hang, "hang", metrics, 0)
	case !h.traffic.Waiting.IsZero():
		return h.overdue(now, h.silentSince(), h.first, "firstToken", "no byte", h.traffic.InFlight)
	case h.traffic.InFlight > 0:
		return h.overdue(now, latest(h.answeredAt, h.traffic.LastByte), h.hang, "hang", "no byte", h.traffic.InFlight)
	}
	return h.overdue(now, latest(h.answeredAt, h.servedAt), h.hang, "hang", metrics, 0)
}

// uncounted judges an engine that answers, but counts no tokens, or none of our requests:
// they may hang.
func (h *hangDetector) uncounted(now time.Time) string {
	if h.traffic.InFlight == 0 {
		return ""
	}
	return h.overdue(now, h.silentSince(), h.first, "firstToken", "no byte", h.traffic.InFlight)
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// judge is observe by the reading alone.
func (h *hangDetector) judge(requestedAt, now time.Time, m engine.Metrics, err error) string {
	if err != nil && !errors.Is(err, engine.ErrNoMetrics) {
		return h.unanswered(now)
	}
	h.answeredAt = now
	if err != nil || !m.Flow {
		return h.uncounted(now)
	}
	first := !h.hasReading
	h.hasReading = true
	open := m.FirstTokens - m.Finished
	if m.Running+m.Waiting == 0 {
		h.busy, h.tokens = false, m.Tokens
		h.idleSeen, h.idleBacklog = true, open
		return h.uncounted(now) // its scheduler may have died beside the server that counts
	}
	h.suspectAt = requestedAt.Add(h.hang)
	if !h.busy {
		// Tokens may have come, and stopped, since the last reading.
		h.busy, h.tokensCame, h.progressAt, h.tokens = true, !first && m.Tokens != h.tokens, requestedAt, m.Tokens
		return ""
	}
	if m.Tokens != h.tokens { // less: the engine was restarted
		h.tokensCame, h.progressAt, h.tokens = true, requestedAt, m.Tokens
		return ""
	}
	// Running requests without a token may have long prompts. The counter of first
	// tokens, if the engine has one, shows whether there are any.
	fresh := !h.tokensCame
	if m.Counted && h.idleSeen {
		fresh = m.Running == 0 || m.Running > open-h.idleBacklog
	}
	if fresh {
		return h.overdue(now, h.progressAt, h.first, "firstToken", "no token", m.Running)
	}
	return h.overdue(now, h.progressAt, h.hang, "hang", "no token", m.Running)
}

// next is the time until the next reading.
func (h *hangDetector) next(now time.Time) time.Duration {
	if h.suspectAt.IsZero() {
		return pollEvery
	}
	d := busyEvery
	if left := h.suspectAt.Sub(now); left > 0 && left < d {
		d = left
	}
	return max(d, 20*time.Millisecond)
}

// cleared records that a probe was answered; the next suspicion is a whole deadline
// away.
func (h *hangDetector) cleared(now time.Time) {
	h.progressAt, h.answeredAt, h.clearedAt = now, now, now
}
