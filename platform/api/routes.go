package api

import (
	"cmp"
	_ "embed"
	"encoding/json"
	jsonv2 "encoding/json/v2"
	"errors"
	"net/http"
	"strings"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/jsonerror"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/platform/api/live"
)

type permission int

const (
	read  permission = iota // everyone where /v1 is open, else a key; a team's key sees its team
	admin                   // the admin token or an admin key
	probe                   // everyone
	own                     // a key: a team's for what is the team's, an admin's for all
)

// endpoint is one row of the table.
type endpoint struct {
	method, path string
	permission   permission
	query        []string
	summary      string
	body         any // a value of the type of the body, or oneOf several; nil: none
	status       int
	answer       any // a value of the type of the answer; nil: text, or nothing with 204
	do           handler
	segments     []string
}

// document is made from the table and the types by the tests, which fail while it is not what
// they say.
//
//go:embed openapi.json
var document string

func openAPI(version string) []byte {
	quoted, _ := json.Marshal(version) // a text always has a form
	return []byte(strings.Replace(document, `"{version}"`, string(quoted), 1))
}

// oneOf has a value of each type that a body may have.
type oneOf []any

func (a *API) table(o *Options) []endpoint {
	f := &functionHandlers{o.Platform, o.Functions}
	fleet := &fleetHandlers{o.Platform, o.Logs}
	history := &historyHandlers{o.Platform.History, o.Requests, o.Explain, f}
	caches, prewarms := &cacheHandlers{o.Caches, f}, &prewarmHandlers{o.Ahead, f}
	access := &accessHandlers{o.Access.Keys, o.Agents, o.AgentsURL, o.Log}
	streams := &streams{a.access, o.Changed}
	all := list[Function]{streams, f.functions, func(f Function) string { return f.Name }}
	replicas := list[functions.Replica]{streams, fleet.replicas, func(r functions.Replica) string { return r.ID }}
	nodes := list[Node]{streams, fleet.nodes, func(n Node) string { return n.ID }}
	teams := list[Team]{streams, (&teamHandlers{o.Platform, o.Access.Keys}).teams, func(t Team) string { return t.Name }}
	coldStarts := list[ColdStart]{streams, history.coldStarts, func(c ColdStart) string { return c.ID }}
	events := list[functions.Event]{streams, history.events, func(functions.Event) string { return "" }}
	decisions := list[functions.RouteRecord]{streams, o.Decisions.newest, func(r functions.RouteRecord) string { return r.ID }}
	several := &listsHandlers{streams: streams, shared: map[[2]string]*live.List{}, readers: map[string]itemReader{"functions": all.items,
		"replicas": replicas.items, "nodes": nodes.items, "coldstarts": coldStarts.items, "events": events.items}}
	hasRouters := o.Decisions.Log != nil
	if hasRouters {
		several.readers["routes"] = decisions.items
	}
	healthz := textHandler("text/plain; charset=utf-8", func() []byte { return []byte("ok\n") })
	rows := []endpoint{
		{method: "GET", path: "/api/v1/functions", query: []string{"watch"}, summary: "All functions.", answer: List[Function]{}, do: all.serve},
		{method: "GET", path: "/api/v1/functions/{team}/{name}", summary: "One function, with its spec.", answer: Function{}, do: f.function},
		{method: "PUT", path: "/api/v1/functions/{team}/{name}", permission: admin, query: []string{"dryRun", "beside"}, summary: "Deploy a model, router, remote or composition: the body is its file, YAML or JSON. With dryRun nothing changes, and the functions beside it (TEAM/NAME,TEAM/NAME) count as deployed. 201 when it is new. A Router or Composition whose target is not there is refused.", body: oneOf{functions.Model{}, functions.Router{}, functions.Remote{}, functions.Composition{}}, answer: DeployReply{}, do: f.deploy},
		{method: "DELETE", path: "/api/v1/functions/{team}/{name}", permission: admin, summary: "Remove a deployed function.", status: 204, do: f.remove},
		{method: "POST", path: "/api/v1/functions/{team}/{name}/wake", permission: admin, summary: "Wake a function, for a lease or its idle time, at least a minute.", body: WakeRequest{}, status: 202, answer: WakeReply{}, do: f.wake},
		{method: "POST", path: "/api/v1/functions/{team}/{name}/stop", permission: admin, summary: "Drain the replicas of a function. Demand brings it back.", status: 202, answer: WakeReply{}, do: f.stop},
		{method: "GET", path: "/api/v1/replicas", query: []string{"watch"}, summary: "All replicas.", answer: List[functions.Replica]{}, do: replicas.serve},
		{method: "GET", path: "/api/v1/replicas/{id}", summary: "One replica.", answer: functions.Replica{}, do: replicas.one("The replica ")},
		{method: "GET", path: "/api/v1/replicas/{id}/logs", query: []string{"follow", "tail"}, summary: "The log of a replica's engine, as text.", do: fleet.log},
		{method: "GET", path: "/api/v1/nodes", query: []string{"watch"}, summary: "All nodes.", answer: List[Node]{}, do: nodes.serve},
		{method: "GET", path: "/api/v1/nodes/{id}", summary: "One node.", answer: Node{}, do: nodes.one("The node ")},
		{method: "GET", path: "/api/v1/teams", query: []string{"watch"}, summary: "All teams.", answer: List[Team]{}, do: teams.serve},
		{method: "GET", path: "/api/v1/teams/{team}", summary: "One team.", answer: Team{}, do: teams.one("The team ")},
		{method: "GET", path: "/api/v1/coldstarts", query: []string{"watch", "limit"}, summary: "The newest cold starts, newest first.", answer: List[ColdStart]{}, do: coldStarts.serve},
		{method: "GET", path: "/api/v1/coldstarts/{id}", summary: "One cold start, by its id, a request's id or the client's X-Client-Request-Id.", answer: ColdStart{}, do: history.coldStart},
		{method: "GET", path: "/api/v1/explain/{kind}/{team}/{name}", summary: "Why a function is as it is: kind is place (where it was placed, or why nowhere), evict (what was evicted for it), cold (why it lost a replica) or scale (why it wants more), with the candidates and scores of the last decision.", answer: functions.Explanation{}, do: history.explain},
		{method: "GET", path: "/api/v1/events", query: []string{"watch", "since", "function", "kind"}, summary: "What happened, oldest first; since is the last seq already known, function a TEAM/NAME, kind what happened.", answer: List[functions.Event]{}, do: events.serve},
		{method: "GET", path: "/api/v1/lists", query: []string{"of", "watch"}, summary: "Several lists at once: of names them, with commas (functions, replicas, nodes, coldstarts, events, routes). With watch one stream of the changes of all: lines as of the other lists, with the name of the list. A list begins with a reset, its items and synced; a reader that is too slow gets these once more.", answer: Lists{}, do: several.serve},
		{method: "GET", path: "/api/v1/schema", summary: "The JSON schema of the files: models, routers, remotes, compositions and teams.", answer: map[string]any{}, do: textHandler("application/schema+json", functions.Schema)},
		{method: "GET", path: "/api/v1/keys", permission: admin, query: []string{"team"}, summary: "All keys, without their secrets.", answer: List[auth.Key]{}, do: access.keyList},
		{method: "POST", path: "/api/v1/keys", permission: admin, summary: "Make a key. Its secret is in this answer and nowhere else.", body: KeyRequest{}, status: 201, answer: NewKey{}, do: withBody(access.createKey)},
		{method: "DELETE", path: "/api/v1/keys/{id}", permission: admin, summary: "Revoke a key at once.", status: 204, do: access.deleteKey},
		{method: "GET", path: "/api/v1/cache", permission: admin, query: []string{"node"}, summary: "The checkpoints in the stores of the nodes, last used first.", answer: Cache{}, do: caches.list},
		{method: "DELETE", path: "/api/v1/cache", permission: own, query: []string{"function"}, summary: "Drop the cached answers of a model or a Remote, NAME or TEAM/NAME, with a key of its team or of an admin.", answer: ForgottenAnswers{}, do: needs(o.Caches.ForgetAnswers != nil, "This server keeps no answers.", caches.forgetAnswers)},
		{method: "DELETE", path: "/api/v1/cache/{digest}", permission: admin, query: []string{"node"}, summary: "Remove a checkpoint that is not in use; digest is its 64 hex digits.", answer: StoreReply{}, do: caches.act(functions.StoreRemove)},
		{method: "POST", path: "/api/v1/cache/{digest}/pin", permission: admin, query: []string{"node"}, summary: "Keep a checkpoint from being evicted.", answer: StoreReply{}, do: caches.act(functions.StorePin)},
		{method: "POST", path: "/api/v1/cache/{digest}/unpin", permission: admin, query: []string{"node"}, summary: "Take a pin back.", answer: StoreReply{}, do: caches.act(functions.StoreUnpin)},
		{method: "POST", path: "/api/v1/cache/{digest}/verify", permission: admin, query: []string{"node"}, summary: "Read a checkpoint again and take out what is not what it was: lines of JSON until one is ready or failed, for every node.", answer: functions.StoreProgress{}, do: caches.verify},
		{method: "POST", path: "/api/v1/prefetch", permission: admin, summary: "Bring a model's weights, or a source, to a node: lines of JSON until one is ready or failed. It is called off when the client leaves; what has arrived stays.", body: PrefetchRequest{}, answer: functions.StoreProgress{}, do: withBody(caches.prefetch)},
		{method: "POST", path: "/api/v1/prewarm", permission: own, summary: "Announce requests for a model, with a key of its team or of an admin. It is started where no queued request needs the memory, or its bytes are brought near; it is a lease until then, on a budget of GPU time. Once more renews it.", body: PrewarmRequest{}, status: 202, answer: Prewarmed{}, do: withBody(prewarms.prewarm)},
		{method: "GET", path: "/api/v1/prewarm", summary: "The prewarms that hold, those of history among them.", answer: Prewarms{}, do: prewarms.list},
		{method: "POST", path: "/api/v1/route", permission: own, query: []string{"router", "path"}, summary: "Decide what a Router would send a request to, without sending it: the body is that of a request to path (/v1/chat/completions by default), the header fields are its own. router names the Router; else the body's model does, else it is auto.", body: map[string]any{}, answer: functions.RouteRecord{}, do: needs(hasRouters, noRouters, reply(o.Decisions.dryRoute))},
		{method: "GET", path: "/api/v1/routes", query: []string{"watch", "limit"}, summary: "The newest decisions of Routers, newest first.", answer: List[functions.RouteRecord]{}, do: needs(hasRouters, noRouters, decisions.serve)},
		{method: "GET", path: "/api/v1/routes/{id}", permission: own, summary: "The decision about one request, by its id or the client's X-Client-Request-Id.", answer: functions.RouteRecord{}, do: needs(hasRouters, noRouters, o.Decisions.find)},
		{method: "GET", path: "/api/v1/compositions/{id}", permission: own, summary: "What a Composition did for one request, by its id or the client's X-Client-Request-Id: each call with its time, tokens and cold start.", answer: functions.CompositionRecord{}, do: needs(o.Decisions.Composed != nil, "This server keeps no records of Compositions.", o.Decisions.composed)},
		{method: "POST", path: "/api/v1/routes/{id}/outcome", permission: own, summary: "Report how good the answer to a request was, from 0 to 1; it is stored with the decision and counted.", body: Outcome{}, answer: functions.RouteRecord{}, do: needs(hasRouters, noRouters, withBody(o.Decisions.setOutcome))},
		{method: "GET", path: "/api/v1/agents", permission: admin, summary: "The agents of other machines that have joined.", answer: List[functions.JoinedAgent]{}, do: needs(o.Agents != nil, noAgents, access.agentList)},
		{method: "POST", path: "/api/v1/agents/tokens", permission: admin, summary: "Make a join token, with which one agent may join once. It is in this answer and nowhere else.", body: JoinTokenRequest{}, status: 201, answer: JoinToken{}, do: needs(o.Agents != nil, noAgents, withBody(access.createToken))},
		{method: "DELETE", path: "/api/v1/agents/{id}", permission: admin, summary: "Remove an agent: the server listens to it no more until it joins again.", status: 204, do: needs(o.Agents != nil, noAgents, access.removeAgent)},
		{method: "GET", path: "/metrics", summary: "Metrics, as Prometheus reads them.", do: metricsHandler(o.Metrics)},
		{method: "GET", path: "/healthz", permission: probe, summary: "200 while the process lives.", do: healthz},
		{method: "GET", path: "/livez", permission: probe, summary: "The same as /healthz.", do: healthz},
		{method: "GET", path: "/readyz", permission: probe, summary: "200 when requests are taken, else 503.", answer: Readiness{}, do: readinessHandler(o.Ready, a.access)},
		{method: "GET", path: "/openapi.json", summary: "This document.", answer: map[string]any{}, do: textHandler("application/json", func() []byte { return openAPI(o.Version) })},
	}
	for i := range rows {
		rows[i].segments = strings.Split(rows[i].path, "/")
		rows[i].status = cmp.Or(rows[i].status, http.StatusOK)
	}
	return rows
}

