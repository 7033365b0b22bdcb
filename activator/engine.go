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
func (x *proxyRequest) buildRequest(f *snapshot.Snapshot, r *snapshot.Replica) *upstream.Request {
	addr, prefix := splitEndpoint(r.Endpoint)
	accept, kind := "application/json", "application/json"
	if x.stream {
		accept = "text/event-stream"
	} else if x.endpoint.path == "/v1/audio/speech" {
		accept = "*/*"
	}
	if x.endpoint.form {
		kind = x.header("Content-Type")
	}
	out := &upstream.Request{Addr: addr, Secure: strings.HasPrefix(r.Endpoint, "https://"), Prefix: prefix, Method: "POST", Path: x.endpoint.path}
	out.Fields = make([]upstream.Field, 0, 6)
	out.Fields = append(out.Fields, upstream.Field{Name: "content-type", Value: kind},
		upstream.Field{Name: "accept", Value: accept}, upstream.Field{Name: "x-request-id", Value: x.id})
	if t := x.header("traceparent"); openai.ValidTrace(t) {
		out.Fields = append(out.Fields, upstream.Field{Name: "traceparent", Value: t})
	}
	if r.Key != "" {
		out.Fields = append(out.Fields, upstream.Field{Name: "authorization", Value: "Bearer " + r.Key})
	}
	out.Fresh = x.queued.Retried // so that it is not sent a third time
	name := x.engineName
	if x.remote != nil {
		name = x.remote.Model()
	}
	x.asksUsage = x.asksUsageOf(r)
	out.Body = x.env.Splice(make([][]byte, 0, 4), x.req.Body, name, x.asksUsage)
	if x.remote != nil {
		x.remote.Address(out)
		return out
	}

	out.Bound = x.a.o.PlainAnswer
	if x.stream {
		out.Bound = 2 * time.Minute
		if f.Model != nil && f.Model.Spec.Deadlines.FirstToken > 0 {
			out.Bound = f.Model.Spec.Deadlines.FirstToken.Std()
		}
	}
	return out
}

// sendToEngine sends the request to a replica.
func (x *proxyRequest) sendToEngine(f *snapshot.Snapshot, r *snapshot.Replica, async bool) {
	out := x.buildRequest(f, r)
	x.sentAt = x.a.o.Now()
	ctx := x.context()
	fetch := x.adapterLoad(r)
	var engines answer.Sender = x.a.o.Engines
	if x.remote != nil {
		engines = x.remote
	}
	if !async {
		x.onReply(sendToEngine(ctx, engines, out, x.want(), nil, fetch), false)
		return
	}
	ctx, x.cancel = context.WithCancelCause(ctx)
	answers := make(chan answer.Answer, 1)
	x.answers = answers
	want, bufs := x.want(), &x.a.buffers
	go func() { answers <- sendToEngine(ctx, engines, out, want, bufs, fetch) }() // ends with the request: stopEngine cancels and waits
}

// stripsUsage reports whether the engine is asked for a usage chunk that the client
// did not ask for.
func (x *proxyRequest) stripsUsage() bool {
	return x.stream && x.endpoint.usage && x.env.AsksUsage() && (x.remote != nil || x.lease.NeedsUsage() || x.cached.Stores())
}

