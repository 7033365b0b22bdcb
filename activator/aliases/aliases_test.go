package aliases

import (
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// TestChoose: each function gets its share, the largest first; one alone gets all whatever its
// weight, and one of none is never chosen.
func TestChoose(t *testing.T) {
	name := func(s string) functions.Name { return functions.Name{Team: "t", Name: s} }
	s := NewSet([]Alias{
		{name("m"), []Share{{name("m-1"), 20}, {name("m-2"), 80}, {name("m-3"), 0}}},
		{name("a"), []Share{{name("a-1"), 0}}},
		{name("none"), nil},
	})
	for n, want := range map[int]string{0: "m-2", 79: "m-2", 80: "m-1", 99: "m-1"} {
		if got := s.Find(name("m")).Choose(func(sum int) int {
			if sum != 100 {
				t.Errorf("of %d", sum)
			}
			return n
		}); got != name(want) {
			t.Errorf("%d: %s", n, got)
		}
	}
	none := func(int) int { t.Error("there is no choice"); return 0 }
	if got := s.Find(name("a")).Choose(none); got != name("a-1") {
		t.Error(got)
	}
	if got := s.Find(name("none")).Choose(none); got != (functions.Name{}) {
		t.Error(got)
	}
	if names := s.TeamNames("t"); len(names) != 3 || names[0] != "a" || s.Names()[2] != name("none") || NewSet(nil).Find(name("m")) != nil {
		t.Error(names)
	}
}
