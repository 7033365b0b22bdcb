package words

import (
	"strings"
	"testing"
	"time"
)

// TestReasonsAreSentences: every reason word of the planner and the loop has a
// sentence.
func TestReasonsAreSentences(t *testing.T) {
	for _, x := range [][2]string{
		{"start", "demand"}, {"start", "min"}, {"start", "lease"}, {"start", "prewarm"}, {"start", "low"}, {"wake_up", "low"}, {"scale", "low"}, {"stop", "priority"}, {"sleep", "priority"}, {"wake_up", "demand"}, {"wake_up", "lease"},
		{"stop", "idle"}, {"stop", "surplus"}, {"stop", "evicted"}, {"stop", "time_slice"}, {"stop", "pressure"}, {"stop", "share"}, {"stop", "unused"}, {"sleep", "share"}, {"stop", "budget"}, {"stop", "changed"},
		{"stop", "removed"}, {"stop", "gpu_unhealthy"}, {"stop", "asked"}, {"stop", "sleep_failed"}, {"sleep", "idle"}, {"sleep", "evicted"}, {"sleep", "time_slice"},
		{"start_cancelled", "called_off"}, {"ended", "vanished"}, {"ended", "node_lost"}, {"ended", "load_refused"}, {"ended", "failed"}, {"node_lost", "silent"},
	} {
		if s := Sentence(x[0], x[1]); s == "" || strings.HasSuffix(s, ".") || strings.Contains(s, "_") {
			t.Errorf("%s, %s: %q", x[0], x[1], s)
		}
	}
	for d, want := range map[time.Duration]string{1234 * time.Millisecond: "1.2s", 12 * time.Second: "12s", 5 * time.Minute: "5m", time.Hour: "1h", 90 * time.Minute: "1h30m", 0: "0s"} {
		if got := Age(d); got != want {
			t.Errorf("%v is formatted as %s, want %s", d, got, want)
		}
	}
}
