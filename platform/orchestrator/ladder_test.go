package orchestrator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// TestDeepSleep: if a node's budget for sleep is smaller than the weights, the engine
// sleeps without them, holds no memory, wakes, and its times are kept apart.
func TestDeepSleep(t *testing.T) {
	p := newPlay(t, 1, sleepy("x", func(s *functions.ModelSpec) { s.Resources.GPUMemory = 20 << 30 }))
	budget := functions.Bytes(10 << 30)
	h := p.agent("n", 1)
	h.bent = func(hb *functions.Heartbeat) {
		hb.Sleep = budget
		for i := range hb.Models {
			hb.Models[i].TotalBytes = 16 << 30
		}
	}
	p.pass(7 * time.Second)
	if n := p.s.loop.nodes["n"]; n.Sleep != budget {
		t.Fatalf("its sleepers may hold %v", n.Sleep)
	}
	sleeps := func() (levels []string) {
		for _, l := range p.log {
			if i := strings.Index(l, " sleep "); i >= 0 {
				levels = append(levels, l[len(l)-1:])
			}
		}
		return levels
	}
	f := p.s.loop.functions[fname("x")]
	id := ""
	for _, deep := range []bool{true, false} {
		if p.path.ask("x", 1); len(f.replicas) == 0 {
			p.pass(10 * time.Second)
		}
		p.pass(10 * time.Second)
		p.want("served", p.states("x"), "[READY@n]")
		p.path.done("x")
		if !deep {
			budget = 0 // all of the host memory
			p.pass(3 * time.Second)
		}
		p.pass(64 * time.Second)
		p.want("idle", p.states("x"), "[SLEEPING@n]")
		r := f.Replicas[0]
		if want := functions.Bytes(16 << 30); r.Deep != deep || deep && r.SleepMemory != 0 || !deep && r.SleepMemory != want {
			t.Errorf("deep %v: it is %v and holds %v", deep, r.Deep, r.SleepMemory)
		}
		id = p.path.ask("x", 1)
		p.pass(5 * time.Second)
		p.want("risen", p.states("x"), "[READY@n]")
		if tl, _ := p.s.ColdStart(id); tl.Tier != functions.TierSleeping || tl.State != functions.Ready {
			t.Errorf("%+v", tl)
		}
		p.path.done("x")
	}
	if f.starts.WakeTime(false, 50) <= 0 || f.starts.WakeTime(true, 50) <= 0 || f.starts.Len() != 3 {
		t.Errorf("of rises is known %v and %v", f.starts.WakeTime(false, 50), f.starts.WakeTime(true, 50))
	}
	if got := sleeps(); !slices.Equal(got, []string{"2", "0", "1", "0"}) {
		t.Errorf("sent to sleep at level %v", got)
	}
}
