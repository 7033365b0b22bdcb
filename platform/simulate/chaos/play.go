package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/simulate"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
)

// Report is the outcome of a scene.
type Report struct {
	Broken   error // the first violation; nil if there was none
	At       time.Duration
	Steps    int
	Requests int
	Answered int
	States   map[uint64]struct{} // distinct states seen, see watch.look
}

// play is the state of a scene that is played.
type play struct {
	scene *Scene
	st    *simulate.State
	rng   *rand.Rand
	watch *watch

	until struct{ late, doubled, lost, unheard time.Duration }
	n     struct{ late, lost, unheard int }
}

// Play runs a scene to its end, or to the first violation.
func Play(ctx context.Context, s Scene) (Report, error) { return Tell(ctx, s, nil) }

// Tell is Play with a callback for faults, the orchestrator's events and the ends of
// requests.
func Tell(ctx context.Context, s Scene, tell func(at time.Duration, what string)) (Report, error) {
	p := &play{scene: &s, rng: rand.New(rand.NewPCG(s.Seed, 2))}
	p.watch = newWatch(p)
	c, err := s.config()
	if err != nil {
		return Report{}, err
	}
	c.Step = func(*simulate.State) error { return p.watch.step() }
	c.Event = func(e functions.Event) {
		if tell != nil && p.st != nil {
			tell(p.st.Now(), fmt.Sprintf("  %s %s %s %s %s %s", e.Kind, e.Function, e.Replica, e.Node, e.Reason, e.Message))
		}
		p.watch.event(e)
	}
	st, err := simulate.Open(c)
	if err != nil {
		return Report{}, err
	}
	p.st = st
	for i := range s.Hosts {
		if _, ok := st.Node(hostName(i)); !ok {
			return Report{}, fmt.Errorf("there is no node %s: nothing could be done to it", hostName(i))
		}
	}
	st.Fated = func(f simulate.Fate) {
		if tell != nil {
			tell(st.Now(), fmt.Sprintf("    request %d of %s: %s %s", f.ID, f.Function, f.Code, f.Message))
		}
		p.watch.fated(f)
	}
	p.disturb()
	for i := range s.Faults {
		d := s.Faults[i]
		st.At(d.At.Std(), func() {
			if tell != nil {
				tell(st.Now(), fmt.Sprintf("%s node %d model %d n %d for %v", d.Do, d.Node%len(s.Hosts), d.Model%len(s.Models), d.N, d.For))
			}
			p.do(&d)
		})
	}
	// The calm part: nothing is broken any more, and each model gets one more request.
	at := s.Calm.Std() + calm
	for i, m := range c.Functions {
		if why := p.watch.hopeless(i); why != "" {
			continue
		}
		st.At(at, func() { p.watch.expect(m.FullName()); p.ask(i, 1) })
		at += 90 * time.Second // covers a start, a drain and another start
	}
	st.At(s.Calm.Std(), func() { p.mend() })
	err = st.Pass(ctx, at+5*time.Minute)
	w := p.watch
	if err == nil {
		err = w.end()
	}
	r := Report{Broken: w.broken, At: st.Now(), Steps: w.steps, Requests: w.asked, Answered: w.answered, States: w.states}
	if w.broken != nil {
		return r, nil
	}
	return r, err
}

// disturb delays, doubles and loses heartbeats and replies while a fault demands it.
func (p *play) disturb() {
	st := p.st
	st.Late = func() time.Duration {
		if st.Now() >= p.until.late {
			return 0
		}
		return time.Duration(p.rng.IntN(p.n.late+1)) * time.Millisecond
	}
	st.Heard = func(string) []time.Duration {
		now := st.Now()
		if now < p.until.lost && p.rng.IntN(p.n.lost) == 0 {
			return nil
		}
		if now < p.until.doubled {
			return []time.Duration{0, time.Duration(p.rng.IntN(3000)) * time.Millisecond}
		}
		return []time.Duration{0}
	}
	st.Unanswered = func() bool { return st.Now() < p.until.unheard && p.rng.IntN(p.n.unheard) == 0 }
}

// config returns the simulator's configuration of the scene, without callbacks.
func (s *Scene) config() (simulate.Config, error) {
	policy := placement.DefaultPolicy
	e, err := placement.ParseEviction(s.Policy)
	if err != nil {
		return simulate.Config{}, err
	}
	policy.Eviction = e
	if s.Learn {
		policy.KeepAlive = placement.Learned
	}
	f := &fleet.Fleet{Engine: fleet.Engine{
		Spawn: functions.Duration(3 * time.Second), Warmup: functions.Duration(500 * time.Millisecond),
		Rise: functions.Duration(200 * time.Millisecond), Spread: 30, Prefill: 8000, Decode: 60,
	}}
	for i, h := range s.Hosts {
		var n fleet.Node
		n.Default()
		n.Name, n.GPUs = hostKind(i), h.GPUs
		n.Memory, n.Store = functions.Bytes(h.Memory)<<30, functions.Bytes(h.Store)<<30
		f.Nodes = append(f.Nodes, n)
	}
	sizes := map[functions.Name]functions.Bytes{}
	var models []*functions.Model
	for i := range s.Models {
		models = append(models, s.model(i))
		sizes[s.name(i)] = functions.Bytes(s.Models[i].Size) << 30
	}
	var teams []*functions.Team
	for _, t := range s.Teams {
		teams = append(teams, &functions.Team{Metadata: functions.Metadata{Name: t.Name}, Spec: functions.TeamSpec{
			GPUs: functions.TeamGPUs{Guaranteed: t.Guaranteed, Max: t.Max},
		}})
	}
	return simulate.Config{
		Fleet: f, Functions: models, Teams: teams, Sizes: sizes, Policy: policy, Seed: s.Seed, Learn: s.Learn, Ahead: s.Ahead,
	}, nil
}