// handler answers the requests of one row. The status of an answer is the row's, unless the
// handler sets another.
type handler = func(*exchange, *httpserver.Response) *openai.Error

// The reasons why a server does not have some rows.
const (
	noAgents  = "This server takes no agents of other machines: thaw serve --agents-addr HOST:PORT."
	noRouters = "This server keeps no decisions of Routers."
)

// needs is a handler that answers that what it is about does not exist, with the reason, where
// the server does not have it.
func needs(has bool, reason string, do handler) handler {
	if has {
		return do
	}
	return func(*exchange, *httpserver.Response) *openai.Error { return openai.New(openai.NotFound, reason) }
}

// reply is a handler that answers with what get returns.
func reply[T any](get func(*exchange) (T, *openai.Error)) handler {
	return func(x *exchange, res *httpserver.Response) *openai.Error {
		v, err := get(x)
		if err != nil {
			return err
		}
		return writeJSON(res, v)
	}
}

// orEmpty is a list that is written as [], not as null, where it has no items.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func writeJSON(res *httpserver.Response, v any) *openai.Error {
	b, err := json.Marshal(v)
	if err != nil {
		return openai.New(openai.InternalError, "")
	}
	res.Body = append(b, '\n')
	res.Set("content-type", "application/json")
	return nil
}

