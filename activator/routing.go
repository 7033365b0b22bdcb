package activator

import (
	"cmp"
	"context"
	"log/slog"
	"strconv"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/router/intents"
	"github.com/thaw-dev/thaw/activator/routes"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// routing is a request's choice by a Router.
type routing struct {
	by      *routes.Route
	request routes.Request
	logged  *routes.Logged // the record of the newest decision
	header  string         // thaw-route
}

// SetRouters replaces all Routers, and the classes of data that teams have set. A request
// under way keeps its Router.
func (a *Activator) SetRouters(routers []*functions.Router, data map[string]functions.DataClass) {
	before := a.names.routers.Load()
	now := routes.NewSet(before, routers, data, a.o.Log)
	a.names.routers.Store(now)
	for _, r := range before.All() { // the series of names that are gone would stay for ever
		if !now.Find(r.Name).HasRulesOf(r) {
			a.o.Metrics.Forget(r.Name.Name, r.Name.Team)
		}
	}
}

// Decisions has the records of recent decisions.
func (a *Activator) Decisions() *routes.Log { return &a.decisions }

// newRouting reads what a decision of r depends on.
func (n *names) newRouting(r *routes.Route, q routes.Request, env *openai.Envelope, body []byte,
	path string, dry bool) (*routing, *openai.Error) {
	t := &routing{by: r, request: q}
	team := q.Team
	t.request.Now = n.o.Now()
	t.request.Find = func(name functions.Name) (routes.Function, bool) {
		return n.functionNow(team, name, t.request.Now)
	}
	if e := n.routers.Load().ReadHeaders(&t.request, r); e != nil {
		return nil, e
	}
	r.Read(&t.request, env, body, path, n.families, dry)
	return t, nil
}

func (r *request) chooseTarget(by *routes.Route) (e *openai.Error) {
	q := routes.Request{ID: r.id, Team: r.team, Admin: r.identity.Admin, Header: r.http.req.Header}
	if r.routing, e = r.a.names.newRouting(by, q, &r.env, r.http.req.Body, r.endpoint.Path, false); e != nil {
		return e
	}
	r.data, r.hashed = r.routing.request.Data, r.routing.request.Hashed
	rec := r.routing.by.Choose(&r.routing.request)
	return r.follow(&rec)
}

// follow records a decision and takes its target.
func (r *request) follow(rec *functions.RouteRecord) *openai.Error {
	a, t := r.a, r.routing
	e := r.take(rec)
	if e != nil || r.cached.Hit() {
		rec.Prewarm = ""
	}
	if rec.Prewarm != "" {
		name, _, _ := t.by.Target(&t.request, rec.Prewarm)
		if refused := a.prewarms.Ask(name, "router "+rec.Router, a.o.Now()); refused != "" {
			rec.Reason = " `" + rec.Prewarm + "` is not prewarmed: " + refused + "."
			rec.Prewarm = ""
		}
	}
	if rec.Cache = r.cached.Word(); r.caller.Covered() {
		rec.Parent = r.caller.Parent
	}
	rec.Currency = a.o.Currency
	t.header = routes.Header(rec, r.team)
	t.logged = a.decisions.Put(t.logged, r.team, r.clientID, rec)
	a.o.Metrics.Series("thaw_route_decisions_total", rec.Router, r.team, rec.Rule, string(rec.Stage), rec.Target, rec.Cache,
		routes.StateOf(rec))(1)
	return e
}

// take makes the target of a decision the request's function. The first one is looked up in
// the cache.
func (r *request) take(rec *functions.RouteRecord) *openai.Error {
	t := r.routing
	if rec.Target == "" {
		return t.by.Refusal(&t.request, rec)
	}
	name, f, _ := t.by.Target(&t.request, rec.Target)
	if r.composition = f.Composition; r.composition != nil {
		return nil
	}
	en, _ := r.a.names.lookup(name.WithoutAdapter())
	if en == nil || !r.use(en, name) {
		return openai.New(openai.ModelNotFound, "")
	}
	if e := r.checkData(); e != nil {
		return e
	}
	if rec.After != "" {
		return nil
	}
	e := r.lookUp(t.by.Spec)
	if r.cached.Hit() {
		t.by.Remember()
	}
	return e
}

// lookUp looks the request up in the cache of its function, or of the Router that chose it.
func (r *request) lookUp(by *functions.Router) (e *openai.Error) {
	r.cached, e = r.a.o.Cache.Look(cache.Request{
		Header: r.source.header(cache.Header), Team: r.team, KeyID: r.identity.KeyID,
		Router: by, Function: r.fn.Snapshot(), Adapter: r.adapter,
		Path: r.endpoint.Path, Stream: r.stream, Envelope: &r.env, Body: r.http.req.Body, Hashed: r.hashed, Now: r.began,
	})
	return e
}

// use makes a function the one of the request; false where it lacks the adapter.
func (r *request) use(en *entry, name functions.Name) bool {
	f := en.Snapshot()
	r.answerName, r.adapter = "", ""
	if r.engineName = f.ServedModelName; r.engineName == "" {
		r.engineName = name.Name
	}
	if name.Adapter != "" {
		if !f.DeclaresAdapter(name.Adapter) {
			return false
		}
		r.answerName = r.engineName + ":" + name.Adapter
		r.engineName, r.adapter = name.Adapter, name.Adapter
	}
	r.fn = en
	return true
}

// escalate gives a request that failed before the first byte of an answer to the next
// target of its Router, if that says so. It returns false where the failure is the answer.
func (p *proxyRequest) escalate(async bool) bool {
	switch {
	case p.phase == waiting || p.attempt.answerBegan || p.wait.queued.Alone: // Alone: it is a suspect of two crashes
		return false
	case p.phase == refused && routes.MayEscalate(p.fail):
		return p.moveOn(p.fail.Message, async)
	case p.phase == engineAnswered && routes.FailedStatus(p.attempt.reply.Response.Status, p.req.fn.Snapshot().Remote != nil):
		return p.moveOn("it answered with status "+strconv.Itoa(p.attempt.reply.Response.Status)+".", async)
	}
	return false
}

// moveOn sends the request to the next target of its Router; false where there is none.
func (p *proxyRequest) moveOn(reason string, async bool) bool {
	if p.req.routing != nil {
		p.req.routing.request.Sent = true
	}
	moved, e := p.followNext(reason)
	if !moved {
		return false
	}
	if e == nil {
		e = p.suspicion.check()
	}
	if e != nil {
		p.refuse(e)
		return true
	}
	p.enter(true, async)
	return true
}

// followNext takes the next target of the request's Router; false where there is none.
func (p *proxyRequest) followNext(reason string) (moved bool, e *openai.Error) {
	rec, ok := p.req.nextTarget(reason)
	if !ok {
		return false, nil
	}
	p.attempt.stop()
	p.leave()
	p.req.cached.Drop()
	p.wait.queued, p.attempt.reply, p.fail = admission.Request{Priority: p.wait.queued.Priority}, answer.Answer{}, nil
	p.attempt.adapterRetried, p.attempt.early.adopted, p.attempt.early.refusedBy, p.attempt.firstByteTook = false, false, "", 0
	return true, p.req.follow(&rec)
}

// nextTarget decides what a request goes to whose target has failed, by the Router; false: none.
func (r *request) nextTarget(reason string) (rec functions.RouteRecord, ok bool) {
	t := r.routing
	if t == nil || !t.by.Spec.Spec.Retry.Escalate || context.Cause(r.source.context()) != nil {
		return rec, false
	}
	t.request.Fail(t.logged.Record.Target, reason)
	t.request.Now = r.a.o.Now()
	if rec = t.by.Choose(&t.request); rec.Target == "" {
		return rec, false
	}
	r.a.o.Metrics.Series("thaw_route_escalations_total", rec.Router, r.team, rec.After)(1)
	return rec, true
}

// checkData refuses a request whose data, or tools, may not be sent to its function.
func (r *request) checkData() *openai.Error {
	f := r.fn.Snapshot()
	if to := f.Remote; to != nil && !to.Allows(r.data) {
		return routes.RefuseData(to, r.data)
	} else if f.Model != nil {
		return r.env.CheckTools(f.Model.Spec.Engine)
	}
	return nil
}

// attrs appends the fields of the log about the Router's choice.
func (r *routing) attrs(attrs []slog.Attr) []slog.Attr {
	rec := &r.logged.Record
	attrs = append(attrs, slog.String("router", rec.Router), slog.String("rule", rec.Rule), slog.String("stage", string(rec.Stage)),
		slog.String("target", rec.Target))
	attrs = appendIf(attrs, rec.Prewarm != "", slog.String("prewarm", rec.Prewarm))
	return appendIf(attrs, rec.After != "", slog.String("after", rec.After))
}

// DryRoute decides what a request would be sent to, and sends and records nothing. router
// is the name of a Router, "" the model of the body or else "auto".
func (a *Activator) DryRoute(id auth.Identity, router, path string, header func(string) string,
	body []byte) (rec functions.RouteRecord, e *openai.Error) {
	return a.DryRouteTyped(id, router, path, header, body, nil)
}

// DryRouteTyped is DryRoute for a text that is being typed, of which typed remembers what has
// come before; nil: nothing.
func (a *Activator) DryRouteTyped(id auth.Identity, router, path string, header func(string) string, body []byte,
	typed *intents.Typed) (rec functions.RouteRecord, e *openai.Error) {
	at := openai.FindEndpoint(path)
	if at == nil || at.Form {
		return rec, openai.New(openai.InvalidValue, "path is one of the endpoints with a JSON body, such as /v1/chat/completions.").With("path")
	}
	env, err := openai.PeekUnnamed(body)
	if err != nil {
		if e, ok := err.(*openai.Error); ok {
			return rec, e
		}
		return rec, openai.New(openai.InvalidJSON, err.Error())
	}
	router = cmp.Or(router, env.Model, functions.AutoRouter)
	name, err := functions.ParseName(router, id.Team)
	r := a.names.findRouter(router, name)
	if err != nil || r == nil || !canSee(id, name.Team) {
		return rec, a.names.routers.Load().Unknown(router, id.Team)
	}
	t, e := a.names.newRouting(r, routes.Request{Team: id.Team, Admin: id.Admin, Header: header, Typed: typed}, &env, body, path, true)
	if e != nil {
		return rec, e
	}
	rec = r.Choose(&t.request)
	rec.Currency = a.o.Currency
	return routes.Explain(rec), nil
}

// Outlook is what a decision says of the text, and how ready its target is.
type Outlook struct {
	Conditional bool // the rule that matched has a condition, or is the only one
	Function    functions.Name
	Snapshot    *snapshot.Snapshot // nil: there is no such function any more
}

// Foresee returns the outlook of a decision about a request of id. It asks and changes
// nothing.
func (a *Activator) Foresee(id auth.Identity, rec *functions.RouteRecord) (o Outlook) {
	name, err := functions.ParseName(rec.Router, id.Team)
	r := a.names.routers.Load().Find(name)
	if err != nil || r == nil {
		return o
	}
	rules := r.Spec.Spec.Rules
	o.Conditional = len(rules) == 1 || rules[len(rules)-1].Name != rec.Rule
	now := a.o.Now()
	q := routes.Request{Team: id.Team, Admin: id.Admin, Now: now,
		Find: func(name functions.Name) (routes.Function, bool) { return a.names.functionNow(id.Team, name, now) }}
	name, f, ok := r.Target(&q, rec.Target)
	if ok {
		o.Function, o.Snapshot = name, f.Snapshot
	}
	return o
}
