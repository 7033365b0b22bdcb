package orchestrator

import (
	"strconv"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// TestColdStartsKeepNewest: a cold start is found as long as it is among the newest.
func TestColdStartsKeepNewest(t *testing.T) {
	var l coldStartLog
	for n := range 3*keptColdStarts + 7 {
		l.add(&coldStart{Timeline: functions.Timeline{ID: strconv.Itoa(n)}, Over: true})
		if s := l.find(strconv.Itoa(n)); s == nil || s.ID != strconv.Itoa(n) {
			t.Fatalf("the newest, %d, is found as %+v", n, s)
		}
		oldest := max(0, n+1-keptColdStarts)
		if l.find(strconv.Itoa(oldest)) == nil || l.find(strconv.Itoa(oldest-1)) != nil || len(l.byID) != n+1-oldest {
			t.Fatalf("after %d: %d are kept, the oldest should be %d", n, len(l.byID), oldest)
		}
	}
	const all = keptColdStarts
	for _, c := range []struct{ limit, want int }{{1, 1}, {all, all}, {all + 1, all}, {0, all}, {-1, all}} {
		got := l.newest(c.limit, 0)
		if len(got) != c.want || got[0].ID != strconv.Itoa(3*keptColdStarts+6) || got[c.want-1].ID != strconv.Itoa(3*keptColdStarts+7-c.want) {
			t.Errorf("limit %d: %d from %s to %s", c.limit, len(got), got[0].ID, got[len(got)-1].ID)
		}
	}
}