func notFound(thing string) *openai.Error {
	return openai.New(openai.NotFound, thing+" does not exist.")
}

// maxBody bounds the small JSON bodies; a model file has the catalog's own bound.
const maxBody = 4 << 20

func withBody[T any](do func(*exchange, T, *httpserver.Response) *openai.Error) handler {
	return func(x *exchange, res *httpserver.Response) *openai.Error {
		var body T
		if err := decodeBody(x, &body); err != nil {
			return err
		}
		return do(x, body, res)
	}
}

// decodeBody reads a JSON body strictly. An empty one is the zero value.
func decodeBody(x *exchange, v any) *openai.Error {
	if len(x.Body) == 0 {
		return nil
	}
	if len(x.Body) > maxBody {
		return openai.New(openai.RequestTooLarge, "")
	}
	err := jsonv2.Unmarshal(x.Body, v, jsonv2.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	why := strings.TrimPrefix(err.Error(), "jsontext: ")
	if e, ok := errors.AsType[*jsonv2.SemanticError](err); ok {
		why = jsonerror.Describe(e)
	}
	return openai.New(openai.InvalidJSON, "The body is not the JSON this endpoint takes: "+functions.Clip(why)+"; /openapi.json describes it")
}

func (e *exchange) name() functions.Name { return functions.Name{Team: e.args[0], Name: e.args[1]} }
