package activator

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/metrics"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions/openai"
)

// errRequestOver cancels a request at an engine whose answer is not needed any more.
var errRequestOver = errors.New("the request is over")

// attempt is what a request has of its exchange with an engine.
type attempt struct {
	sentAt         time.Time
	loadingAdapter atomic.Bool   // set before the request is sent, cleared by the goroutine that asks
	adapterRetried bool          // the engine did not have the adapter although it was listed
	firstByteTook  time.Duration // from asking to the engine's first byte of body
	cancel         context.CancelCauseFunc
	answers        chan answer.Answer // of the goroutine that asks; nil where none runs
	reply          answer.Answer
	together       int  // requests at the replica at the end of this one, where costs are counted by time
	assembled      bool // reply is plain, and came as a stream
	answerBegan    bool // an engine failed behind the first byte of its answer
}

// stop ends the request at the engine: cancelling closes its connection, which ends the
// generation, and the goroutine that asks is waited for.
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
}

// buildRequest is the request as it goes to a replica.
func (p *proxyRequest) buildRequest(f *snapshot.Snapshot, r *snapshot.Replica) *upstream.Request {
	addr, prefix := upstream.SplitEndpoint(r.Endpoint)
	accept, kind := "application/json", "application/json"
	if p.stream {
		accept = "text/event-stream"
	} else if p.endpoint.Path == "/v1/audio/speech" {
		accept = "*/*"
	}
	if p.endpoint.Form {
		kind = p.source.header("Content-Type")
	}
	out := &upstream.Request{Addr: addr, Secure: strings.HasPrefix(r.Endpoint, "https://"), Prefix: prefix, Method: "POST", Path: p.endpoint.Path}
	out.Fields = make([]upstream.Field, 0, 6)
	out.Fields = append(out.Fields, upstream.Field{Name: "content-type", Value: kind},
		upstream.Field{Name: "accept", Value: accept}, upstream.Field{Name: "x-request-id", Value: p.id})
	if t := p.source.header("traceparent"); openai.ValidTrace(t) {
		out.Fields = append(out.Fields, upstream.Field{Name: "traceparent", Value: t})
	}
	if r.Key != "" {
		out.Fields = append(out.Fields, upstream.Field{Name: "authorization", Value: "Bearer " + r.Key})
	}
	out.Fresh = p.queued.Retried // so that it is not sent a third time
	name := p.engineName
	if p.remote != nil {
		name = p.remote.Model()
	}
	p.tokens.Asked = p.stripsUsage() && (p.remote != nil || r.ID != p.tokens.RefusedBy && !p.a.usages.Refuses(r.ID))
	out.Body = p.env.Splice(make([][]byte, 0, 4), p.http.req.Body, name, p.tokens.Asked)
	if p.remote != nil {
		p.remote.Address(out)
		return out
	}

	out.Bound = p.a.o.PlainAnswer
	if p.stream {
		out.Bound = 2 * time.Minute
		if f.Model != nil && f.Model.Spec.Deadlines.FirstToken > 0 {
			out.Bound = f.Model.Spec.Deadlines.FirstToken.Std()
		}
	}
	return out
}

func (p *proxyRequest) sendToEngine(f *snapshot.Snapshot, r *snapshot.Replica, async bool) {
	out := p.buildRequest(f, r)
	p.attempt.sentAt = p.a.o.Now()
	ctx := p.source.context()
	fetch := p.adapterLoad(r)
	var engines answer.Sender = p.a.o.Engines
	if p.remote != nil {
		engines = p.remote
	}
	if !async {
		p.onReply(sendToEngine(ctx, engines, out, p.want(), nil, fetch), false)
		return
	}
	ctx, p.attempt.cancel = context.WithCancelCause(ctx)
	answers := make(chan answer.Answer, 1)
	p.attempt.answers = answers
	want, bufs := p.want(), &p.a.buffers
	go func() { answers <- sendToEngine(ctx, engines, out, want, bufs, fetch) }() // ends with the request: stopEngine cancels and waits
}

