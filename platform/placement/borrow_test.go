package placement

import (
	"slices"
	"testing"
)

// TestBorrowedSource: a source that is a folder of one machine runs there by preference,
// else on nodes that can stage it from there, and on no other.
func TestBorrowedSource(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		name  string
		nodes []*Node
		want  string
	}{
		{"in place first", []*Node{{ID: "b", Machine: "m-b", Borrows: true, Memory: 64 * gib}, {ID: "a", Machine: "m-a", Memory: 8 * gib}}, "a"},
		{"borrowed where that is full", []*Node{{ID: "a", Machine: "m-a", Memory: gib / 2}, {ID: "b", Machine: "m-b", Borrows: true, Memory: 8 * gib}}, "b"},
		{"not by who cannot", []*Node{{ID: "a", Machine: "m-a", Memory: gib / 2}, {ID: "c", Machine: "m-c", Memory: 8 * gib}}, ""},
	} {
		f := &Function{Source: "file:///m", Machine: "m-a", Demand: Demand{Queued: 1, Oldest: 1}}
		f.Name.Team, f.Name.Name = "t", "m"
		f.Resources.Memory, f.Scale.Max, f.Scale.Target = gib, 1, 8
		for _, n := range tc.nodes {
			n.Seen = 1000
		}
		plan := DefaultPolicy.Decide(World{Nodes: tc.nodes, Functions: []*Function{f}}, 1000)
		i := slices.IndexFunc(plan.Actions, func(a Action) bool { return a.Kind == Start })
		if got := ""; i >= 0 && plan.Actions[i].Node != tc.want || i < 0 && got != tc.want {
			t.Errorf("%s: %+v, want %q", tc.name, plan.Actions, tc.want)
		}
	}
}
