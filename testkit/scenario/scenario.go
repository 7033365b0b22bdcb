// Package scenario is the conformance suite of the platform's backends (orchestrator with fakes,
// simulator, local, Knative): each runs the same scenarios of demand, failed starts, lost nodes
// and restarts. They run on fakes in virtual time, on real processes and on Kubernetes. A backend
// implements World, with its own agents, clock and faults.
package scenario

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// World is one backend with nodes "a" and "b" of one GPU each, and a data path that
// holds requests. A replica serves a request until Finish. Time may be virtual. Every
// method returns when its effect is visible.
type World interface {
	// Deploy replaces the catalogue.
	Deploy(models ...*functions.Model)
	// Ask sends n requests for a model; they wait until a replica is READY.
	Ask(model string, n int)
	// Leave cancels the waiting requests of a model, Finish ends the running ones.
	Leave(model string)
	Finish(model string)
	// Waiting and Running count the requests of a model; Refusal is the error of the
	// last refused ones.
	Waiting(model string) int
	Running(model string) int
	Refusal(model string) string
	// Replicas lists the READY and starting replicas of a model as STATE@NODE, sorted.
	Replicas(model string) []string
	// Starts counts the starts of a model so far, on all nodes.
	Starts(model string) int
	// Break makes every start of a model fail with cause; "" ends that.
	Break(model, cause string)
	// Vanish disconnects a node, its engines running; Return connects it again.
	Vanish(node string)
	Return(node string)
	// Restart kills the orchestrator, as kill -9 does, and starts another process of it.
	Restart()
	// Pass advances the time.
	Pass(d time.Duration)
	// Model returns a model with one GPU that this world can start.
	Model(name string, edit func(*functions.ModelSpec)) *functions.Model
}

// Options are the limits of a world.
type Options struct {
	// Minute is how long the minutes of scenarios, and of the world's policy, last: worlds in
	// real time have shorter ones. 0: scenarios that wait for minutes are skipped.
	Minute time.Duration
	// Boot bounds the time from a wake to READY.
	Boot time.Duration
	// Least is the least bound of a wait for what must happen. Worlds in real time have one:
	// a busy machine is late.
	Least time.Duration
}

// Story is what happens in one scenario's world.
type Story func(t *testing.T, w World)

// Run runs every scenario in a world of its own, which start makes. minute is how long the
// minutes of its policy last: o.Minute in scenarios that wait for them, else a minute, which
// no machine is too slow for.
func Run(t *testing.T, o Options, start func(t *testing.T, minute time.Duration, run Story)) {
	for _, s := range scenarios {
		if s.long && o.Minute == 0 {
			continue
		}
		minute := time.Minute
		if s.long {
			minute = o.Minute
		}
		t.Run(s.name, func(t *testing.T) {
			start(t, minute, func(t *testing.T, w World) { s.run(&runner{t, w, o}) })
		})
	}
}

type runner struct {
	*testing.T
	World
	o Options
}

// until passes time until ok, at most for d or the world's least bound.
func (r *runner) until(d time.Duration, what string, ok func() bool) {
	r.Helper()
	step := max(d/200, time.Millisecond)
	d = max(d, r.o.Least)
	for spent := time.Duration(0); !ok(); spent += step {
		if spent > d {
			r.Fatalf("not within %v: %s", d, what)
		}
		r.Pass(step)
	}
}

// equalBefore is equal where less than bound has passed since began. Later the world may have
// changed, because the machine was slow.
func (r *runner) equalBefore(began time.Time, bound time.Duration, what string, got, want any) {
	r.Helper()
	if time.Since(began) < bound {
		r.equal(what, got, want)
	}
}

// minutes returns how long n minutes last here.
func (r *runner) minutes(n int) time.Duration { return time.Duration(n) * r.o.Minute }

func (r *runner) replicasAre(model string, want ...string) func() bool {
	return func() bool { return slices.Equal(r.Replicas(model), want) }
}

// ready waits until a model has one READY replica, and returns its node and the other
// one: with room on both, placement takes the one with the quicker starts.
func (r *runner) ready(model string) (node, other string) {
	r.Helper()
	r.until(r.o.Boot, model+" is READY", func() bool {
		for _, at := range [...][2]string{{"a", "b"}, {"b", "a"}} {
			if node, other = at[0], at[1]; r.replicasAre(model, "READY@"+node)() {
				return true
			}
		}
		return false
	})
	return node, other
}

func (r *runner) served(model string) {
	r.Helper()
	r.until(r.o.Boot, "no waiters for "+model, func() bool { return r.Waiting(model) == 0 })
}

