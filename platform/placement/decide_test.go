package placement

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

const gib = functions.Bytes(1 << 30)

func name(s string) functions.Name {
	n, err := functions.ParseName(s, functions.DefaultTeam)
	if err != nil {
		panic(err)
	}
	return n
}

func model(s string, gpus int, edit ...func(*Function)) *Function {
	f := &Function{
		Name:      name(s),
		Resources: functions.Resources{GPUs: gpus, Memory: gib},
		Scale:     functions.Scale{Max: 1, Target: 8, Idle: functions.Duration(5 * time.Minute)},
		Drain:     30 * time.Second,
	}
	for _, e := range edit {
		e(f)
	}
	return f
}

func waiting(n int, since Instant) func(*Function) {
	return func(f *Function) { f.Queued, f.Oldest = n, since }
}

func ready(node string, since Instant, inFlight int, gpus ...int) func(*Function) {
	return func(f *Function) {
		f.Replicas = append(f.Replicas, Replica{
			ID: fmt.Sprintf("%s-%d", f.Name, len(f.Replicas)), Node: node, State: functions.Ready, GPUs: gpus,
			Reserved: f.Resources, ReadyAt: since, InFlight: inFlight, Spawned: true,
		})
		f.Active += inFlight
	}
}

func starting(node string, spawned bool, gpus ...int) func(*Function) {
	return func(f *Function) {
		f.Replicas = append(f.Replicas, Replica{
			ID: fmt.Sprintf("%s-%d", f.Name, len(f.Replicas)), Node: node, State: functions.Downloading, GPUs: gpus,
			Reserved: f.Resources, Spawned: spawned,
		})
	}
}

func node(id string, gpus int) *Node {
	n := &Node{ID: id, Machine: "m-" + id, Here: true, Memory: 64 * gib}
	for i := range gpus {
		n.GPUs = append(n.GPUs, rooms.GPU{Index: i, Memory: 80 * gib})
	}
	return n
}

func show(p Plan) string {
	var out []string
	for _, a := range p.Actions {
		s := a.Kind.String() + " "
		switch a.Kind {
		case Start:
			s += fmt.Sprintf("%s on %s%v", a.Function, a.Node, a.GPUs)
		case MarkNodeLost:
			s += a.Node
		default:
			s += a.Replica
		}
		if a.Level == 2 {
			s += " deep"
		}
		out = append(out, s+" ("+a.Reason+")")
	}
	for n, v := range p.Blocked {
		out = append(out, "blocked "+n.String()+" "+v.Code)
	}
	return strings.Join(out, "; ")
}

// TestWholeGPUs: where each replica gets its GPUs whole, a second one that would fit into the
// memory of the first one's GPU needs another GPU, and its size is looked at all the same.
func TestWholeGPUs(t *testing.T) {
	const now = 1000 * time.Second
	small := func(f *Function) { f.Resources.GPUMemory = 20 * gib }
	whole := func(gpus int) *Node {
		n := node("n", gpus)
		for i := range n.GPUs {
			n.GPUs[i].Whole = true
		}
		return n
	}
	for _, c := range []struct {
		what string
		node *Node
		edit func(*Function)
		want string
	}{
		{"shared", node("n", 1), small, "start default/y on n[0] (demand)"},
		{"whole", whole(2), small, "start default/y on n[1] (demand)"},
		{"whole, and none is free", whole(1), small, "stop default/x-0 (evicted)"},
		{"whole, and too small", whole(2), func(f *Function) { f.Resources.GPUMemory = 100 * gib }, "blocked default/y"},
	} {
		fs := []*Function{model("x", 1, small, ready("n", now-time.Minute, 0, 0)), model("y", 1, c.edit, waiting(1, now-1))}
		if got := show(DefaultPolicy.Decide(World{Nodes: []*Node{c.node}, Functions: fs}, now)); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s", c.what, got)
		}
	}
}

