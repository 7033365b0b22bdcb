package activator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/metrics"
	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/activator/usageoption"
	"github.com/thaw-dev/thaw/functions/openai"
)

// errRequestOver cancels a request at an engine whose answer is not needed any more.
var errRequestOver = errors.New("the request is over")

// attempt is a request's exchange with the engine of its replica, or with a Remote.
type attempt struct {
	req    *request
	wait   *wait
	early  early
	remote *remote.Call // of a request for a Remote; else nil
	tokens usageoption.Tokens

	sentAt         time.Time
	loadingAdapter atomic.Bool   // set before the request is sent, cleared by the goroutine that asks
	adapterRetried bool          // the engine did not have the adapter although it was listed
	firstByteTook  time.Duration // from asking to the engine's first byte of body
	cancel         context.CancelCauseFunc
	answers        chan answer.Answer // of the goroutine that asks; nil where none runs
	reply          answer.Answer
	assembled      bool // reply is plain, and came as a stream
	answerBegan    bool // an engine failed behind the first byte of its answer
}

// stop ends the request at the engine: cancelling closes its connection, which ends the
// generation, and the goroutine that asks is waited for. The timer of the wait stops, too.
func (a *attempt) stop() {
	if a.answers != nil {
		a.cancel(errRequestOver)
		if r := <-a.answers; r.Response != nil {
			r.Response.Close()
		}
		a.answers = nil
	}
	if a.reply.Response != nil {
		a.reply.Response.Close() // closes the connection unless it was read to its end
		a.reply.Response = nil
	}
	if a.cancel != nil {
		a.cancel(errRequestOver)
		a.cancel = nil
	}
	if t := a.wait.timer; t != nil {
		t.Stop()
	}
}

// buildRequest is the request as it goes to a replica.
func (a *attempt) buildRequest(replica *snapshot.Replica) *upstream.Request {
	r, o := a.req, &a.req.a.o
	addr, prefix := upstream.SplitEndpoint(replica.Endpoint)
	accept, kind := "application/json", "application/json"
	if r.stream {
		accept = "text/event-stream"
	} else if r.endpoint.Path == "/v1/audio/speech" {
		accept = "*/*"
	}
	if r.endpoint.Form {
		kind = r.source.header("Content-Type")
	}
	out := &upstream.Request{Addr: addr, Secure: strings.HasPrefix(replica.Endpoint, "https://"), Prefix: prefix,
		Method: "POST", Path: r.endpoint.Path}
	out.Fields = make([]upstream.Field, 0, 6)
	out.Fields = append(out.Fields, upstream.Field{Name: "content-type", Value: kind},
		upstream.Field{Name: "accept", Value: accept}, upstream.Field{Name: "x-request-id", Value: r.id})
	if t := r.source.header("traceparent"); openai.ValidTrace(t) {
		out.Fields = append(out.Fields, upstream.Field{Name: "traceparent", Value: t})
	}
	if replica.Key != "" {
		out.Fields = append(out.Fields, upstream.Field{Name: "authorization", Value: "Bearer " + replica.Key})
	}
	out.Fresh = a.wait.queued.Retried // so that it is not sent a third time
	name := r.engineName
	if a.remote != nil {
		name = a.remote.Model()
	}
	a.tokens.Asked = a.stripsUsage() && (a.remote != nil || replica.ID != a.tokens.RefusedBy && !r.a.usages.Refuses(replica.ID))
	out.Body = r.env.Splice(make([][]byte, 0, 4), r.http.req.Body, name, a.tokens.Asked)
	if a.remote != nil {
		a.remote.Address(out)
		return out
	}

	out.Bound = o.Timing.PlainAnswer
	if r.stream {
		out.Bound = 2 * time.Minute
		if f := r.fn.Snapshot(); f.Model != nil && f.Model.Spec.Deadlines.FirstToken > 0 {
			out.Bound = f.Model.Spec.Deadlines.FirstToken.Std()
		}
	}
	return out
}

