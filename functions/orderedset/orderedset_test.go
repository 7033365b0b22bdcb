package orderedset

import (
	"slices"
	"testing"
)

func TestSet(t *testing.T) {
	var s Set[int]
	for _, x := range []int{1, 2, 3, 2, 4} {
		s.Add(x)
	}
	s.Drop(9)
	s.Drop(2) // the last member takes its place
	if want := []int{1, 4, 3}; !slices.Equal(s.List, want) {
		t.Errorf("%v, want %v", s.List, want)
	}
	var seen []int
	s.Each(func(x int) {
		if seen = append(seen, x); x == 1 || x == 3 {
			s.Drop(x)
		}
	})
	if want := []int{1, 3, 4}; !slices.Equal(seen, want) || !slices.Equal(s.List, []int{4}) {
		t.Errorf("each: %v, want %v; %v are left", seen, want, s.List)
	}
	s.Add(1)
	if !slices.Equal(s.List, []int{4, 1}) {
		t.Errorf("%v", s.List)
	}
}
