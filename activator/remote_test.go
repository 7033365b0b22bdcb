package activator

import (
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

// TestDemandChanged: it is called once until the next call of Demand.
func TestDemandChanged(t *testing.T) {
	notified := 0
	a := New(Options{DemandChanged: func() { notified++ }})
	a.Publish(readyAt(testFunction("x"), 8, "r"), readyAt(testFunction("y"), 8, "s"))
	a.Demand(false, func(Demand) {})
	notified = 0
	now := time.Unix(1000, 0)
	one, two, far := admission.Request{Team: "red", Bytes: 1}, admission.Request{Team: "red", Bytes: 1},
		admission.Request{Team: "red", Bytes: 1}
	x, y := &a.table.Lookup(testFunction("x").Name).Data.queue, &a.table.Lookup(testFunction("y").Name).Data.queue
	one.Enter(x, now)
	two.Enter(x, now)
	far.Enter(y, now)
	if notified != 1 {
		t.Fatalf("three changes were told %d times", notified)
	}
	if got := demandOf(a, false); len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	one.Leave(now)
	if notified != 2 {
		t.Fatalf("a change after a look was told %d times", notified-1)
	}
}
