package simulate_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
	"github.com/thaw-dev/thaw/platform/simulate"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
)

// Report is the outcome of an experiment.
type Report struct {
	Broken   error // the first violation; nil if there was none
	At       time.Duration
	Steps    int
	Requests int
	Answered int
	States   map[uint64]struct{} // distinct states seen, see checker.checkAndRecord
}

// run is the state of an experiment in progress.
type run struct {
	experiment *Experiment
	st         *simulate.State
	rng        *rand.Rand
	checker    *checker

	until struct{ commandDelay, heartbeatTwice, heartbeatLost, replyLost time.Duration }
	n     struct{ commandDelay, heartbeatLost, replyLost int }
}

// Run executes an experiment to its end, or to the first violation.
func Run(ctx context.Context, s Experiment) (Report, error) { return RunTraced(ctx, s, nil) }

// RunTraced is Run with a callback for faults, the orchestrator's events and the ends of
// requests.
func RunTraced(ctx context.Context, s Experiment, trace func(at time.Duration, text string)) (Report, error) {
	p := &run{experiment: &s, rng: rand.New(rand.NewPCG(s.Seed, 2))}
	p.checker = newChecker(p)
	c, err := s.config()
	if err != nil {
		return Report{}, err
	}
	c.Step = func(*simulate.State) error { return p.checker.step() }
	c.Event = func(e functions.Event) {
		if trace != nil && p.st != nil {
			trace(p.st.Now(), fmt.Sprintf("  %s %s %s %s %s %s", e.Kind, e.Function, e.Replica, e.Node, e.Reason, e.Message))
		}
		p.checker.event(e)
	}
	st, err := simulate.Open(c)
	if err != nil {
		return Report{}, err
	}
	p.st = st
	for i := range s.Hosts {
		if _, ok := st.Node(hostName(i)); !ok {
			return Report{}, fmt.Errorf("there is no node %s: no fault could be injected", hostName(i))
		}
	}
	st.OnRequestEnd = func(f simulate.RequestEnd) {
		if trace != nil {
			trace(st.Now(), fmt.Sprintf("    request %d of %s: %s %s", f.ID, f.Function, f.Code, f.Message))
		}
		p.checker.onRequestEnd(f)
	}
	p.hookFaults()
	for i := range s.Faults {
		d := s.Faults[i]
		st.At(d.At.Std(), func() {
			if trace != nil {
				trace(st.Now(), fmt.Sprintf("%s node %d model %d n %d for %v", d.Do, d.Node%len(s.Hosts), d.Model%len(s.Models), d.N, d.For))
			}
			p.inject(&d)
		})
	}
	// The part without faults, and each model gets one more request.
	at := s.FaultsEnd.Std() + finalPause
	for i, m := range c.Functions {
		if reason := p.checker.excuse(i); reason != "" {
			continue
		}
		st.At(at, func() { p.checker.expect(m.FullName()); p.sendRequests(i, 1) })
		at += 90 * time.Second // covers a start, a drain and another start
	}
	st.At(s.FaultsEnd.Std(), func() { p.endFaults() })
	err = st.Pass(ctx, at+5*time.Minute)
	w := p.checker
	if err == nil {
		err = w.end()
	}
	r := Report{Broken: w.broken, At: st.Now(), Steps: w.steps, Requests: w.asked, Answered: w.answered, States: w.states}
	if w.broken != nil {
		return r, nil
	}
	return r, err
}

// hookFaults delays, doubles and loses heartbeats and replies while a fault demands it.
func (r *run) hookFaults() {
	st := r.st
	st.Faults.CommandDelay = func() time.Duration {
		if st.Now() >= r.until.commandDelay {
			return 0
		}
		return time.Duration(r.rng.IntN(r.n.commandDelay+1)) * time.Millisecond
	}
	st.Faults.HeartbeatDelays = func(string) []time.Duration {
		now := st.Now()
		if now < r.until.heartbeatLost && r.rng.IntN(r.n.heartbeatLost) == 0 {
			return nil
		}
		if now < r.until.heartbeatTwice {
			return []time.Duration{0, time.Duration(r.rng.IntN(3000)) * time.Millisecond}
		}
		return []time.Duration{0}
	}
	st.Faults.LoseReply = func() bool { return st.Now() < r.until.replyLost && r.rng.IntN(r.n.replyLost) == 0 }
}

// config returns the simulator's configuration of the experiment, without callbacks.
func (e *Experiment) config() (simulate.Config, error) {
	policy := placement.DefaultPolicy
	order, err := eviction.Parse(e.Policy)
	if err != nil {
		return simulate.Config{}, err
	}
	policy.Eviction = order
	if e.Learn {
		policy.KeepAlive = placement.Learned
	}
	f := &fleet.Fleet{Engine: fleet.Engine{
		Spawn: functions.Duration(3 * time.Second), Warmup: functions.Duration(500 * time.Millisecond),
		Rise: functions.Duration(200 * time.Millisecond), Spread: 30, Prefill: 8000, Decode: 60,
	}}
	for i, h := range e.Hosts {
		var n fleet.HostKind
		n.Default()
		n.Name, n.GPUs = hostKind(i), h.GPUs
		n.Memory, n.Store = functions.Bytes(h.Memory)<<30, functions.Bytes(h.Store)<<30
		f.Nodes = append(f.Nodes, n)
	}
	sizes := map[functions.Name]functions.Bytes{}
	var models []*functions.Model
	for i := range e.Models {
		models = append(models, e.model(i))
		sizes[e.name(i)] = functions.Bytes(e.Models[i].Size) << 30
	}
	var teams []*functions.Team
	for _, t := range e.Teams {
		teams = append(teams, &functions.Team{Metadata: functions.Metadata{Name: t.Name}, Spec: functions.TeamSpec{
			GPUs: functions.TeamGPUs{Guaranteed: t.Guaranteed, Max: t.Max},
		}})
	}
	c := simulate.Config{Fleet: f, Functions: models, Teams: teams, Sizes: sizes, Policy: policy, Seed: e.Seed}
	if e.Learn || e.Ahead {
		c.Foresight = &foresight.Options{StartAhead: e.Ahead}
	}
	return c, nil
}

