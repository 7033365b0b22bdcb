package controlstream

import (
	"encoding/json"

	"github.com/thaw-dev/thaw/functions"
)

// Teams write models and keys. Their sizes are bounded, and an update is sent in parts, so
// that no team's objects make an update longer than an activator accepts.
const (
	maxModel      = 64 << 10 // bytes of a model
	maxTeamModels = 16 << 20 // bytes of a team's models
	maxKey        = 4 << 10  // bytes of the strings of a key
	maxTeamKeys   = 10_000
	partFunctions = 256  // per part; 256 models take a quarter of maxDown
	partKeys      = 4096 // per part
)

// sentModel is a model as activators get it: without the fields that only nodes need.
type sentModel struct {
	from, sent *functions.Model
	bytes      int // 0: refused
}

// modelToSend returns what activators get of a function's model: nil, and thus defaults, if
// the model or its team's models are too large. h.mu must be held.
func (h *Hub) modelToSend(name functions.Name, m *functions.Model) *functions.Model {
	before, ok := h.models[name]
	if ok && before.from == m {
		return before.sent
	}
	h.dropModel(name)
	if m == nil {
		return nil
	}
	lean := *m
	lean.Dir, lean.Origin = "", ""
	lean.Spec.Files, lean.Spec.Args, lean.Spec.Env, lean.Spec.Pod = nil, nil, nil, functions.Pod{}
	b, err := json.Marshal(&lean)
	if team := h.modelBytes[name.Team] + len(b); err != nil || len(b) > maxModel || team > maxTeamModels {
		h.models[name] = sentModel{from: m}
		if !ok || before.bytes > 0 {
			h.o.Log.Warn("activators use defaults for a function: its model, or the models of its team, are too large", "function", name.String(),
				"bytes", len(b), "team_bytes", team)
		}
		return nil
	}
	h.models[name] = sentModel{m, &lean, len(b)}
	h.modelBytes[name.Team] += len(b)
	return &lean
}

// dropModel forgets a function's model; h.mu must be held.
func (h *Hub) dropModel(name functions.Name) {
	if h.modelBytes[name.Team] -= h.models[name].bytes; h.modelBytes[name.Team] == 0 {
		delete(h.modelBytes, name.Team)
	}
	delete(h.models, name)
}

// keysToSend leaves out the keys that are too large, or too many for one team.
func (h *Hub) keysToSend(k Keys) *Keys {
	out, of := Keys{Teams: k.Teams}, map[string]int{}
	for _, key := range k.Keys {
		if len(key.ID)+len(key.Name)+len(key.Team)+len(key.Hash) <= maxKey && of[key.Team] < maxTeamKeys {
			of[key.Team]++
			out.Keys = append(out.Keys, key)
		}
	}
	if left := len(k.Keys) - len(out.Keys); left > 0 {
		h.o.Log.Warn("keys are left out: they are too large, or their team has too many", "keys", left)
	}
	return &out
}

// split returns the parts in which an update is sent. Each but the last is marked with More.
func (u Update) split() (parts []Update) {
	part := func(p Update) {
		p.FullSync, u.FullSync = u.FullSync, false // in the first
		parts = append(parts, p)
	}
	last := partFunctions // functions in the last part
	if u.Table != nil {
		last = 0 // which has the table: its routes alone may take two thirds of maxDown
	}
	for len(u.Functions) > last {
		n := min(partFunctions, len(u.Functions))
		part(Update{Functions: u.Functions[:n]})
		u.Functions = u.Functions[n:]
	}
	for u.Keys != nil && len(u.Keys.Keys) > partKeys {
		part(Update{Keys: &Keys{Keys: u.Keys.Keys[:partKeys]}})
		u.Keys = &Keys{u.Keys.Keys[partKeys:], u.Keys.Teams}
	}
	return append(parts, u)
}

func (u *Update) join(part Update) {
	part.FullSync = part.FullSync || u.FullSync
	part.Functions = append(u.Functions, part.Functions...)
	if u.Keys != nil && part.Keys != nil {
		part.Keys.Keys = append(u.Keys.Keys, part.Keys.Keys...)
	}
	*u = part
}
