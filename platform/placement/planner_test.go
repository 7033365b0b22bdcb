package placement

import (
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// plannerTwin drives a Planner beside a toy world, and reports only changes to it.
type plannerTwin struct {
	*toyCluster
	c     *Planner
	fs    map[functions.Name]Function
	nodes map[string]Node
	teams map[string]Team
}

func newTwin(y *toyCluster) *plannerTwin {
	c := y.policy.Planner()
	c.queue.memoTTL = math.MaxInt64
	return &plannerTwin{toyCluster: y, c: c, fs: map[functions.Name]Function{}, nodes: map[string]Node{}}
}

func copyOf(f *Function) Function {
	g := *f
	g.Replicas = slices.Clone(f.Replicas)
	return g
}

// update reports the changes since the last call.
func (t *plannerTwin) update() {
	have := map[functions.Name]bool{}
	for _, f := range t.w.Functions {
		have[f.Name] = true
		if old, ok := t.fs[f.Name]; ok && reflect.DeepEqual(old, copyOf(f)) {
			continue
		}
		t.fs[f.Name] = copyOf(f)
		t.c.FunctionChanged(f)
	}
	for n := range t.fs {
		if !have[n] {
			delete(t.fs, n)
			t.c.Drop(n)
		}
	}
	ids := map[string]bool{}
	for _, n := range t.w.Nodes {
		ids[n.ID] = true
		now := *n
		now.Seen, now.GPUs = 0, slices.Clone(n.GPUs)
		if old, ok := t.nodes[n.ID]; ok && reflect.DeepEqual(old, now) {
			continue
		}
		t.nodes[n.ID] = now
		t.c.NodeChanged(n)
	}
	for id := range t.nodes {
		if !ids[id] {
			delete(t.nodes, id)
			t.c.DropNode(id)
		}
	}
	if !maps.Equal(t.teams, t.w.Teams) {
		t.teams = maps.Clone(t.w.Teams)
		t.c.Teams(t.teams)
	}
}

// plan compares the plan of the Planner with that of Decide.
func (t *plannerTwin) plan(log *[]string) Plan {
	t.t.Helper()
	t.update()
	got, want := t.c.Plan(t.now), t.policy.Decide(t.w, t.now)
	if len(got.Actions)+len(want.Actions) > 0 && !reflect.DeepEqual(got.Actions, want.Actions) {
		t.fail("the planner says\n%s\nfrom scratch it is\n%s\nworld\n%s\nlast\n%v", show(got), show(want), t.state(), *log)
	}
	if got.Next != want.Next {
		t.fail("the planner wants to be called at %v, from scratch it is %v\n%s\n%s", got.Next, want.Next, show(want), t.state())
	}
	for n, v := range want.Blocked {
		if g := got.Blocked[n]; g.Code != v.Code || g.Message != v.Message {
			t.fail("the planner says of %s %+v, from scratch it is %+v\n%s", n, g, v, t.state())
		}
	}
	for n, v := range got.Blocked {
		if _, ok := want.Blocked[n]; !ok {
			t.fail("the planner says of %s %+v, from scratch it is nothing\n%s", n, v, t.state())
		}
	}
	t.compare()
	return Plan{Actions: want.Actions, Blocked: maps.Clone(want.Blocked), Next: want.Next}
}

// compare checks that all promises of the plan were undone.
func (t *plannerTwin) compare() {
	d := &t.c.decision
	for i := range d.world.rooms {
		m := &d.world.rooms[i]
		if now, soon := d.world.held[2*i], d.world.held[2*i+1]; !reflect.DeepEqual(m.now, now) || !reflect.DeepEqual(m.soon, soon) {
			t.fail("a promise stays on %s: %+v %+v, %+v %+v", m.node.ID, m.now, now, m.soon, soon)
		}
	}
	for team, p := range d.counts.count {
		if d.counts.held[team] != p.held || d.counts.leaving[team] != p.leaving || d.counts.pledged[team] != 0 || d.counts.claimed[team] != 0 {
			t.fail("a promise stays in team %s", team)
		}
	}
}

func (t *plannerTwin) state() string {
	s := ""
	for _, n := range t.w.Nodes {
		s += fmt.Sprintf("%+v\n", *n)
	}
	for _, f := range t.w.Functions {
		if !f.resting(t.now) {
			s += fmt.Sprintf("%+v\n", *f)
		}
	}
	return s
}

// mutate changes what live does not: nodes, functions and their settings.
func (t *plannerTwin) mutate() {
	r := t.rnd
	if r.IntN(25) == 0 { // a node joins
		n := &Node{ID: fmt.Sprint("j", r.IntN(4)), Machine: fmt.Sprint("m", r.IntN(3)), Seen: t.now, Memory: functions.Bytes(8+r.IntN(32)) * gib}
		if r.IntN(3) == 0 {
			n.CPU, n.Pods = functions.CPU(1000*(1+r.IntN(8))), 1+r.IntN(6)
		}
		for g := range r.IntN(5) {
			n.GPUs = append(n.GPUs, rooms.GPU{Index: g, Memory: functions.Bytes(r.IntN(3)) * 40 * gib})
		}
		if !slices.ContainsFunc(t.w.Nodes, func(o *Node) bool { return o.ID == n.ID }) {
			t.w.Nodes = append(t.w.Nodes, n)
		}
	}
	if len(t.w.Nodes) > 1 && r.IntN(60) == 0 { // a node is removed with its replicas
		n := t.w.Nodes[r.IntN(len(t.w.Nodes))]
		t.w.Nodes = slices.DeleteFunc(t.w.Nodes, func(o *Node) bool { return o == n })
		for _, f := range t.w.Functions {
			for _, x := range f.Replicas {
				if x.Node == n.ID {
					f.Active -= x.InFlight
				}
			}
			f.Replicas = slices.DeleteFunc(slices.Clone(f.Replicas), func(x Replica) bool { return x.Node == n.ID })
		}
	}
	if len(t.w.Nodes) > 0 && r.IntN(10) == 0 {
		n := t.w.Nodes[r.IntN(len(t.w.Nodes))]
		switch r.IntN(6) {
		case 5:
			n.Store = functions.StoreUse{Bytes: functions.Bytes(r.IntN(3)) * 20 * gib, Used: functions.Bytes(r.IntN(60)) * gib}
		case 0:
			n.AvoidUntil = t.now + time.Duration(r.IntN(5000))*time.Millisecond
		case 1:
			n.Memory = functions.Bytes(8+r.IntN(32)) * gib
			n.CPU, n.Pods = functions.CPU(1000*r.IntN(8)), r.IntN(6)
		case 2:
			if len(n.GPUs) > 0 {
				n.GPUs = slices.Clone(n.GPUs)
				n.GPUs[r.IntN(len(n.GPUs))].Unhealthy = r.IntN(2) == 0
			}
		case 3:
			n.Cached = map[string]bool{"s": r.IntN(2) == 0}
		case 4:
			n.Seen -= time.Duration(r.IntN(3)) * time.Second
			t.c.NodeChanged(n)
		}
	}
	if r.IntN(30) == 0 {
		t.w.Teams = maps.Clone(t.w.Teams)
		t.w.Teams["a"] = Team{TeamGPUs: t.w.Teams["a"].TeamGPUs, Used: 100 * r.Float64(), Hosted: 100 * r.Float64()}
		t.w.Teams["c"] = Team{TeamGPUs: functions.TeamGPUs{Guaranteed: r.IntN(2), Max: r.IntN(4)}}
	}
	for _, f := range t.w.Functions {
		switch r.IntN(80) {
		case 4:
			f.Uses, f.UsesAt = r.Float64()*20, t.now
		case 5:
			f.NextUse = t.now + time.Duration(r.IntN(300)-60)*time.Second
		case 6:
			f.Prewarm = t.now + time.Duration(r.IntN(60))*time.Second
		case 7:
			f.MinResidency = t.now + time.Duration(r.IntN(60))*time.Second
		case 8:
			f.Size, f.Source = functions.Bytes(r.IntN(60))*gib, "s"
		case 9:
			f.KeepFor = time.Duration(r.IntN(60)) * time.Second
		case 0:
			f.Lease = t.now + time.Duration(r.IntN(20))*time.Second
		case 1:
			f.Scale.Min = r.IntN(2)
		case 2:
			f.Machine = []string{"", "m0", "m9"}[r.IntN(3)]
		case 3:
			for i := range f.Replicas {
				f.Replicas[i].Stale = f.Replicas[i].Stale || r.IntN(2) == 0
			}
		}
	}
	if r.IntN(40) == 0 {
		f := t.w.Functions[r.IntN(len(t.w.Functions))]
		f.Gone, f.Queued, f.Oldest, f.Lease = true, 0, 0, 0
	}
	t.w.Functions = slices.DeleteFunc(t.w.Functions, func(f *Function) bool { return f.Gone && len(f.Replicas) == 0 })
	if r.IntN(30) == 0 || len(t.w.Functions) == 0 {
		f := model(fmt.Sprintf("%c/x%d", "abcd"[r.IntN(4)], t.next+r.IntN(1000)), r.IntN(3))
		f.Source = "s"
		if !slices.ContainsFunc(t.w.Functions, func(o *Function) bool { return o.Name == f.Name }) {
			t.w.Functions = append(t.w.Functions, f)
		}
	}
}

// TestPlannerIsDecide: after random steps, with actions performed or lost, the
// incremental plan equals the one from scratch. SEEDS=5000 in the environment tries as
// many worlds.
func TestPlannerIsDecide(t *testing.T) {
	seeds := uint64(60)
	if n, err := strconv.ParseUint(os.Getenv("SEEDS"), 10, 64); err == nil && n > 0 {
		seeds = n
	}
	actions, blocked := 0, 0
	for seed := range seeds {
		y := newToyCluster(t, seed)
		y.policy.KeepAlive = KeepAlive(seed / 4 % 2)
		w := newTwin(y)
		for range 4 { // many functions of one class
			for i := range y.rnd.IntN(6) {
				y.w.Functions = append(y.w.Functions, model(fmt.Sprintf("d/k%d-%d", len(y.w.Functions), i), 1))
			}
		}
		var log []string
		for range 150 {
			y.now += time.Duration(y.rnd.IntN(3)*y.rnd.IntN(3000)) * time.Millisecond
			if y.rnd.IntN(3) > 0 {
				y.live()
			}
			w.mutate()
			p := w.plan(&log)
			actions, blocked = actions+len(p.Actions), blocked+len(p.Blocked)
			if len(p.Actions) > 0 {
				log = append(log[max(0, len(log)-2):], show(p))
			}
			p.Actions = slices.DeleteFunc(p.Actions, func(a Action) bool { return a.Kind != MarkNodeLost && y.rnd.IntN(4) == 0 })
			lenient(y, p)
		}
	}
	if actions < int(seeds)*50 || blocked < int(seeds)*10 {
		t.Errorf("%d actions and %d verdicts in %d worlds: they test nothing", actions, blocked, seeds)
	}
}

// lenient performs a plan without checking invariants.
func lenient(y *toyCluster, p Plan) {
	for _, a := range p.Actions {
		f, r := y.replica(a.Replica)
		if r == nil && a.Replica != "" {
			y.fail("%s of %s, which is none: %s", a.Kind, a.Replica, show(p))
		}
		switch a.Kind {
		case Start:
			for _, g := range y.w.Functions {
				if g.Name == a.Function {
					y.next++
					g.Replicas = append(slices.Clone(g.Replicas),
						Replica{ID: fmt.Sprint("r", y.next), Node: a.Node, State: functions.Downloading, GPUs: a.GPUs, Reserved: g.Resources})
				}
			}
		case Stop:
			r.Stopping = true
		case Sleep:
			r.GoingToSleep, r.Deep, r.SleepMemory = true, a.Level == 2, f.SleepMemory
			if r.Deep {
				r.SleepMemory = 0
			}
		case WakeUp:
			r.WakingUp = true
		case CancelStart:
			r.Cancelled = true
		case MarkNodeLost:
			y.act(Plan{Actions: []Action{a}})
		}
	}
}
