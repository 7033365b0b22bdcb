package coldstarts

import (
	"strconv"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// TestRecords: the newest are kept, the first cause and the first time count, and a timeline
// gets its phase once.
func TestRecords(t *testing.T) {
	var r Records
	r.Remember("", "c")
	r.Remember("a", "")
	for i := range maxRequests + 1 {
		r.Remember(strconv.Itoa(i), "c")
	}
	if _, ok := r.Of("0"); ok {
		t.Error("the oldest is still there")
	}
	if c, ok := r.Of("1"); c != "c" || !ok {
		t.Error(c, ok)
	}
	if !r.RememberFirstByte("c", time.Second) || r.RememberFirstByte("c", time.Minute) {
		t.Error("the first time counts")
	}
	ready := functions.Timeline{ID: "c", State: functions.Ready, Total: 3}
	done := r.WithFirstTokenPhase(ready)
	if done = r.WithFirstTokenPhase(done); done.Request != "0" || len(done.Phases) != 1 || done.Phases[0].Start != 3 ||
		done.Phases[0].Duration != 1 {
		t.Errorf("%+v", done)
	}
	for _, other := range []functions.Timeline{{ID: "c", State: functions.Loading}, {ID: "d", State: functions.Ready}} {
		if got := r.WithFirstTokenPhase(other); len(got.Phases) != 0 {
			t.Errorf("%+v", got)
		}
	}
}
