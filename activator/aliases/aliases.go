// Package aliases resolves an alias, a name that stands for several functions (such as a service's
// for its revisions), to one of them, drawn at random by its share for each request; it looks at no
// function's state.
package aliases

import (
	"cmp"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// Alias is a name of several functions, such as a service's for its revisions. It
// has precedence over a function of the same name.
type Alias struct {
	Name   functions.Name
	Shares []Share
}

// Share is the part of an alias's requests that goes to one function.
type Share struct {
	Function functions.Name
	Percent  int // weight among the shares; of a single share it does not matter
}

// Set is a compiled set of aliases. A nil one is empty.
type Set struct {
	byName map[functions.Name]*Target
	byTeam map[string][]string // sorted
	names  []functions.Name    // sorted by team and name
}

// Target is what an alias stands for.
type Target struct {
	Shares []Share // the largest first, each above 0
	sum    int
}

// NewSet compiles aliases; nil for none.
func NewSet(all []Alias) *Set {
	if len(all) == 0 {
		return nil
	}
	s := &Set{byName: make(map[functions.Name]*Target, len(all)), byTeam: map[string][]string{}}
	for _, one := range all {
		t := &Target{}
		for _, share := range one.Shares {
			if share.Percent > 0 || len(one.Shares) == 1 {
				share.Percent = max(share.Percent, 1)
				t.Shares = append(t.Shares, share)
				t.sum += share.Percent
			}
		}
		slices.SortStableFunc(t.Shares, func(a, b Share) int { return cmp.Compare(b.Percent, a.Percent) })
		if s.byName[one.Name] == nil {
			s.names = append(s.names, one.Name)
		}
		s.byName[one.Name] = t
	}
	slices.SortFunc(s.names, functions.Name.Compare)
	for _, n := range s.names {
		s.byTeam[n.Team] = append(s.byTeam[n.Team], n.Name)
	}
	return s
}

// Find is what a name stands for; nil where it is no alias.
func (s *Set) Find(name functions.Name) *Target {
	if s == nil {
		return nil
	}
	return s.byName[name]
}

func (s *Set) TeamNames(team string) []string {
	if s == nil {
		return nil
	}
	return s.byTeam[team]
}

// Names is the names of all aliases, by team and name.
func (s *Set) Names() []functions.Name {
	if s == nil {
		return nil
	}
	return s.names
}

// Choose is one of the functions, by weight; random returns a number from 0 to below n. Of
// an alias without shares it is the zero name.
func (t *Target) Choose(random func(n int) int) (name functions.Name) {
	if len(t.Shares) > 1 {
		n := random(t.sum)
		for i := range t.Shares {
			if n -= t.Shares[i].Percent; n < 0 {
				return t.Shares[i].Function
			}
		}
	}
	for i := range t.Shares {
		return t.Shares[i].Function
	}
	return name
}
