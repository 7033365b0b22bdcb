package placement

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
	"github.com/thaw-dev/thaw/platform/placement/starttime"
)

// fleet is a cluster of nodes with 8 GPUs on which every GPU is held by an idle
// READY replica: models of 1, 2, 4 and 8 GPUs of 20 teams with guarantees.
type fleet struct {
	World
	by  map[functions.Name]*Function
	now Instant
	rnd *rand.Rand
	ids int
}

func newFleet(models, nodes int) *fleet {
	w := &fleet{by: map[functions.Name]*Function{}, now: time.Hour, rnd: rand.New(rand.NewPCG(1, 2))}
	w.Teams = map[string]Team{}
	for t := range 20 {
		w.Teams[fmt.Sprint("t", t)] = Team{TeamGPUs: functions.TeamGPUs{Guaranteed: nodes / 5}, Used: float64(t)}
	}
	for i := range nodes {
		w.Nodes = append(w.Nodes, node(fmt.Sprintf("n%03d", i), 8))
	}
	at, used := 0, 0
	for i := range models {
		gpus := 1
		switch x := w.rnd.IntN(100); {
		case x < 2:
			gpus = 8
		case x < 10:
			gpus = 4
		case x < 30:
			gpus = 2
		}
		f := model(fmt.Sprintf("t%d/m%d", w.rnd.IntN(20), i), gpus)
		f.Source, f.Size = fmt.Sprint("s", i), functions.Bytes(gpus)*16*gib
		f.Expect = starttime.Expect{Tier: map[functions.Tier]time.Duration{functions.TierNVMe: 20 * time.Second, functions.TierRemote: 80 * time.Second}}
		if at < nodes && used+gpus <= 8 {
			w.run(f, w.Nodes[at].ID, seq(used, gpus))
			if used += gpus; used == 8 {
				at, used = at+1, 0
			}
		}
		w.Functions = append(w.Functions, f)
		w.by[f.Name] = f
	}
	return w
}

func seq(from, n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = from + i
	}
	return s
}

func (f *fleet) run(function *Function, node string, gpus []int) {
	f.ids++
	function.Replicas = append(function.Replicas,
		Replica{ID: fmt.Sprint("r", f.ids), Node: node, State: functions.Ready, GPUs: gpus, Reserved: function.Resources,
			ReadyAt: f.now - time.Minute - time.Duration(f.rnd.IntN(60))*time.Second, Spawned: true})
	function.LastEnd = f.now - time.Duration(2+f.rnd.IntN(60))*time.Second
}

func (f *fleet) planner(p Policy) *Planner {
	c := p.Planner()
	for _, n := range f.Nodes {
		c.NodeChanged(n)
	}
	c.Teams(f.Teams)
	for _, function := range f.Functions {
		c.FunctionChanged(function)
	}
	return c
}

// warm picks a function that has a replica.
func (f *fleet) warm() *Function {
	for {
		if function := f.Functions[f.rnd.IntN(len(f.Functions))]; len(function.Replicas) > 0 {
			return function
		}
	}
}

// cold picks a function that has no replica.
func (f *fleet) cold() *Function {
	for {
		if function := f.Functions[f.rnd.IntN(len(f.Functions))]; len(function.Replicas) == 0 {
			return function
		}
	}
}

// wake adds demand for f and performs plans until f is started. It returns the duration
// of each plan.
func (f *fleet) wake(c *Planner, function *Function, took []time.Duration) []time.Duration {
	function.Queued, function.Oldest = 1, f.now
	c.FunctionChanged(function)
	for range 4 {
		began := time.Now()
		plan := c.Plan(f.now)
		took = append(took, time.Since(began))
		for i := range plan.Actions {
			a := &plan.Actions[i]
			g := f.by[a.Function]
			switch a.Kind {
			case Stop:
				g.Replicas = slices.DeleteFunc(g.Replicas, func(r Replica) bool { return r.ID == a.Replica })
			case Start:
				f.run(g, a.Node, a.GPUs)
				g.Queued, g.Oldest = 0, 0
			}
			c.FunctionChanged(g)
		}
		if function.Queued == 0 {
			return took
		}
	}
	panic(fmt.Sprintf("%s finds no room", function.Name))
}

var sizes = []struct{ models, nodes int }{{1000, 13}, {10000, 125}}

