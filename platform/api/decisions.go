package api

import (
	"cmp"
	"math"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Outcome is how good the answer to a request was, from 0 to 1.
type Outcome struct {
	Score *float64 `json:"score"`
}

func (a *API) decisions(x *exchange) ([]functions.RouteRecord, *openai.Error) {
	limit, err := x.query.limit()
	if err != nil {
		return nil, err
	}
	return a.o.Decisions.Newest(x.team(), limit), nil
}

func noDecision(id string) *openai.Error {
	return openai.New(openai.NotFound,
		"No decision about the request "+id+" is remembered: only requests to a Router have one, and the newest 4096 are kept.")
}

func (a *API) decision(x *exchange, res *httpserver.Response) *openai.Error {
	rec, ok := a.o.Decisions.Find(x.team(), x.args[0])
	if !ok {
		return noDecision(x.args[0])
	}
	return writeJSON(res, rec)
}

func (a *API) setOutcome(x *exchange, o Outcome, res *httpserver.Response) *openai.Error {
	if o.Score == nil || !(*o.Score >= 0 && *o.Score <= 1) || math.IsNaN(*o.Score) {
		return openai.New(openai.InvalidValue, `The body is {"score": S} with a number from 0 (bad) to 1 (good).`).With("score")
	}
	rec, ok := a.o.Decisions.SetOutcome(x.team(), x.args[0], *o.Score)
	if !ok {
		return noDecision(x.args[0])
	}
	return writeJSON(res, rec)
}

func (a *API) dryRoute(x *exchange) (functions.RouteRecord, *openai.Error) {
	id := x.id
	id.Team = x.ownTeam()
	return a.o.DryRoute(id, x.query["router"], cmp.Or(x.query["path"], "/v1/chat/completions"), x.Header, x.Body)
}

func (a *API) composed(x *exchange, res *httpserver.Response) *openai.Error {
	rec, ok := a.o.Composed(x.team(), x.args[0])
	if !ok {
		return openai.New(openai.NotFound, "No request "+x.args[0]+" to a Composition is remembered: the newest 1024 are kept.")
	}
	return writeJSON(res, rec)
}
