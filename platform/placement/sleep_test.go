package placement

import (
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

func sleeps(asleep functions.Bytes) func(*Function) {
	return func(f *Function) { f.Sleeps, f.SleepMemory = true, asleep }
}

// asleepOn adds a replica that has been asleep since a moment.
func asleepOn(node string, since Instant, gpus ...int) func(*Function) {
	return func(f *Function) {
		f.Replicas = append(f.Replicas, Replica{
			ID: f.Name.String() + "-z", Node: node, State: functions.Sleeping, GPUs: gpus, Reserved: f.Resources, SleptAt: since, Spawned: true,
			SleepMemory: f.SleepMemory,
		})
	}
}

func TestSleep(t *testing.T) {
	const now = 1000 * time.Second
	small := func(n *Node) *Node { n.Memory = 3 * gib; return n }
	for _, x := range []struct {
		name string
		w    World
		want string // prefix of the output of show; "": no actions
		none []string
	}{
		{"idle goes to sleep", World{Nodes: []*Node{node("n", 1)}, Functions: []*Function{model("a", 1, sleeps(gib), ready("n", 1, 0, 0))}},
			"sleep default/a-0 (idle)", nil},
		{"not where the node cannot", World{Nodes: []*Node{func() *Node { n := node("n", 1); n.NoSleep = true; return n }()}, Functions: []*Function{model("a", 1, sleeps(gib), ready("n", 1, 0, 0))}},
			"stop default/a-0 (idle)", []string{"sleep"}},
		{"in the way where the node cannot, it ends", World{Nodes: []*Node{func() *Node { n := node("n", 1); n.NoSleep = true; return n }()}, Functions: []*Function{
			model("a", 1, sleeps(gib), ready("n", 999*time.Second-time.Minute, 0, 0)), model("b", 1, waiting(1, now))}},
			"stop default/a-0 (evicted)", []string{"sleep"}},
		{"not where host memory is short", World{Nodes: []*Node{small(node("n", 1))}, Functions: []*Function{model("a", 1, sleeps(4*gib), ready("n", 1, 0, 0))}},
			"sleep default/a-0 deep (idle)", nil},
		{"where it is short and a cold start takes no longer, it ends", World{Nodes: []*Node{small(node("n", 1))}, Functions: []*Function{model("a", 1, sleeps(4*gib), ready("n", 1, 0, 0), func(f *Function) { f.DeepWakeTime, f.ColdStart = 19*time.Second, 20*time.Second })}},
			"stop default/a-0 (idle)", nil},
		{"nor where the sleepers' budget is used up", World{Nodes: []*Node{func() *Node { n := node("n", 2); n.Sleep = 3 * gib; return n }()}, Functions: []*Function{
			model("a", 1, sleeps(2*gib), ready("n", 1, 0, 0)), model("b", 1, sleeps(2*gib), asleepOn("n", 990*time.Second, 1))}},
			"sleep default/a-0 deep (idle)", nil},
		{"within the sleepers' budget", World{Nodes: []*Node{func() *Node { n := node("n", 2); n.Sleep = 4 * gib; return n }()}, Functions: []*Function{
			model("a", 1, sleeps(2*gib), ready("n", 1, 0, 0)), model("b", 1, sleeps(2*gib), asleepOn("n", 990*time.Second, 1))}},
			"sleep default/a-0 (idle)", nil},
		{"two at once share the sleepers' budget", World{Nodes: []*Node{func() *Node { n := node("n", 2); n.Sleep = 3 * gib; return n }()}, Functions: []*Function{
			model("a", 1, sleeps(2*gib), ready("n", 1, 0, 0)), model("b", 1, sleeps(2*gib), ready("n", 1, 0, 1))}},
			"sleep default/a-0 (idle); sleep default/b-0 deep (idle)", nil},
		{"in the way, to sleep", World{Nodes: []*Node{node("n", 1)}, Functions: []*Function{
			model("a", 1, sleeps(gib), ready("n", 999*time.Second-time.Minute, 0, 0)), model("b", 1, waiting(1, now))}},
			"sleep default/a-0 (evicted)", []string{"start"}},
		{"in the way, and the newcomer needs the memory", World{Nodes: []*Node{small(node("n", 1))}, Functions: []*Function{
			model("a", 1, sleeps(gib+1), ready("n", 999*time.Second-time.Minute, 0, 0)), model("b", 1, waiting(1, now))}},
			"sleep default/a-0 deep (evicted)", nil},
		{"asked for, it rises", World{Nodes: []*Node{node("n", 2)}, Functions: []*Function{model("a", 1, sleeps(gib), asleepOn("n", 990*time.Second, 1), waiting(1, now))}},
			"rise default/a-z (demand)", []string{"start"}},
		{"its GPU is taken by one who is idle", World{Nodes: []*Node{node("n", 1)}, Functions: []*Function{
			model("a", 1, sleeps(gib), asleepOn("n", 990*time.Second, 0), waiting(1, now)), model("b", 1, ready("n", 990*time.Second, 0, 0))}},
			"stop default/b-0 (evicted)", []string{"rise", "start"}},
		{"asleep without its weights, a cold start elsewhere may be sooner", World{Nodes: []*Node{node("n", 2)}, Functions: []*Function{
			model("a", 1, sleeps(gib), asleepOn("n", 990*time.Second, 0), waiting(1, now), func(f *Function) {
				f.Replicas[0].Deep, f.WakeTime, f.DeepWakeTime, f.ColdStart = true, time.Second, 20*time.Second, 10*time.Second
			}),
			model("b", 1, ready("n", 990*time.Second, 0, 0))}},
			"start default/a on n[1] (demand)", []string{"rise", "stop"}},
		{"its GPU is taken by one who is busy, another is free", World{Nodes: []*Node{node("n", 2)}, Functions: []*Function{
			model("a", 1, sleeps(gib), asleepOn("n", 990*time.Second, 0), waiting(1, now)), model("b", 1, ready("n", 990*time.Second, 3, 0))}},
			"start default/a on n[1] (demand)", []string{"rise", "stop"}},
		{"a cold start elsewhere is sooner than room for a rise", World{Nodes: []*Node{node("n", 2)}, Functions: []*Function{
			model("a", 1, sleeps(gib), asleepOn("n", 990*time.Second, 0), waiting(1, now), func(f *Function) { f.WakeTime, f.ColdStart = time.Second, 2*time.Second }),
			model("b", 1, ready("n", 990*time.Second, 0, 0))}},
			"start default/a on n[1] (demand)", []string{"rise", "stop"}},
		{"a cold start elsewhere takes longer", World{Nodes: []*Node{node("n", 2)}, Functions: []*Function{
			model("a", 1, sleeps(gib), asleepOn("n", 990*time.Second, 0), waiting(1, now), func(f *Function) { f.WakeTime, f.ColdStart = time.Second, time.Minute }),
			model("b", 1, ready("n", 990*time.Second, 0, 0))}},
			"stop default/b-0 (evicted)", []string{"start"}},
		{"slept for too long", World{Nodes: []*Node{node("n", 1)}, Functions: []*Function{model("a", 1, sleeps(gib), asleepOn("n", 600*time.Second, 0))}},
			"stop default/a-z (idle)", nil},
		{"sleeps well", World{Nodes: []*Node{node("n", 1)}, Functions: []*Function{model("a", 1, sleeps(gib), asleepOn("n", 900*time.Second, 0))}}, "", nil},
		{"its host memory is wanted", World{Nodes: []*Node{small(node("n", 1))}, Functions: []*Function{
			model("a", 1, sleeps(gib), asleepOn("n", 900*time.Second, 0)), model("b", 0, waiting(1, now), func(f *Function) { f.Resources.Memory = 2 * gib })}},
			"stop default/a-z (evicted)", nil},
		{"host memory has shrunk", World{Nodes: []*Node{{ID: "n", Here: true, Memory: gib, GPUs: []rooms.GPU{{Memory: 80 * gib}}}}, Functions: []*Function{
			model("a", 1, sleeps(gib), asleepOn("n", 900*time.Second, 0))}},
			"stop default/a-z (pressure)", nil},
		{"about to sleep, it is waited for", World{Nodes: []*Node{node("n", 2)}, Functions: []*Function{
			model("a", 1, sleeps(gib), ready("n", 1, 0, 0), waiting(1, now), func(f *Function) { f.Replicas[0].GoingToSleep, f.Replicas[0].SleepMemory = true, gib })}}, "", nil},
		{"a GPU that falls sick takes its sleeper along", World{Nodes: []*Node{{ID: "n", Here: true, Memory: 64 * gib, GPUs: []rooms.GPU{{Memory: 80 * gib, Unhealthy: true}}}}, Functions: []*Function{
			model("a", 1, sleeps(gib), asleepOn("n", 900*time.Second, 0))}},
			"stop default/a-z (gpu_unhealthy)", nil},
	} {
		got := show(DefaultPolicy.Decide(x.w, now))
		if x.want == "" && strings.Contains(got, "(") || !strings.HasPrefix(got, x.want) {
			t.Errorf("%s: %s", x.name, got)
		}
		for _, s := range x.none {
			if strings.Contains(got, s+" ") {
				t.Errorf("%s: %s", x.name, got)
			}
		}
	}
}