func (r *runner) equal(what string, got, want any) {
	r.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

var scenarios = []struct {
	name string
	long bool
	run  func(*runner)
}{
	{"many waiters, one start", false, func(t *runner) {
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Scale.Target = 100 }))
		t.Pass(20 * time.Millisecond)
		t.equal("at rest", t.Replicas("x"), "[]")
		t.Ask("x", 50)
		t.served("x")
		t.equal("running", t.Running("x"), 50)
		t.equal("starts", t.Starts("x"), 1)
	}},
	{"idle ends it", false, func(t *runner) {
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Scale.Idle = functions.Duration(4 * time.Second) }))
		t.Ask("x", 1)
		t.served("x")
		t.Pass(5 * time.Second)
		t.equal("a request is under way for longer than its idle time", len(t.Replicas("x")), 1)
		began := time.Now()
		t.Finish("x")
		t.Pass(time.Second)
		t.equalBefore(began, 4*time.Second, "not idle for long enough", len(t.Replicas("x")), 1)
		t.until(7*time.Second, "it is ended", t.replicasAre("x"))
		t.Ask("x", 1)
		t.served("x")
		t.equal("starts", t.Starts("x"), 2)
	}},
	{"one, two, none", true, func(t *runner) {
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) {
			s.Scale.Max, s.Scale.Target, s.Scale.Idle = 2, 4, functions.Duration(t.minutes(5))
		}))
		t.Ask("x", 20)
		t.until(2*t.o.Boot, "two are READY", t.replicasAre("x", "READY@a", "READY@b"))
		t.Leave("x")
		t.Finish("x")
		t.Ask("x", 1)
		t.until(t.minutes(3), "one is enough", func() bool { return len(t.Replicas("x")) == 1 })
		t.equal("the request went on", t.Running("x"), 1)
		t.Finish("x")
		t.until(t.minutes(6), "none is needed", t.replicasAre("x"))
		t.equal("starts", t.Starts("x"), 2)
	}},
	{"the least recently used makes way", false, func(t *runner) {
		t.Deploy(t.Model("x", nil), t.Model("y", nil), t.Model("z", nil))
		for _, m := range []string{"x", "y"} {
			t.Ask(m, 1)
			t.served(m)
			t.Finish(m)
			t.Pass(50 * time.Millisecond)
		}
		t.Ask("x", 1)
		t.Finish("x")
		t.Pass(1200 * time.Millisecond) // residency
		t.Ask("z", 1)
		t.served("z")
		t.equal("y, which was used before x, is gone", t.Replicas("y"), "[]")
		t.equal("x stays", len(t.Replicas("x")), 1)
	}},
	{"the busy do not make way", false, func(t *runner) {
		t.Deploy(t.Model("x", nil), t.Model("y", nil), t.Model("z", nil))
		t.Ask("x", 1)
		t.served("x")
		t.Ask("y", 1)
		t.served("y")
		t.Ask("z", 1)
		t.Pass(2 * time.Second)
		t.equal("both are kept", len(t.Replicas("x"))+len(t.Replicas("y")), 2)
		t.equal("their requests too", t.Running("x")+t.Running("y"), 2)
		t.equal("z is not started", t.Starts("z"), 0)
		t.Finish("x")
		t.Ask("z", 1)
		t.served("z")
		t.equal("x made way", t.Replicas("x"), "[]")
	}},
	{"busy functions take turns", true, func(t *runner) {
		t.Deploy(t.Model("w", func(s *functions.ModelSpec) { s.Scale.Min = 1 }), t.Model("x", nil), t.Model("y", nil))
		t.ready("w") // one node is taken; the other is fought for
		t.Ask("x", 1)
		t.served("x")
		t.Ask("y", 1)
		began, spent := time.Now(), time.Duration(0) // worlds have clocks of their own
		for t.Starts("x") < 3 || t.Starts("y") < 3 {
			for _, m := range []string{"x", "y"} {
				if t.Running(m) > 0 && len(t.Replicas(m)) == 0 {
					t.Finish(m) // only now, off the routes, do its requests end
					t.Ask(m, 1) // and there is always one more
				}
			}
			step := t.minutes(1) / 120
			t.Pass(step)
			if spent = max(spent+step, time.Since(began)); spent > t.minutes(15)+6*t.o.Boot {
				t.Fatalf("in a quarter of an hour x had %d turns and y %d", t.Starts("x"), t.Starts("y"))
			}
		}
		if n := t.Starts("x") + t.Starts("y"); spent < time.Duration(n-1)*t.minutes(2)-t.minutes(1) {
			t.Fatalf("%d turns in %v: shorter than two minutes", n, spent)
		}
	}},
	{"a start that fails", false, func(t *runner) {
		t.Deploy(t.Model("x", nil))
		t.Break("x", "weights are truncated")
		t.Ask("x", 3)
		t.until(t.o.Boot, "the waiters are refused", func() bool { return t.Waiting("x") == 0 && t.Refusal("x") != "" })
		t.Pass(3 * time.Second)
		t.equal("no start without demand", t.Starts("x"), 1)
		t.Break("x", "")
		t.until(t.o.Boot, "a start behind the pause, which is as long as the failed start", func() bool {
			if t.Waiting("x") == 0 {
				t.Ask("x", 1)
			}
			return t.Starts("x") == 2
		})
		t.served("x")
		t.equal("after the fix", len(t.Replicas("x")), 1)
	}},
	{"no crash loop", true, func(t *runner) {
		t.Deploy(t.Model("x", nil))
		t.Break("x", "out of memory")
		const step = 100 * time.Millisecond
		began := time.Now() // worlds have clocks of their own
		for spent := time.Duration(0); spent < 15*time.Second; spent = max(spent+step, time.Since(began)) {
			t.Ask("x", 1) // with pauses of 1, 2, 4 and 8 s
			t.Pass(step)
		}
		if n := t.Starts("x"); n < 2 || n > 5 {
			t.Fatalf("%d starts in 15 s", n)
		}
	}},
	{"no waiters: called off before its process", true, func(t *runner) {
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Source = "az://account/container/x" }))
		t.Ask("x", 3)
		t.until(time.Second, "it comes", func() bool { return len(t.Replicas("x")) == 1 })
		t.Leave("x")
		t.until(time.Second, "called off", t.replicasAre("x"))
		t.Ask("x", 1)
		t.served("x")
	}},
	{"an agent vanishes and returns", false, func(t *runner) {
		t.Deploy(t.Model("x", nil))
		t.Ask("x", 1)
		t.served("x")
		was, other := t.ready("x")
		t.Vanish(was)
		t.Finish("x")
		t.Ask("x", 1)
		t.until(12*time.Second+t.o.Boot, "it is placed elsewhere", t.replicasAre("x", "READY@"+other))
		t.served("x")
		t.Return(was)
		// Its replica is adopted; then there is one too many.
		t.until(10*time.Second, "the returned one is adopted", t.replicasAre("x", "READY@a", "READY@b"))
		t.equal("starts", t.Starts("x"), 2)
	}},
	{"the orchestrator dies and returns", false, func(t *runner) {
		t.Deploy(t.Model("x", nil))
		t.Ask("x", 1)
		t.served("x")
		node, _ := t.ready("x")
		t.Restart()
		t.until(10*time.Second, "it adopts", t.replicasAre("x", "READY@"+node))
		t.Ask("x", 1)
		t.served("x")
		t.equal("starts", t.Starts("x"), 1)
	}},
	{"out of the catalogue", false, func(t *runner) {
		t.Deploy(t.Model("x", nil), t.Model("y", nil), t.Model("z", nil))
		t.Ask("x", 1)
		t.served("x")
		t.Finish("x")
		t.Deploy(t.Model("y", nil), t.Model("z", nil))
		t.until(10*time.Second, "it is ended", t.replicasAre("x"))
	}},
	{"an empty catalogue is looked at twice", true, func(t *runner) {
		x, y := t.Model("x", nil), t.Model("y", nil)
		t.Deploy(x, y)
		t.Ask("x", 1)
		t.served("x")
		began := time.Now()
		t.Deploy()
		t.Pass(time.Second)
		t.equalBefore(began, 2*time.Second, "it is not believed at once", len(t.Replicas("x")), 1)
		t.Deploy(x, y)
		t.Pass(10 * time.Second)
		t.equal("nothing was ended", len(t.Replicas("x")), 1)
		t.equal("nothing was cut", t.Running("x"), 1)
		t.Deploy()
		t.Finish("x")
		t.until(10*time.Second, "in the end it is believed", t.replicasAre("x"))
	}},
	{"a changed model", false, func(t *runner) {
		t.Deploy(t.Model("x", nil), t.Model("y", nil))
		t.Ask("x", 1)
		t.served("x")
		t.Finish("x")
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Env = map[string]string{"NEW": "1"} }), t.Model("y", nil))
		t.until(10*time.Second, "the old one is ended", t.replicasAre("x"))
		t.Ask("x", 1)
		t.served("x")
		t.equal("starts", t.Starts("x"), 2)
		t.Finish("x")
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) {
			s.Env = map[string]string{"NEW": "1"}
			s.Scale.Idle = functions.Duration(time.Hour)
		}), t.Model("y", nil))
		t.Pass(500 * time.Millisecond)
		t.equal("its scale alone restarts nothing", len(t.Replicas("x")), 1)
	}},
	{"a minimum is kept", false, func(t *runner) {
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Scale.Min = 1 }))
		t.ready("x")
		t.Pass(2 * time.Second)
		t.equal("starts", t.Starts("x"), 1)
	}},
}
