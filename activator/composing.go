package activator

import (
	"cmp"
	"strconv"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/compositions"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/routes"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// newCompositions makes the server of Compositions, whose calls come back as requests.
func (a *Activator) newCompositions() *compositions.Server {
	return compositions.New(compositions.Options{
		Serve: a.Serve, State: a.names.memberState, Packing: a.o.Packing, Silent: a.o.Timing.Silent,
		Comment: a.o.Timing.Comment, Noop: a.o.Timing.Noop, Log: a.o.Log, Now: a.o.Now,
		Release: a.o.Release,
		Stage:   func(name functions.Name, by string) { a.stagings.Ask(name, by, a.o.Now()) },
		Prewarm: func(name functions.Name, by string) { a.prewarms.Ask(name, by, a.o.Now()) },
		Wake: func(name functions.Name, team string) {
			if a.o.Limits.AdmitColdStart(team, a.o.Now()) == nil {
				a.reportDemand()
				a.o.Waker.Wake(name)
			}
		},
	})
}

// SetCompositions replaces all Compositions. A request under way keeps its own.
func (a *Activator) SetCompositions(all []*functions.Composition) {
	before := a.names.compositions.All()
	a.names.compositions.Set(all)
	for _, c := range before {
		if name := c.FullName(); a.names.compositions.Find(name) == nil {
			a.o.Metrics.Forget(name.Name, name.Team)
			a.names.paces.Delete(name)
		}
	}
}

// Composed returns the record of a recent request to a Composition; see [compositions.Server.Record].
func (a *Activator) Composed(team, id string) (functions.CompositionRecord, bool) {
	return a.names.compositions.Record(team, id)
}

// openComposition makes c the function of the request.
func (r *request) openComposition(c *functions.Composition) (e *openai.Error) {
	r.composition = c
	if r.endpoint.Path != compositions.Path {
		return openai.New(openai.UnknownEndpoint, "A Composition answers "+compositions.Path+" alone, and `"+c.FullName().Short()+"` is one.")
	}
	return r.readClass()
}

// readClass reads the class of data of a request that names its function. A call of a
// Composition has that of the Composition's own request.
func (r *request) readClass() (e *openai.Error) {
	if e = admission.CheckHeaders(r.source.header); e != nil {
		return e
	}
	if r.caller.Covered() && r.caller.Data != "" {
		r.data = r.caller.Data
		return nil
	}
	r.data, e = r.a.names.routers.Load().Class(nil, r.team, r.source.header("thaw-data"))
	return e
}

// compose answers a request for a Composition, or begins the stream that answers it.
func (p *proxyRequest) compose(res *httpserver.Response) {
	summary, e := p.a.names.compositions.Serve(&compositions.Request{
		ID: p.req.id, ClientID: p.req.clientID, Composition: p.req.composition, Caller: p.req.identity, From: p.req.caller, Data: p.req.data,
		Envelope: &p.req.env, Stream: p.req.stream, Low: p.wait.queued.Priority == admission.Low, HTTP: p.req.http.req,
		Finished: func(code int, reason string, summary compositions.Summary) {
			p.composed = summary
			p.finish(code, reason)
		},
	}, res)
	p.composed = summary
	switch {
	case e != nil:
		if p.req.routing != nil && routes.MayEscalate(e) && p.composeNext(e, res) {
			return
		}
		p.refuseNow(res, e)
		return
	case res.Status == httpserver.StatusClientLeft:
		p.finish(499, "client_left")
		return
	}
	p.setCommonFields(res)
	if res.Stream == nil {
		p.finish(cmp.Or(res.Status, 200), "")
	}
}

// composeNext gives a request that its Composition failed to the next target of its Router;
// false where there is none.
func (p *proxyRequest) composeNext(failed *openai.Error, res *httpserver.Response) bool {
	moved, e := p.followNext(failed.Message)
	switch {
	case !moved:
		return false
	case e != nil:
		p.refuseNow(res, e)
	case p.req.composition != nil:
		p.compose(res)
	default:
		p.run(res) // the cache is asked for the first target alone
	}
	return true
}

func (p *proxyRequest) countComposition(code int, took time.Duration) {
	name, m := p.req.composition.FullName(), p.a.o.Metrics
	if p.a.names.compositions.Find(name) == nil { // removed, with its series and pace
		return
	}
	m.Series("thaw_requests_total", name.Name, name.Team, p.req.endpoint.Path, strconv.Itoa(code), "false")(1)
	m.Series("thaw_request_seconds", name.Name, name.Team, "false")(took.Seconds())
	m.Series("thaw_composition_calls_total", name.Name, name.Team)(float64(p.composed.Calls))
	if code == 200 {
		pace := p.a.names.paceOf(name)
		pace.Observe(p.req.stream, cmp.Or(p.composed.First, took), took, p.composed.Completion, 1)
		pace.ObserveCost(p.composed.Cost)
	}
}