// send sends the request to a replica: with async by a goroutine, which delivers to answers;
// else answered is true.
func (a *attempt) send(replica *snapshot.Replica, async bool) (reply answer.Answer, answered bool) {
	act := a.req.a
	out := a.buildRequest(replica)
	a.sentAt = act.o.Now()
	ctx := a.req.source.context()
	fetch := a.adapterLoad(replica)
	var engines answer.Sender = act.o.Engines
	if a.remote != nil {
		engines = a.remote
	}
	if !async {
		return sendToEngine(ctx, engines, out, a.want(), nil, fetch), true
	}
	ctx, a.cancel = context.WithCancelCause(ctx)
	answers := make(chan answer.Answer, 1)
	a.answers = answers
	want := a.want()
	go func() { answers <- sendToEngine(ctx, engines, out, want, &act.buffers, fetch) }() // ends with the request: stop cancels and waits
	return reply, false
}

// stripsUsage reports whether the engine is asked for a usage chunk that the client
// did not ask for.
func (a *attempt) stripsUsage() bool {
	r := a.req
	return r.stream && r.endpoint.Usage && r.env.AsksUsage() && (a.remote != nil || r.lease.NeedsUsage() || r.cached.Stores())
}

// sendToEngine sends the request and reads the beginning of its answer. fetch, if not nil,
// comes before.
func sendToEngine(ctx context.Context, engines answer.Sender, out *upstream.Request, want answer.Want, bufs *answer.Buffers,
	fetch func(context.Context) error) answer.Answer {
	if fetch != nil {
		if err := fetch(ctx); err != nil {
			return answer.Answer{Err: &adapterLoadError{err}}
		}
	}
	return answer.Ask(ctx, engines, out, want, bufs)
}

func (a *attempt) want() answer.Want {
	r := a.req
	name := r.answerName
	if to := a.remote.Remote(); to != nil { // which names the model as its other side does
		name = to.Metadata.Name
	}
	return answer.Want{Stream: r.stream, Whole: !r.stream && r.endpoint.Streams, Comments: a.remote != nil, Model: name,
		Choices: r.env.N, Idle: a.idleBound(), Most: r.a.o.Timing.PlainAnswer}
}

// again returns the replica that the request is sent to once more: its shim has refused the early
// copy, its engine has evicted the adapter, which the platform loads again, once, or may have
// refused the option that the client did not send. nil is none. An answer of the node in place of
// the engine becomes the error that it means.
func (a *attempt) again(r *answer.Answer) (replica *snapshot.Replica) {
	id := a.wait.queued.ReplicaID()
	if a.early.adopted && refusedByNode(r) && context.Cause(a.req.source.context()) == nil {
		replica = a.listed(id) // it is READY now, and its engine has not seen the request
	}
	a.early.adopted = false
	if replica == nil && r.Err == nil && r.Response.Status >= 400 && r.End {
		switch err := answer.NodeError(r.Response.Status, r.Begin); {
		case err != nil:
			r.Response.Close()
			*r = answer.Answer{Err: err}
		case a.req.adapter != "" && r.Response.Status == 404 && !a.adapterRetried && a.req.a.o.Adapters != nil:
			replica = a.listed(id)
			a.adapterRetried = replica != nil
		case a.tokens.Asked && a.req.a.usages.MayRefuse(id, r.Response.Status, r.Begin):
			a.tokens.RefusedBy, replica = id, a.wait.queued.Grant.Replica
		}
	}
	if replica != nil {
		a.stop()
		if r.Response != nil {
			r.Response.Close()
		}
	}
	return replica
}

// listed returns the replica of the function's snapshot; nil where that lists it no more.
func (a *attempt) listed(id string) *snapshot.Replica {
	f := a.req.fn.Snapshot()
	if i := f.ReplicaIndex(id); i >= 0 {
		return &f.Replicas[i]
	}
	return nil
}

// refusal returns the error that the engine put first into its answer, and ends the request there.
// It is nil where there is none, or where r has become a failure to be tried again.
func (a *attempt) refusal(r *answer.Answer) *openai.Error {
	refusal, failure := r.Failure(a.req.endpoint, a.req.stream, a.req.env.IncludeUsage || a.stripsUsage())
	if failure != nil {
		r.Response.Close()
		if !r.Began {
			r.Begin = nil // the error is all that came: another replica may be asked
		}
		*r = answer.Answer{Err: failure, Begin: r.Begin}
	} else if refusal == nil {
		refusal = a.assemble(r)
	}
	if refusal == nil {
		return nil
	}
	r.Response.Close()
	a.stop()
	if refusal.Status >= 500 {
		problem := answer.ErrorBeforeToken
		if r.Began {
			problem = answer.ErrorInAnswer
		}
		a.reportProblem("error_frame", problem)
	}
	return refusal
}

