package activator

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/thaw-dev/thaw/activator/remote"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions/openai"
)

// reply is the first part of an engine's answer.
type reply struct {
	res   *upstream.Response
	begin []byte // first bytes of body; the whole body where end is set
	end   bool
	err   error
}

// errRequestOver cancels a request at an engine whose answer is not needed any more.
var errRequestOver = errors.New("the request is over")

// Bounds of what is read of an answer before its head goes out.
const (
	firstReadSize  = 8 << 10
	maxWholeAnswer = 1 << 20
	maxErrorBody   = 64 << 10
)

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
	out.Body = x.env.Splice(make([][]byte, 0, 4), x.req.Body, name, x.stripsUsage())
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
	var engines sender = x.a.o.Engines
	if x.remote != nil {
		engines = x.remote
	}
	if !async {
		x.onReply(sendToEngine(ctx, engines, out, x.stream, nil, fetch), false)
		return
	}
	ctx, x.cancel = context.WithCancelCause(ctx)
	answers := make(chan reply, 1)
	x.answers = answers
	stream, bufs := x.stream, &x.a.buffers
	go func() { answers <- sendToEngine(ctx, engines, out, stream, bufs, fetch) }() // ends with the request: stopEngine cancels and waits
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

// sender sends requests: to engines, or to a Remote.
type sender interface {
	Do(context.Context, *upstream.Request) (*upstream.Response, error)
}

// sendToEngine sends the request and reads up to the engine's first byte of body, or all
// of a plain answer that is not large. fetch, if not nil, comes before.
func sendToEngine(ctx context.Context, engines sender, out *upstream.Request, stream bool, bufs *buffers, fetch func(context.Context) error) reply {
	if fetch != nil {
		if err := fetch(ctx); err != nil {
			return reply{err: &adapterLoadError{err}}
		}
	}
	res, err := engines.Do(ctx, out)
	if err != nil {
		return reply{err: err}
	}
	if stream && res.Status == 200 && isEvents(res) {
		_, comments := engines.(*remote.Call) // they go out: another thaw may load the model
		buf := bufs.get()
		n, err := res.Read(buf)
		for err == nil && n < len(buf) && !openai.HasData(buf[:n]) && !(comments && n > 0 && buf[0] == ':' && buf[n-1] == '\n') { // only comments so far
			var m int
			m, err = res.Read(buf[n:])
			n += m
		}
		if n == 0 && err != nil {
			bufs.put(buf)
			res.Close()
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return reply{err: err}
		}
		return reply{res: res, begin: buf[:n], end: err == io.EOF}
	}
	size := 4 << 10
	if res.Length > 0 && res.Length < maxWholeAnswer {
		size = int(res.Length) + 1
	}
	buf := make([]byte, 0, size)
	for {
		if len(buf) == cap(buf) {
			if len(buf) >= maxWholeAnswer {
				return reply{res: res, begin: buf}
			}
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := res.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case err == io.EOF:
			return reply{res: res, begin: buf, end: true}
		case err != nil:
			res.Close()
			return reply{err: err, begin: buf}
		case res.Length < 0 && !isJSON(res): // audio is passed on as it arrives
			return reply{res: res, begin: buf}
		}
	}
}

// buffers is the pool of read buffers of streams.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() []byte {
	if p, ok := b.pool.Get().(*[firstReadSize]byte); ok {
		return p[:]
	}
	return make([]byte, firstReadSize)
}

func (b *buffers) put(p []byte) {
	if cap(p) == firstReadSize { // a buffer that has grown is not reused
		b.pool.Put((*[firstReadSize]byte)(p[:firstReadSize]))
	}
}

func isEvents(r *upstream.Response) bool {
	return strings.HasPrefix(r.Header("content-type"), "text/event-stream")
}

func isJSON(r *upstream.Response) bool {
	return strings.HasPrefix(r.Header("content-type"), "application/json")
}

// onReply handles the engine's first bytes, or their absence.
func (x *proxyRequest) onReply(r reply, async bool) {
	now := x.a.o.Now()
	if x.remote != nil && !(errors.Is(r.err, upstream.ErrCancelled) && context.Cause(x.context()) != nil) {
		x.onRemoteReply(r, now)
		return
	}
	if r.res != nil && r.res.Unsolicited > 0 {
		x.reportUnsolicited(r.res)
	}
	if x.sentEarly {
		x.sentEarly = false
		f := x.fn.Snapshot()
		if i := f.ReplicaIndex(x.queued.ReplicaID()); i >= 0 && refusedByNode(&r) && context.Cause(x.context()) == nil {
			// The shim refused the early copy, so no engine has seen it; the replica is READY now.
			if r.res != nil {
				r.res.Close()
			}
			x.stopEngine()
			x.sendToEngine(f, &f.Replicas[i], async)
			return
		}
	}
	if r.err == nil && r.res.Status >= 400 && r.end {
		if err := upstream.NodeError(r.res.Status, r.begin); err != nil {
			r.res.Close()
			r = reply{err: err}
		}
	}
	if r.err == nil && x.queued.Adapter != "" && r.res.Status == 404 && r.end && !x.adapterRetried && x.a.o.Adapters != nil {
		// The engine has evicted the adapter: the platform loads it again, once.
		f := x.fn.Snapshot()
		if i := f.ReplicaIndex(x.queued.ReplicaID()); i >= 0 {
			x.stopEngine()
			r.res.Close()
			x.adapterRetried = true
			x.sendToEngine(f, &f.Replicas[i], async)
			return
		}
	}
	if r.err == nil {
		refusal, failure := engineFailure(&r, x.stream)
		switch {
		case failure != nil:
			r.res.Close()
			r = reply{err: failure}
		case refusal != nil:
			r.res.Close()
			x.stopEngine()
			x.leave()
			x.refuse(refusal)
			return
		}
	}
	if r.err == nil {
		x.acceptReply(r, now)
		return
	}
	var unfetched *adapterLoadError
	if (errors.Is(r.err, upstream.ErrCancelled) || errors.As(r.err, &unfetched)) && context.Cause(x.context()) != nil {
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
		e = x.reportFailure(r.err, now)
	}
	x.retry(e, len(r.begin) > 0, now, async)
}

// acceptReply takes an answer that goes to the client.
func (x *proxyRequest) acceptReply(r reply, now time.Time) {
	x.reply = r
	x.phase = answered
	x.first = max(1, now.Sub(x.sentAt))
	x.recordFirstByte(now, r.res.Status < 400 && !(x.stream && isEvents(r.res)))
	if !r.end {
		r.res.Bound(x.idleBound())
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
		if r := <-x.answers; r.res != nil {
			r.res.Close()
		}
		x.answers = nil
	}
	if x.reply.res != nil {
		x.reply.res.Close() // closes the connection unless it was read to its end
		x.reply.res = nil
	}
	if x.cancel != nil {
		x.cancel(errRequestOver)
		x.cancel = nil
	}
	if x.timer != nil {
		x.timer.Stop()
	}
}