// stripsUsage reports whether the engine is asked for a usage chunk that the client
// did not ask for.
func (p *proxyRequest) stripsUsage() bool {
	return p.stream && p.endpoint.Usage && p.env.AsksUsage() && (p.remote != nil || p.lease.NeedsUsage() || p.cached.Stores())
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

func (p *proxyRequest) want() answer.Want {
	name := p.answerName
	if r := p.remote.Remote(); r != nil { // which names the model as its other side does
		name = r.Metadata.Name
	}
	return answer.Want{Stream: p.stream, Whole: !p.stream && p.endpoint.Usage, Comments: p.remote != nil, Model: name,
		Choices: p.env.N, Idle: p.idleBound(), Most: p.a.o.PlainAnswer}
}

// onReply handles the engine's first bytes, or their absence.
func (p *proxyRequest) onReply(r answer.Answer, async bool) {
	now := p.a.o.Now()
	if p.remote != nil && !(errors.Is(r.Err, upstream.ErrCancelled) && context.Cause(p.source.context()) != nil) {
		p.onRemoteReply(r, now)
		return
	}
	if r.Response != nil && r.Response.Unsolicited > 0 {
		p.reportUnsolicited(r.Response)
	}
	if p.early.adopted {
		p.early.adopted = false
		f := p.fn.Snapshot()
		if i := f.ReplicaIndex(p.queued.ReplicaID()); i >= 0 && refusedByNode(&r) && context.Cause(p.source.context()) == nil {
			// The shim refused the early copy, so no engine has seen it; the replica is READY now.
			if r.Response != nil {
				r.Response.Close()
			}
			p.stopEngine()
			p.sendToEngine(f, &f.Replicas[i], async)
			return
		}
	}
	if r.Err == nil && r.Response.Status >= 400 && r.End {
		if err := answer.NodeError(r.Response.Status, r.Begin); err != nil {
			r.Response.Close()
			r = answer.Answer{Err: err}
		}
	}
	if r.Err == nil && p.queued.Adapter != "" && r.Response.Status == 404 && r.End && !p.attempt.adapterRetried && p.a.o.Adapters != nil {
		// The engine has evicted the adapter: the platform loads it again, once.
		f := p.fn.Snapshot()
		if i := f.ReplicaIndex(p.queued.ReplicaID()); i >= 0 {
			p.stopEngine()
			r.Response.Close()
			p.attempt.adapterRetried = true
			p.sendToEngine(f, &f.Replicas[i], async)
			return
		}
	}
	if p.retryWithoutUsage(&r, async) || r.Err == nil && p.refuseAsEngine(&r) {
		return
	}
	if r.Err == nil {
		p.acceptReply(r, now)
		return
	}
	var unfetched *adapterLoadError
	if (errors.Is(r.Err, upstream.ErrCancelled) || errors.As(r.Err, &unfetched)) && context.Cause(p.source.context()) != nil {
		p.contextEnded()
		return
	}
	p.stopEngine()
	var e *openai.Error
	if unfetched != nil {
		e = p.adapterFailure(unfetched.err)
		p.queued.MarkFailed(false, now)
		p.leave()
		if e != nil {
			p.refuse(e)
			return
		}
		e = openai.New(openai.AdapterUnavailable, "")
	} else {
		e = p.reportFailure(r.Err, len(r.Begin) > 0, now)
	}
	p.retry(e, len(r.Begin) > 0, now, async)
}

// refuseAsEngine ends the request with the error that the engine put first into its answer.
// It returns false where there is none, or where r has become a failure to be tried again.
func (p *proxyRequest) refuseAsEngine(r *answer.Answer) bool {
	refusal, failure := r.Failure(p.endpoint, p.stream, p.env.IncludeUsage || p.stripsUsage())
	if failure != nil {
		r.Response.Close()
		if !r.Began {
			r.Begin = nil // the error is all that came: another replica may be asked
		}
		*r = answer.Answer{Err: failure, Begin: r.Begin}
	} else if refusal == nil {
		refusal = p.assemble(r)
	}
	if refusal == nil {
		return false
	}
	r.Response.Close()
	p.stopEngine()
	if refusal.Status >= 500 {
		p.a.metricsOf(p.fn).CountFailure("error_frame", 1)
		problem := answer.ErrorBeforeToken
		if r.Began {
			problem = answer.ErrorInAnswer
		}
		p.a.o.Waker.ReportFailure(p.fn.Name, p.queued.ReplicaID(), problem)
	}
	p.withdraw(refusal)
	return true
}

// assemble makes the plain answer of a stream that came in its place; its error is that of one
// that makes up none.
func (p *proxyRequest) assemble(r *answer.Answer) *openai.Error {
	if !r.Events || p.stream {
		return nil
	}
	whole := cache.PlainOf(p.endpoint.Path, r.Begin)
	if !r.End || whole == nil {
		return r.ForeignError()
	}
	r.Begin, r.Events, p.attempt.assembled = whole, false, true
	return nil
}

// acceptReply takes an answer that goes to the client.
func (p *proxyRequest) acceptReply(r answer.Answer, now time.Time) {
	p.attempt.reply = r
	p.phase = engineAnswered
	p.attempt.firstByteTook = max(1, now.Sub(p.attempt.sentAt))
	p.recordFirstByte(now, r.Response.Status < 400 && !r.Events)
	if answer.IsSuccess(r.Response.Status) && p.remote == nil {
		p.noteUsageOption()
	}
	if !r.End {
		r.Response.LimitSilence(p.idleBound())
	}
}

// recordFirstToken accounts for the first token of a stream.
func (p *proxyRequest) recordFirstToken() {
	p.tokens.FirstTook = max(1, p.a.o.Now().Sub(p.began))
	i, _ := metrics.Cold(p.queued.Cold)
	p.a.metricsOf(p.fn).FirstToken[i](p.tokens.FirstTook.Seconds())
}

// recordFirstByte accounts for the engine's first byte; plain is a good answer that is
// no stream of tokens.
func (p *proxyRequest) recordFirstByte(now time.Time, plain bool) {
	if plain {
		i, _ := metrics.Cold(p.queued.Cold)
		p.a.metricsOf(p.fn).PlainAnswer[i](now.Sub(p.began).Seconds())
	}
	if !p.queued.Cold || p.queued.ColdStart == "" || !p.a.coldStarts.RememberFirstByte(p.queued.ColdStart, p.attempt.firstByteTook) {
		return
	}
	metrics.ObserveFirstByte(p.a.o.Metrics, p.fn.Snapshot(), p.attempt.firstByteTook)
	if p.a.o.OnFirstByte != nil {
		p.a.o.OnFirstByte(p.fn.Name, p.queued.ColdStart, p.attempt.firstByteTook)
	}
}

// stopEngine ends the request at the engine, and the timer.
func (p *proxyRequest) stopEngine() {
	p.attempt.stop()
	if t := p.wait.timer; t != nil {
		t.Stop()
	}
}

// retryWithoutUsage sends a stream to its replica once more where that may have refused the
// option which the client did not send.
func (p *proxyRequest) retryWithoutUsage(r *answer.Answer, async bool) bool {
	id := p.queued.ReplicaID()
	if !p.tokens.Asked || r.Err != nil || !r.End || !p.a.usages.MayRefuse(id, r.Response.Status, r.Begin) {
		return false
	}
	p.stopEngine()
	r.Response.Close()
	p.tokens.RefusedBy = id
	p.sendToEngine(p.fn.Snapshot(), p.queued.Grant.Replica, async)
	return true
}

// noteUsageOption records what the replica of a good answer did with the option, and logs
// the first refusal.
func (p *proxyRequest) noteUsageOption() {
	id := p.queued.ReplicaID()
	refuses := p.tokens.RefusedBy == id
	if (p.tokens.Asked || refuses) && p.a.usages.Note(id, refuses) && refuses {
		p.a.o.Log.Warn("the engine refuses stream_options, which thaw adds to count the tokens of a stream; "+
			"its streams are sent without, and their tokens are estimated",
			"id", p.id, "model", p.fn.Name.Name, "team", p.fn.Name.Team, "replica", id)
	}
}