func TestDecide(t *testing.T) {
	const now = 1000 * time.Second
	teams := map[string]Team{
		"a": {TeamGPUs: functions.TeamGPUs{Guaranteed: 1, Max: 2}},
		"b": {TeamGPUs: functions.TeamGPUs{Guaranteed: 1}},
		"c": {TeamGPUs: functions.TeamGPUs{Max: 1}},
	}
	with := func(edit func(f *Function)) func(*Function) { return edit }
	for _, c := range []struct {
		what  string
		nodes []*Node
		fs    []*Function
		want  string
		next  Instant
	}{
		{what: "nothing asked, nothing done", nodes: []*Node{node("n", 1)}, fs: []*Function{model("x", 1)}},
		{what: "one start however many wait", nodes: []*Node{node("n", 4)},
			fs:   []*Function{model("x", 1, waiting(1000, now-1), with(func(f *Function) { f.Scale.Max = 4 }))},
			want: "start default/x on n[0] (demand)"},
		{what: "none while one is starting", nodes: []*Node{node("n", 4)},
			fs: []*Function{model("x", 1, waiting(1000, now-1), starting("n", false, 0), with(func(f *Function) { f.Scale.Max = 4 }))}},
		{what: "a queue scales beyond one", nodes: []*Node{node("n", 4)},
			fs:   []*Function{model("x", 1, ready("n", now-time.Minute, 8, 0), waiting(10, now-1), with(func(f *Function) { f.Scale.Max = 4 }))},
			want: "start default/x on n[1] (demand); start default/x on n[2] (demand)"},
		{what: "not above max", nodes: []*Node{node("n", 4)},
			fs: []*Function{model("x", 1, ready("n", now-time.Minute, 8, 0), waiting(10, now-1))}},
		{what: "min without demand", nodes: []*Node{node("n", 1)},
			fs:   []*Function{model("x", 0, with(func(f *Function) { f.Scale.Min = 1 }))},
			want: "start default/x on n[] (min)"},
		{what: "a lease is a wish", nodes: []*Node{node("n", 1)},
			fs:   []*Function{model("x", 0, with(func(f *Function) { f.Lease = now + time.Minute }))},
			want: "start default/x on n[] (lease)", next: now + time.Minute},
		{what: "idle counts from ready", nodes: []*Node{node("n", 1)},
			fs: []*Function{model("x", 1, ready("n", now-4*time.Minute, 0, 0))}, next: now + time.Minute},
		{what: "idle counts from the last end", nodes: []*Node{node("n", 1)},
			fs: []*Function{model("x", 1, ready("n", now-time.Hour, 0, 0), with(func(f *Function) { f.LastEnd = now - time.Minute }))}, next: now + 4*time.Minute},
		{what: "idle is over", nodes: []*Node{node("n", 1)},
			fs:   []*Function{model("x", 1, ready("n", now-time.Hour, 0, 0), with(func(f *Function) { f.LastEnd = now - 5*time.Minute }))},
			want: "stop default/x-0 (idle)"},
		{what: "a long request is not idle", nodes: []*Node{node("n", 1)},
			fs: []*Function{model("x", 1, ready("n", now-time.Hour, 1, 0), with(func(f *Function) { f.LastEnd = now - time.Hour }))}},
		{what: "two are too many", nodes: []*Node{node("n", 2)},
			fs: []*Function{model("x", 1, ready("n", now-time.Hour, 1, 0), ready("n", now-time.Minute, 0, 1),
				with(func(f *Function) { f.Scale.Max, f.Needed, f.Desired, f.LastEnd = 2, 1, 1, now-1 }))},
			want: "stop default/x-1 (surplus)"},
		{what: "no waiter: called off", nodes: []*Node{node("n", 1)},
			fs: []*Function{model("x", 1, starting("n", false, 0))}, want: "call off default/x-0 (called_off)"},
		{what: "no waiter, but it has a process", nodes: []*Node{node("n", 1)},
			fs: []*Function{model("x", 1, starting("n", true, 0))}},
		{what: "the least recently used makes way", nodes: []*Node{node("n", 2)},
			fs: []*Function{
				model("x", 1, ready("n", now-time.Hour, 0, 0), with(func(f *Function) { f.LastEnd = now - 2*time.Second })),
				model("y", 1, ready("n", now-time.Hour, 0, 1), with(func(f *Function) { f.LastEnd = now - 3*time.Second })),
				model("z", 1, waiting(1, now-1))},
			want: "stop default/y-0 (evicted)", next: now + 5*time.Minute - 3*time.Second},
		{what: "never a busy one", nodes: []*Node{node("n", 1)},
			fs: []*Function{
				model("x", 1, ready("n", now-time.Hour, 1, 0)),
				model("z", 1, waiting(1, now-1))},
			want: "blocked default/z no_capacity"},
		{what: "a replica that is never idle leaves after its time slice", nodes: []*Node{node("n", 1)},
			fs: []*Function{
				model("x", 1, ready("n", now-2*time.Minute, 1, 0), waiting(5, now-1)),
				model("z", 1, waiting(1, now-30*time.Second))},
			want: "stop default/x-0 (time_slice)"},
		{what: "not before a request has waited", nodes: []*Node{node("n", 1)},
			fs: []*Function{
				model("x", 1, ready("n", now-time.Hour, 1, 0)),
				model("z", 1, waiting(1, now-10*time.Second))},
			want: "blocked default/z no_capacity", next: now + 20*time.Second},
		{what: "not before its turn is over", nodes: []*Node{node("n", 1)},
			fs: []*Function{
				model("x", 1, ready("n", now-time.Minute, 1, 0)),
				model("z", 1, waiting(1, now-40*time.Second))},
			want: "blocked default/z no_capacity", next: now + time.Minute},
		{what: "room on its way is waited for", nodes: []*Node{node("n", 2)},
			fs: []*Function{
				model("x", 1, ready("n", now-time.Hour, 0, 0), with(func(f *Function) { f.Replicas[0].Stopping = true })),
				model("y", 1, ready("n", now-time.Minute, 0, 1)),
				model("z", 1, waiting(1, now-1))}, next: now + 4*time.Minute},
		{what: "a minimum is not evicted", nodes: []*Node{node("n", 1)},
			fs: []*Function{
				model("x", 1, ready("n", now-time.Hour, 0, 0), with(func(f *Function) { f.Scale.Min = 1 })),
				model("z", 1, waiting(1, now-1))},
			want: "blocked default/z no_capacity"},
		{what: "a guarantee is not evicted for a borrower", nodes: []*Node{node("n", 1)},
			fs: []*Function{
				model("a/x", 1, ready("n", now-time.Minute, 0, 0)),
				model("d/z", 1, waiting(1, now-1))},
			want: "blocked d/z no_capacity", next: now - 1 + 30*time.Second},
		{what: "a borrower makes way for what is owed", nodes: []*Node{node("n", 2)},
			fs: []*Function{
				model("a/x", 1, ready("n", now-time.Minute, 0, 0)),
				model("a/y", 1, ready("n", now-time.Minute-1, 0, 1)),
				model("b/z", 1, waiting(1, now-1))},
			want: "stop a/y-0 (evicted)", next: now + 4*time.Minute - 1},
		{what: "a team's maximum", nodes: []*Node{node("n", 4)},
			fs: []*Function{
				model("c/x", 1, ready("n", now-time.Minute, 1, 0)),
				model("c/z", 1, waiting(1, now-1))},
			want: "blocked c/z gpu_quota_exceeded"},
		{what: "at a team's maximum its own idle make way", nodes: []*Node{node("n", 4)},
			fs: []*Function{
				model("c/x", 1, ready("n", now-time.Minute, 0, 0)),
				model("c/z", 1, waiting(1, now-1))},
			want: "stop c/x-0 (evicted)", next: now + 4*time.Minute},
		{what: "too large for any", nodes: []*Node{node("n", 2)},
			fs: []*Function{model("x", 3, waiting(1, now-1))}, want: "blocked default/x no_capacity"},
		{what: "no agent", fs: []*Function{model("x", 0, waiting(1, now-1))}, want: "blocked default/x no_capacity"},
		{what: "two share a GPU by bytes", nodes: []*Node{node("n", 2)},
			fs: []*Function{
				model("x", 1, with(func(f *Function) { f.Resources.GPUMemory = 30 * gib }), ready("n", now-time.Minute, 1, 1)),
				model("z", 1, waiting(1, now-1), with(func(f *Function) { f.Resources.GPUMemory = 40 * gib }))},
			want: "start default/z on n[1] (demand)"},
		{what: "a folder of another machine", nodes: []*Node{node("n", 2)},
			fs:   []*Function{model("x", 0, waiting(1, now-1), with(func(f *Function) { f.Machine = "m-other" }))},
			want: "blocked default/x no_capacity"},
		{what: "an engine's folder on another machine", nodes: []*Node{func() *Node { n := node("n", 2); n.Borrows = true; return n }()},
			fs:   []*Function{model("x", 0, waiting(1, now-1), with(func(f *Function) { f.RunsOn = "m-other" }))},
			want: "blocked default/x no_capacity"},
		{what: "an engine's folder here", nodes: []*Node{func() *Node { n := node("n", 2); n.Machine = "m-here"; return n }()},
			fs:   []*Function{model("x", 1, waiting(1, now-1), with(func(f *Function) { f.RunsOn = "m-here" }))},
			want: "start default/x on n[0] (demand)"},
		{what: "bytes at hand decide", nodes: []*Node{node("a", 1), func() *Node { n := node("b", 1); n.Cached = map[string]bool{"az": true}; return n }()},
			fs:   []*Function{model("x", 1, waiting(1, now-1), with(func(f *Function) { f.Source = "az" }))},
			want: "start default/x on b[0] (demand)"},
		{what: "back-off", nodes: []*Node{node("n", 1)},
			fs: []*Function{model("x", 1, waiting(1, now-1), with(func(f *Function) { f.RetryAt = now + 4*time.Second }))}, next: now + 4*time.Second},
		{what: "a silent node is lost", nodes: []*Node{func() *Node { n := node("n", 1); n.Here, n.Seen = false, now-6*time.Second; return n }(), node("m", 1)},
			fs:   []*Function{model("x", 1, waiting(1, now-1), ready("n", now-time.Hour, 1, 0))},
			want: "lose n (silent); start default/x on m[0] (demand)"},
		{what: "a sick GPU is left", nodes: []*Node{func() *Node { n := node("n", 2); n.GPUs[0].Unhealthy = true; return n }()},
			fs:   []*Function{model("x", 1, waiting(1, now-1), ready("n", now-time.Hour, 0, 0))},
			want: "stop default/x-0 (gpu_unhealthy); start default/x on n[1] (demand)"},
		{what: "out of the catalogue", nodes: []*Node{node("n", 2)},
			fs:   []*Function{model("x", 1, ready("n", now-time.Hour, 0, 0), with(func(f *Function) { f.Gone = true }))},
			want: "stop default/x-0 (removed)"},
		{what: "changed: the new one first", nodes: []*Node{node("n", 2)},
			fs:   []*Function{model("x", 1, waiting(1, now-1), ready("n", now-time.Hour, 1, 0), with(func(f *Function) { f.Replicas[0].Stale = true }))},
			want: "start default/x on n[1] (demand)"},
		{what: "changed: no room beside the old", nodes: []*Node{node("n", 1)},
			fs:   []*Function{model("x", 1, waiting(1, now-1), ready("n", now-time.Hour, 1, 0), with(func(f *Function) { f.Replicas[0].Stale = true }))},
			want: "stop default/x-0 (changed)"},
		{what: "the longest waiter first", nodes: []*Node{node("n", 1)},
			fs:   []*Function{model("x", 1, waiting(9, now-1)), model("y", 1, waiting(1, now-2))},
			want: "start default/y on n[0] (demand); blocked default/x no_capacity"},
		{what: "host memory", nodes: []*Node{node("n", 0)},
			fs: []*Function{
				model("x", 0, ready("n", now-time.Minute, 0), with(func(f *Function) { f.Replicas[0].Reserved.Memory = 60 * gib })),
				model("z", 0, waiting(1, now-1), with(func(f *Function) { f.Resources.Memory = 8 * gib }))},
			want: "stop default/x-0 (evicted)", next: now + 4*time.Minute},
		{what: "processors", nodes: []*Node{on(node("n", 0), func(n *Node) { n.CPU = 2000 })},
			fs: []*Function{
				model("x", 0, ready("n", now-time.Minute, 0), with(func(f *Function) { f.Replicas[0].Reserved.CPU = 1500 })),
				model("z", 0, waiting(1, now-1), with(func(f *Function) { f.Resources.CPU = 501 }))},
			want: "stop default/x-0 (evicted)"},
		{what: "unlimited processors", nodes: []*Node{node("n", 0)},
			fs:   []*Function{model("z", 0, waiting(1, now-1), with(func(f *Function) { f.Resources.CPU, f.Resources.Pods = 64000, 1 }))},
			want: "start default/z on n[] (demand)"},
		{what: "one pod more than a node takes", nodes: []*Node{on(node("n", 0), func(n *Node) { n.Pods = 1 })},
			fs: []*Function{
				model("x", 0, ready("n", now-time.Minute, 0), with(func(f *Function) { f.Replicas[0].Reserved.Pods = 1 })),
				model("z", 0, waiting(1, now-1), with(func(f *Function) { f.Resources.Pods = 1 }))},
			want: "stop default/x-0 (evicted)"},
		{what: "a sleeper would keep its processors", nodes: []*Node{on(node("n", 1), func(n *Node) { n.CPU = 2000 })},
			fs: []*Function{
				model("x", 1, sleeps(gib), ready("n", now-time.Minute, 0, 0), with(func(f *Function) { f.Replicas[0].Reserved.CPU = 1500 })),
				model("z", 1, waiting(1, now-1), with(func(f *Function) { f.Resources.CPU = 1000 }))},
			want: "stop default/x-0 (evicted)"},
		{what: "who has no claim on processors is not kept by those who have", nodes: []*Node{on(node("n", 1), func(n *Node) { n.CPU = 1 })},
			fs:   []*Function{model("z", 1, waiting(1, now-1))},
			want: "start default/z on n[0] (demand)"},
		{what: "a node that does not suit it", nodes: []*Node{on(node("a", 1), func(n *Node) { n.Rejects = map[string]bool{"zone=b": true} }), node("b", 1)},
			fs:   []*Function{model("x", 1, waiting(1, now-1), with(func(f *Function) { f.Requires = "zone=b" }))},
			want: "start default/x on b[0] (demand)"},
		{what: "no eviction where it may not go", nodes: []*Node{on(node("a", 1), func(n *Node) { n.Rejects = map[string]bool{"": true} })},
			fs: []*Function{
				model("x", 1, ready("a", now-time.Minute, 0, 0), with(func(f *Function) { f.Requires = "spot" })),
				model("z", 1, waiting(1, now-1))},
			want: "blocked default/z no_capacity"},
	} {
		p := DefaultPolicy.Decide(World{Nodes: c.nodes, Functions: c.fs, Teams: teams}, now)
		if got := show(p); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.what, got, c.want)
		}
		if c.next != 0 && p.Next != c.next {
			t.Errorf("%s: next %v, want %v", c.what, p.Next, c.next)
		}
	}
}

func (k Kind) String() string {
	switch k {
	case Start:
		return "start"
	case Stop:
		return "stop"
	case CancelStart:
		return "call off"
	case MarkNodeLost:
		return "lose"
	case Sleep:
		return "sleep"
	case WakeUp:
		return "rise"
	}
	return "nothing"
}
