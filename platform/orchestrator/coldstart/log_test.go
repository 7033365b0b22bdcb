package coldstart

import (
	"strconv"
	"testing"
)

// TestLogKeepsNewest: a cold start is found as long as it is among the newest.
func TestLogKeepsNewest(t *testing.T) {
	var l Log
	for n := range 3*Keep + 7 {
		l.Add(&Start{ID: strconv.Itoa(n), Over: true})
		if s := l.Find(strconv.Itoa(n)); s == nil || s.ID != strconv.Itoa(n) {
			t.Fatalf("the newest, %d, is found as %+v", n, s)
		}
		oldest := max(0, n+1-Keep)
		if l.Find(strconv.Itoa(oldest)) == nil || l.Find(strconv.Itoa(oldest-1)) != nil || len(l.byID) != n+1-oldest {
			t.Fatalf("after %d: %d are kept, the oldest should be %d", n, len(l.byID), oldest)
		}
	}
	for _, c := range []struct{ limit, want int }{{1, 1}, {Keep, Keep}, {Keep + 1, Keep}, {0, Keep}, {-1, Keep}} {
		got := l.Newest(c.limit, 0)
		if len(got) != c.want || got[0].ID != strconv.Itoa(3*Keep+6) || got[c.want-1].ID != strconv.Itoa(3*Keep+7-c.want) {
			t.Errorf("limit %d: %d from %s to %s", c.limit, len(got), got[0].ID, got[len(got)-1].ID)
		}
	}
}
