package simulate

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// requestsAt is a trace of one model with a request at each time.
func requestsAt(m *functions.Model, times ...time.Duration) trace.Requests {
	return func(yield func(trace.Request, error) bool) {
		for _, d := range times {
			if !yield(trace.Request{At: d, Function: m.FullName(), Input: 800, Output: 60}, nil) {
				return
			}
		}
	}
}

// exact is a fleet whose engine times do not scatter.
func exact() *fleet.Fleet {
	f := hosts(1, 1)
	f.Engine = fleet.Engine{
		Spawn: functions.Duration(10 * time.Second), Warmup: functions.Duration(2 * time.Second), Rise: functions.Duration(time.Second),
		Prefill: 8000, Decode: 60,
	}
	return f
}

// TestStart: a start takes max(bytes, engine) + load + warm-up, never their sum; each
// further start finds the bytes nearer.
func TestStart(t *testing.T) {
	m := model("m", func(s *functions.ModelSpec) { s.Scale.Idle = functions.Duration(time.Minute) })
	const token, prompt = 1.0 / 60, 0.1
	for _, c := range []struct {
		size             functions.Bytes
		first, disk, mem float64 // seconds to the first token
	}{
		// 4 GiB arrive in 2 s during the engine's 10 s; 40 GiB take 20 s.
		{4 << 30, 0.2 + 10 + 0.8 + 2, 0, 0.02 + 10 + 0.2 + 2},
		{40 << 30, 0.2 + 20 + 8 + 2, 0, 0.02 + 10 + 2 + 2},
	} {
		r := runConfig(t, Config{
			Fleet: exact(), Functions: []*functions.Model{m}, Sizes: map[functions.Name]functions.Bytes{m.FullName(): c.size},
			Requests: requestsAt(m, time.Second, 5*time.Minute), Seed: 1,
		})
		for _, x := range []struct {
			description string
			got, want   float64
		}{{"first", r.TTFTCold.Max, c.first}, {"from memory", r.TTFTCold.P50, c.mem}} {
			if x.want += token + prompt; x.got < x.want*0.98 || x.got > x.want*1.05+0.2 {
				t.Errorf("%s of %v: %v s, want about %v", x.description, c.size, x.got, x.want)
			}
		}
		if r.Cold != 2 || r.Starts != 2 || r.Answered != 2 {
			t.Errorf("%+v", r)
		}
	}
}

func TestSleeper(t *testing.T) {
	sleeps := func(name string) *functions.Model {
		return model(name, func(s *functions.ModelSpec) {
			s.Args = []string{"--enable-sleep-mode"}
			s.Scale.Idle = functions.Duration(time.Minute)
		})
	}
	m := sleeps("m")
	r := runConfig(t, Config{Fleet: exact(), Functions: []*functions.Model{m}, Requests: requestsAt(m, time.Second, 150*time.Second), Seed: 1})
	if r.WakeUps != 1 || r.Starts != 2 || r.TTFTCold.P50 > 8 {
		t.Errorf("idle it sleeps, and rises with a copy: %s", resultText(r))
	}
}

func TestPatience(t *testing.T) {
	m := model("m")
	req := func(patience time.Duration) trace.Requests {
		return func(yield func(trace.Request, error) bool) {
			yield(trace.Request{At: time.Second, Function: m.FullName(), ClientTimeout: patience}, nil)
		}
	}
	c := Config{Fleet: exact(), Functions: []*functions.Model{m}, Requests: req(3 * time.Second)}
	if r := runConfig(t, c); r.Left != 1 || r.Answered != 0 {
		t.Errorf("a client left: %s", resultText(r))
	}
	c.Requests = req(5 * time.Minute)
	if r := runConfig(t, c); r.Answered != 1 {
		t.Errorf("it had the time: %s", resultText(r))
	}
	c.Requests, c.ClientTimeouts = req(0), admission.ClientTimeouts{Wait: 3 * time.Second}
	if r := runConfig(t, c); r.Refused["model_loading"] != 1 {
		t.Errorf("it said how long it waits: %s", resultText(r))
	}
}

