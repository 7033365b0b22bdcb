package activator

import (
	"encoding/json/v2"
	"slices"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// modelItem is one model in OpenAI's list. Status has llama.cpp's shape, because
// consoles show it.
type modelItem struct {
	ID      string      `json:"id"`
	Object  string      `json:"object"`
	Created int64       `json:"created"`
	OwnedBy string      `json:"owned_by"` // the team of a model, or router, remote or composition
	Parent  string      `json:"parent,omitzero"`
	Status  modelStatus `json:"status"`
}

type modelStatus struct {
	Value   string `json:"value"` // loaded, loading or unloaded
	State   string `json:"state"` // the word of the contracts
	Percent *int   `json:"percent,omitzero"`
	ETA     *int   `json:"eta_s,omitzero"`
	Failed  bool   `json:"failed,omitzero"`
	Reason  string `json:"reason,omitzero"`
}

// createdEpoch is the "created" of every model: the date of its weights is unknown,
// and clients want a number.
const createdEpoch = 1767225600

// listModels lists the models that the caller may name, or one of them. It reads
// snapshots and wakes nothing: consoles poll it.
func (a *Activator) listModels(id auth.Identity, one string, res *httpserver.Response) *openai.Error {
	now := a.o.Now()
	var out any
	if one != "" {
		name, err := functions.ParseName(one, id.Team)
		if r := a.findRouter(one, name); r != nil && err == nil && canSee(id, name.Team) {
			return writeModels(res, readyItem(one, "router"))
		}
		if err == nil && a.findComposition(name) != nil && canSee(id, name.Team) {
			return writeModels(res, readyItem(one, "composition"))
		}
		e, alias := a.mainFunction(name.WithoutAdapter())
		if err != nil || e == nil && !alias || !canSee(id, name.Team) || name.Adapter != "" && (e == nil || !e.Snapshot().DeclaresAdapter(name.Adapter)) {
			return a.unknownModel(one, name, id)
		}
		it := describeModel(e, name, nameFor(name, id), now)
		if name.Adapter != "" {
			it = a.adapterItem(it, e.Snapshot(), it.ID, nameFor(name.WithoutAdapter(), id), name.Adapter)
		}
		out = it
	} else {
		list := struct {
			Object string      `json:"object"`
			Data   []modelItem `json:"data"`
		}{"list", []modelItem{}}
		for name, e := range a.listed(id) {
			parent := nameFor(name, id)
			it := describeModel(e, name, parent, now)
			list.Data = append(list.Data, it)
			if e == nil {
				continue
			}
			if m := e.Snapshot().Model; m != nil {
				for i := range m.Spec.Adapters {
					adapter := m.Spec.Adapters[i].Name
					list.Data = append(list.Data, a.adapterItem(it, e.Snapshot(), parent+":"+adapter, parent, adapter))
				}
			}
		}
		for _, r := range a.routers.Load().All() {
			switch auto := a.findRouter(functions.AutoRouter, functions.Name{Team: id.Team, Name: functions.AutoRouter}); {
			case canSee(id, r.Name.Team):
				list.Data = append(list.Data, readyItem(nameFor(r.Name, id), "router"))
			case r == auto:
				list.Data = append(list.Data, readyItem(functions.AutoRouter, "router"))
			}
		}
		for _, c := range a.compositions.All() {
			if name := c.FullName(); canSee(id, name.Team) {
				list.Data = append(list.Data, readyItem(nameFor(name, id), "composition"))
			}
		}
		out = list
	}
	return writeModels(res, out)
}

// DescribeModel is the item of one model that the caller may name, as JSON.
func (a *Activator) DescribeModel(id auth.Identity, model string) ([]byte, *openai.Error) {
	var res httpserver.Response
	e := a.listModels(id, model, &res)
	return res.Body, e
}

// readyItem is the item of a Router or a Composition, which is always there.
func readyItem(id, kind string) modelItem {
	return modelItem{ID: id, Object: "model", Created: createdEpoch, OwnedBy: kind, Status: modelStatus{Value: "loaded", State: functions.Ready.Word()}}
}

func writeModels(res *httpserver.Response, out any) *openai.Error {
	body, err := json.Marshal(out)
	if err != nil {
		return openai.New(openai.InternalError, "")
	}
	res.Body = body
	res.Set("content-type", "application/json")
	return nil
}

// nameFor is a name as the caller writes it.
func nameFor(n functions.Name, id auth.Identity) string {
	if n.Team == id.Team {
		return n.Short()
	}
	return n.String()
}

// describeModel is the item of e; nil is an alias whose functions are not published
// yet.
func describeModel(e *entry, name functions.Name, id string, now time.Time) modelItem {
	it := modelItem{ID: id, Object: "model", Created: createdEpoch, OwnedBy: name.Team, Status: modelStatus{Value: "unloaded", State: functions.Unloaded.Word()}}
	if e == nil {
		return it
	}
	f := e.Snapshot()
	if f.Remote != nil {
		it.OwnedBy = "remote"
	}
	s := &it.Status
	s.State, s.Reason = admission.StateWord(f)
	switch {
	case len(f.Replicas) > 0:
		s.Value, s.State = "loaded", functions.Ready.Word()
	case f.Starting():
		s.Value = "loading"
		if p := f.Progress.Percent; p >= 0 {
			s.Percent = &p
		}
		if left := admission.LikelyETA(f, now); left >= 0 {
			n := int((left + time.Second - 1) / time.Second)
			s.ETA = &n
		}
	case admission.BreakerOpen(f, now):
		s.Failed, s.State, s.Reason = true, functions.Failed.Word(), f.Failure.Reason
	}
	return it
}

// adapterItem is the item of an adapter of the model it: loaded where a replica has
// it.
func (a *Activator) adapterItem(it modelItem, f *snapshot.Snapshot, id, parent, adapter string) modelItem {
	it.ID, it.Parent = id, parent
	if a.o.Adapters != nil && it.Status.Value == "loaded" && len(f.Replicas) > 0 && !f.AdapterLoaded(adapter) {
		it.Status.Value, it.Status.State = "unloaded", functions.Unloaded.Word()
	}
	return it
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
		return a.table.Nearest(team, lookup, 3, slices.Concat(a.aliases.Load().teamNames(team), a.routers.Load().Names(team), a.compositions.Names(team))...)
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
	}
	if name.Name == functions.AutoRouter && name.Adapter == "" {
		text += " `auto` is the Router of that name, and there is none: deploy one, or name a model."
	}
	return openai.New(openai.ModelNotFound, text)
}
