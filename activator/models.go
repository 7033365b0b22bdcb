package activator

import (
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/modellist"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// listModels lists the models that the caller may name, or one of them. It reads
// snapshots and wakes nothing: consoles poll it.
func (a *Activator) listModels(id auth.Identity, one string, form modellist.Form, res *httpserver.Response) *openai.Error {
	now, onDemand := a.o.Now(), a.o.Adapters != nil
	if one != "" {
		it, e := a.describe(id, one, now)
		if e != nil {
			return e
		}
		return modellist.WriteOne(res, it, form)
	}
	items := []modellist.Item{}
	for name, e := range a.listed(id) {
		parent := nameFor(name, id)
		it := modellist.Describe(snapshotOf(e), name, parent, now)
		items = append(items, it)
		if e == nil {
			continue
		}
		if m := e.Snapshot().Model; m != nil {
			for i := range m.Spec.Adapters {
				adapter := m.Spec.Adapters[i].Name
				items = append(items, it.WithAdapter(e.Snapshot(), parent+":"+adapter, parent, adapter, onDemand))
			}
		}
	}
	for _, r := range a.routers.Load().All() {
		switch auto := a.findRouter(functions.AutoRouter, functions.Name{Team: id.Team, Name: functions.AutoRouter}); {
		case canSee(id, r.Name.Team):
			items = append(items, modellist.Ready(nameFor(r.Name, id), "router"))
		case r == auto:
			items = append(items, modellist.Ready(functions.AutoRouter, "router"))
		}
	}
	for _, c := range a.compositions.All() {
		if name := c.FullName(); canSee(id, name.Team) {
			items = append(items, modellist.Ready(nameFor(name, id), "composition"))
		}
	}
	return modellist.WriteList(res, items, form)
}

// describe is the item of one model that the caller may name.
func (a *Activator) describe(id auth.Identity, one string, now time.Time) (it modellist.Item, refusal *openai.Error) {
	name, err := functions.ParseName(one, id.Team)
	if r := a.findRouter(one, name); r != nil && err == nil && canSee(id, name.Team) {
		return modellist.Ready(one, "router"), nil
	}
	if err == nil && a.findComposition(name) != nil && canSee(id, name.Team) {
		return modellist.Ready(one, "composition"), nil
	}
	e, alias := a.mainFunction(name.WithoutAdapter())
	if err != nil || e == nil && !alias || !canSee(id, name.Team) ||
		name.Adapter != "" && (e == nil || !e.Snapshot().DeclaresAdapter(name.Adapter)) {
		return it, a.unknownModel(one, name, id)
	}
	it = modellist.Describe(snapshotOf(e), name, nameFor(name, id), now)
	if name.Adapter != "" {
		it = it.WithAdapter(e.Snapshot(), it.ID, nameFor(name.WithoutAdapter(), id), name.Adapter, a.o.Adapters != nil)
	}
	return it, nil
}

// snapshotOf is that of an entry; nil for nil.
func snapshotOf(e *entry) *snapshot.Snapshot {
	if e == nil {
		return nil
	}
	return e.Snapshot()
}

// DescribeModel is the item of one model that the caller may name, as JSON.
func (a *Activator) DescribeModel(id auth.Identity, model string) ([]byte, *openai.Error) {
	var res httpserver.Response
	e := a.listModels(id, model, modellist.OpenAI, &res)
	return res.Body, e
}

// nameFor is a name as the caller writes it.
func nameFor(n functions.Name, id auth.Identity) string {
	if n.Team == id.Team {
		return n.Short()
	}
	return n.String()
}

// canSee reports whether the caller may see a team's functions.
func canSee(id auth.Identity, team string) bool { return id.Team == team || id.Admin }

// unknownModel answers a name that does not exist, or that the caller may not see: the
// two must look alike.
func (a *Activator) unknownModel(asked string, name functions.Name, id auth.Identity) *openai.Error {
	if len(asked) > 80 {
		asked = asked[:80] + "…"
	}
	text := "The model `" + asked + "` does not exist or you do not have access to it."
	team := id.Team
	if id.Admin && name.Team != "" {
		team = name.Team
	}
	lookup := name.Name
	if lookup == "" { // ORGANISATION/Name:tag, as elsewhere
		lookup, _, _ = strings.Cut(asked[strings.LastIndexByte(asked, '/')+1:], ":")
		lookup = strings.ToLower(strings.TrimSpace(lookup))
	}
	inTeam := func() []string {
		return a.table.Nearest(team, lookup, 3, slices.Concat(a.aliases.Load().TeamNames(team), a.routers.Load().Names(team),
			a.compositions.Names(team))...)
	}
	nearest := inTeam()
	if len(nearest) == 0 && team != id.Team {
		team = id.Team
		nearest = inTeam()
	}
	for i, n := range nearest {
		if team != id.Team {
			n = team + "/" + n
		}
		if i == 0 {
			text += " Nearest: "
		} else {
			text += ", "
		}
		text += "`" + n + "`"
	}
	if len(nearest) > 0 {
		text += "."
	} else {
		text += " GET /v1/models lists the names."
	}
	if name.Name == functions.AutoRouter && name.Adapter == "" {
		text += " `auto` is the Router of that name, and there is none: deploy one, or name a model."
	}
	return openai.New(openai.ModelNotFound, text)
}

// External reports whether a function's replicas run a program that is not one of our
// engines; ok is false where there is no such function.
func (a *Activator) External(name functions.Name) (external, ok bool) {
	e := a.table.Lookup(name)
	if e == nil {
		return false, false
	}
	return e.Snapshot().External, true
}
