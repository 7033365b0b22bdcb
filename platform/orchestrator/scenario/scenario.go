// Package scenario is what every backend must do, told as stories. A backend
// brings a World: its own agents, its own clock, its own way to break them. The
// same stories run on fakes in virtual time and on real processes.
package scenario

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// World is one backend with nodes "a" and "b" of one GPU each, and a data path
// that holds requests. A replica takes a request until Finish. Its time may be
// virtual; every method returns when what it did has been seen.
type World interface {
	// Deploy replaces the catalogue.
	Deploy(models ...*functions.Model)
	// Ask has n requests come for a model; they wait until a replica is READY.
	Ask(model string, n int)
	// Leave has those that wait give up, Finish ends those at engines.
	Leave(model string)
	Finish(model string)
	// Waiting and Running requests of a model, and what the last ones that were
	// refused were told.
	Waiting(model string) int
	Running(model string) int
	Told(model string) string
	// Replicas of a model that are READY or on their way, as STATE@NODE, sorted.
	Replicas(model string) []string
	// Starts of a model so far, over all nodes.
	Starts(model string) int
	// Break has every start of a model fail with cause; "" mends it.
	Break(model, cause string)
	// Vanish cuts a node off, its engines running; Return brings it back.
	Vanish(node string)
	Return(node string)
	// Restart ends the orchestrator as kill -9 does and starts another life of it.
	Restart()
	// Pass lets time go by.
	Pass(d time.Duration)
	// Model makes a model that this world can start, with one GPU.
	Model(name string, edit func(*functions.ModelSpec)) *functions.Model
}

// Options say what a world can bear.
type Options struct {
	// Slow worlds run in real time: stories that wait for minutes are left out.
	Slow bool
	// Boot bounds the time from a wake to READY.
	Boot time.Duration
}

// Run tells every story, each in a world of its own.
func Run(t *testing.T, o Options, tell func(t *testing.T, story func(t *testing.T, w World))) {
	for _, s := range stories {
		if s.long && o.Slow {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			tell(t, func(t *testing.T, w World) { s.story(&teller{t, w, o}) })
		})
	}
}

type teller struct {
	*testing.T
	World
	o Options
}

// until passes time until ok, at most for d.
func (t *teller) until(d time.Duration, what string, ok func() bool) {
	t.Helper()
	step := max(d/200, time.Millisecond)
	for spent := time.Duration(0); !ok(); spent += step {
		if spent > d {
			t.Fatalf("not within %v: %s", d, what)
		}
		t.Pass(step)
	}
}

func (t *teller) is(model string, want ...string) func() bool {
	return func() bool { return slices.Equal(t.Replicas(model), want) }
}

// ready waits until a model has one replica that is READY, and tells which of the
// two nodes it is on, and which is the other: where there is room on both, the one
// is taken where starts were quicker lately.
func (t *teller) ready(model string) (node, other string) {
	t.Helper()
	t.until(t.o.Boot, model+" is READY", func() bool {
		for _, at := range [...][2]string{{"a", "b"}, {"b", "a"}} {
			if node, other = at[0], at[1]; t.is(model, "READY@"+node)() {
				return true
			}
		}
		return false
	})
	return node, other
}

func (t *teller) served(model string) {
	t.Helper()
	t.until(t.o.Boot, "no waiters for "+model, func() bool { return t.Waiting(model) == 0 })
}