// assemble makes the plain answer of a stream that came in its place; its error is that of one
// that makes up none.
func (a *attempt) assemble(r *answer.Answer) *openai.Error {
	if !r.Events || a.req.stream {
		return nil
	}
	whole := cache.PlainOf(a.req.endpoint.Path, r.Begin)
	if !r.End || whole == nil {
		return r.ForeignError()
	}
	if e := openai.WholeError(whole); e != nil { // a response that failed has its error within
		return e
	}
	r.Begin, r.Events, a.assembled = whole, false, true
	return nil
}

// accept takes an answer that goes to the client.
func (a *attempt) accept(r answer.Answer, now time.Time) {
	a.reply = r
	a.recordFirstByte(now, r.Response.Status < 400 && !r.Events)
	if a.remote == nil && a.wait.queued.NoteAnswer(r.Response.Status) {
		a.reportProblem("error_frame", fmt.Sprintf("it answered several requests in a row with errors, the last with HTTP %d", r.Response.Status))
	}
	if answer.IsSuccess(r.Response.Status) && a.remote == nil {
		a.noteUsageOption()
	}
	if !r.End {
		r.Response.LimitSilence(a.idleBound())
	}
}

// recordFirstToken accounts for the first token of a stream.
func (a *attempt) recordFirstToken() {
	act := a.req.a
	a.tokens.FirstTook = max(1, act.o.Now().Sub(a.req.began))
	i, _ := metrics.Cold(a.wait.queued.Cold)
	act.metricsOf(a.req.fn).FirstToken[i](a.tokens.FirstTook.Seconds())
}

// recordFirstByte accounts for the engine's first byte; plain is a good answer that is
// no stream of tokens.
func (a *attempt) recordFirstByte(now time.Time, plain bool) {
	act, fn, queued := a.req.a, a.req.fn, &a.wait.queued
	a.firstByteTook = max(1, now.Sub(a.sentAt))
	if plain {
		i, _ := metrics.Cold(queued.Cold)
		act.metricsOf(fn).PlainAnswer[i](now.Sub(a.req.began).Seconds())
	}
	if !queued.Cold || queued.ColdStart == "" || !act.coldStarts.RememberFirstByte(queued.ColdStart, a.firstByteTook) {
		return
	}
	act.metricsOf(fn).ObserveFirstByte(fn.Snapshot().ColdStart, a.firstByteTook)
	if act.o.OnFirstByte != nil {
		act.o.OnFirstByte(fn.Name, queued.ColdStart, a.firstByteTook)
	}
}

// reportProblem counts a failure of this kind, and reports the replica to the platform, or the
// Remote to its circuit.
func (a *attempt) reportProblem(kind, problem string) {
	act, fn := a.req.a, a.req.fn
	act.metricsOf(fn).CountFailure(kind, 1)
	if a.remote != nil {
		a.remote.Fail(problem)
		return
	}
	act.o.Waker.ReportFailure(fn.Name, a.wait.queued.ReplicaID(), problem)
}

// reportUnsolicited counts how often the replica was found to write bytes that no request
// asked for, and logs the first time.
func (a *attempt) reportUnsolicited(res *upstream.Response) {
	s := a.req.a.metricsOf(a.req.fn)
	s.CountFailure("unsolicited", float64(res.Unsolicited))
	if res.FirstUnsolicited {
		a.req.a.o.Log.Warn("a replica wrote bytes that no request asked for; each of its connections serves one request from now on",
			"id", a.req.id, "model", s.Name.Name, "team", s.Name.Team, "replica", a.wait.queued.ReplicaID())
	}
}

// noteUsageOption records what the replica of a good answer did with the option, and logs
// the first refusal.
func (a *attempt) noteUsageOption() {
	act, name, id := a.req.a, a.req.fn.Name, a.wait.queued.ReplicaID()
	refuses := a.tokens.RefusedBy == id
	if (a.tokens.Asked || refuses) && act.usages.Note(id, refuses) && refuses {
		act.o.Log.Warn("the engine refuses stream_options, which thaw adds to count the tokens of a stream; "+
			"its streams are sent without, and their tokens are estimated",
			"id", a.req.id, "model", name.Name, "team", name.Team, "replica", id)
	}
}

// idleBound is how long an answer that has begun may be silent.
func (a *attempt) idleBound() time.Duration {
	if a.remote != nil {
		return a.remote.Idle()
	}
	return a.req.a.o.Timing.StreamIdle
}
