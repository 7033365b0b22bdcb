package sharedrun

import (
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/httpserver"
)

// TestEndLeavesOtherRun: the end of a request leaves the run of another one with the same
// key, which a retry joins.
func TestEndLeavesOtherRun(t *testing.T) {
	runs := NewTable(func(string) uint64 { return 7 })
	begin := func(id string) *Run {
		_, own := runs.JoinOrBegin("k", false, func() *Run { return New(id, &httpserver.Context{}, time.Now(), time.Now) })
		return own
	}
	first, second := begin("first"), begin("second")
	first.Finish(nil)
	joined, _ := runs.JoinOrBegin("k", true, func() *Run { t.Error("the retry runs by itself"); return second })
	if joined != second {
		t.Errorf("joined %v", joined)
	} else {
		joined.Leave()
	}
	second.Finish(nil)
	if n := runs.Len(); n != 0 {
		t.Errorf("%d runs are left", n)
	}
}