func TestBounds(t *testing.T) {
	m := model("m", func(s *functions.ModelSpec) { s.Queue.Requests = 3 })
	times := make([]time.Duration, 10)
	for i := range times {
		times[i] = time.Second + time.Duration(i)
	}
	if r := runConfig(t, Config{Fleet: exact(), Functions: []*functions.Model{m}, Requests: requestsAt(m, times...)}); r.Refused["queue_full"] != 7 || r.Answered != 3 {
		t.Errorf("three may wait: %s", resultText(r))
	}
	m = model("m", func(s *functions.ModelSpec) { s.Queue.Wait = functions.Duration(5 * time.Second) })
	if r := runConfig(t, Config{Fleet: exact(), Functions: []*functions.Model{m}, Requests: requestsAt(m, times...)}); r.Refused["model_loading"] != 10 {
		t.Errorf("nobody waits for longer than 5 s: %s", resultText(r))
	}
}

// TestEngine: an engine works on scale.target requests at once; the others wait in it.
func TestEngine(t *testing.T) {
	m := model("m", func(s *functions.ModelSpec) { s.Scale.Target, s.Scale.Min = 2, 1 })
	times := make([]time.Duration, 5)
	for i := range times {
		times[i] = 5*time.Minute + time.Duration(i)
	}
	// A request takes 1.1 s: two run, two wait in the engine, and one in the queue.
	r := runConfig(t, Config{Fleet: exact(), Functions: []*functions.Model{m}, Requests: requestsAt(m, times...)})
	if r.TTFT.P50 < 1.1 || r.TTFT.P50 > 1.3 || r.TTFT.Max < 2.2 || r.TTFT.Max > 2.5 || r.Cold != 0 || r.Wait.Max < 1 {
		t.Errorf("%s", resultText(r))
	}
}

func TestUnplaceable(t *testing.T) {
	small := model("small")
	wide := model("wide", func(s *functions.ModelSpec) { s.Resources.GPUs = 9 })
	large := model("large", func(s *functions.ModelSpec) { s.Resources.GPUMemory = 200 << 30 })
	r := runConfig(t, Config{Fleet: hosts(2, 8), Functions: []*functions.Model{wide, small, large}, Requests: func(yield func(trace.Request, error) bool) {
		for i, n := range []string{"small", "wide", "large", "nobody"} {
			if !yield(trace.Request{At: time.Duration(i), Function: functions.Name{Team: "default", Name: n}}, nil) {
				return
			}
		}
	}})
	if len(r.Impossible) != 2 || r.Impossible[0].Name != "default/large" || r.Impossible[1].Name != "default/wide" || r.Skipped != 2 {
		t.Errorf("%+v", r.Impossible)
	}
	if r.Requests != 2 || r.Answered != 1 || r.Refused["model_not_found"] != 1 {
		t.Errorf("the rest does not run: %s", resultText(r))
	}
}

