package orchestrator

import (
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// TestRetryAfterEviction: a start that finds too little memory is repeated once, at once,
// after the idle replicas that share that memory are evicted.
func TestRetryAfterEviction(t *testing.T) {
	const short = "vllm ended while loading: out of GPU memory: CUDA out of memory."
	part := func(s *functions.ModelSpec) { s.Resources.GPUMemory = 20 << 30 }
	kept := func(s *functions.ModelSpec) { s.Scale.Min = 1 }
	for _, c := range []struct {
		what   string
		other  []func(*functions.ModelSpec) // of x, which is READY on the GPU
		setUp  func(*testRig, *fakeAgent)
		loads  int
		states string
		failed string
	}{
		{"an idle one made it short", nil, func(r *testRig, h *fakeAgent) { h.needs["z"] = "x" }, 2, "[READY@here]", ""},
		{"the second start fails too", nil, func(r *testRig, h *fakeAgent) { h.fail["z"] = short }, 2, "[]", short},
		{"another cause", nil, func(r *testRig, h *fakeAgent) { h.fail["z"] = "weights are truncated" }, 1, "[]", "weights are truncated"},
		{"none is idle", nil, func(r *testRig, h *fakeAgent) { r.d.ask(r.s, fname("x"), 1); h.needs["z"] = "x" }, 1, "[]", short},
		{"the idle one is kept", []func(*functions.ModelSpec){kept}, func(r *testRig, h *fakeAgent) { h.needs["z"] = "x" }, 1, "[]", short},
	} {
		t.Run(c.what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, 1, model("x", append(c.other, part)...), model("z", part))
				defer r.stop()
				h := newFakeAgent("here", 1)
				h.needs = map[string]string{}
				r.host(h)
				r.d.ask(r.s, fname("x"), 1)
				r.pass(6 * time.Second)
				r.d.done(fname("x"))
				r.pass(2 * time.Second)
				r.want("x", r.states("x"), "[READY@here]")
				h.mu.Lock()
				c.setUp(r, h)
				h.mu.Unlock()
				r.d.ask(r.s, fname("z"), 3)
				r.pass(10500 * time.Millisecond) // two starts of 5 s, without a pause between
				r.want("z", r.states("z"), c.states)
				loads, _ := h.did()
				if got := strings.Count(strings.Join(loads, " "), "default/z"); got != c.loads {
					t.Errorf("%d starts, want %d", got, c.loads)
				}
				if got := r.d.failed[fname("z")]; got != c.failed {
					t.Errorf("waiters got %q, want %q", got, c.failed)
				}
				said := 0
				for _, e := range r.s.Events(0) {
					if e.Kind == "retry" && e.Function == "default/z" && e.Reason == "gpu_memory" && e.Message == short {
						said++
					}
				}
				if said != c.loads-1 {
					t.Errorf("%d events of a retry, want %d", said, c.loads-1)
				}
				last := r.ended()[0]
				if (last.Retried == short) != (c.loads == 2) || last.Function != "default/z" {
					t.Errorf("the timeline of %s has %q of the first start", last.Function, last.Retried)
				}
				if c.failed == "" {
					return
				}
				// The second failure begins the pause, and the next start is not repeated.
				r.pass(time.Minute)
				r.d.ask(r.s, fname("z"), 1)
				r.pass(10500 * time.Millisecond)
				if loads, _ := h.did(); c.loads == 2 && strings.Count(strings.Join(loads, " "), "default/z") != 3 {
					t.Errorf("starts: %v, want one more", loads)
				}
			})
		})
	}
}

// TestFailingNode: after two starts in a row that failed on one node, the next is on another
// that has room; on a cluster of one it is there again.
func TestFailingNode(t *testing.T) {
	for _, c := range []struct {
		what  string
		other int // GPUs of the other node
		want  string
	}{
		{"another has room", 1, "[READY@other]"},
		{"another has none", 0, "[]"},
	} {
		t.Run(c.what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, 1, model("x"))
				defer r.stop()
				bad, other := newFakeAgent("bad", 1), newFakeAgent("other", c.other)
				bad.fail["x"] = "CUDA error: an illegal memory access was encountered"
				r.host(bad)
				r.host(other)
				for i := range 3 {
					r.d.ask(r.s, fname("x"), 1)
					r.pass(10500 * time.Millisecond)
					loads, _ := bad.did()
					if want := min(i+1, 3-c.other); len(loads) != want {
						t.Errorf("start %d: %d on the failing node, want %d", i+1, len(loads), want)
					}
					if i < 2 {
						r.want("x", r.states("x"), "[]")
						r.pass(5 * time.Minute)
					}
				}
				r.want("x", r.states("x"), c.want)
			})
		})
	}
}

// TestLearnedFootprint: a model that holds more of a GPU than it asks for is not started
// beside one that needs the rest. Its running replica shares the GPU as before.
func TestLearnedFootprint(t *testing.T) {
	for held, want := range map[functions.Bytes]string{50 << 30: "[]", 31 << 30: "[READY@here]", 0: "[READY@here]"} {
		bubble(t, func(t *testing.T) {
			share := func(gib functions.Bytes) func(*functions.ModelSpec) {
				return func(s *functions.ModelSpec) { s.Resources.GPUMemory = gib << 30 }
			}
			r := newRig(t, 1, model("x", share(30)), model("y", share(40)))
			defer r.stop()
			h := newFakeAgent("here", 1)
			h.holds = map[string]functions.Bytes{"x": held}
			r.host(h)
			r.d.ask(r.s, fname("x"), 1)
			r.d.ask(r.s, fname("y"), 1)
			r.pass(10 * time.Second)
			r.want("both at first", r.states("x")+r.states("y"), "[READY@here][READY@here]")
			r.d.done(fname("x"))
			r.s.Stop(fname("x"))
			r.pass(3 * time.Second)
			r.want("x", r.states("x"), "[]")
			r.d.ask(r.s, fname("x"), 1)
			r.pass(10 * time.Second)
			r.want("x again", r.states("x"), want)
			said := 0
			for _, e := range r.s.Events(0) {
				if e.Kind == "footprint" && strings.Contains(e.Message, "it holds 50 GiB of a GPU, and its model file asks for 30 GiB") {
					said++
				}
			}
			if (said == 1) != (want == "[]") {
				t.Errorf("%v: %d events", held, said)
			}
		})
	}
}