// BenchmarkWake: every GPU is held, and a request arrives for a function without
// replicas: one plan picks the victim, the next starts the function. p50 and p99 are
// of single plans.
//
//	go test -run - -bench 'Wake$' -benchtime 20000x ./platform/placement
func BenchmarkWake(b *testing.B) {
	for _, s := range sizes {
		for _, x := range []struct {
			name string
			eviction.Policy
			mute bool
		}{{"lru", eviction.LRU, false}, {"lru-unexplained", eviction.LRU, true}, {"gdsf", eviction.GDSF, false}} {
			b.Run(fmt.Sprintf("models=%d/gpus=%d/%s", s.models, s.nodes*8, x.name), func(b *testing.B) {
				w := newFleet(s.models, s.nodes)
				policy := DefaultPolicy
				policy.Eviction = x.Policy
				c := w.planner(policy)
				if x.mute {
					c.decision.log = nil
				}
				c.Plan(w.now)
				runtime.GC()
				b.ReportAllocs()
				var took []time.Duration
				for b.Loop() {
					w.now += 10 * time.Millisecond
					took = w.wake(c, w.cold(), took)
				}
				report(b, took)
			})
		}
	}
}

func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "µs-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "µs-p99")
}

// BenchmarkTouch: a function that needs nothing is touched, the most frequent case.
func BenchmarkTouch(b *testing.B) {
	for _, s := range sizes {
		b.Run(fmt.Sprintf("models=%d/gpus=%d", s.models, s.nodes*8), func(b *testing.B) {
			w := newFleet(s.models, s.nodes)
			c := w.planner(DefaultPolicy)
			c.Plan(w.now)
			f := w.warm()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.now += time.Microsecond
				f.Active, f.Replicas[0].InFlight = i%2, i%2
				f.LastEnd = w.now
				c.FunctionChanged(f)
				if p := c.Plan(w.now); len(p.Actions) > 0 {
					b.Fatal(show(p))
				}
			}
		})
	}
}

// BenchmarkBlocked: every replica is busy and thousands of functions wait, while one
// request of another function begins and ends.
func BenchmarkBlocked(b *testing.B) {
	for _, s := range sizes {
		b.Run(fmt.Sprintf("models=%d/gpus=%d", s.models, s.nodes*8), func(b *testing.B) {
			w := newFleet(s.models, s.nodes)
			waiting := 0
			for name, t := range w.Teams { // all teams have the same recent use
				t.Used = 0
				t.Guaranteed = s.nodes * 8
				w.Teams[name] = t
			}
			for i, f := range w.Functions {
				if len(f.Replicas) > 0 {
					f.Active, f.Replicas[0].InFlight = 2, 2
				} else {
					f.Queued, f.Oldest = 1, w.now-time.Duration(i)*time.Microsecond
					waiting++
				}
			}
			c := w.planner(DefaultPolicy)
			c.Plan(w.now)
			f := w.warm()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.now += time.Microsecond
				f.Active, f.Replicas[0].InFlight = 1+i%2, 1+i%2
				c.FunctionChanged(f)
				if p := c.Plan(w.now); len(p.Blocked) < waiting/2 {
					b.Fatal(len(p.Blocked))
				}
			}
		})
	}
}

// BenchmarkFullTick runs Decide on the whole world, with one waiting function.
func BenchmarkFullTick(b *testing.B) {
	for _, s := range sizes {
		b.Run(fmt.Sprintf("models=%d/gpus=%d", s.models, s.nodes*8), func(b *testing.B) {
			w := newFleet(s.models, s.nodes)
			f := w.cold()
			f.Queued, f.Oldest = 1, w.now
			b.ReportAllocs()
			for b.Loop() {
				if p := DefaultPolicy.Decide(w.World, w.now); len(p.Actions) == 0 {
					b.Fatal(show(p))
				}
			}
		})
		b.Run(fmt.Sprintf("models=%d/gpus=%d/all-wait", s.models, s.nodes*8), func(b *testing.B) {
			w := newFleet(s.models, s.nodes)
			for i, f := range w.Functions {
				if len(f.Replicas) == 0 {
					f.Queued, f.Oldest = 1, w.now-time.Duration(i)*time.Microsecond
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				if p := DefaultPolicy.Decide(w.World, w.now); len(p.Actions) == 0 {
					b.Fatal(show(p))
				}
			}
		})
	}
}