func TestBadRuns(t *testing.T) {
	m := model("m")
	good := Config{Fleet: exact(), Functions: []*functions.Model{m}, Requests: requestsAt(m, 1)}
	for name, edit := range map[string]func(*Config){
		"no fleet":  func(c *Config) { c.Fleet = nil },
		"no GPUs":   func(c *Config) { c.Fleet = &fleet.Fleet{} },
		"no trace":  func(c *Config) { c.Requests = nil },
		"goes back": func(c *Config) { c.Requests = requestsAt(m, 2*time.Second, time.Second) },
		"breaks off": func(c *Config) {
			c.Requests = func(yield func(trace.Request, error) bool) { yield(trace.Request{}, errors.New("line 7")) }
		},
		"stopped": func(c *Config) { c.Step = func(*State) error { return errors.New("enough") } },
	} {
		c := good
		edit(&c)
		if _, err := Run(t.Context(), c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ms := models(4)
	if _, err := Run(ctx, Config{Fleet: hosts(1, 2), Functions: ms, Requests: poisson(ms, 100000, time.Hour, 1)}); !errors.Is(err,
		context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestFaults: every request ends exactly once under every fault.
func TestFaults(t *testing.T) {
	ms := models(6, func(s *functions.ModelSpec) { s.Scale.Max = 2 })
	for seed := range uint64(4) {
		ends := map[uint64]int{}
		c := Config{Fleet: hosts(3, 2), Functions: ms, Requests: poisson(ms, 1200, time.Hour, seed), Seed: seed, Begin: func(st *State) {
			st.OnRequestEnd = func(f RequestEnd) { ends[f.ID]++ }
			at := func(minutes float64, f func()) { st.At(time.Duration(minutes*float64(time.Minute)), f) }
			at(5, func() { st.Kill("node-1") })
			at(8, func() { st.Return("node-1") })
			at(12, func() { st.Partition("node-2") })
			at(13, func() { st.Return("node-2") })
			at(16, func() { st.Slow("node-3", 20) })
			at(20, func() { st.Slow("node-3", 1) })
			at(22, func() { st.FailStarts(ms[1].FullName(), "out of memory") })
			at(24, func() { st.FailStarts(ms[1].FullName(), "") })
			at(26, func() { st.Replace(3 * time.Second) })
			at(30, func() { st.Restart() })
			at(34, func() { st.Stall(20 * time.Second) })
			at(36, func() { st.Jump(time.Hour) })
			at(38, func() { st.Jump(-2 * time.Hour) })
			at(40, func() { st.SetGPUUnhealthy("node-1", 0, true) })
			at(43, func() { st.SetGPUUnhealthy("node-1", 0, false) })
			each := func(f func(string) bool) func() {
				return func() {
					for _, r := range st.Loop().Replicas() {
						f(r.ID)
					}
				}
			}
			at(45, each(func(id string) bool { return st.Crash(id, "CUDA error") }))
			at(48, each(st.Hang))
			at(52, func() {
				st.Faults.HeartbeatDelays = func(string) []time.Duration { return []time.Duration{0, 3 * time.Second} }
				st.Faults.CommandDelay = func() time.Duration { return 2 * time.Second }
				n := 0
				st.Faults.LoseReply = func() bool { n++; return n%3 == 0 }
			})
			at(56, func() { st.Faults.HeartbeatDelays, st.Faults.CommandDelay, st.Faults.LoseReply = nil, nil, nil })
		}}
		r := runConfig(t, c)
		if r.Unfinished != 0 {
			t.Errorf("seed %d: %d requests have no end", seed, r.Unfinished)
		}
		for id, n := range ends {
			if n != 1 {
				t.Errorf("seed %d: request %d has %d ends", seed, id, n)
			}
		}
		if int64(len(ends)) != r.Requests || r.Answered < r.Requests/2 {
			t.Errorf("seed %d: %d ends of %d requests, %d answered: %v", seed, len(ends), r.Requests, r.Answered, r.Refused)
		}
		if seed == 0 {
			if again := runConfig(t, c); resultText(again) != resultText(r) {
				t.Errorf("the same run gave %s after %s", resultText(again), resultText(r))
			}
		}
	}
}

// TestViews: the views agree with each other.
func TestViews(t *testing.T) {
	ms := models(6)
	st, err := Open(Config{Fleet: hosts(2, 2), Functions: ms, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	for r := range poisson(ms, 300, 10*time.Minute, 3) {
		if err := st.Pass(t.Context(), r.At-st.Now()); err != nil {
			t.Fatal(err)
		}
		st.Ask(r)
		under, waits := 0, 0
		for q := range st.Requests {
			under++
			if q.Waits {
				waits++
			}
		}
		active, queued := 0, 0
		for f := range st.Functions {
			active += f.Active
			queued += f.Queued
		}
		if under != active+queued || waits != queued {
			t.Fatalf("%d requests, %d of them wait; gates know of %d and %d", under, waits, active+queued, queued)
		}
		inFlight := 0
		for _, id := range st.Nodes() {
			n, _ := st.Node(id)
			taken := make([]float64, len(n.Taken))
			for _, r := range n.Replicas {
				inFlight += r.InFlight
				if r.Share > 0 {
					for _, g := range r.GPUs {
						taken[g]++
					}
				}
			}
			if !slices.Equal(taken, n.Taken) || slices.Max(taken) > 1 || n.Memory.Used > n.Memory.Total || n.Store.Used > n.Store.Bytes {
				t.Fatalf("%s: %+v", id, n)
			}
		}
		if inFlight != active {
			t.Fatalf("engines have %d requests, gates let %d through", inFlight, active)
		}
	}
}

// TestTimes: Config.Times sets the duration of a start and of an exit.
func TestTimes(t *testing.T) {
	m := model("m", func(s *functions.ModelSpec) {
		s.Source, s.Scale.Idle = "", functions.Duration(time.Minute)
	})
	var told []StartTimes
	when := map[string][]time.Time{}
	runConfig(t, Config{
		Fleet: exact(), Functions: []*functions.Model{m}, Sizes: map[functions.Name]functions.Bytes{m.FullName(): 1},
		Requests: requestsAt(m, time.Second, 5*time.Minute, 10*time.Minute), Latency: -1, Gather: -1,
		Times: func(name functions.Name, nth int, drawn StartTimes) StartTimes {
			if name != m.FullName() || nth != len(told)+1 {
				t.Errorf("start %d of %s after %d", nth, name, len(told))
			}
			told = append(told, drawn)
			drawn.Spawn, drawn.Exit = time.Duration(nth)*time.Second, time.Duration(nth)*time.Millisecond
			return drawn
		},
		Event: func(e functions.Event) { when[e.Kind] = append(when[e.Kind], e.At) },
	})
	want := StartTimes{Plan: planTakes, Exec: execTakes, Spawn: 10 * time.Second, Warmup: 2 * time.Second, Rise: time.Second, Exit: exitTakes}
	if len(told) != 3 || told[0] != want || len(when["ready"]) != 3 || len(when["ended"]) < 2 {
		t.Fatalf("%+v %v", told, when)
	}
	for i := range 3 {
		if d, want := when["ready"][i].Sub(when["start"][i]), execTakes+time.Duration(i+1)*time.Second+2*time.Second; d < want ||
			d > want+time.Millisecond {
			t.Errorf("start %d took %v, want %v", i+1, d, want)
		}
	}
	for i := range 2 {
		if d, want := when["ended"][i].Sub(when["stop"][i]), time.Duration(i+1)*time.Millisecond; d != want {
			t.Errorf("end %d took %v, want %v", i+1, d, want)
		}
	}
}

// TestMemoryRetry: a start that finds too little memory evicts the idle model on its node,
// and is repeated once; the model that is in use stays.
func TestMemoryRetry(t *testing.T) {
	ms := models(3, func(s *functions.ModelSpec) { s.Resources = functions.Resources{Memory: 1 << 30} })
	const cause = "out of memory: Available memory on node 0 is less than requested"
	for what, c := range map[string]struct {
		lasts  bool // the shortage
		starts int
		refuse int
	}{"one model makes it short": {false, 2, 0}, "it is short anyhow": {true, 2, 1}} {
		t.Run(what, func(t *testing.T) {
			starts, retries, refused := 0, 0, 0
			var st *State
			st, err := Open(Config{Fleet: hosts(1, 1), Functions: ms, Event: func(e functions.Event) {
				switch {
				case e.Kind == "start" && e.Function == ms[2].FullName().String():
					starts++
				case e.Kind == "retry":
					retries++
				case e.Kind == "ended" && e.Function == ms[0].FullName().String() && !c.lasts:
					st.FailStarts(ms[2].FullName(), "")
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			pass := func(d time.Duration) {
				if err := st.Pass(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
			st.OnRequestEnd = func(f RequestEnd) {
				if f.Code != "" {
					refused++
				}
			}
			pass(time.Second)
			st.Ask(trace.Request{Function: ms[0].FullName(), Output: 1})
			st.Ask(trace.Request{Function: ms[1].FullName(), Output: 1 << 30})
			pass(2 * time.Minute)
			st.FailStarts(ms[2].FullName(), cause)
			st.Ask(trace.Request{Function: ms[2].FullName(), Output: 1})
			pass(2 * time.Minute)
			here := map[functions.Name]int{}
			v, _ := st.Node(st.Nodes()[0])
			for _, r := range v.Replicas {
				if r.State == functions.Ready {
					here[r.Function]++
				}
			}
			if starts != c.starts || retries != 1 || refused != c.refuse {
				t.Errorf("%d starts, %d retries, %d refused", starts, retries, refused)
			}
			if here[ms[0].FullName()] != 0 || here[ms[1].FullName()] != 1 || here[ms[2].FullName()] != c.starts-1-c.refuse {
				t.Errorf("READY: %v", here)
			}
		})
	}
}
