package simulate

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// batchOf is n requests over the models in turns, one after each pause; 0: all at once.
func batchOf(ms []*functions.Model, n int, pause time.Duration, low bool) []trace.Request {
	out := make([]trace.Request, n)
	for i := range out {
		out[i] = trace.Request{At: time.Second + time.Duration(i)*pause, Function: ms[i%len(ms)].FullName(), Input: 800, Output: 120, Low: low}
	}
	return out
}

// visits is requests in visits of a few, at random times that leave models idle now and
// then.
func visits(ms []*functions.Model, done time.Duration, seed uint64) (out []trace.Request) {
	rng := rand.New(rand.NewPCG(seed, 5))
	for at := time.Minute; at < done; at += time.Duration(rng.ExpFloat64() * float64(100*time.Second)) {
		m := ms[rng.IntN(len(ms))]
		for i := range 1 + rng.IntN(8) {
			out = append(out, trace.Request{At: at + time.Duration(i)*4*time.Second, Function: m.FullName(), Input: 800, Output: 120})
		}
	}
	return out
}

// inOrder is a trace of the requests by the times of their arrivals.
func inOrder(all ...[]trace.Request) trace.Requests {
	rs := slices.Concat(all...)
	slices.SortStableFunc(rs, func(a, b trace.Request) int { return int(a.At - b.At) })
	return func(yield func(trace.Request, error) bool) {
		for _, r := range rs {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func patient(s *functions.ModelSpec) {
	s.Queue.Wait, s.Queue.Requests = functions.Duration(48*time.Hour), 10000
}

// TestLowRequestsShareLoads: a thousand requests of priority low over five models on one GPU
// cause five loads. Asked by a client that sends them in the order of its file, a few at a
// time and at normal priority, they cause hundreds.
func TestLowRequestsShareLoads(t *testing.T) {
	ms := models(5, patient)
	if r := runConfig(t, Config{Fleet: hosts(1, 1), Functions: ms, Requests: inOrder(batchOf(ms, 1000, 0, true)),
		Seed: 3}); r.Answered != 1000 || r.Starts != 5 {
		t.Errorf("at priority low: %s", resultText(r))
	}
	file := batchOf(ms, 1000, 0, false)
	next := 8
	r := runConfig(t, Config{Fleet: hosts(1, 1), Functions: ms, Requests: inOrder(file[:next]), Until: 12 * time.Hour, Seed: 3,
		Begin: func(st *State) {
			st.OnRequestEnd = func(RequestEnd) {
				if next < len(file) {
					next++
					x := file[next-1]
					st.After(time.Millisecond, func() { st.Ask(x) })
				}
			}
		}})
	if r.Answered != 1000 || r.Starts < 200 {
		t.Errorf("eight at a time: %s", resultText(r))
	}
	t.Logf("eight at a time: %d loads", r.Starts)
}

// TestLowRequestsAreNotNoticed: with low requests beside them, the first tokens of the others
// come as soon as without, but for a tenth in the 99th percentile. The first hour, in which
// all checkpoints are staged over one link, does not count.
func TestLowRequestsAreNotNoticed(t *testing.T) {
	const span = 12 * time.Hour
	few, batch := models(4), models(9, patient)[4:]
	run := func(others ...[]trace.Request) (p99 float64, answered int64) {
		var first []float64
		r := runConfig(t, Config{
			Fleet: hosts(1, 2), Functions: slices.Concat(few, batch), Requests: inOrder(append(others, visits(few, span, 7))...), Seed: 3,
			Begin: func(st *State) {
				st.OnRequestEnd = func(e RequestEnd) {
					if !e.Low && e.Arrived > time.Hour {
						first = append(first, (e.First - e.Arrived).Seconds())
					}
				}
			},
		})
		slices.Sort(first)
		at := func(share float64) float64 { return first[int(float64(len(first))*share)] }
		t.Logf("%d of %d requests: p50 %.2f s, p90 %.2f s, p99 %.2f s; %d starts, refused %v", len(first), r.Requests, at(0.5), at(0.9), at(0.99),
			r.Starts, r.Refused)
		return at(0.99), r.Answered
	}
	without, few0 := run()
	with, all := run(batchOf(batch, 4000, 10*time.Second, true))
	if with > 1.1*without {
		t.Errorf("p99 is %.1f s, and %.1f s without low requests", with, without)
	}
	if all != few0+4000 {
		t.Errorf("%d low requests were answered", all-few0)
	}
}

// TestLowRequestsYield: a request waits for one low request and one switch, and low requests
// wait for a free GPU until its model's idle time has ended.
func TestLowRequestsYield(t *testing.T) {
	const long = 600 // tokens, ten seconds
	slow, quick := model("slow", patient), model("quick", func(s *functions.ModelSpec) { s.Scale.Idle = functions.Duration(time.Minute) })
	var asked []trace.Request
	for i := range 200 {
		asked = append(asked, trace.Request{At: time.Second + time.Duration(i), Function: slow.FullName(), Output: long, Low: true})
	}
	const at = 90 * time.Second
	asked = append(asked, trace.Request{At: at, Function: quick.FullName(), Output: 60})
	var first, again time.Duration
	said := ""
	r := runConfig(t, Config{
		Fleet: exact(), Functions: []*functions.Model{slow, quick}, Requests: inOrder(asked), Seed: 1, Until: time.Hour,
		Sizes: map[functions.Name]functions.Bytes{slow.FullName(): 4 << 30, quick.FullName(): 4 << 30},
		Event: func(e functions.Event) {
			if e.Kind == "start" && e.Function == slow.FullName().String() {
				again = e.At.Sub(defaultStart)
			}
		},
		Begin: func(st *State) {
			st.OnRequestEnd = func(e RequestEnd) {
				if !e.Low {
					first = e.First
				}
			}
			st.At(at+45*time.Second, func() {
				x, _ := st.Loop().Explain("place", slow.FullName())
				said = x.Now
			})
		},
	})
	if r.Answered != 201 || r.Starts != 3 {
		t.Error(resultText(r))
	}
	// The rest of a low request, the engine's exit, and a start of 13 s.
	if wait := first - at; wait > 28*time.Second {
		t.Errorf("the other request waited for %v", wait)
	}
	if idle := again - first; idle < time.Minute || idle > 65*time.Second {
		t.Errorf("low requests got the GPU back after %v", idle)
	}
	if !strings.Contains(said, "it waits for a free GPU: its priority is low") || !strings.Contains(said, "requests wait") {
		t.Errorf("explained as %q", said)
	}
}
