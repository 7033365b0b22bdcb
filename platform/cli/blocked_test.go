package cli

import (
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
)

// TestBlockedState: what no node takes is not shown as staging.
func TestBlockedState(t *testing.T) {
	percent := 41
	for want, f := range map[string]api.Function{
		"blocked":     {State: functions.Downloading, Blocked: "capacity", Percent: &percent},
		"staging 41%": {State: functions.Downloading, Percent: &percent},
	} {
		if got := stateWithPercent(f); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
