package placement

import (
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/explain"
	"github.com/thaw-dev/thaw/platform/placement/starttime"
)

func from(source string, size functions.Bytes) func(*Function) {
	return func(f *Function) { f.Source, f.Size = source, size }
}

func expects(tier functions.Tier, d time.Duration) func(*Function) {
	return func(f *Function) {
		if f.Expect.Tier == nil {
			f.Expect.Tier = map[functions.Tier]time.Duration{}
		}
		f.Expect.Tier[tier] = d
	}
}

func on(n *Node, edit ...func(*Node)) *Node {
	for _, e := range edit {
		e(n)
	}
	return n
}

func holds(source string, tier functions.Tier) func(*Node) {
	return func(n *Node) {
		n.Tiers = map[string]functions.Tier{source: tier}
		n.Cached = map[string]bool{source: true}
	}
}

func groups(of ...int) func(*Node) {
	return func(n *Node) {
		for i := range n.GPUs {
			n.GPUs[i].Group = of[i]
		}
	}
}

// using returns a function with a busy replica on these GPUs.
func using(name, node string, now Instant, gpus ...int) *Function {
	return model(name, len(gpus), ready(node, now-time.Second*90, 1, gpus...))
}

// TestPlacement: cached bytes count for the time they save and no more, and large
// models find whole groups and whole nodes.
func TestPlacement(t *testing.T) {
	const now = 1000 * time.Second
	measured := func(node string, tier functions.Tier, d time.Duration) func(*Function) {
		return func(f *Function) {
			f.Expect.Node = map[string]map[functions.Tier]time.Duration{node: {tier: d}}
		}
	}
	for _, c := range []struct {
		what  string
		nodes []*Node
		fs    []*Function
		want  string
	}{
		{"bytes in host memory before bytes on NVMe",
			[]*Node{on(node("a", 1), holds("s", functions.TierNVMe)), on(node("b", 1), holds("s", functions.TierDRAM))},
			[]*Function{model("x", 1, waiting(1, now), from("s", 40*gib))}, "start default/x on b[0]"},
		{"bytes that save a minute break into a whole node",
			[]*Node{node("a", 8), on(node("b", 8), holds("s", functions.TierNVMe))},
			[]*Function{model("x", 1, waiting(1, now), from("s", 60*gib)), using("u", "a", now, 0, 1, 2)}, "start default/x on b[0]"},
		{"bytes that save a second do not",
			[]*Node{on(node("a", 8), func(n *Node) { n.Link = 10 << 30 }), on(node("b", 8), holds("s", functions.TierNVMe))},
			[]*Function{model("x", 1, waiting(1, now), from("s", 1*gib)), using("u", "a", now, 0, 1, 2)}, "start default/x on a[3]"},
		{"what was measured goes before what is worked out",
			[]*Node{on(node("a", 1), holds("s", functions.TierNVMe)), on(node("b", 1), holds("s", functions.TierNVMe))},
			[]*Function{model("x", 1, waiting(1, now), from("s", 40*gib), expects(functions.TierNVMe, 30*time.Second), measured("a", functions.TierNVMe, 50*time.Second))},
			"start default/x on b[0]"},
		{"a fast link is worth more than nothing",
			[]*Node{on(node("a", 1), func(n *Node) { n.Link = 1 << 28 }), on(node("b", 1), func(n *Node) { n.Link = 4 << 30 })},
			[]*Function{model("x", 1, waiting(1, now), from("s", 40*gib))}, "start default/x on b[0]"},
		{"a fast disk too",
			[]*Node{on(node("a", 1), holds("s", functions.TierNVMe), func(n *Node) { n.Disk = 1 << 29 }), on(node("b", 1), holds("s", functions.TierNVMe))},
			[]*Function{model("x", 1, waiting(1, now), from("s", 40*gib))}, "start default/x on b[0]"},
		{"the tightest fit",
			[]*Node{node("a", 8), node("b", 8), node("c", 8)},
			[]*Function{model("x", 2, waiting(1, now)), using("u", "b", now, 0, 1, 2, 3, 4, 5), using("v", "c", now, 0, 1)}, "start default/x on b[6 7]"},
		{"a whole node stays whole", []*Node{node("a", 4), node("b", 4)},
			[]*Function{model("x", 1, waiting(1, now)), using("u", "b", now, 0)}, "start default/x on b[1]"},
		{"all of one group", []*Node{on(node("a", 4), groups(0, 1, 0, 1))},
			[]*Function{model("x", 2, waiting(1, now))}, "start default/x on a[0 2]"},
		{"the smallest group that has enough", []*Node{on(node("a", 6), groups(0, 0, 0, 0, 1, 1))},
			[]*Function{model("x", 2, waiting(1, now))}, "start default/x on a[4 5]"},
		{"a broken group before a whole one", []*Node{on(node("a", 8), groups(0, 0, 0, 0, 1, 1, 1, 1))},
			[]*Function{model("x", 1, waiting(1, now)), using("u", "a", now, 5)}, "start default/x on a[4]"},
		{"of few groups where none has enough", []*Node{on(node("a", 6), groups(0, 1, 1, 1, 2, 2))},
			[]*Function{model("x", 5, waiting(1, now))}, "start default/x on a[1 2 3 4 5]"},
		{"a node with them in one group before one without",
			[]*Node{on(node("a", 4), groups(0, 0, 1, 1)), on(node("b", 4), groups(0, 0, 1, 1))},
			[]*Function{model("x", 2, waiting(1, now)), using("u", "a", now, 0), using("v", "a", now, 3)}, "start default/x on b[0 1]"},
		{"a shared GPU before an unused one", []*Node{on(node("a", 4), groups(0, 0, 1, 1))},
			[]*Function{
				model("x", 1, waiting(1, now), func(f *Function) { f.Resources.GPUMemory = 20 * gib }),
				model("u", 1, func(f *Function) { f.Resources.GPUMemory = 30 * gib }, ready("a", now-time.Minute, 1, 2)),
				using("w", "a", now, 0)},
			"start default/x on a[2]"},
		{"a store that cannot take it is no place",
			[]*Node{on(node("a", 1), func(n *Node) { n.Store.Bytes = 100 * gib }), on(node("b", 1), func(n *Node) { n.Store.Bytes, n.Link = 400*gib, 1<<28 })},
			[]*Function{model("x", 1, waiting(1, now), from("s", 200*gib))}, "start default/x on b[0]"},
		{"unless it holds it already",
			[]*Node{on(node("a", 1), holds("s", functions.TierNVMe), func(n *Node) { n.Store.Bytes = 100 * gib }), node("b", 1)},
			[]*Function{model("x", 1, waiting(1, now), from("s", 200*gib))}, "start default/x on a[0]"},
		{"a store with room before one that must drop something",
			[]*Node{on(node("a", 1), func(n *Node) { n.Store = functions.StoreUse{Bytes: 100 * gib, Used: 95 * gib} }),
				on(node("b", 1), func(n *Node) { n.Store = functions.StoreUse{Bytes: 100 * gib, Used: 10 * gib} })},
			[]*Function{model("x", 1, waiting(1, now), from("s", 40*gib))}, "start default/x on b[0]"},
		{"host memory is spread", []*Node{node("a", 0), node("b", 0)},
			[]*Function{model("x", 0, waiting(1, now)), model("u", 0, ready("a", now-time.Minute, 1))}, "start default/x on b[]"},
	} {
		if got := show(DefaultPolicy.Decide(World{Nodes: c.nodes, Functions: c.fs}, now)); !strings.HasPrefix(got, c.want+" (demand)") {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// TestExpected: start times derived without or with partial measurements.
func TestExpected(t *testing.T) {
	n := &Node{ID: "n", Link: 1 << 30, Disk: 2 << 30}
	at := func(tier functions.Tier) *Node { m := *n; m.Tiers = map[string]functions.Tier{"s": tier}; return &m }
	for _, c := range []struct {
		what string
		f    *Function
		n    *Node
		want time.Duration
	}{
		{"remote: bytes and boot side by side, then the load", model("x", 1, from("s", 40*gib)), n, 40*time.Second + 20*time.Second},
		{"remote and small: the boot is longer", model("x", 1, from("s", 2*gib)), n, starttime.Boot + time.Second},
		{"NVMe", model("x", 1, from("s", 40*gib)), at(functions.TierNVMe), starttime.Boot + 20*time.Second},
		{"host memory", model("x", 1, from("s", 40*gib)), at(functions.TierDRAM), starttime.Boot + 5*time.Second},
		{"measured elsewhere", model("x", 1, from("s", 40*gib), expects(functions.TierNVMe, 35*time.Second)), at(functions.TierNVMe), 35 * time.Second},
		{"measured from another tier: the difference is worked out", model("x", 1, from("s", 40*gib), expects(functions.TierNVMe, 35*time.Second)), n, 67 * time.Second},
	} {
		if got, _ := c.f.expectedStart(c.n); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// TestVerdicts: verdicts name the missing resource and an ETA.
func TestVerdicts(t *testing.T) {
	const now = 1000 * time.Second
	teams := map[string]Team{"c": {TeamGPUs: functions.TeamGPUs{Max: 1}}}
	large := func(f *Function) { f.Resources.GPUMemory = 80 * gib }
	cold := expects(functions.TierNVMe, 20*time.Second)
	for _, c := range []struct {
		what  string
		nodes []*Node
		fs    []*Function
		code  string
		want  string
		eta   time.Duration
	}{
		{"too few on one node", []*Node{node("a", 2), node("b", 2)}, []*Function{model("x", 4, waiting(1, now), large)},
			CodeCapacity, "it needs 4 GPUs with 80 GiB each on one node, and the largest has 2", -1},
		{"too little memory on each", []*Node{on(node("a", 2), func(n *Node) { n.GPUs[0].Memory, n.GPUs[1].Memory = 24*gib, 40*gib })},
			[]*Function{model("x", 1, waiting(1, now), large)}, CodeCapacity, "it needs a GPU with 80 GiB, and the largest GPU has 40 GiB", -1},
		{"sick ones", []*Node{on(node("a", 2), func(n *Node) { n.GPUs[0].Unhealthy = true })}, []*Function{model("x", 2, waiting(1, now))},
			CodeCapacity, "it needs 2 GPUs on one node, and the largest has 1 that are healthy", -1},
		{"no GPU anywhere", []*Node{node("a", 0)}, []*Function{model("x", 1, waiting(1, now))}, CodeCapacity, "it needs 1 GPU, and no node has one", -1},
		{"host memory beside GPUs", []*Node{node("a", 1)}, []*Function{model("x", 1, waiting(1, now), func(f *Function) { f.Resources.Memory = 100 * gib })},
			CodeCapacity, "it needs 100 GiB of host memory beside its GPUs, and the largest node with so many has 64 GiB", -1},
		{"host memory", []*Node{node("a", 0)}, []*Function{model("x", 0, waiting(1, now), func(f *Function) { f.Resources.Memory = 100 * gib })},
			CodeCapacity, "it needs 100 GiB of host memory on one node, and the largest has 64 GiB", -1},
		{"processors", []*Node{on(node("a", 1), func(n *Node) { n.CPU = 4000 }), on(node("b", 0), func(n *Node) { n.CPU = 16000 })},
			[]*Function{model("x", 1, waiting(1, now), func(f *Function) { f.Resources.CPU = 8000 })},
			CodeCapacity, "it needs 8 processors on one node, and the largest that it fits otherwise has 4 processors", -1},
		{"processors in use", []*Node{on(node("a", 0), func(n *Node) { n.CPU = 4000 })},
			[]*Function{model("u", 0, ready("a", now-time.Minute, 1), func(f *Function) { f.Replicas[0].Reserved.CPU = 3000 }), model("x", 0, waiting(1, now), cold, func(f *Function) { f.Resources.CPU = 2000 })},
			CodeCapacity, "it needs 2 processors of a node, and nothing that holds them is idle", 1*time.Minute + 30*time.Second + 20*time.Second},
		{"no pod more", []*Node{on(node("a", 0), func(n *Node) { n.Pods = -1 })},
			[]*Function{model("x", 0, waiting(1, now), func(f *Function) { f.Resources.Pods = 1 })}, CodeCapacity, "no node that it fits takes one more pod", -1},
		{"nowhere that suits it", []*Node{on(node("a", 1), func(n *Node) { n.Rejects = map[string]bool{"zone=b": true} })},
			[]*Function{model("x", 1, waiting(1, now), func(f *Function) { f.Requires = "zone=b" })}, CodeCapacity, "no node meets what its pods ask of one: zone=b", -1},
		{"every node rejects a function without requirements", []*Node{on(node("a", 1), func(n *Node) { n.Rejects = map[string]bool{"": true} })},
			[]*Function{model("x", 1, waiting(1, now))}, CodeCapacity, "every node keeps out pods that do not say that they bear with its taints", -1},
		{"the store", []*Node{on(node("a", 1), func(n *Node) { n.Store.Bytes = 100 * gib })}, []*Function{model("x", 1, waiting(1, now), from("s", 200*gib))},
			CodeCapacity, "its checkpoint has 200 GiB, and the largest store takes 100 GiB", -1},
		{"in use: a turn, a drain and a start", []*Node{node("a", 1)}, []*Function{using("u", "a", now, 0), model("x", 1, waiting(1, now), cold)},
			CodeCapacity, "it needs 1 GPU on one node, and nothing that holds them is idle", 30*time.Second + 30*time.Second + 20*time.Second},
		{"on its way: it gets its turn first", []*Node{node("a", 1)},
			[]*Function{model("u", 1, waiting(1, now-time.Minute), starting("a", true, 0), cold), model("x", 1, waiting(1, now), cold)},
			CodeCapacity, "it needs 1 GPU on one node, and nothing that holds them is idle",
			20*time.Second + 2*time.Minute + 30*time.Second + 20*time.Second},
		{"the soonest of several", []*Node{node("a", 2)},
			[]*Function{using("u", "a", now, 0), model("v", 1, ready("a", now-119*time.Second, 1, 1)), model("x", 1, waiting(1, now-29*time.Second), cold)},
			CodeCapacity, "it needs 1 GPU on one node, and nothing that holds them is idle", 1*time.Second + 30*time.Second + 20*time.Second},
		{"kept for ever by a minimum", []*Node{node("a", 1)},
			[]*Function{using("u", "a", now, 0), model("x", 1, waiting(1, now))}, CodeCapacity, "it needs 1 GPU on one node, and nothing that holds them is idle", -1},
		{"its team's maximum", []*Node{node("a", 4)}, []*Function{using("c/u", "a", now, 0), model("c/x", 1, waiting(1, now), cold)},
			CodeQuota, "team c may hold 1 GPU, and those it holds are in use", 80 * time.Second},
		{"more than its team may ever hold", []*Node{node("a", 4)}, []*Function{model("c/x", 2, waiting(1, now))},
			CodeQuota, "it needs 2 GPUs and team c may hold 1", -1},
	} {
		if strings.HasPrefix(c.what, "kept for ever") {
			c.fs[0].Scale.Min = 1
		}
		f := c.fs[len(c.fs)-1]
		v := DefaultPolicy.Decide(World{Nodes: c.nodes, Functions: c.fs, Teams: teams}, now).Blocked[f.Name]
		if v.Code != c.code || v.Message != c.want || v.ETA != c.eta {
			t.Errorf("%s:\n got %s %q %v\nwant %s %q %v", c.what, v.Code, v.Message, v.ETA, c.code, c.want, c.eta)
		}
	}
	// No verdict if the situation changes soon by itself.
	young := model("u", 1, ready("a", now-time.Second/2, 0, 0))
	if v, ok := DefaultPolicy.Decide(World{Nodes: []*Node{node("a", 1)}, Functions: []*Function{young, model("x", 1, waiting(1, now))}}, now).Blocked[name("x")]; ok {
		t.Errorf("half a second before room is made: %+v", v)
	}
}

// TestETAIsRepublished: the ETA of a verdict is updated while time passes.
func TestETAIsRepublished(t *testing.T) {
	const now = 1000 * time.Second
	c := DefaultPolicy.Planner()
	c.NodeChanged(node("a", 1))
	x := model("x", 1, waiting(1, now), expects(functions.TierNVMe, 20*time.Second))
	c.FunctionChanged(using("u", "a", now, 0))
	c.FunctionChanged(x)
	first := c.Plan(now)
	if v := first.Blocked[x.Name]; v.ETA != 80*time.Second || len(first.Changed) != 1 {
		t.Fatalf("%+v %v", v, first.Changed)
	}
	if p := c.Plan(now + time.Second); len(p.Changed) != 0 {
		t.Errorf("published again after a second: %v", p.Changed)
	}
	p := c.Plan(now + 12*time.Second)
	if v := p.Blocked[x.Name]; v.ETA != 68*time.Second || len(p.Changed) != 1 {
		t.Errorf("after 12 s: %+v %v", v, p.Changed)
	}
	x.Queued, x.Oldest = 0, 0
	c.FunctionChanged(x)
	if p := c.Plan(now + 13*time.Second); len(p.Changed) != 1 || len(p.Blocked) != 0 {
		t.Errorf("no waiters any more: %v %v", p.Changed, p.Blocked)
	}
}

// TestExplain: the last decision about a function, with its candidates.
func TestExplain(t *testing.T) {
	const now = 1000 * time.Second
	c := DefaultPolicy.Planner()
	c.NodeChanged(on(node("a", 1), holds("s", functions.TierNVMe)))
	c.NodeChanged(node("b", 1))
	x := model("x", 1, waiting(1, now), from("s", 40*gib))
	c.FunctionChanged(x)
	if _, _, ok := c.Explain(x.Name, explain.Place); ok {
		t.Error("explained before it was decided")
	}
	c.Plan(now)
	e, at, ok := c.Explain(x.Name, explain.Place)
	if !ok || e.Chosen != "a" || e.Reason != "demand" || len(e.Candidates) != 2 || at != now {
		t.Fatalf("%+v", e)
	}
	for i, c := range e.Candidates {
		sum := 0.0
		for _, p := range c.Parts {
			sum += p.Value
		}
		if d := sum - *c.Score; d > 1e-9 || d < -1e-9 || i > 0 && *c.Score < *e.Candidates[i-1].Score || c.Node != []string{"a", "b"}[i] || c.Tier != []functions.Tier{functions.TierNVMe, functions.TierRemote}[i] || c.Why != "" {
			t.Errorf("candidate %d: %+v", i, c)
		}
	}
	if e, _, ok := c.Explain(x.Name, explain.Scale); !ok || e.Reason != "demand" || len(e.Candidates[0].Parts) != 4 {
		t.Errorf("%+v", e)
	}
	// Both nodes are full: the evicted replica, and why its function is cold then.
	x.Queued = 0
	ready("a", now-time.Minute, 0, 0)(x)
	x.LastEnd = now - time.Minute
	y := model("y", 1, ready("b", now-time.Minute, 2, 0))
	z := model("z", 1, waiting(1, now))
	for _, f := range []*Function{x, y, z} {
		c.FunctionChanged(f)
	}
	c.Plan(now)
	if e, _, ok := c.Explain(z.Name, explain.Evict); !ok || e.Chosen != "default/x-0" || len(e.Candidates) != 1 ||
		e.Candidates[0].Function != "default/x" {
		t.Errorf("%+v", e)
	}
	if e, _, ok := c.Explain(x.Name, explain.Cold); !ok || e.For != "default/z" || e.Reason != "evicted" {
		t.Errorf("%+v", e)
	}
	for _, kind := range explain.Kinds {
		if e, _, ok := c.Explain(y.Name, kind); ok {
			t.Errorf("nothing was decided about y: %+v", e)
		}
	}
	// No replica can be evicted: each node has a reason.
	x.Active, x.Replicas[0].InFlight = 1, 1
	c.FunctionChanged(x)
	c.Plan(now)
	if e, _, _ := c.Explain(z.Name, explain.Place); e.Chosen != "" || !strings.Contains(e.Reason, "nothing that holds them is idle") ||
		e.Candidates[0].Why != "no room" {
		t.Errorf("%+v", e)
	}
}
