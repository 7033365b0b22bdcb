package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
)

// gpuEvents observes the events of two teams' models.
type gpuEvents struct {
	*space
	api   *api.Client
	since uint64 // events up to this one are of earlier tests
}

func (s *space) gpuEvents() *gpuEvents {
	s.Helper()
	e := &gpuEvents{space: s, api: s.controller(s.T)}
	s.Cleanup(e.api.Close)
	e.forget()
	return e
}

// forget leaves out the events so far.
func (e *gpuEvents) forget() {
	for _, old := range e.list() {
		e.since = max(e.since, old.Seq)
	}
}

func (e *gpuEvents) list() []functions.Event {
	list, err := api.GetItems[functions.Event](e.Context(), e.api, fmt.Sprint("/api/v1/events?since=", e.since))
	if err != nil {
		e.Fatal(err)
	}
	return list
}

// stops lists the stopped replicas as FUNCTION REASON FOR.
func (e *gpuEvents) stops() (out []string) {
	for _, x := range e.list() {
		if x.Kind == "stop" {
			out = append(out, x.Function+" "+x.Reason+" "+x.For)
		}
	}
	return out
}

// load returns the running and the waiting requests of a model.
func (e *gpuEvents) load(team *space, name string) (active, queued int) {
	f, err := e.api.Function(e.Context(), functions.Name{Team: team.ns, Name: name})
	if err != nil {
		return 0, 0
	}
	return f.Active, f.Queued
}

// guarantee lets a team borrow both GPUs of the node. What another team is guaranteed is
// given back when that team asks, by a drain that cuts no answer, and an idle replica within
// the guarantee is not evicted for the borrower.
func guarantee(s *space) {
	const slow = "args: [--token-delay, 100ms]"
	blue, red := s, s.team(s.T, "red")
	s.patch(s.T, "namespace", "", red.ns, map[string]any{"metadata": map[string]any{"annotations": map[string]string{"thaw.dev/gpus-guaranteed": "1"}}})
	red.deployed(red.tiny("r", slow, gpu(1), "scale: {idle: 10m}"))
	for _, name := range []string{"b1", "b2"} {
		blue.deployed(blue.tiny(name, slow, gpu(1), "scale: {idle: 10m}", "deadlines: {drain: 1m}"))
	}
	e := s.gpuEvents()
	s.until("the guarantee is known", func() (bool, string) {
		teams, err := api.GetItems[api.Team](s.Context(), e.api, "/api/v1/teams")
		i := slices.IndexFunc(teams, func(t api.Team) bool { return t.Name == red.ns && t.GPUs.Guaranteed == 1 })
		return i >= 0, fmt.Sprintf("%v %+v", err, teams)
	})

	// red used a GPU before, so what it gets back below is not for having used less lately.
	red.must("red's model", red.byModel("r", 60, false))
	s.says(0, "", "stop", red.ns+"/r", "--wait", "--timeout", "90s")
	red.atZero(red.revision("r"))

	long := map[string]chan answer{}
	for _, name := range []string{"b1", "b2"} {
		blue.must("a cold call of "+name, blue.byModel(name, 2, false))
		long[name] = make(chan answer, 1)
	}
	e.forget()
	const tokens = 100 // 10 s
	for name, over := range long {
		go func() { over <- blue.byModel(name, tokens, true) }()
	}
	s.until("blue has both GPUs, and uses them", func() (bool, string) {
		a, _ := e.load(blue, "b1")
		b, _ := e.load(blue, "b2")
		return a == 1 && b == 1, fmt.Sprint(a, " and ", b, " requests")
	})
	asked := time.Now()
	given := make(chan answer, 1)
	go func() { given <- red.byModel("r", 2, false) }()
	victim, other := "b1", "b2"
	s.until("a replica of blue is drained for red", func() (bool, string) {
		got := e.stops()
		return len(got) > 0, fmt.Sprint(got)
	})
	why := " share " + red.ns + "/r"
	switch got := e.stops()[0]; got {
	case blue.ns + "/b1" + why:
	case blue.ns + "/b2" + why:
		victim, other = other, victim
	default:
		s.Fatalf("stopped: %s", got)
	}
	// The answers that are under way come whole, the victim's before red has its GPU.
	var drained time.Time
	select {
	case a := <-long[victim]:
		drained = time.Now()
		blue.must("the answer of the drained replica", a)
	case a := <-given:
		s.Fatalf("red was answered before the answer of %s has ended: %s", victim, a)
	}
	red.must("red's call", <-given)
	s.Logf("red has its GPU %v after it asked, %v after the drained answer", time.Since(asked).Round(10*time.Millisecond),
		time.Since(drained).Round(10*time.Millisecond))
	blue.must("the answer of the other", <-long[other])

	// blue wants its model back, while its other one is busy. red's replica is idle, and stays.
	go func() { long[other] <- blue.byModel(other, 40, true) }()
	s.until("the other one is busy", func() (bool, string) {
		a, _ := e.load(blue, other)
		return a == 1, fmt.Sprint(a)
	})
	go func() { long[victim] <- blue.byModel(victim, 2, false) }()
	blue.must("the answer of the other", <-long[other])
	blue.must("the call of the drained one", <-long[victim])
	if want, _, saw := red.scale(red.revision("r")); want != 1 {
		s.Errorf("red's replica was evicted for the borrower: %s", saw)
	}
	for _, got := range e.stops() {
		if strings.HasPrefix(got, red.ns+"/") {
			s.Errorf("stopped: %s", got)
		}
	}
}

