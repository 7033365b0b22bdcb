package activator

import (
	"time"

	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/activator/routes"
	"github.com/thaw-dev/thaw/functions/openai"
)

// beginRemote ends the call to the Remote that failed the request before, if one did. It
// admits one to the present function, if that is a Remote, by its circuit, its limits and
// the budgets.
func (p *proxyRequest) beginRemote(now time.Time) (e *openai.Error) {
	p.remote.End(openai.Usage{}, 502, now)
	p.remote = nil
	f := p.fn.Snapshot()
	if f.Remote == nil {
		return nil
	}
	p.remote, e = p.a.o.Remotes.Begin(remote.Request{
		Name: f.Name, Team: p.team, TeamBudget: p.a.o.Limits.SpendPerDay(p.team),
		Endpoint: p.endpoint.Path, Stream: p.stream, Generates: p.endpoint.Streams, Depth: p.source.header(remote.DepthHeader), Envelope: &p.env,
		Entry: p.caller.Charged(),
	})
	return e
}

// recheckRemote checks again, before a request is sent, what may be sent to a Remote: it may
// have changed while the request waited, or taken the name of a model.
func (p *proxyRequest) recheckRemote(now time.Time) *openai.Error {
	if p.fn.Snapshot().Remote != nil {
		if e := p.source.refuseRemote(p.fn.Name); e != nil {
			return e
		}
		if p.remote == nil {
			if e := p.beginRemote(now); e != nil {
				return e
			}
		}
	}
	if r := p.remote.Remote(); r != nil && !r.Allows(p.data) {
		return routes.RefuseData(r, p.data)
	}
	return p.checkData()
}

// onRemoteReply handles the first bytes of a Remote's answer, or their absence. A Remote
// that fails is not tried again: it may have computed the answer.
func (p *proxyRequest) onRemoteReply(r answer.Answer, now time.Time) {
	e := p.remote.Judge(r.Response, r.Begin, r.End, r.Err)
	if e == nil {
		e = p.assemble(&r)
	}
	if e == nil {
		if p.stream && !r.Events && r.End && answer.IsSuccess(r.Response.Status) { // it does not stream
			if events := openai.StreamWhole(p.endpoint.Path, r.Begin, p.env.IncludeUsage || p.stripsUsage()); events != nil {
				r.Begin, r.Events = events, true
			}
		}
		p.acceptReply(r, now)
		return
	}
	if r.Response != nil {
		r.Response.Close()
	}
	p.stopEngine()
	p.withdraw(e)
}

// reportProblem reports a replica that failed in the middle of an answer: to the platform,
// or to the Remote's circuit.
func (p *proxyRequest) reportProblem(problem string) {
	if p.remote != nil {
		p.remote.Fail(problem)
		return
	}
	p.a.o.Waker.ReportFailure(p.fn.Name, p.queued.ReplicaID(), problem)
}

// idleBound is how long an answer that has begun may be silent.
func (p *proxyRequest) idleBound() time.Duration {
	if p.remote != nil {
		return p.remote.Idle()
	}
	return p.a.o.StreamIdle
}