// splitEndpoint splits a URL into host:port and the prefix of its paths.
func splitEndpoint(endpoint string) (addr, prefix string) {
	addr = strings.TrimPrefix(strings.TrimPrefix(endpoint, "http://"), "https://")
	if i := strings.IndexByte(addr, '/'); i >= 0 {
		addr, prefix = addr[:i], strings.TrimSuffix(addr[i:], "/")
	}
	return addr, prefix
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

func (x *proxyRequest) want() answer.Want {
	return answer.Want{Stream: x.stream, Comments: x.remote != nil, Model: x.answerName}
}

// onReply handles the engine's first bytes, or their absence.
func (x *proxyRequest) onReply(r answer.Answer, async bool) {
	now := x.a.o.Now()
	if x.remote != nil && !(errors.Is(r.Err, upstream.ErrCancelled) && context.Cause(x.context()) != nil) {
		x.onRemoteReply(r, now)
		return
	}
	if r.Response != nil && r.Response.Unsolicited > 0 {
		x.reportUnsolicited(r.Response)
	}
	if x.sentEarly {
		x.sentEarly = false
		f := x.fn.Snapshot()
		if i := f.ReplicaIndex(x.queued.ReplicaID()); i >= 0 && refusedByNode(&r) && context.Cause(x.context()) == nil {
			// The shim refused the early copy, so no engine has seen it; the replica is READY now.
			if r.Response != nil {
				r.Response.Close()
			}
			x.stopEngine()
			x.sendToEngine(f, &f.Replicas[i], async)
			return
		}
	}
	if r.Err == nil && r.Response.Status >= 400 && r.End {
		if err := answer.NodeError(r.Response.Status, r.Begin); err != nil {
			r.Response.Close()
			r = answer.Answer{Err: err}
		}
	}
	if r.Err == nil && x.queued.Adapter != "" && r.Response.Status == 404 && r.End && !x.adapterRetried && x.a.o.Adapters != nil {
		// The engine has evicted the adapter: the platform loads it again, once.
		f := x.fn.Snapshot()
		if i := f.ReplicaIndex(x.queued.ReplicaID()); i >= 0 {
			x.stopEngine()
			r.Response.Close()
			x.adapterRetried = true
			x.sendToEngine(f, &f.Replicas[i], async)
			return
		}
	}
	if x.retryWithoutUsage(&r, async) || r.Err == nil && x.refuseAsEngine(&r) {
		return
	}
	if r.Err == nil {
		x.acceptReply(r, now)
		return
	}
	var unfetched *adapterLoadError
	if (errors.Is(r.Err, upstream.ErrCancelled) || errors.As(r.Err, &unfetched)) && context.Cause(x.context()) != nil {
		x.contextEnded()
		return
	}
	x.stopEngine()
	var e *openai.Error
	if unfetched != nil {
		e = x.adapterFailure(unfetched.err)
		x.queued.MarkFailed(false, now)
		x.leave()
		if e != nil {
			x.refuse(e)
			return
		}
		e = openai.New(openai.AdapterUnavailable, "")
	} else {
		e = x.reportFailure(r.Err, now)
	}
	x.retry(e, len(r.Begin) > 0, now, async)
}

// refuseAsEngine ends the request with the error that the engine put first into its answer.
// It returns false where there is none, or where r has become a failure to be tried again.
func (x *proxyRequest) refuseAsEngine(r *answer.Answer) bool {
	refusal, failure := x.engineFailure(r)
	if failure != nil {
		r.Response.Close()
		*r = answer.Answer{Err: failure}
	}
	if refusal == nil {
		return false
	}
	r.Response.Close()
	x.stopEngine()
	if refusal.Status >= 500 {
		x.a.metricsOf(x.fn).countFailure("error_frame")
		x.a.o.Waker.ReportFailure(x.fn.Name, x.queued.ReplicaID(), errorBeforeToken)
	}
	x.leave()
	x.refuse(refusal)
	return true
}

// acceptReply takes an answer that goes to the client.
func (x *proxyRequest) acceptReply(r answer.Answer, now time.Time) {
	x.reply = r
	x.phase = answered
	x.first = max(1, now.Sub(x.sentAt))
	x.recordFirstByte(now, r.Response.Status < 400 && !r.Events)
	if answer.IsSuccess(r.Response.Status) && x.remote == nil {
		x.noteUsageOption()
	}
	if !r.End {
		r.Response.Bound(x.idleBound())
	}
}

// recordFirstToken accounts for the first token of a stream.
func (x *proxyRequest) recordFirstToken() {
	x.firstToken = max(1, x.a.o.Now().Sub(x.began))
	i, _ := coldLabel(x.queued.Cold)
	x.a.metricsOf(x.fn).firstToken[i](x.firstToken.Seconds())
}

// recordFirstByte accounts for the engine's first byte; plain is a good answer that is
// no stream of tokens.
func (x *proxyRequest) recordFirstByte(now time.Time, plain bool) {
	if plain {
		i, _ := coldLabel(x.queued.Cold)
		x.a.metricsOf(x.fn).plainAnswer[i](now.Sub(x.began).Seconds())
	}
	if !x.queued.Cold || x.queued.ColdStart == "" {
		return
	}
	if !x.a.requests.rememberFirstToken(x.queued.ColdStart, x.first) {
		return
	}
	x.a.observeFirstToken(x.fn, x.first)
	if x.a.o.FirstToken != nil {
		x.a.o.FirstToken(x.fn.Name, x.queued.ColdStart, x.first)
	}
}

// stopEngine ends the request at the engine: cancelling closes its connection, which
// ends the generation, and the goroutine that asks is waited for.
func (x *proxyRequest) stopEngine() {
	if x.answers != nil {
		x.cancel(errRequestOver)
		if r := <-x.answers; r.Response != nil {
			r.Response.Close()
		}
		x.answers = nil
	}
	if x.reply.Response != nil {
		x.reply.Response.Close() // closes the connection unless it was read to its end
		x.reply.Response = nil
	}
	if x.cancel != nil {
		x.cancel(errRequestOver)
		x.cancel = nil
	}
	if x.timer != nil {
		x.timer.Stop()
	}
}
