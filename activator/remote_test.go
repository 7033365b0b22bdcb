package activator

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/functions"
)

// noTimelineWaker is a Waker in another process: it returns no id.
type noTimelineWaker struct{ *testEnv }

func (w noTimelineWaker) Wake(name functions.Name) string {
	w.testEnv.Wake(name)
	return ""
}

// TestColdStartBySnapshot: a platform in another process reports in its snapshots which
// cold start a request takes part in.
func TestColdStartBySnapshot(t *testing.T) {
	for _, c := range []struct{ description, old, want string }{
		{"the one under way", "", "cs-9"},
		{"not one that was over before", "cs-8", "cs-9"},
	} {
		t.Run(c.description, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestEnv(t, nil)
				w.act.o.Waker = noTimelineWaker{w}
				w.engineAt("e:1", goodAnswer)
				f := testFunction("tiny")
				if c.old != "" {
					f.ColdStart = &functions.Timeline{ID: c.old, State: functions.Unloaded, Began: time.Now().Add(-time.Hour), Total: 3}
				}
				w.act.Publish(f)
				w.onWake = func() {
					time.Sleep(time.Second)
					f := loadingAt(testFunction("tiny"), functions.Loading, -1, -1)
					f.ColdStart = &functions.Timeline{ID: "cs-9", State: functions.Loading, Began: time.Now().Add(-time.Second), Total: 1}
					w.act.Publish(f)
					time.Sleep(time.Second)
					f = readyAt(testFunction("tiny"), 2, "e:1")
					f.ColdStart = &functions.Timeline{ID: "cs-9", State: functions.Ready, Began: time.Now().Add(-2 * time.Second), Total: 2}
					w.act.Publish(f)
				}
				r := w.post("/v1/chat/completions", plainRequest)
				if got := r.head.Get("thaw-cold-start"); r.status != 200 || got != c.want || w.count(&w.firstTokens) != 1 {
					t.Fatalf("status %d, cold start %q, want %q, %d first tokens", r.status, got, c.want, w.count(&w.firstTokens))
				}
			})
		})
	}
}

// TestDemandReported: changes in quick succession are one report, reportEvery after the first.
func TestDemandReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &testEnv{}
		w.act = New(Options{Waker: w})
		w.act.Publish(readyAt(testFunction("x"), 8, "r"), readyAt(testFunction("y"), 8, "s"))
		w.takeDemand()
		reported := func() map[string]Demand {
			w.mu.Lock()
			defer w.mu.Unlock()
			return maps.Clone(w.reported)
		}
		one, two, far := admission.Request{Team: "red", Bytes: 1}, admission.Request{Team: "red", Bytes: 1},
			admission.Request{Team: "red", Bytes: 1}
		x, y := &w.act.names.table.Lookup(testFunction("x").Name).Data.queue, &w.act.names.table.Lookup(testFunction("y").Name).Data.queue
		one.Enter(x, time.Now())
		time.Sleep(reportEvery / 2)
		two.Enter(x, time.Now())
		far.Enter(y, time.Now())
		if d := reported(); len(d) > 0 {
			t.Fatalf("reported at once: %+v", d)
		}
		time.Sleep(reportEvery / 2)
		synctest.Wait()
		if d := reported(); len(d) != 2 || d["x"].Active != 2 || d["x"].InFlight["r"] != 2 || d["y"].InFlight["s"] != 1 {
			t.Fatalf("%+v", d)
		}
		one.Leave(time.Now())
		time.Sleep(reportEvery)
		synctest.Wait()
		if d := reported()["x"]; d.Active != 1 || d.InFlight["r"] != 1 || !d.LastEnd.Equal(time.Now().Add(-reportEvery)) {
			t.Fatalf("%+v", d)
		}
	})
}