// hostKind names the kind of host i; each kind has one host.
func hostKind(i int) string { return fmt.Sprint("n", i) }
func hostName(i int) string { return hostKind(i) + "-1" }

func (r *run) host(i int) string { return hostName(i % len(r.experiment.Hosts)) }

func (r *run) sendRequests(model, n int) {
	for range n {
		r.checker.asked++
		r.st.Ask(simulate.Request{Function: r.experiment.name(model), Input: 100 + r.rng.IntN(400), Output: 1 + r.rng.IntN(200),
			Low: r.rng.IntN(4) == 0})
	}
}

// models returns the models in the catalogue.
func (r *run) models() (out []*functions.Model) {
	for i := range r.experiment.Models {
		if !r.checker.removed[r.experiment.name(i)] {
			out = append(out, r.experiment.model(i))
		}
	}
	return out
}

// running returns the running replicas by id.
func (r *run) running() (out []simulate.ReplicaView) {
	for _, id := range r.st.Nodes() {
		n, _ := r.st.Node(id)
		for _, replica := range n.Replicas {
			if !replica.State.Over() {
				out = append(out, replica)
			}
		}
	}
	slices.SortFunc(out, func(a, b simulate.ReplicaView) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return out
}

// inject applies a fault, and schedules the end of one that lasts.
func (r *run) inject(d *Fault) {
	st, w := r.st, r.checker
	node, model := r.host(d.Node), d.Model%len(r.experiment.Models)
	end := st.Now() + d.For.Std()
	switch d.Do {
	case requestBurst:
		r.sendRequests(model, max(d.N, 1))
	case kill, partition:
		w.nodeBroken(node)
		if d.Do == kill {
			st.Kill(node)
		} else {
			st.Partition(node)
		}
		st.At(end, func() { w.nodeBroken(node); st.Return(node) })
	case slow:
		st.Slow(node, float64(max(d.N, 1)))
		st.At(end, func() { st.Slow(node, 1) })
	case broken:
		name := r.experiment.name(model)
		st.FailStarts(name, "out of luck")
		st.At(end, func() { st.FailStarts(name, "") })
	case crash, memory, hang:
		r.breakReplica(d)
	case unhealthy:
		gpu := d.N % r.experiment.Hosts[d.Node%len(r.experiment.Hosts)].GPUs
		st.SetGPUUnhealthy(node, gpu, true)
		st.At(end, func() { st.SetGPUUnhealthy(node, gpu, false) })
	case stall:
		w.loopBroken(end + time.Second)
		st.Stall(d.For.Std())
	case jump:
		w.loopBroken(st.Now() + 10*time.Second)
		w.jumpedUntil = st.Now() + 2*time.Minute
		st.Jump(time.Duration(d.N) * time.Second)
	case replace:
		w.reset()
		w.loopBroken(end + 5*time.Second)
		st.Replace(d.For.Std())
	case restart:
		w.reset()
		w.loopBroken(st.Now() + 10*time.Second)
		st.Restart()
	case commandDelay:
		r.n.commandDelay, r.until.commandDelay = max(d.N, 1), end
		w.loopBroken(end + 10*time.Second)
	case heartbeatTwice:
		r.until.heartbeatTwice = end
	case heartbeatLost:
		r.n.heartbeatLost, r.until.heartbeatLost = max(d.N, 2), end
		for _, id := range st.Nodes() { // a silent node may be given up
			w.nodeBroken(id)
		}
		w.loopBroken(end + 10*time.Second)
		w.heartbeatsLostUntil = end + 10*time.Second
	case replyLost:
		r.n.replyLost, r.until.replyLost = max(d.N, 2), end
		w.loopBroken(end + 15*time.Second)
	case empty:
		st.Deploy()
		st.At(end, func() { st.Deploy(r.models()...) })
	case removed:
		name := r.experiment.name(model)
		w.removed[name] = true
		st.Deploy(r.models()...)
		st.At(end, func() { delete(w.removed, name); w.touchedFunction[name] = end; st.Deploy(r.models()...) })
	}
}

// breakReplica crashes or hangs one of the running replicas.
func (r *run) breakReplica(d *Fault) {
	rs := r.running()
	if len(rs) == 0 {
		return
	}
	replica := rs[d.N%len(rs)]
	r.checker.touched[replica.ID] = true
	switch d.Do {
	case crash:
		r.st.Crash(replica.ID, "signal: segmentation fault")
	case memory:
		r.st.Crash(replica.ID, "CUDA out of memory")
	default:
		r.st.Hang(replica.ID)
	}
}

// endFaults undoes all faults that are still in effect.
func (r *run) endFaults() {
	for i := range r.experiment.Hosts {
		r.checker.nodeBroken(hostName(i))
		r.st.Return(hostName(i))
		r.st.Slow(hostName(i), 1)
		for g := range r.experiment.Hosts[i].GPUs {
			r.st.SetGPUUnhealthy(hostName(i), g, false)
		}
	}
	for i := range r.experiment.Models {
		r.st.FailStarts(r.experiment.name(i), "")
	}
	now := r.st.Now()
	r.until.commandDelay, r.until.heartbeatTwice, r.until.heartbeatLost, r.until.replyLost = now, now, now, now
	clear(r.checker.removed)
	r.st.Deploy(r.models()...)
	r.checker.loopBroken(now + 15*time.Second)
}
