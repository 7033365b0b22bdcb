package activator

import (
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/activator/routes"
	"github.com/thaw-dev/thaw/functions/openai"
)

// beginRemote ends the call to the Remote that failed the request before, if one did. It
// admits one to the present function, if that is a Remote, by its circuit, its limits and
// the budgets.
func (x *proxyRequest) beginRemote(now time.Time) (e *openai.Error) {
	x.remote.End(openai.Usage{}, 502, now)
	x.remote = nil
	f := x.fn.Snapshot()
	if f.Remote == nil {
		return nil
	}
	x.remote, e = x.a.o.Remotes.Begin(remote.Request{
		Name: f.Name, Team: x.team, TeamBudget: x.a.o.Limits.SpendPerDay(x.team),
		Endpoint: x.endpoint.path, Stream: x.stream, Generates: x.endpoint.streams, Depth: x.header(remote.DepthHeader), Envelope: &x.env,
	})
	return e
}

// recheckRemote checks again, before a request is sent, what may be sent to a Remote: it may
// have changed while the request waited, or taken the name of a model.
func (x *proxyRequest) recheckRemote(now time.Time) *openai.Error {
	isRemote := x.fn.Snapshot().Remote != nil
	switch {
	case isRemote && x.reservation != nil:
		return openai.New(openai.ModelNotFound, "The model `"+x.fn.Name.Short()+"` does not exist any more: a Remote has its name.")
	case isRemote && x.remote == nil:
		if e := x.beginRemote(now); e != nil {
			return e
		}
	}
	if r := x.remote.Remote(); r != nil && !r.Allows(x.data) {
		return routes.RefuseData(r, x.data)
	}
	return x.checkData()
}

// onRemoteReply handles the first bytes of a Remote's answer, or their absence. A Remote
// that fails is not tried again: it may have computed the answer.
func (x *proxyRequest) onRemoteReply(r answer.Answer, now time.Time) {
	e := x.remote.Judge(r.Response, r.Begin, r.End, r.Err)
	if e == nil {
		if x.stream && !r.Events && r.End && answer.IsSuccess(r.Response.Status) { // it does not stream
			if events := openai.StreamWhole(x.endpoint.path, r.Begin, x.env.IncludeUsage || x.stripsUsage()); events != nil {
				r.Begin, r.Events = events, true
			}
		}
		x.acceptReply(r, now)
		return
	}
	if r.Response != nil {
		r.Response.Close()
	}
	x.stopEngine()
	x.leave()
	x.refuse(e)
}

// reportProblem reports a replica that failed in the middle of an answer: to the platform,
// or to the Remote's circuit.
func (x *proxyRequest) reportProblem(problem string) {
	if x.remote != nil {
		x.remote.Broke(problem)
		return
	}
	x.a.o.Waker.ReportFailure(x.fn.Name, x.queued.ReplicaID(), problem)
}

// nameRemote has an error about an engine name the Remote that is meant, if one is.
func (x *proxyRequest) nameRemote(e *openai.Error) {
	if x.remote != nil {
		e.Message = strings.Replace(e.Message, "The engine", "The remote `"+x.fn.Name.Name+"`", 1)
	}
}

// idleBound is how long an answer that has begun may be silent.
func (x *proxyRequest) idleBound() time.Duration {
	if x.remote != nil {
		return x.remote.Idle()
	}
	return x.a.o.StreamIdle
}
