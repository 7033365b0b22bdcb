package activator

import (
	"iter"

	"github.com/thaw-dev/thaw/activator/aliases"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Alias and Share set what a name stands for; see [Activator.SetAliases].
type (
	Alias = aliases.Alias
	Share = aliases.Share
)

// SetAliases replaces all aliases. A request under way keeps its function; each later
// one chooses anew, by weight.
func (a *Activator) SetAliases(all []Alias) { a.aliases.Store(aliases.NewSet(all)) }

// lookup chooses the function that a name without an adapter means; nil with
// alias set is an alias none of whose functions is published.
func (a *Activator) lookup(name functions.Name) (e *entry, alias bool) {
	t := a.aliases.Load().Find(name)
	if t == nil {
		return a.table.Lookup(name), false
	}
	if e := a.table.Lookup(t.Choose(a.o.Random)); e != nil {
		return e, true
	}
	return a.largest(t), true
}

// mainFunction is the function that a name is shown by: of an alias the one with the
// largest share.
func (a *Activator) mainFunction(name functions.Name) (e *entry, alias bool) {
	if t := a.aliases.Load().Find(name); t != nil {
		return a.largest(t), true
	}
	return a.table.Lookup(name), false
}

// largest is the function with the largest share of those that are published.
func (a *Activator) largest(t *aliases.Target) *entry {
	for i := range t.Shares {
		if e := a.table.Lookup(t.Shares[i].Function); e != nil {
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
		names := t.Names()
		next := func(before *functions.Name) bool { // the aliases that come before a name
			for len(names) > 0 {
				n := names[0]
				if before != nil && n.Compare(*before) > 0 {
					return true
				}
				names = names[1:]
				if !canSee(id, n.Team) {
					continue
				}
				if !yield(n, a.largest(t.Find(n))) {
					return false
				}
			}
			return true
		}
		for _, e := range entries {
			if !next(&e.Name) {
				return
			}
			if e.Snapshot().Hidden || t.Find(e.Name) != nil {
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
