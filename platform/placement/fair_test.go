package placement

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// contest simulates one GPU and functions of teams that compete for it, in virtual
// time: it performs plans with realistic delays and counts the use of the teams.
type contest struct {
	t      *testing.T
	w      World
	p      *Planner
	now    Instant
	load   time.Duration // from a start to READY
	unload time.Duration // from the last request in flight to the end of the replica
	fs     []*contestant
	next   int

	starts   []started
	switches int
}

type started struct {
	at   Instant
	team string
	use  map[string]float64
}

type contestant struct {
	Function
	service time.Duration
	waiting []Instant // arrivals
	ends    []Instant // ends of the requests in flight
	waits   []time.Duration
	served  int
	began   Instant // start of its replica
	endless bool    // each served request is followed by a new one
}

const contestStep = 100 * time.Millisecond

func newContest(t *testing.T, load, unload time.Duration) *contest {
	c := &contest{t: t, now: time.Second, load: load, unload: unload, w: World{Teams: map[string]Team{}}, p: DefaultPolicy.Planner()}
	n := &Node{ID: "n", Here: true, Memory: 64 * gib, GPUs: []rooms.GPU{{Memory: 80 * gib}}}
	c.w.Nodes = []*Node{n}
	c.p.NodeChanged(n)
	return c
}

func (c *contest) add(name string, target int, service time.Duration) *contestant {
	f := &contestant{Function: *model(name, 1), service: service}
	f.Scale.Target = target
	c.fs = append(c.fs, f)
	c.w.Functions = append(c.w.Functions, &f.Function)
	c.w.Teams[f.Name.Team] = Team{}
	return f
}

func (c *contestant) arrive(now Instant, n int) {
	for range n {
		c.waiting = append(c.waiting, now)
	}
}

func (c *contest) step() {
	c.now += contestStep
	decay := math.Exp(-contestStep.Seconds() / UseDecay.Seconds())
	for name, t := range c.w.Teams {
		t.Used *= decay
		for _, f := range c.fs {
			if f.Name.Team == name && len(f.Replicas) > 0 {
				t.Used += contestStep.Seconds()
			}
		}
		c.w.Teams[name] = t
	}
	for _, f := range c.fs {
		f.ends = slices.DeleteFunc(f.ends, func(at Instant) bool {
			if at > c.now {
				return false
			}
			f.served++
			f.LastEnd = c.now
			if f.endless {
				f.arrive(c.now, 1)
			}
			return true
		})
		if len(f.Replicas) > 0 {
			r := &f.Replicas[0]
			switch {
			case r.Stopping && len(f.ends) > 0:
				f.began = c.now // unload counts from the end of the last request
			case r.Stopping && c.now-f.began >= c.unload:
				f.Replicas = nil
			case r.Stopping:
			case r.State == functions.Downloading && c.now-f.began >= c.load:
				r.State, r.ReadyAt, r.Spawned = functions.Ready, c.now, true
			}
		}
		if len(f.Replicas) > 0 {
			if r := &f.Replicas[0]; r.State == functions.Ready && !r.Stopping {
				for len(f.waiting) > 0 && len(f.ends) < f.Scale.Target {
					f.waits = append(f.waits, c.now-f.waiting[0])
					f.waiting = f.waiting[1:]
					f.ends = append(f.ends, c.now+f.service)
				}
			}
			f.Replicas[0].InFlight = len(f.ends)
		}
		f.Active, f.Queued, f.Oldest = len(f.ends), len(f.waiting), 0
		f.Needed, f.Desired = min(1, f.Active+f.Queued), min(1, f.Active+f.Queued)
		if f.Queued > 0 {
			f.Oldest = max(f.waiting[0], 1)
		}
		c.p.FunctionChanged(&f.Function)
	}
	teams := map[string]Team{}
	for name, t := range c.w.Teams {
		teams[name] = t
	}
	c.p.Teams(teams)
	for _, a := range c.p.Plan(c.now).Actions {
		i := slices.IndexFunc(c.fs, func(f *contestant) bool { return f.Name == a.Function })
		f := c.fs[i]
		switch a.Kind {
		case Start:
			for _, g := range c.fs {
				if len(g.Replicas) > 0 {
					c.t.Fatalf("%v: %s is started while %s holds the GPU", c.now, f.Name, g.Name)
				}
			}
			c.next++
			f.began = c.now
			f.Replicas = []Replica{{ID: a.Function.String(), Node: "n", State: functions.Downloading, GPUs: a.GPUs, Reserved: f.Resources}}
			use := map[string]float64{}
			for name, t := range c.w.Teams {
				use[name] = t.Used
			}
			c.starts = append(c.starts, started{c.now, f.Name.Team, use})
			c.switches++
		case Stop:
			r := &f.Replicas[0]
			r.Stopping = true
			f.began = c.now
		case CancelStart:
			f.Replicas = nil
		default:
			c.t.Fatalf("%v: %v of %s", c.now, a.Kind, a.Function)
		}
		c.p.FunctionChanged(&f.Function)
	}
}

