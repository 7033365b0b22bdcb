package activator

import (
	"cmp"
	"iter"
	"slices"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
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

// SetAliases replaces all aliases. A request under way keeps its function; each later
// one chooses anew, by weight.
func (a *Activator) SetAliases(all []Alias) {
	if len(all) == 0 {
		a.aliases.Store(nil)
		return
	}
	t := &aliases{byName: make(map[functions.Name]*alias, len(all)), byTeam: map[string][]string{}}
	for _, one := range all {
		l := &alias{}
		for _, s := range one.Shares {
			if s.Percent > 0 || len(one.Shares) == 1 {
				s.Percent = max(s.Percent, 1)
				l.shares = append(l.shares, s)
				l.sum += s.Percent
			}
		}
		slices.SortStableFunc(l.shares, func(a, b Share) int { return cmp.Compare(b.Percent, a.Percent) })
		if t.byName[one.Name] == nil {
			t.names = append(t.names, one.Name)
		}
		t.byName[one.Name] = l
	}
	slices.SortFunc(t.names, func(a, b functions.Name) int {
		return cmp.Or(cmp.Compare(a.Team, b.Team), cmp.Compare(a.Name, b.Name))
	})
	for _, n := range t.names {
		t.byTeam[n.Team] = append(t.byTeam[n.Team], n.Name)
	}
	a.aliases.Store(t)
}

// aliases is the compiled set of aliases. A nil one is empty.
type aliases struct {
	byName map[functions.Name]*alias
	byTeam map[string][]string // sorted
	names  []functions.Name    // sorted by team and name
}

type alias struct {
	shares []Share // the largest first, each above 0
	sum    int
}

func (a *aliases) find(name functions.Name) *alias {
	if a == nil {
		return nil
	}
	return a.byName[name]
}

// teamNames is the names of a team's aliases.
func (a *aliases) teamNames(team string) []string {
	if a == nil {
		return nil
	}
	return a.byTeam[team]
}

// lookup chooses the function that a name without an adapter means; nil with
// alias set is an alias none of whose functions is published.
func (a *Activator) lookup(name functions.Name) (e *entry, alias bool) {
	l := a.aliases.Load().find(name)
	if l == nil {
		return a.table.Lookup(name), false
	}
	if len(l.shares) > 1 {
		n := a.o.Random(l.sum)
		for i := range l.shares {
			if n -= l.shares[i].Percent; n < 0 {
				if e := a.table.Lookup(l.shares[i].Function); e != nil {
					return e, true
				}
				break
			}
		}
	}
	return a.largest(l), true
}

// mainFunction is the function that a name is shown by: of an alias the one with the
// largest share.
func (a *Activator) mainFunction(name functions.Name) (e *entry, alias bool) {
	if l := a.aliases.Load().find(name); l != nil {
		return a.largest(l), true
	}
	return a.table.Lookup(name), false
}

func (a *Activator) largest(l *alias) *entry {
	for i := range l.shares {
		if e := a.table.Lookup(l.shares[i].Function); e != nil {
			return e
		}
	}
	return nil
}

// publicName is the name of a function in requests and answers.
func (a *Activator) publicName(name functions.Name) functions.Name {
	if e := a.table.Lookup(name); e != nil {
		return e.Snapshot().PublicName()
	}
	return name
}

// listed yields the names that the caller may use, by team and name: the functions
// that are not hidden, and the aliases, each with its main function or nil.
func (a *Activator) listed(id auth.Identity) iter.Seq2[functions.Name, *entry] {
	entries := a.table.Team(id.Team)
	if id.Admin {
		entries = a.table.All()
	}
	t := a.aliases.Load()
	return func(yield func(functions.Name, *entry) bool) {
		var names []functions.Name
		if t != nil {
			names = t.names
		}
		next := func(before *functions.Name) bool { // the aliases that come before a name
			for len(names) > 0 {
				n := names[0]
				if before != nil && cmp.Or(cmp.Compare(n.Team, before.Team), cmp.Compare(n.Name, before.Name)) > 0 {
					return true
				}
				names = names[1:]
				if !canSee(id, n.Team) {
					continue
				}
				if !yield(n, a.largest(t.byName[n])) {
					return false
				}
			}
			return true
		}
		for _, e := range entries {
			if !next(&e.Name) {
				return
			}
			if e.Snapshot().Hidden || t.find(e.Name) != nil {
				continue
			}
			if !yield(e.Name, e) {
				return
			}
		}
		next(nil)
	}
}

// unpublishedError answers a request for an alias whose functions are not published
// yet.
func unpublishedError(name functions.Name) *openai.Error {
	return openai.New(openai.ModelLoading, "The model `"+name.Short()+"` is being set up: none of its revisions is known yet.")
}