// beforeSlice is less than the two minutes of a time slice, after which a busy replica gives
// way also without a team's share.
const beforeSlice = 90 * time.Second

// turns sends two teams' models that each need the whole node more requests than they can
// answer: each is served again and again, every request gets its answer, and the team that
// comes second does not wait for the first one's queue to end.
func turns(s *space) {
	teams := map[string]*space{"x": s, "y": s.team(s.T, "other")}
	for name, team := range teams {
		team.deployed(team.tiny(name, "args: [--token-delay, 20ms]", gpu(gpus), "scale: {idle: 10m, target: 2}", "deadlines: {drain: 1m}"))
	}
	e := s.gpuEvents()
	var over atomic.Bool
	var clients sync.WaitGroup
	defer clients.Wait()
	defer over.Store(true)
	answers := map[string]*atomic.Int64{"x": new(atomic.Int64), "y": new(atomic.Int64)}
	ask := func(name string) {
		for range 6 { // three times what one replica takes at once
			clients.Go(func() {
				for !over.Load() {
					if a := teams[name].byModel(name, 20, false); !a.whole() {
						s.Errorf("%s: %s", name, a)
						return
					}
					answers[name].Add(1)
				}
			})
		}
	}
	ask("x")
	s.until("x is served", func() (bool, string) {
		n := answers["x"].Load()
		return n > 12, fmt.Sprint(n, " answers")
	})
	ask("y")
	asked := time.Now()
	until(s.T, beforeSlice, "y is served, while x has a queue", func() (bool, string) {
		n := answers["y"].Load()
		return n > 0, fmt.Sprint(n, " answers; stopped: ", e.stops())
	})
	s.Logf("y is served %v after it asked", time.Since(asked).Round(10*time.Millisecond))
	before := answers["x"].Load()
	until(s.T, beforeSlice, "x has its turn again, while y has a queue", func() (bool, string) {
		n := answers["x"].Load() - before
		return n > 12, fmt.Sprint(n, " answers; stopped: ", e.stops())
	})
	s.Logf("x is served again %v after y asked: %d answers of x, %d of y", time.Since(asked).Round(10*time.Millisecond), answers["x"].Load(),
		answers["y"].Load())
	x, y := s.ns+"/x", teams["y"].ns+"/y"
	if got, want := e.stops(), []string{x + " share " + y, y + " share " + x}; len(got) < 2 || !slices.Equal(got[:2], want) {
		s.Errorf("stopped: %q, want first %q", got, want)
	}
	over.Store(true)
	clients.Wait()
}
