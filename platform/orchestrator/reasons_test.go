package orchestrator

import (
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/explain"
)

// now returns the sentence about a function.
func (p *play) now(name string) string {
	p.t.Helper()
	x, ok := p.s.Explain(explain.Place, fname(name))
	if !ok {
		p.t.Fatalf("%s is not known", name)
	}
	return x.Now
}

// TestExplain moves a function through its states and checks its explanations, and
// those of evicted functions.
func TestExplain(t *testing.T) {
	p := newPlay(t, 1, model("x"), model("y"), sleepy("z"))
	h := p.agent("n", 1)
	summary := func(name string, want ...string) {
		t.Helper()
		got := p.now(name)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("the summary of %s is %q, without %q", name, got, w)
			}
		}
		if !strings.HasSuffix(got, ".") || strings.Contains(got, "..") || strings.Contains(got, "  ") || strings.Contains(got, "%!") {
			t.Errorf("no sentence: %q", got)
		}
	}
	p.pass(8 * time.Second)
	summary("x", "It is cold", "it had no requests since this server started")
	if x, _ := p.s.Explain("place", fname("x")); !x.Decided.IsZero() || x.State != functions.Unloaded {
		t.Errorf("of what was never decided: %+v", x)
	}

	p.path.ask("x", 3)
	p.pass(time.Second)
	summary("x", "It is being started on n (staging)", "requests wait for it", "3 requests wait")
	x, _ := p.s.Explain("place", fname("x"))
	if x.Chosen != "n" || x.Reason != "requests wait for it" || len(x.Candidates) != 1 || p.at.Sub(x.Decided) > 1100*time.Millisecond ||
		p.at.Sub(x.Decided) < 900*time.Millisecond {
		t.Errorf("%+v", x)
	}
	p.pass(9 * time.Second)
	summary("x", "It serves 3 requests with 1 replica")

	// All GPUs are in use: y's explanation has the reason and the wait.
	p.path.ask("y", 1)
	p.pass(2 * time.Second)
	summary("y", "It cannot be placed", "1 request waits")
	p.path.done("x")
	p.pass(time.Second)
	x, _ = p.s.Explain("evict", fname("y"))
	if len(x.Candidates) == 0 || x.Candidates[0].Function != "default/x" || x.Chosen == "" {
		t.Errorf("evicted for y: %+v", x)
	}
	summary("x", "another function needs the room")
	found := false
	for _, e := range p.s.Events(0) {
		if e.Kind == "stop" && e.Function == "default/x" {
			found = true
			if e.For != "default/y" || e.Message != "it was idle, and another function needs the room" {
				t.Errorf("%+v", e)
			}
		}
	}
	if !found {
		t.Error("no event says that x was evicted for y")
	}
	p.pass(10 * time.Second)
	p.path.done("y")
	p.pass(2 * time.Second)
	summary("y", "It is ready and idle, with 1 replica", "its idle time is 5m")
	p.s.WakeFor(fname("y"), time.Hour)
	p.pass(time.Second)
	summary("y", "A lease keeps it ready for 1h more")
	p.s.Stop(fname("y"))
	p.pass(3 * time.Second)
	summary("y", "It is cold", "a user stopped it", "to start takes about")

	// Asleep, and failed.
	p.path.ask("z", 1)
	p.pass(10 * time.Second)
	p.path.done("z")
	p.pass(70 * time.Second)
	summary("z", "It sleeps on n", "its GPUs are free", "it had no requests for its idle time")
	h.breaks = func(string) string { return "the weights are truncated" }
	p.path.ask("x", 1)
	p.pass(6 * time.Second)
	summary("x", "It did not start: the weights are truncated", "not tried again")

	if _, ok := p.s.Explain("weather", fname("x")); ok {
		t.Error("the weather is explained")
	}
	if _, ok := p.s.Explain("place", fname("unlisted")); ok {
		t.Error("what does not exist is explained")
	}
}