// TestFairness: however long the queue of one team, another team's wait is at most one
// service time and one switch.
func TestFairness(t *testing.T) {
	const load, unload = 20 * time.Second, 2 * time.Second
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		c := newContest(t, load, unload)
		heavy := c.add("heavy/m", 4+rnd.IntN(8), time.Duration(5+rnd.IntN(20))*time.Second)
		light := c.add("light/m", 1, 3*time.Second)
		heavy.arrive(c.now, 10000)
		next := c.now + time.Duration(rnd.IntN(300))*time.Second
		for c.now < 2*time.Hour {
			if c.now >= next {
				light.arrive(c.now, 1)
				next = c.now + time.Minute + time.Duration(rnd.ExpFloat64()*float64(3*time.Minute))
			}
			c.step()
		}
		bound := heavy.service + unload + load + 3*contestStep
		worst := slices.Max(light.waits)
		if worst > bound {
			t.Errorf("seed %d: a request of the light team waited %v; one service (%v) and one switch (%v) are %v", seed, worst, heavy.service,
				unload+load, bound)
		}
		if len(light.waits) < 20 || len(light.waiting) > 1 {
			t.Errorf("seed %d: %d of the light team were let through and %d wait", seed, len(light.waits), len(light.waiting))
		}
		// Conversely, the heavy team gets the time that the light one does not use.
		if full := int(2*time.Hour/heavy.service) * heavy.Scale.Target; heavy.served < full/3 {
			t.Errorf("seed %d: the heavy team was served %d times, alone it would be %d", seed, heavy.served, full)
		}
	}
}

// TestNoPingPong: two teams with endless demand share the time, and no team gets the
// GPU back before the other used more than its share.
func TestNoPingPong(t *testing.T) {
	const load, unload = 20 * time.Second, 2 * time.Second
	c := newContest(t, load, unload)
	a, b := c.add("a/m", 4, 5*time.Second), c.add("b/m", 4, 5*time.Second)
	a.endless, b.endless = true, true
	a.arrive(c.now, 10000)
	for c.now < 20*time.Minute {
		c.step()
	}
	b.arrive(c.now, 10000)
	came := c.now
	for len(b.waits) == 0 {
		if c.step(); c.now-came > time.Minute {
			t.Fatal("b was not let in")
		}
	}
	if w := b.waits[0]; w > a.service+unload+load+3*contestStep {
		t.Errorf("b waited %v at first", w)
	}
	from := len(c.starts)
	served := [2]int{a.served, b.served}
	for c.now < came+4*time.Hour {
		c.step()
	}
	var last Instant
	for i, s := range c.starts[from:] {
		other := map[string]string{"a": "b", "b": "a"}[s.team]
		if s.use[other] <= s.use[s.team] {
			t.Errorf("at %v %s was given the GPU though it had had more (%v)", s.at, s.team, s.use)
		}
		if i > 0 && s.at-last < DefaultPolicy.TimeSlice {
			t.Errorf("at %v it is moved after %v", s.at, s.at-last)
		}
		last = s.at
	}
	if n := len(c.starts) - from; n < 8 || n > int(4*time.Hour/DefaultPolicy.TimeSlice) {
		t.Errorf("%d moves in four hours", n)
	}
	x, y := float64(a.served-served[0]), float64(b.served-served[1])
	if x/y > 1.3 || y/x > 1.3 {
		t.Errorf("they were served %v and %v times", x, y)
	}
	if x+y < 0.7*4*3600/5*4 {
		t.Errorf("%v served in all: too much goes into moving", x+y)
	}
}
