package cli

import (
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
)

// TestProgressProblem: a start that is waited for says what holds it up, and not why its engine was
// not forked.
func TestProgressProblem(t *testing.T) {
	for want, start := range map[string]functions.Timeline{
		"m staging: the hub answers 429":          {State: functions.Downloading, StartNote: "the hub answers 429"},
		"m loading: so far it listens on [::1]:1": {State: functions.Loading, Start: "plain", StartNote: "so far it listens on [::1]:1"},
		"m loading": {State: functions.Loading, Start: "plain", StartNote: "no warm interpreter"},
		"m loading [###################.....] 80%: so far 1": {State: functions.Loading, Start: "plain", StartNote: "so far 1", Progress: functions.Progress{Percent: 80}},
	} {
		if start.Progress.Percent == 0 {
			start.Progress = functions.NoProgress
		}
		if got := describeProgress("m", api.ColdStart{Timeline: start}, 0); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
