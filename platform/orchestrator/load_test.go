package orchestrator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

func broad(s *functions.ModelSpec) { s.Scale.Max, s.Scale.Target = 3, 4 }

// many formats the number of x's replicas by state.
func many(r *testRig) string {
	n := map[functions.State]int{}
	for _, x := range r.s.Replicas() {
		n[x.State]++
	}
	return fmt.Sprint(n)
}

// up scales x to three replicas and leaves n requests in flight.
func up(r *testRig) {
	r.t.Helper()
	r.d.slots = 4
	r.d.ask(r.s, fname("x"), 12)
	r.pass(6 * time.Second)
	r.want("one serves, the held ones have two more started", many(r), "map[DOWNLOADING:2 READY:1]")
	r.pass(5 * time.Second)
	r.want("as many as its requests need", many(r), "map[READY:3]")
}

// TestHeldRequestsScaleAtOnce: waiting requests start replicas at once. When they have
// left, the replicas stay for a window and are then scaled down, and the Load is dropped.
func TestHeldRequestsScaleAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, model("x", broad))
		r.host(newFakeAgent("here", 3))
		up(r)
		r.d.done(fname("x"))
		r.d.ask(r.s, fname("x"), 1)
		r.pass(20 * time.Second)
		r.want("the burst has just been", many(r), "map[READY:3]")
		r.pass(2 * time.Minute)
		r.want("one request needs one", many(r), "map[READY:1]")
		r.d.done(fname("x"))
		r.pass(10 * time.Minute)
		r.want("idle", many(r), "map[]")
		r.stop()
		r.s.loop.Lock()
		defer r.s.loop.Unlock()
		if f := r.s.loop.functions[fname("x")]; f.load != nil || f.Needed+f.Desired > 0 || slices.Contains(r.s.loop.busyFunctions.List, f) {
			t.Errorf("remembered at rest: %+v, %d needed, %d desired", f.load, f.Needed, f.Desired)
		}
	})
}

// TestAdoptedStartGoesOn: a new server sees a start before the activators have reported
// its waiters; it does not cancel the start meanwhile.
func TestAdoptedStartGoesOn(t *testing.T) {
	for asked, after := range []string{"[]", "[READY@here]"} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, 1, model("x"))
			h := r.host(newFakeAgent("here", 1))
			r.d.ask(r.s, fname("x"), 1)
			r.pass(200 * time.Millisecond)
			r.stop()
			r.d.leave(r.s, fname("x"))
			r.boot(2)
			defer func() { r.stop() }()
			r.host(h)
			r.pass(500 * time.Millisecond)
			if got := r.states("x"); got == "[]" {
				t.Fatal("it was called off at once")
			}
			if asked > 0 {
				r.d.ask(r.s, fname("x"), 1)
			}
			r.pass(10 * time.Second)
			if loads, _ := h.did(); len(loads) != 1 {
				t.Errorf("%d starts", len(loads))
			}
			if asked > 0 {
				r.want("requests waited", r.states("x"), after)
			}
		})
	}
}

func TestAdoptedReplicasAreKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, model("x", broad))
		h := r.host(newFakeAgent("here", 3))
		up(r)
		r.pass(40 * time.Second)
		r.stop()
		r.d.done(fname("x"))
		r.d.ask(r.s, fname("x"), 1)
		r.boot(2)
		defer func() { r.stop() }()
		r.host(h)
		r.pass(45 * time.Second)
		r.want("its past is not known", many(r), "map[READY:3]")
		r.pass(2 * time.Minute)
		r.want("it is known now", many(r), "map[READY:1]")
	})
}