// TestETAReachesTheDataPath: the ETA of a blocked function is published, relative to
// its publication, and again only when it changes.
func TestETAReachesTheDataPath(t *testing.T) {
	p := newPlay(t, 1, model("x"), model("y"))
	p.agent("n", 1)
	p.pass(8 * time.Second)
	p.path.ask("x", 1)
	p.pass(10 * time.Second)
	p.path.ask("y", 1)
	p.pass(time.Second)
	b := p.path.queueOf(fname("y")).pic.Blocked
	if b == nil || b.ETA <= 0 || b.At.IsZero() || b.Remaining(p.at) <= 0 || b.Remaining(p.at) > b.ETA {
		t.Fatalf("%+v", b)
	}
	// y waits for the end of x's time slice: the published ETA is about right.
	forecastAt := b.At.Add(b.ETA)
	for range 600 {
		p.pass(time.Second)
		if p.path.queueOf(fname("y")).queued == 0 {
			break
		}
		if n := p.path.queueOf(fname("y")).pic.Blocked; n != nil && n != b {
			forecastAt, b = n.At.Add(n.ETA), n
		}
		if p.at.Sub(p.began) > 150*time.Second {
			p.path.done("x") // it left the routes, and its last request ends
		}
	}
	if got := p.path.queueOf(fname("y")).queued; got != 0 {
		t.Fatalf("y still waits: %s", p.now("y"))
	}
	if d := p.at.Sub(forecastAt); max(d, -d) > 45*time.Second {
		t.Errorf("forecast %v, served %v", forecastAt.Sub(p.began), p.at.Sub(p.began))
	}
}

// TestUnplacedIsTold: what no node can hold is not said to have had no requests when they have
// left.
func TestUnplacedIsTold(t *testing.T) {
	p := newPlay(t, 1, model("big", func(s *functions.ModelSpec) { s.Resources.GPUs = 9 }))
	p.agent("n", 1)
	p.pass(8 * time.Second)
	p.path.ask("big", 1)
	p.pass(2 * time.Second)
	if now := p.now("big"); !strings.Contains(now, "It cannot be placed: it needs 9 GPUs") {
		t.Error(now)
	}
	p.path.leave("big")
	p.pass(10 * time.Second)
	if now := p.now("big"); !strings.Contains(now, "It is cold: its last requests found no place: it needs 9 GPUs") {
		t.Error(now)
	}
}

// TestFinal: what no node could hold if it were empty is blocked for good where no other may
// join; what only waits for room is not, nor is anything where another may.
func TestFinal(t *testing.T) {
	for name, x := range map[string]struct {
		alone func() bool
		spec  func(*functions.ModelSpec)
		want  bool
	}{
		"more GPUs than there are":   {func() bool { return true }, func(s *functions.ModelSpec) { s.Resources.GPUs = 9 }, true},
		"more memory than there is":  {func() bool { return true }, func(s *functions.ModelSpec) { s.Resources.Memory = 1 << 50 }, true},
		"a GPU that another uses":    {func() bool { return true }, func(s *functions.ModelSpec) { s.Resources.GPUs = 1 }, false},
		"an agent has joined":        {func() bool { return false }, func(s *functions.ModelSpec) { s.Resources.GPUs = 9 }, false},
		"nodes come and go, as pods": {nil, func(s *functions.ModelSpec) { s.Resources.GPUs = 9 }, false},
	} {
		p := newPlay(t, 1, model("user", func(s *functions.ModelSpec) { s.Resources.GPUs = 1 }), model("big", x.spec))
		p.alone = x.alone
		p.boot(2)
		p.agent("n", 1)
		p.pass(8 * time.Second)
		p.path.ask("user", 1)
		p.pass(10 * time.Second)
		p.path.ask("big", 1)
		p.pass(2 * time.Second)
		b := p.path.queueOf(fname("big")).pic.Blocked
		if b == nil || b.Final != x.want {
			t.Errorf("%s: %+v", name, b)
		}
		p.path.leave("big")
		p.pass(10 * time.Second)
		id := p.s.WakeFor(fname("big"), time.Hour)
		p.pass(10 * time.Second)
		if c, ok := p.s.ColdStart(id); !ok || (c.State == functions.Failed && strings.HasPrefix(c.Error, "it needs ")) != x.want {
			t.Errorf("%s: %v %+v", name, ok, c)
		}
	}
}
