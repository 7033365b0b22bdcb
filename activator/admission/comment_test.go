package admission

import (
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// TestCommentOfAProblem: the comment of a held stream says what holds the start up while it goes on.
func TestCommentOfAProblem(t *testing.T) {
	f := &snapshot.Snapshot{State: functions.Loading, Progress: functions.Progress{State: functions.Loading, Percent: -1},
		ColdStart: &functions.Timeline{Start: functions.StartPlain, StartNote: functions.SoFar + "it listens on [::1]:1"}}
	if got := string(HeldComment(nil, f, time.Time{}, -1)); !strings.HasSuffix(got, " why=so far it listens on [::1]:1\n") {
		t.Error(got)
	}
	f.ColdStart.StartNote = "no warm interpreter"
	if got := string(HeldComment(nil, f, time.Time{}, -1)); strings.Contains(got, "why") {
		t.Error(got)
	}
}
