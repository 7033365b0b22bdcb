package main

import (
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/local"
	"github.com/thaw-dev/thaw/platform/placement"
)

// explained is a decision as the control API tells it.
func explained(l *local.Local) func(string, functions.Name) (api.Explanation, bool) {
	return func(kind string, name functions.Name) (api.Explanation, bool) {
		e, ok := l.Explain(kind, name)
		if !ok {
			return api.Explanation{}, false
		}
		return api.Explanation{
			Kind: e.Kind, Function: e.Function.String(), State: e.State, Now: e.Summary, Decided: e.Decided,
			Chosen: e.Chosen, Reason: e.Reason, For: e.For, Others: e.Others,
			Candidates: each(e.Candidates, func(c placement.Candidate) api.Candidate {
				v := api.Candidate{Node: c.Node, Replica: c.Replica, Function: c.Function, Why: c.Why,
					Parts: each(c.Parts, func(p placement.Part) api.Part { return api.Part(p) })}
				if len(c.Parts) > 0 {
					v.Score = &c.Score
				}
				return v
			}),
		}, true
	}
}
