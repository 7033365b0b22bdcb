package activator

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
)

// TestPanicBeforeAColdStart: a panic while the limits are asked for a cold start fails the
// requests that wait for it. The next request begins a cold start.
func TestPanicBeforeAColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var panics atomic.Bool
		w := newTestEnv(t, func(o *Options) {
			o.Now = func() time.Time {
				if panics.CompareAndSwap(true, false) {
					panic("a bug of the limits")
				}
				return time.Now()
			}
		})
		allot := func(units int64) {
			w.limits.ApplyAllotments(ratelimit.Allotments{List: []ratelimit.Allotment{{Team: functions.DefaultTeam, Kind: ratelimit.ColdStarts, Granted: units}}}, time.Now())
		}
		w.limits.ShareLimits(func() {})
		w.limits.SetTeams([]functions.Team{{Metadata: functions.Metadata{Name: functions.DefaultTeam}, Spec: functions.TeamSpec{Limits: functions.Limits{ColdStartsPerHour: 5}}}})
		w.limits.Reports(true, true, time.Now()) // connected, so that requests wait for units
		w.engineAt("e:1", goodAnswer)
		w.act.Publish(testFunction("tiny"))
		w.onWake = func() { w.act.Publish(readyAt(testFunction("tiny"), 4, "e:1")) }

		replies := make(chan result, 2)
		for range cap(replies) { // the first asks the limits, the second joins it
			go func() { replies <- w.post("/v1/chat/completions", plainRequest) }()
			synctest.Wait()
		}
		panics.Store(true)
		allot(0) // the first asks again
		for range cap(replies) {
			if r := <-replies; r.status != 500 || r.code() != "internal_error" {
				t.Errorf("%+v", r)
			}
		}
		if panics.Load() || w.wakes != 0 {
			t.Fatalf("panicked: %t, woken %d times", !panics.Load(), w.wakes)
		}
		allot(5)
		if r := w.post("/v1/chat/completions", plainRequest); r.status != 200 || w.wakes != 1 {
			t.Errorf("woken %d times: %+v", w.wakes, r)
		}
	})
}
