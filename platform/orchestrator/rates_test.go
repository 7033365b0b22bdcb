package orchestrator

import (
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// TestMeasuredRates: the rate of a link is the largest of the last samples; older ones
// and small checkpoints do not count.
func TestMeasuredRates(t *testing.T) {
	n := &nodeState{Node: &placement.Node{ID: "a"}, id: "a"}
	remote := func(bytes functions.Bytes, took time.Duration) {
		n.recordRates(functions.TierRemote, bytes, map[functions.Phase]time.Duration{functions.PhaseStage: took, functions.PhaseLoad: time.Second})
	}
	remote(1000, time.Second)
	if n.Link != 0 {
		t.Errorf("of a thousand bytes: %v", n.Link)
	}
	remote(4<<30, 4*time.Second)
	remote(4<<30, 8*time.Second) // two share the link
	if n.Link != 1<<30 || n.Disk != 0 {
		t.Errorf("link %v, disk %v", n.Link, n.Disk)
	}
	for range 8 {
		remote(4<<30, 16*time.Second)
	}
	if n.Link != 1<<28 {
		t.Errorf("a link that became slow: %v", n.Link)
	}
	n.recordRates(functions.TierNVMe, 8<<30, map[functions.Phase]time.Duration{functions.PhaseLoad: 4 * time.Second})
	if n.Disk != 2<<30 {
		t.Errorf("disk %v", n.Disk)
	}
	// The loader measures the rate of all stagings together.
	n.setStore(functions.StoreUse{Bytes: 1 << 40, Loader: &functions.LoaderStats{Stagings: 3, Rate: 2 << 30}})
	if n.Link != 2<<30 {
		t.Errorf("by the loader: %v", n.Link)
	}
	if n.setStore(functions.StoreUse{Bytes: 1 << 40, Used: 1 << 30}) {
		t.Error("a thousandth of the store is news")
	}
	if !n.setStore(functions.StoreUse{Bytes: 1 << 40, Used: 1 << 39}) || n.Store.Used != 1<<39 {
		t.Error("half of the store is none")
	}
}

// TestPlannerInput: data of heartbeats and cold starts reaches the planner.
func TestPlannerInput(t *testing.T) {
	p := newPlay(t, 1, model("x"))
	h := p.agent("n", 2)
	h.bent = func(hb *functions.Heartbeat) {
		hb.Cached = []functions.CachedModel{{Source: "az://a/c/y", Tier: functions.TierDRAM, Bytes: 7 << 30}}
		for i := range hb.GPUs {
			hb.GPUs[i].Group = 1 + i
		}
		for i := range hb.Models {
			hb.Models[i].TotalBytes = 3 << 30
		}
	}
	p.pass(3 * time.Second)
	p.path.ask("x", 1)
	p.pass(10 * time.Second)
	p.want("served", p.states("x"), "[READY@n]")
	n, f := p.s.loop.nodes["n"], p.s.loop.functions[fname("x")]
	if n.Tiers["az://a/c/y"] != functions.TierDRAM || n.Tiers[f.Source] != functions.TierNVMe || !n.Cached[f.Source] || n.GPUs[1].Group != 2 {
		t.Errorf("%+v", n.Node)
	}
	if n.Link < 1<<30 || n.Link > 2<<30 {
		t.Errorf("3 GiB in 2 s: %v a second", n.Link)
	}
	if f.Size != 3<<30 || p.s.loop.sizes["az://a/c/y"] != 7<<30 || f.Expect.Node["n"][functions.TierRemote] < 5*time.Second {
		t.Errorf("size %v, %v", f.Size, f.Expect)
	}
}
