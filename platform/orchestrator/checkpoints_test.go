package orchestrator

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// TestShelve: after random changes of its list, a node has the sources of its last list
// and those of its READY replicas.
func TestShelve(t *testing.T) {
	s := New(Options{Path: newFakePath(), Catalog: &fakeCatalog{}})
	rng := rand.New(rand.NewPCG(7, 7))
	tiers := []functions.Tier{functions.TierNVMe, functions.TierDRAM}
	var nodes []*nodeState
	for i := range 2 {
		nodes = append(nodes, &nodeState{Node: &placement.Node{}, id: fmt.Sprint(i)})
	}
	was := make([]functions.Heartbeat, len(nodes))
	for range 3000 {
		k := rng.IntN(len(nodes))
		n := nodes[k]
		hb := was[k]
		hb.Cached = append([]functions.CachedModel(nil), hb.Cached...)
		for range 1 + rng.IntN(3) {
			source := fmt.Sprintf("az://a/b/m%d", rng.IntN(12))
			at := -1
			for i := range hb.Cached {
				if hb.Cached[i].Source == source {
					at = i
				}
			}
			switch {
			case at < 0:
				i := rng.IntN(len(hb.Cached) + 1)
				hb.Cached = append(hb.Cached[:i:i], append([]functions.CachedModel{{Source: source, Tier: tiers[rng.IntN(2)], Bytes: 1 << 20}}, hb.Cached[i:]...)...)
			case rng.IntN(2) == 0:
				hb.Cached[at].Tier = tiers[rng.IntN(2)]
			default:
				hb.Cached = append(hb.Cached[:at:at], hb.Cached[at+1:]...)
			}
		}
		hb.Models = nil
		for i := range rng.IntN(4) {
			m := functions.ReplicaStatus{ID: fmt.Sprint(i), State: functions.Ready,
				Spec: &functions.ModelSpec{Source: fmt.Sprintf("az://a/b/m%d", rng.IntN(12))}}
			if rng.IntN(3) == 0 {
				m.State = functions.Loading
			}
			hb.Models = append(hb.Models, m)
		}
		before := maps.Clone(n.Tiers)
		changed := s.loop.updateCachedSources(n, &was[k], &hb, s.loop.matchReplicas(n, &hb))
		was[k] = hb
		want := map[string]functions.Tier{}
		for _, c := range hb.Cached {
			want[c.Source] = c.Tier
		}
		for _, m := range hb.Models {
			if m.State == functions.Ready && want[m.Spec.Source] == "" {
				want[m.Spec.Source] = functions.TierNVMe
			}
		}
		if !maps.Equal(n.Tiers, want) {
			t.Fatalf("%v, want %v", n.Tiers, want)
		}
		if !changed && !maps.Equal(before, want) {
			t.Fatal("a change was not reported")
		}
		copies := map[string]int{}
		for _, n := range nodes {
			if len(n.Cached) != len(n.Tiers) {
				t.Fatal("two lists of one shelf differ")
			}
			for source := range n.Tiers {
				copies[source]++
			}
		}
		if !maps.Equal(copies, s.loop.copies) {
			t.Fatalf("copies %v, want %v", s.loop.copies, copies)
		}
	}
}
