package orchestrator

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// BenchmarkTurnWake measures the turns of a wake, from the waiting request to the
// command to a node, with 10,000 functions and 1,000 GPUs. free: a tenth of the GPUs is
// free; full: an idle replica must be evicted first, so two turns are timed, up to the
// unload and from there to the load. among: that many other functions wait for room
// that does not exist.
func BenchmarkTurnWake(b *testing.B) {
	for _, x := range []struct {
		name           string
		ready, waiting int
	}{{"free", 900, 0}, {"full", 1000, 0}, {"full/among=1000", 1000, 1000}} {
		b.Run(x.name, func(b *testing.B) {
			w := newBench(b, 10000, 125, 8, x.ready, x.waiting)
			var took []time.Duration
			var allocs uint64
			before, after := new(runtime.MemStats), new(runtime.MemStats)
			timed := func() {
				w.at = w.at.Add(3 * time.Millisecond)
				runtime.ReadMemStats(before)
				began := time.Now()
				w.s.Turn(context.Background())
				took = append(took, time.Since(began))
				runtime.ReadMemStats(after)
				allocs += after.Mallocs - before.Mallocs
			}
			b.ResetTimer()
			for k := range b.N {
				b.StopTimer()
				i := x.ready + x.waiting + k*7919%(10000-x.ready-x.waiting) // a function at rest
				w.rest()
				w.ask(i, 1)
				began := w.s.loop.now()
				b.StartTimer()
				w.s.Wake(w.names[i])
				timed()
				b.StopTimer()
				w.runCommands()
				if x.ready == 1000 { // a replica was unloaded
					b.StartTimer()
					timed()
					b.StopTimer()
					w.runCommands()
				}
				if w.loads != 1 {

					b.Fatalf("%d loads of %s, %v later; %d unloads", w.loads, w.names[i], w.s.loop.now()-began, w.unloads)
				}
				w.rest()
				w.ask(i, 0)
				if x.ready < 1000 {
					w.s.Stop(w.names[i])
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
			b.ReportMetric(float64(allocs)/float64(len(took)), "allocs/turn")
			b.ReportMetric(0, "ns/op") // hidden: it includes the time between turns
		})
	}
}

// BenchmarkTurnTick measures a tick of that world without updates.
func BenchmarkTurnTick(b *testing.B) {
	w := newBench(b, 10000, 125, 8, 1000, 0)
	b.ReportAllocs()
	for b.Loop() {
		w.at = w.at.Add(time.Second)
		for _, h := range w.hosts {
			h.push()
		}
		w.s.Turn(context.Background())
	}
}

// benchWorld is a large world whose agents execute commands when obey is called.
type benchWorld struct {
	s        *Orchestrator
	at       time.Time
	names    []functions.Name
	hosts    []*benchAgent
	commands []func(context.Context)
	loads    int
	unloads  int
}

type benchAgent struct {
	w      *benchWorld
	id     string
	gpus   []functions.GPU
	reps   []functions.ReplicaStatus
	change uint64
	seq    uint64
}

func (a *benchAgent) push() {
	a.seq++
	a.w.s.Heartbeat(functions.Heartbeat{
		AgentID: a.id, Life: "one", Seq: a.seq, Change: a.change, GPUs: a.gpus, Models: a.reps, Memory: functions.Capacity{Total: 1 << 40},
	}, a)
}

func (a *benchAgent) Load(_ context.Context, req functions.LoadRequest) (functions.LoadReply, error) {
	a.w.loads++
	a.change++
	a.reps = append(slices.Clone(a.reps), functions.ReplicaStatus{
		ID: req.ID, Team: req.Team, Model: req.Model, State: functions.Ready, GPUs: req.GPUs, Endpoint: "http://127.0.0.1:1"})
	a.push()
	return functions.LoadReply{}, nil
}

func (a *benchAgent) Unload(_ context.Context, req functions.UnloadRequest) error {
	a.w.unloads++
	a.change++
	a.reps = slices.DeleteFunc(slices.Clone(a.reps), func(r functions.ReplicaStatus) bool { return r.ID == req.ID })
	a.push()
	return nil
}

func newBench(b *testing.B, fns, nodes, gpus, ready, waiting int) *benchWorld {
	w := &benchWorld{at: time.Unix(1e9, 0)}
	c := &fakeCatalog{}
	for i := range fns {
		m := model(fmt.Sprint("m", i), func(s *functions.ModelSpec) { s.Scale.Idle = functions.Duration(24 * time.Hour) })
		c.models = append(c.models, m)
		w.names = append(w.names, m.FullName())
	}
	w.s = New(Options{
		Epoch: 1, Path: w, Catalog: c, Now: func() time.Time { return w.at }, OnUpdate: func() {}, Progress: -1,
		RunCommand: func(_ time.Duration, f func(context.Context)) { w.commands = append(w.commands, f) },
	})
	w.s.Changed()
	for i := range nodes {
		h := &benchAgent{w: w, id: fmt.Sprintf("n%03d", i), change: 1}
		for g := range gpus {
			h.gpus = append(h.gpus, functions.GPU{Index: g, MemoryTotal: 80 << 30, Health: "ok"})
		}
		w.hosts = append(w.hosts, h)
	}
	for i := range ready {
		h := w.hosts[i%nodes]
		h.reps = append(h.reps, functions.ReplicaStatus{ID: fmt.Sprint("r", i), Team: "default", Model: w.names[i].Name, State: functions.Ready,
			GPUs: []int{i / nodes}, Endpoint: "http://127.0.0.1:1", Since: 100000})
	}
	for range 12 { // all agents have reported, and startGrace is over
		w.rest()
		w.at = w.at.Add(time.Second)
	}
	if n := len(w.s.Replicas()); n != ready {
		b.Fatalf("%d replicas of %d", n, ready)
	}
	for i := ready; i < ready+waiting; i++ { // they need more than any node has
		c.models[i] = model(w.names[i].Name, func(s *functions.ModelSpec) { s.Resources.GPUs = 16 })
	}
	w.s.Changed()
	for i := ready; i < ready+waiting; i++ {
		w.ask(i, 1)
		w.s.Wake(w.names[i])
	}
	w.rest()
	return w
}

// rest lets a second pass in which all agents report, and commands take effect.
func (w *benchWorld) rest() {
	for more := true; more; {
		w.runCommands()
		w.at = w.at.Add(time.Second)
		for _, h := range w.hosts {
			h.push()
		}
		w.s.Turn(context.Background())
		more = len(w.commands) > 0
	}
	w.loads, w.unloads = 0, 0
}

// runCommands executes the commands.
func (w *benchWorld) runCommands() {
	for _, f := range w.commands {
		f(context.Background())
	}
	w.commands = w.commands[:0]
}

func (w *benchWorld) ask(i, n int) {
	w.s.Demand(Demand{Name: w.names[i], Queued: n, Oldest: w.at})
}

func (w *benchWorld) Publish(...snapshot.Snapshot) {}
func (w *benchWorld) Remove(...functions.Name)     {}
func (w *benchWorld) AbortThrough(string)          {}
