// Package orderedset is a generic set, a list beside a map of positions, to add to, drop from and loop
// over in order of insertion, except that the last member takes the place of a dropped one.
package orderedset

// Set is a set in insertion order, except that the last member replaces a
// removed one. The same steps give the same order.
type Set[T comparable] struct {
	at   map[T]int
	List []T // the members; only the methods change it
}

// Add adds x, if it is no member.
func (s *Set[T]) Add(x T) {
	if _, ok := s.at[x]; ok {
		return
	}
	if s.at == nil {
		s.at = map[T]int{}
	}
	s.at[x] = len(s.List)
	s.List = append(s.List, x)
}

// Drop removes x, if it is a member.
func (s *Set[T]) Drop(x T) {
	i, ok := s.at[x]
	if !ok {
		return
	}
	delete(s.at, x)
	last := len(s.List) - 1
	if i != last {
		s.List[i] = s.List[last]
		s.at[s.List[i]] = i
	}
	var none T
	s.List[last] = none
	s.List = s.List[:last]
}

// Each calls f on every member. f may drop the one it is called on.
func (s *Set[T]) Each(f func(T)) {
	for i := 0; i < len(s.List); {
		x := s.List[i]
		f(x)
		if i < len(s.List) && s.List[i] == x {
			i++
		}
	}
}
