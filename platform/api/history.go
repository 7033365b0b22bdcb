package api

import (
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// historyHandlers answers for what happened, and why.
type historyHandlers struct {
	history   History
	requests  Requests                                                             // may be nil
	reasons   func(kind string, name functions.Name) (functions.Explanation, bool) // may be nil
	functions *functionHandlers
}

func coldStartView(t functions.Timeline) ColdStart {
	c := ColdStart{Timeline: t}
	c.Phases = orEmpty(c.Phases)
	if t.State != functions.Ready && !t.State.Over() {
		c.ETA = optionalSeconds(t.Progress.ETA)
	}
	return c
}

func (h *historyHandlers) coldStarts(x *exchange) ([]ColdStart, *openai.Error) {
	limit, err := x.query.limit()
	if err != nil {
		return nil, err
	}
	items := readable(x, h.history.ColdStarts(1000), func(t functions.Timeline) string { return teamOf(t.Function) })
	return functions.ConvertAll(items[:min(limit, len(items))], coldStartView), nil
}

func (h *historyHandlers) coldStart(x *exchange, res *httpserver.Response) *openai.Error {
	id, position := x.args[0], 0
	if h.requests != nil {
		position, _, _ = h.requests.Position(id)
		if of, ok := h.requests.ColdStartOf(id); ok {
			id = of
		}
	}
	t, ok := h.history.ColdStart(id)
	if !ok || !x.mayRead(teamOf(t.Function)) {
		e := notFound("The cold start " + x.args[0])
		if h.requests == nil {
			e.Message += " Ids of requests are not known here: the field thaw-cold-start of the answer has the id of the cold start."
		}
		return e
	}
	c := coldStartView(t)
	c.Position = position
	return writeJSON(res, c)
}

func (h *historyHandlers) events(x *exchange) ([]functions.Event, *openai.Error) {
	since, ok := x.query.number("since", 0, int(^uint(0)>>1))
	if !ok {
		return nil, openai.New(openai.InvalidValue, "since is the seq of an event.").With("since")
	}
	items := []functions.Event{}
	function, kind := x.query["function"], x.query["kind"]
	for _, e := range h.history.Events(uint64(since)) {
		if function != "" && e.Function != function || kind != "" && e.Kind != kind {
			continue
		}
		// What names no function is about the machines, which everybody sees.
		if e.Function == "" || x.mayRead(teamOf(e.Function)) {
			if e.For != "" && !x.mayRead(teamOf(e.For)) {
				e.For = "" // whom it made way for is another team's
			}
			items = append(items, e)
		}
	}
	return items, nil
}

const explainedEvents = 10

func (h *historyHandlers) explain(x *exchange, res *httpserver.Response) *openai.Error {
	kind := x.args[0]
	if !slices.Contains(explainKinds, kind) {
		return openai.New(openai.NotFound, "What can be explained is "+strings.Join(explainKinds, ", ")+".")
	}
	m, err := h.functions.find(x, functions.Name{Team: x.args[1], Name: x.args[2]})
	if err != nil {
		return err
	}
	v := functions.Explanation{Kind: kind, Function: m.FullName().String(), State: functions.Unloaded, Now: "Nothing is known of it yet."}
	if h.reasons != nil {
		if e, ok := h.reasons(kind, m.FullName()); ok {
			v = e
		}
	}
	v.Candidates = orEmpty(v.Candidates)
	// Names of other teams' functions are hidden.
	if v.For != "" && !x.mayRead(teamOf(v.For)) {
		v.For = ""
	}
	chosen := v.Chosen
	if kind == "evict" && x.team() != "" {
		v.Chosen = "" // unless it is listed below
	}
	for i := range v.Candidates {
		c := &v.Candidates[i]
		was := c.Replica
		if c.Function != "" && !x.mayRead(teamOf(c.Function)) {
			c.Function, c.Replica = "", ""
		}
		if was != "" && was == chosen {
			v.Chosen = c.Replica
		}
	}
	events, err := h.events(&exchange{Request: x.Request, caller: x.caller, query: query{"function": v.Function}})
	if err != nil {
		return err
	}
	v.Events = events[max(0, len(events)-explainedEvents):]
	return writeJSON(res, v)
}
