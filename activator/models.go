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
func (n *names) listModels(id auth.Identity, one string, form modellist.Form, res *httpserver.Response) *openai.Error {
	now, onDemand := n.o.Now(), n.o.Adapters != nil
	if one != "" {
		it, e := n.describe(id, one, now)
		if e != nil {
			return e
		}
		return modellist.WriteOne(res, it, form)
	}
	items := []modellist.Item{}
	for _, model := range n.listed(id) {
		e, parent := model.fn, nameFor(model.name, id)
		it := modellist.Describe(snapshotOf(e), model.name, parent, now)
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
	for _, r := range n.routers.Load().All() {
		switch auto := n.findRouter(functions.AutoRouter, functions.Name{Team: id.Team, Name: functions.AutoRouter}); {
		case canSee(id, r.Name.Team):
			items = append(items, modellist.Ready(nameFor(r.Name, id), "router"))
		case r == auto:
			items = append(items, modellist.Ready(functions.AutoRouter, "router"))
		}
	}
	for _, c := range n.compositions.All() {
		if name := c.FullName(); canSee(id, name.Team) {
			items = append(items, modellist.Ready(nameFor(name, id), "composition"))
		}
	}
	return modellist.WriteList(res, items, form)
}

// describe is the item of one model that the caller may name.
func (n *names) describe(id auth.Identity, one string, now time.Time) (it modellist.Item, refusal *openai.Error) {
	name, err := functions.ParseName(one, id.Team)
	if r := n.findRouter(one, name); r != nil && err == nil && canSee(id, name.Team) {
		return modellist.Ready(one, "router"), nil
	}
	if err == nil && n.compositions.Find(name) != nil && canSee(id, name.Team) {
		return modellist.Ready(one, "composition"), nil
	}
	e, alias := n.mainFunction(name.WithoutAdapter())
	if err != nil || e == nil && !alias || !canSee(id, name.Team) ||
		name.Adapter != "" && (e == nil || !e.Snapshot().DeclaresAdapter(name.Adapter)) {
		return it, n.unknownModel(one, name, id)
	}
	it = modellist.Describe(snapshotOf(e), name, nameFor(name, id), now)
	if name.Adapter != "" {
		it = it.WithAdapter(e.Snapshot(), it.ID, nameFor(name.WithoutAdapter(), id), name.Adapter, n.o.Adapters != nil)
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
	e := a.names.listModels(id, model, modellist.OpenAI, &res)
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
func (n *names) unknownModel(asked string, name functions.Name, id auth.Identity) *openai.Error {
	asked = functions.Clip(asked)
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
		return n.table.Nearest(team, lookup, 3, slices.Concat(n.aliases.Load().TeamNames(team), n.routers.Load().Names(team),
			n.compositions.Names(team))...)
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
	if asked == functions.AutoRouter {
		text += " `auto` is the Router of that name, and there is none: deploy one, or name a model."
	}
	return openai.New(openai.ModelNotFound, text)
}

// External reports whether a function's replicas run a program that is not one of our
// engines; ok is false where there is no such function.
func (a *Activator) External(name functions.Name) (external, ok bool) {
	e := a.names.table.Lookup(name)
	if e == nil {
		return false, false
	}
	return e.Snapshot().External, true
}