// hostKind names the kind of host i; each kind has one host.
func hostKind(i int) string { return fmt.Sprint("n", i) }
func hostName(i int) string { return hostKind(i) + "-1" }

func (p *play) host(i int) string { return hostName(i % len(p.scene.Hosts)) }

func (p *play) ask(model, n int) {
	for range n {
		p.watch.asked++
		p.st.Ask(simulate.Request{Function: p.scene.name(model), Input: 100 + p.rng.IntN(400), Output: 1 + p.rng.IntN(200)})
	}
}

// models returns the models in the catalogue.
func (p *play) models() (out []*functions.Model) {
	for i := range p.scene.Models {
		if !p.watch.removed[p.scene.name(i)] {
			out = append(out, p.scene.model(i))
		}
	}
	return out
}

// running returns the running replicas by id.
func (p *play) running() (out []simulate.ReplicaView) {
	for _, id := range p.st.Nodes() {
		n, _ := p.st.Node(id)
		for _, r := range n.Replicas {
			if !r.State.Over() {
				out = append(out, r)
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

// do applies a fault, and schedules the end of one that lasts.
func (p *play) do(d *Fault) {
	st, w := p.st, p.watch
	node, model := p.host(d.Node), d.Model%len(p.scene.Models)
	end := st.Now() + d.For.Std()
	w.faults++
	switch d.Do {
	case ask:
		p.ask(model, max(d.N, 1))
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
		name := p.scene.name(model)
		st.FailStarts(name, "out of luck")
		st.At(end, func() { st.FailStarts(name, "") })
	case crash, memory, hang:
		p.breakReplica(d)
	case sick:
		gpu := d.N % p.scene.Hosts[d.Node%len(p.scene.Hosts)].GPUs
		st.Sicken(node, gpu, true)
		st.At(end, func() { st.Sicken(node, gpu, false) })
	case stall:
		w.loopBroken(end + time.Second)
		st.Stall(d.For.Std())
	case jump:
		w.loopBroken(st.Now() + 10*time.Second)
		w.jumped = st.Now() + 2*time.Minute
		st.Jump(time.Duration(d.N) * time.Second)
	case replace:
		w.anew()
		w.loopBroken(end + 5*time.Second)
		st.Replace(d.For.Std())
	case restart:
		w.anew()
		w.loopBroken(st.Now() + 10*time.Second)
		st.Restart()
	case late:
		p.n.late, p.until.late = max(d.N, 1), end
		w.loopBroken(end + 10*time.Second)
	case doubled:
		p.until.doubled = end
	case lost:
		p.n.lost, p.until.lost = max(d.N, 2), end
		for _, id := range st.Nodes() { // a silent node may be given up
			w.nodeBroken(id)
		}
		w.loopBroken(end + 10*time.Second)
		w.lostBeats = end + 10*time.Second
	case unheard:
		p.n.unheard, p.until.unheard = max(d.N, 2), end
		w.loopBroken(end + 15*time.Second)
	case empty:
		st.Deploy()
		st.At(end, func() { st.Deploy(p.models()...) })
	case removed:
		name := p.scene.name(model)
		w.removed[name] = true
		st.Deploy(p.models()...)
		st.At(end, func() { delete(w.removed, name); w.touchedFunction[name] = end; st.Deploy(p.models()...) })
	}
}

// breakReplica crashes or hangs one of the running replicas.
func (p *play) breakReplica(d *Fault) {
	rs := p.running()
	if len(rs) == 0 {
		return
	}
	r := rs[d.N%len(rs)]
	p.watch.touched[r.ID] = true
	switch d.Do {
	case crash:
		p.st.Crash(r.ID, "signal: segmentation fault")
	case memory:
		p.st.Crash(r.ID, "CUDA out of memory")
	default:
		p.st.Hang(r.ID)
	}
}

// mend undoes all faults that are still in effect.
func (p *play) mend() {
	for i := range p.scene.Hosts {
		p.watch.nodeBroken(hostName(i))
		p.st.Return(hostName(i))
		p.st.Slow(hostName(i), 1)
		for g := range p.scene.Hosts[i].GPUs {
			p.st.Sicken(hostName(i), g, false)
		}
	}
	for i := range p.scene.Models {
		p.st.FailStarts(p.scene.name(i), "")
	}
	now := p.st.Now()
	p.until.late, p.until.doubled, p.until.lost, p.until.unheard = now, now, now, now
	clear(p.watch.removed)
	p.st.Deploy(p.models()...)
	p.watch.loopBroken(now + 15*time.Second)
}
