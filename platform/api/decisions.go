package api

import (
	"cmp"
	"math"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/routes"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Decisions are what the data path decided about requests to Routers and Compositions.
type Decisions struct {
	// Log has the records of the Routers' decisions, and DryRoute decides about the
	// body of a request to path, for an identity and a Router ("" is the body's model), and
	// sends and records nothing. nil: the data path is another process.
	Log      *routes.Log
	DryRoute func(id auth.Identity, router, path string, header func(string) string, body []byte) (functions.RouteRecord, *openai.Error)
	// Composed finds the record of a request of the team (of any with "") to a Composition, by
	// its id or the client's own; nil: the data path is another process.
	Composed func(team, id string) (functions.CompositionRecord, bool)
}

// Outcome is how good the answer to a request was, from 0 to 1.
type Outcome struct {
	Score *float64 `json:"score"`
}

func (d *Decisions) newest(x *exchange) ([]functions.RouteRecord, *openai.Error) {
	limit, err := x.query.limit()
	if err != nil {
		return nil, err
	}
	return d.Log.Newest(x.team(), limit), nil
}

func noDecision(id string) *openai.Error {
	return openai.New(openai.NotFound,
		"No decision about the request "+id+" is remembered: only requests to a Router have one, and the newest 4096 are kept.")
}

func (d *Decisions) find(x *exchange, res *httpserver.Response) *openai.Error {
	rec, ok := d.Log.Find(x.team(), x.args[0])
	if !ok {
		return noDecision(x.args[0])
	}
	return writeJSON(res, rec)
}

func (d *Decisions) setOutcome(x *exchange, o Outcome, res *httpserver.Response) *openai.Error {
	if o.Score == nil || !(*o.Score >= 0 && *o.Score <= 1) || math.IsNaN(*o.Score) {
		return openai.New(openai.InvalidValue, `The body is {"score": S} with a number from 0 (bad) to 1 (good).`).With("score")
	}
	rec, ok := d.Log.SetOutcome(x.team(), x.args[0], *o.Score)
	if !ok {
		return noDecision(x.args[0])
	}
	return writeJSON(res, rec)
}

func (d *Decisions) dryRoute(x *exchange) (functions.RouteRecord, *openai.Error) {
	id := x.id
	id.Team = x.ownTeam()
	return d.DryRoute(id, x.query["router"], cmp.Or(x.query["path"], "/v1/chat/completions"), x.Header, x.Body)
}

func (d *Decisions) composed(x *exchange, res *httpserver.Response) *openai.Error {
	rec, ok := d.Composed(x.team(), x.args[0])
	if !ok {
		return openai.New(openai.NotFound, "No request "+x.args[0]+" to a Composition is remembered: the newest 1024 are kept.")
	}
	return writeJSON(res, rec)
}
