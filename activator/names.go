package activator

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/aliases"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/compositions"
	"github.com/thaw-dev/thaw/activator/routes"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Alias and Share set what a name stands for; see [Activator.SetAliases].
type (
	Alias = aliases.Alias
	Share = aliases.Share
)

// names is what the names in requests stand for: functions, aliases, Routers and Compositions.
type names struct {
	o            *Options
	table        *snapshot.Table[function]
	aliases      atomic.Pointer[aliases.Set] // nil: there are none
	routers      atomic.Pointer[routes.Set]  // nil: there are none
	compositions *compositions.Server
	families     *routes.Families
	paces        sync.Map // *routes.Pace of Compositions, by functions.Name
}

// SetAliases replaces all aliases. A request under way keeps its function; each later
// one chooses anew, by weight.
func (a *Activator) SetAliases(all []Alias) { a.names.aliases.Store(aliases.NewSet(all)) }

// lookup chooses the function that a name without an adapter means; nil with
// alias set is an alias none of whose functions is published.
func (n *names) lookup(name functions.Name) (e *entry, alias bool) {
	t := n.aliases.Load().Find(name)
	if t == nil {
		return n.table.Lookup(name), false
	}
	if e := n.table.Lookup(t.Choose(n.o.Random)); e != nil {
		return e, true
	}
	return n.largest(t), true
}

// mainFunction is the function that a name is shown by: of an alias the one with the
// largest share.
func (n *names) mainFunction(name functions.Name) (e *entry, alias bool) {
	if t := n.aliases.Load().Find(name); t != nil {
		return n.largest(t), true
	}
	return n.table.Lookup(name), false
}

// largest is the function with the largest share of those that are published.
func (n *names) largest(t *aliases.Target) *entry {
	for i := range t.Shares {
		if e := n.table.Lookup(t.Shares[i].Function); e != nil {
			return e
		}
	}
	return nil
}

// publicName is the name of a function in requests and answers.
func (n *names) publicName(name functions.Name) functions.Name {
	if e := n.table.Lookup(name); e != nil {
		return e.Snapshot().PublicName()
	}
	return name
}

// listedName is a name that a caller may use, with its function; nil where an alias has none.
type listedName struct {
	name functions.Name
	fn   *entry
}

// listed returns the names that the caller may use, by team and name: the functions that are not
// hidden, and the aliases, each with its main function.
func (n *names) listed(id auth.Identity) []listedName {
	entries := n.table.Team(id.Team)
	if id.Admin {
		entries = n.table.All()
	}
	t := n.aliases.Load()
	all := make([]listedName, 0, len(entries))
	for _, e := range entries {
		if !e.Snapshot().Hidden && t.Find(e.Name) == nil {
			all = append(all, listedName{e.Name, e})
		}
	}
	functionCount := len(all)
	for _, name := range t.Names() {
		if canSee(id, name.Team) {
			all = append(all, listedName{name, n.largest(t.Find(name))})
		}
	}
	if len(all) > functionCount {
		slices.SortFunc(all, func(a, b listedName) int { return a.name.Compare(b.name) })
	}
	return all
}

// findRouter returns the Router that a request for a name means; nil: none.
func (n *names) findRouter(asked string, name functions.Name) *routes.Route {
	set := n.routers.Load()
	if r := set.Find(name); r != nil || asked != functions.AutoRouter {
		return r
	}
	if e, alias := n.mainFunction(name); e != nil || alias {
		return nil
	}
	return set.Auto()
}

// functionNow is what a decision about a request of the team knows of a function.
func (n *names) functionNow(team string, name functions.Name, now time.Time) (routes.Function, bool) {
	if c := n.compositions.Find(name); c != nil {
		return routes.Function{Composition: c, Pace: n.paceOf(name)}, true
	}
	e, _ := n.mainFunction(name)
	if e == nil {
		isRouter := n.findRouter(name.Name, name) != nil
		return routes.Function{Router: isRouter}, isRouter
	}
	f := routes.Function{Snapshot: e.Snapshot(), Load: e.Data.queue.Load(now), Pace: &e.Data.pace, GPUHourPrice: n.o.GPUHourPrice}
	if f.Snapshot.Remote != nil {
		f.Refusal = n.o.Remotes.Refusal(e.Name, team, n.o.Limits.SpendPerDay(team))
	}
	return f, true
}

// memberState is what a Composition's run knows of the function that a caller names.
func (n *names) memberState(id auth.Identity, asked string) (compositions.Function, bool) {
	name, err := functions.ParseName(asked, id.Team)
	if err != nil || !canSee(id, name.Team) {
		return compositions.Function{}, false
	}
	f := compositions.Function{Name: name, Ready: true}
	f.Composition = n.compositions.Find(name) != nil
	if f.Composition || n.findRouter(asked, name) != nil {
		return f, true
	}
	e, _ := n.mainFunction(name.WithoutAdapter())
	if e == nil {
		return f, false
	}
	s := e.Snapshot()
	if s.Remote != nil {
		f.Price = s.Remote.Spec.Price
		return f, true
	}
	f.Model, f.Ready, f.Wait = true, len(s.Replicas) > 0, max(0, admission.LikelyETA(s, n.o.Now()))
	if s.Model != nil {
		f.Price = s.Model.Spec.Price
	}
	return f, true
}

// paceOf is what was measured of a Composition's answers.
func (n *names) paceOf(name functions.Name) *routes.Pace {
	pace, _ := n.paces.LoadOrStore(name, &routes.Pace{})
	return pace.(*routes.Pace)
}

// unpublishedError answers a request for an alias whose functions are not published
// yet.
func unpublishedError(name functions.Name) *openai.Error {
	return openai.New(openai.ModelLoading, "The model `"+name.Short()+"` is being set up: none of its revisions is known yet.")
}
