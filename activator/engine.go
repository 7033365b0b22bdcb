package activator

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/answer"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions/openai"
)

// errRequestOver cancels a request at an engine whose answer is not needed any more.
var errRequestOver = errors.New("the request is over")

// buildRequest is the request as it goes to a replica.
func (p *proxyRequest) buildRequest(f *snapshot.Snapshot, r *snapshot.Replica) *upstream.Request {
	addr, prefix := upstream.SplitEndpoint(r.Endpoint)
	accept, kind := "application/json", "application/json"
	if p.stream {
		accept = "text/event-stream"
	} else if p.endpoint.path == "/v1/audio/speech" {
		accept = "*/*"
	}
	if p.endpoint.form {
		kind = p.header("Content-Type")
	}
	out := &upstream.Request{Addr: addr, Secure: strings.HasPrefix(r.Endpoint, "https://"), Prefix: prefix, Method: "POST", Path: p.endpoint.path}
	out.Fields = make([]upstream.Field, 0, 6)
	out.Fields = append(out.Fields, upstream.Field{Name: "content-type", Value: kind},
		upstream.Field{Name: "accept", Value: accept}, upstream.Field{Name: "x-request-id", Value: p.id})
	if t := p.header("traceparent"); openai.ValidTrace(t) {
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
	p.asksUsage = p.asksUsageOf(r)
	out.Body = p.env.Splice(make([][]byte, 0, 4), p.req.Body, name, p.asksUsage)
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

// sendToEngine sends the request to a replica.
func (p *proxyRequest) sendToEngine(f *snapshot.Snapshot, r *snapshot.Replica, async bool) {
	out := p.buildRequest(f, r)
	p.sentAt = p.a.o.Now()
	ctx := p.context()
	fetch := p.adapterLoad(r)
	var engines answer.Sender = p.a.o.Engines
	if p.remote != nil {
		engines = p.remote
	}
	if !async {
		p.onReply(sendToEngine(ctx, engines, out, p.want(), nil, fetch), false)
		return
	}
	ctx, p.cancel = context.WithCancelCause(ctx)
	answers := make(chan answer.Answer, 1)
	p.answers = answers
	want, bufs := p.want(), &p.a.buffers
	go func() { answers <- sendToEngine(ctx, engines, out, want, bufs, fetch) }() // ends with the request: stopEngine cancels and waits
}

// stripsUsage reports whether the engine is asked for a usage chunk that the client
// did not ask for.
func (p *proxyRequest) stripsUsage() bool {
	return p.stream && p.endpoint.usage && p.env.AsksUsage() && (p.remote != nil || p.lease.NeedsUsage() || p.cached.Stores())
}

// sendToEngine sends the request and reads the beginning of its answer. fetch, if not nil,
// comes before.
func sendToEngine(ctx context.Context, engines answer.Sender, out *upstream.Request, want answer.Want, bufs *answer.Buffers, fetch func(context.Context) error) answer.Answer {
	if fetch != nil {
		if err := fetch(ctx); err != nil {
			return answer.Answer{Err: &adapterLoadError{err}}
		}
	}
	return answer.Ask(ctx, engines, out, want, bufs)
}

func (p *proxyRequest) want() answer.Want {
	return answer.Want{Stream: p.stream, Comments: p.remote != nil, Model: p.answerName}
}

// onReply handles the engine's first bytes, or their absence.
func (p *proxyRequest) onReply(r answer.Answer, async bool) {
	now := p.a.o.Now()
	if p.remote != nil && !(errors.Is(r.Err, upstream.ErrCancelled) && context.Cause(p.context()) != nil) {
		p.onRemoteReply(r, now)
		return
	}
	if r.Response != nil && r.Response.Unsolicited > 0 {
		p.reportUnsolicited(r.Response)
	}
	if p.sentEarly {
		p.sentEarly = false
		f := p.fn.Snapshot()
		if i := f.ReplicaIndex(p.queued.ReplicaID()); i >= 0 && refusedByNode(&r) && context.Cause(p.context()) == nil {
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
	if r.Err == nil && p.queued.Adapter != "" && r.Response.Status == 404 && r.End && !p.adapterRetried && p.a.o.Adapters != nil {
		// The engine has evicted the adapter: the platform loads it again, once.
		f := p.fn.Snapshot()
		if i := f.ReplicaIndex(p.queued.ReplicaID()); i >= 0 {
			p.stopEngine()
			r.Response.Close()
			p.adapterRetried = true
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
	if (errors.Is(r.Err, upstream.ErrCancelled) || errors.As(r.Err, &unfetched)) && context.Cause(p.context()) != nil {
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
		e = p.reportFailure(r.Err, now)
	}
	p.retry(e, len(r.Begin) > 0, now, async)
}

// refuseAsEngine ends the request with the error that the engine put first into its answer.
// It returns false where there is none, or where r has become a failure to be tried again.
func (p *proxyRequest) refuseAsEngine(r *answer.Answer) bool {
	refusal, failure := p.engineFailure(r)
	if failure != nil {
		r.Response.Close()
		*r = answer.Answer{Err: failure}
	}
	if refusal == nil {
		return false
	}
	r.Response.Close()
	p.stopEngine()
	if refusal.Status >= 500 {
		p.a.metricsOf(p.fn).countFailure("error_frame")
		p.a.o.Waker.ReportFailure(p.fn.Name, p.queued.ReplicaID(), errorBeforeToken)
	}
	p.leave()
	p.refuse(refusal)
	return true
}

// acceptReply takes an answer that goes to the client.
func (p *proxyRequest) acceptReply(r answer.Answer, now time.Time) {
	p.reply = r
	p.phase = answered
	p.first = max(1, now.Sub(p.sentAt))
	p.recordFirstByte(now, r.Response.Status < 400 && !r.Events)
	if answer.IsSuccess(r.Response.Status) && p.remote == nil {
		p.noteUsageOption()
	}
	if !r.End {
		r.Response.Bound(p.idleBound())
	}
}

// recordFirstToken accounts for the first token of a stream.
func (p *proxyRequest) recordFirstToken() {
	p.firstToken = max(1, p.a.o.Now().Sub(p.began))
	i, _ := coldLabel(p.queued.Cold)
	p.a.metricsOf(p.fn).firstToken[i](p.firstToken.Seconds())
}

// recordFirstByte accounts for the engine's first byte; plain is a good answer that is
// no stream of tokens.
func (p *proxyRequest) recordFirstByte(now time.Time, plain bool) {
	if plain {
		i, _ := coldLabel(p.queued.Cold)
		p.a.metricsOf(p.fn).plainAnswer[i](now.Sub(p.began).Seconds())
	}
	if !p.queued.Cold || p.queued.ColdStart == "" {
		return
	}
	if !p.a.requests.rememberFirstToken(p.queued.ColdStart, p.first) {
		return
	}
	p.a.observeFirstToken(p.fn, p.first)
	if p.a.o.FirstToken != nil {
		p.a.o.FirstToken(p.fn.Name, p.queued.ColdStart, p.first)
	}
}

// stopEngine ends the request at the engine: cancelling closes its connection, which
// ends the generation, and the goroutine that asks is waited for.
func (p *proxyRequest) stopEngine() {
	if p.answers != nil {
		p.cancel(errRequestOver)
		if r := <-p.answers; r.Response != nil {
			r.Response.Close()
		}
		p.answers = nil
	}
	if p.reply.Response != nil {
		p.reply.Response.Close() // closes the connection unless it was read to its end
		p.reply.Response = nil
	}
	if p.cancel != nil {
		p.cancel(errRequestOver)
		p.cancel = nil
	}
	if p.timer != nil {
		p.timer.Stop()
	}
}