func (t *teller) equal(what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

var stories = []struct {
	name  string
	long  bool
	story func(*teller)
}{
	{"many waiters, one start", false, func(t *teller) {
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Scale.Target = 100 }))
		t.Pass(20 * time.Millisecond)
		t.equal("at rest", t.Replicas("x"), "[]")
		t.Ask("x", 50)
		t.served("x")
		t.equal("running", t.Running("x"), 50)
		t.equal("starts", t.Starts("x"), 1)
	}},
	{"idle ends it", false, func(t *teller) {
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Scale.Idle = functions.Duration(4 * time.Second) }))
		t.Ask("x", 1)
		t.served("x")
		t.Pass(5 * time.Second)
		t.equal("a request is under way for longer than its idle time", len(t.Replicas("x")), 1)
		t.Finish("x")
		t.Pass(time.Second)
		t.equal("not idle for long enough", len(t.Replicas("x")), 1)
		t.until(7*time.Second, "it is ended", t.is("x"))
		t.Ask("x", 1)
		t.served("x")
		t.equal("starts", t.Starts("x"), 2)
	}},
	{"one, two, none", true, func(t *teller) {
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Scale.Max, s.Scale.Target = 2, 4 }))
		t.Ask("x", 20)
		t.until(2*t.o.Boot, "two are READY", t.is("x", "READY@a", "READY@b"))
		t.Leave("x")
		t.Finish("x")
		t.Ask("x", 1)
		t.until(3*time.Minute, "one is enough", func() bool { return len(t.Replicas("x")) == 1 })
		t.equal("the request went on", t.Running("x"), 1)
		t.Finish("x")
		t.until(6*time.Minute, "none is needed", t.is("x"))
		t.equal("starts", t.Starts("x"), 2)
	}},
	{"the least recently used makes way", false, func(t *teller) {
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
	{"the busy do not make way", false, func(t *teller) {
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
	{"busy functions take turns", true, func(t *teller) {
		t.Deploy(t.Model("w", func(s *functions.ModelSpec) { s.Scale.Min = 1 }), t.Model("x", nil), t.Model("y", nil))
		t.ready("w") // one node is taken; the other is fought for
		t.Ask("x", 1)
		t.served("x")
		t.Ask("y", 1)
		for range 3600 {
			for _, m := range []string{"x", "y"} {
				if t.Running(m) > 0 && len(t.Replicas(m)) == 0 {
					t.Finish(m) // only now, off the routes, do its requests end
					t.Ask(m, 1) // and there is always one more
				}
			}
			t.Pass(250 * time.Millisecond)
		}
		if x, y := t.Starts("x"), t.Starts("y"); x < 3 || y < 3 || x+y > 8 {
			t.Fatalf("in a quarter of an hour x had %d turns and y %d", x, y)
		}
	}},
	{"a start that fails", false, func(t *teller) {
		t.Deploy(t.Model("x", nil))
		t.Break("x", "weights are truncated")
		t.Ask("x", 3)
		t.until(t.o.Boot, "waiters are told", func() bool { return t.Waiting("x") == 0 && t.Told("x") != "" })
		t.Pass(3 * time.Second)
		t.equal("no start without demand", t.Starts("x"), 1)
		t.Break("x", "")
		t.Ask("x", 1)
		t.served("x")
		t.equal("after the fix", len(t.Replicas("x")), 1)
	}},
	{"no crash loop", true, func(t *teller) {
		t.Deploy(t.Model("x", nil))
		t.Break("x", "out of memory")
		for range 600 {
			t.Ask("x", 1)
			t.Pass(100 * time.Millisecond)
		}
		if n := t.Starts("x"); n < 3 || n > 8 {
			t.Fatalf("%d starts in a minute", n)
		}
	}},
	{"no waiters: called off before its process", true, func(t *teller) {
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Source = "az://account/container/x" }))
		t.Ask("x", 3)
		t.Pass(time.Millisecond)
		t.equal("it comes", len(t.Replicas("x")), 1)
		t.Leave("x")
		t.Pass(100 * time.Millisecond)
		t.equal("called off", t.Replicas("x"), "[]")
		t.Ask("x", 1)
		t.served("x")
	}},
	{"an agent vanishes and returns", false, func(t *teller) {
		t.Deploy(t.Model("x", nil))
		t.Ask("x", 1)
		t.served("x")
		was, other := t.ready("x")
		t.Vanish(was)
		t.Finish("x")
		t.Ask("x", 1)
		t.until(12*time.Second+t.o.Boot, "it is placed elsewhere", t.is("x", "READY@"+other))
		t.served("x")
		t.Return(was)
		// What it still runs is known again, and then there is one too many.
		t.until(10*time.Second, "the returned one is adopted", t.is("x", "READY@a", "READY@b"))
		t.equal("starts", t.Starts("x"), 2)
	}},
	{"the orchestrator dies and returns", false, func(t *teller) {
		t.Deploy(t.Model("x", nil))
		t.Ask("x", 1)
		t.served("x")
		node, _ := t.ready("x")
		t.Restart()
		t.until(10*time.Second, "it adopts", t.is("x", "READY@"+node))
		t.Ask("x", 1)
		t.served("x")
		t.equal("starts", t.Starts("x"), 1)
	}},
	{"out of the catalogue", false, func(t *teller) {
		t.Deploy(t.Model("x", nil), t.Model("y", nil), t.Model("z", nil))
		t.Ask("x", 1)
		t.served("x")
		t.Finish("x")
		t.Deploy(t.Model("y", nil), t.Model("z", nil))
		t.until(10*time.Second, "it is ended", t.is("x"))
	}},
	{"an empty catalogue is looked at twice", true, func(t *teller) {
		x, y := t.Model("x", nil), t.Model("y", nil)
		t.Deploy(x, y)
		t.Ask("x", 1)
		t.served("x")
		t.Deploy()
		t.Pass(time.Second)
		t.equal("it is not believed at once", len(t.Replicas("x")), 1)
		t.Deploy(x, y)
		t.Pass(10 * time.Second)
		t.equal("nothing was ended", len(t.Replicas("x")), 1)
		t.equal("nothing was cut", t.Running("x"), 1)
		t.Deploy()
		t.Finish("x")
		t.until(10*time.Second, "in the end it is believed", t.is("x"))
	}},
	{"a changed model", false, func(t *teller) {
		t.Deploy(t.Model("x", nil), t.Model("y", nil))
		t.Ask("x", 1)
		t.served("x")
		t.Finish("x")
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Env = map[string]string{"NEW": "1"} }), t.Model("y", nil))
		t.until(10*time.Second, "the old one is ended", t.is("x"))
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
	{"a minimum is kept", false, func(t *teller) {
		t.Deploy(t.Model("x", func(s *functions.ModelSpec) { s.Scale.Min = 1 }))
		t.ready("x")
		t.Pass(2 * time.Second)
		t.equal("starts", t.Starts("x"), 1)
	}},
}
