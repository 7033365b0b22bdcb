package activator

import (
	"time"

	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/activator/routes"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/functions/openai/collect"
)

// beginRemote ends the call to the Remote that failed the request before, if one did. It
// admits one to the present function, if that is a Remote, by its circuit, its limits and
// the budgets.
func (a *attempt) beginRemote(now time.Time) (e *openai.Error) {
	r := a.req
	a.remote.End(openai.Usage{}, 502, now)
	a.remote = nil
	f := r.fn.Snapshot()
	if f.Remote == nil {
		return nil
	}
	a.remote, e = r.a.o.Remotes.Begin(remote.Request{
		Name: f.Name, Team: r.team, TeamBudget: r.a.o.Limits.SpendPerDay(r.team),
		Endpoint: r.endpoint.Path, Stream: r.stream, Generates: r.endpoint.Streams,
		Depth: r.source.header(remote.DepthHeader), Envelope: &r.env, Entry: r.caller.Charged(),
	})
	return e
}

// recheckRemote checks again, before a request is sent, what may be sent to a Remote: it may
// have changed while the request waited, or taken the name of a model.
func (a *attempt) recheckRemote(now time.Time) *openai.Error {
	if a.req.fn.Snapshot().Remote != nil {
		if e := a.req.source.refuseRemote(a.req.fn.Name); e != nil {
			return e
		}
		if a.remote == nil {
			if e := a.beginRemote(now); e != nil {
				return e
			}
		}
	}
	if r := a.remote.Remote(); r != nil && !r.Allows(a.req.data) {
		return routes.RefuseData(r, a.req.data)
	}
	return a.req.checkData()
}

// acceptRemote takes the first bytes of a Remote's answer, or reports their absence. A Remote
// that fails is not tried again: it may have computed the answer.
func (a *attempt) acceptRemote(r answer.Answer, now time.Time) *openai.Error {
	e := a.remote.Judge(r.Response, r.Begin, r.End, r.Err)
	if e == nil {
		e = a.assemble(&r)
	}
	if e == nil {
		if a.req.stream && !r.Events && r.End && answer.IsSuccess(r.Response.Status) { // it does not stream
			if events := collect.Stream(a.req.endpoint.Path, r.Begin, a.req.env.IncludeUsage || a.stripsUsage()); events != nil {
				r.Begin, r.Events = events, true
			}
		}
		a.accept(r, now)
		return nil
	}
	if r.Response != nil {
		r.Response.Close()
	}
	return e
}
