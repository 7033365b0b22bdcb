package gateway

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/upstream"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/backoff"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/functions/openai/unknownpath"
)

type proxiedRequest struct {
	g           *Gateway
	proxy       httputil.ReverseProxy
	w           *writer
	rule        *rule
	split       *split
	reservation *activator.Reservation
	body        *body  // of a reserved request; nil: none
	address     string // host:port
	prefix      string // path prefix at the address
	err         error  // why there is no response, or the connection could not become a WebSocket
}

func (g *Gateway) newProxiedRequest(w *writer, to *rule, by *split) *proxiedRequest {
	p, ok := g.pool.Get().(*proxiedRequest)
	if !ok {
		p = &proxiedRequest{g: g}
		p.proxy = httputil.ReverseProxy{
			Rewrite:        p.rewrite,
			ModifyResponse: p.onResponseHead,
			ErrorHandler:   func(_ http.ResponseWriter, _ *http.Request, err error) { p.err = err },
			BufferPool:     &g.buffers,
			ErrorLog:       g.quiet,
		}
	}
	p.w, p.rule, p.split = w, to, by
	return p
}

func (p *proxiedRequest) release() {
	proxy := p.proxy
	proxy.Transport = nil
	*p = proxiedRequest{g: p.g, proxy: proxy}
	p.g.pool.Put(p)
}

const bufferSize = 16 << 10

// bufferPool holds the copy buffers of the proxies. It is an httputil.BufferPool.
type bufferPool struct{ pool sync.Pool }

func (p *bufferPool) Get() []byte {
	if b, ok := p.pool.Get().(*[bufferSize]byte); ok {
		return b[:]
	}
	return make([]byte, bufferSize)
}

func (p *bufferPool) Put(b []byte) {
	if len(b) == bufferSize {
		p.pool.Put((*[bufferSize]byte)(b))
	}
}

func (p *proxiedRequest) setTarget(endpoint string, h2c bool) {
	if rest, ok := strings.CutPrefix(endpoint, "h2c://"); ok {
		endpoint, h2c = rest, true
	}
	p.address, p.prefix = upstream.SplitEndpoint(endpoint)
	if p.proxy.Transport = p.g.h1; h2c {
		p.proxy.Transport = p.g.h2
	}
}

func (p *proxiedRequest) rewrite(pr *httputil.ProxyRequest) {
	in, out := pr.In, pr.Out
	out.URL.Scheme, out.URL.Host = "http", p.address
	out.URL.RawQuery = in.URL.RawQuery // unchanged
	if p.prefix != "" {
		out.URL.Path, out.URL.RawPath = p.prefix+in.URL.Path, p.prefix+in.URL.EscapedPath()
	}
	out.Trailer = in.Trailer // filled at the end of the body
	h := out.Header
	client, _, err := net.SplitHostPort(in.RemoteAddr)
	if prior := in.Header["X-Forwarded-For"]; err == nil {
		if len(prior) > 0 {
			client = strings.Join(prior, ", ") + ", " + client
		}
		h["X-Forwarded-For"] = []string{client}
	}
	if proto := in.Header["X-Forwarded-Proto"]; len(proto) > 0 { // from a load balancer that terminated TLS
		h["X-Forwarded-Proto"] = proto
	} else {
		h["X-Forwarded-Proto"] = []string{"http"}
	}
	if host := in.Header["X-Forwarded-Host"]; len(host) > 0 {
		h["X-Forwarded-Host"] = host
	} else {
		h["X-Forwarded-Host"] = []string{in.Host}
	}
	if f := in.Header["Forwarded"]; len(f) > 0 {
		h["Forwarded"] = f
	}
	if p.rule != nil && p.rule.Rewrite != "" {
		out.Host = p.rule.Rewrite
	}
	if s := p.reservation; s != nil {
		// A connection that the replica closed while idle got no request: the transport retries
		// on another one, but only requests that it holds for idempotent. This field marks them
		// so; it is empty, and not sent.
		h["X-Idempotency-Key"] = append(make([]string, 0, 1), h["X-Idempotency-Key"]...)
		if p.body != nil {
			out.GetBody = p.body.getBody
		}
		if len(h["X-Request-Id"]) == 0 {
			h["X-Request-Id"] = []string{s.ID}
		}
		switch {
		case s.External: // the program checks its own credentials
		case s.Key != "":
			h["Authorization"] = []string{"Bearer " + s.Key}
		default:
			delete(h, "Authorization") // that key is for the gateway, not for an engine
		}
		if !s.External {
			delete(h, "X-Api-Key")
			delete(h, "Api-Key")
		}
	}
	if p.split == nil {
		return
	}
	for _, f := range p.split.set {
		if f.name == "Host" {
			out.Host = f.value
			continue
		}
		h[f.name] = []string{f.value}
	}
}

// onResponseHead runs when the head of the response has arrived.
func (p *proxiedRequest) onResponseHead(res *http.Response) error {
	if p.reservation != nil {
		p.reservation.FirstByte()
		if id := p.reservation.ColdStart(); id != "" {
			res.Header.Set("Thaw-Cold-Start", id)
		}
	}
	return nil
}

// send sends the request once. It returns nil if the client got a response, even in part;
// it panics if the response broke off.
func (p *proxiedRequest) send(r *http.Request) error {
	p.err = nil
	p.proxy.ServeHTTP(p.w, r)
	return p.err
}

func (g *Gateway) proxyService(w *writer, r *http.Request, to *rule, by *split) {
	p := g.newProxiedRequest(w, to, by)
	defer p.release()
	p.setTarget(by.Address, by.H2C)
	g.sendOnce(w, r, p, firstRefusedPause)
}

// A service whose pods have just started or ended refuses connections until kube-proxy has
// updated the node's rules, which takes tenths of a second to over a second. A refused
// request has sent nothing yet and is retried after firstRefusedPause, doubled up to
// lastRefusedPause: 5 s in all, as long as a dial without any answer may take.
const (
	firstRefusedPause = 20 * time.Millisecond
	lastRefusedPause  = 2560 * time.Millisecond
)

// sendOnce sends a request. It retries, after pause (0: never), only if the connection was
// refused before any byte was sent.
func (g *Gateway) sendOnce(w *writer, r *http.Request, p *proxiedRequest, pause time.Duration) {
	b := g.bodyOf(w, r)
	if b != nil {
		if b.once = r.ContentLength < 0 || r.ContentLength > oneWrite; !b.once && !g.readSmallBody(w, r, b) {
			return
		}
	}
	for ; ; pause *= 2 {
		if b != nil {
			r.Body, _ = b.send() // an unread body can always be sent
		}
		err := p.send(r)
		if err == nil {
			return
		}
		again := pause > 0 && pause <= lastRefusedPause && errors.Is(err, syscall.ECONNREFUSED) && !w.hijacked && w.status == 0
		if b != nil && !b.unread() {
			again = false
		}
		if !again {
			g.writeFailure(w, r, p, b, err)
			return
		}
		backoff.Sleep(r.Context(), pause)
	}
}

// oneWrite is the largest body in bytes that is read completely before it is sent once, so
// that head and body go out in one write.
const oneWrite = 8 << 10

// readSmallBody reads a small body completely; false if an error response was sent.
func (g *Gateway) readSmallBody(w *writer, r *http.Request, b *body) bool {
	switch err := b.readWhole(r.ContentLength); {
	case err == nil:
		return true
	case b.timedOut.Load():
		writeError(w, openai.New(openai.RequestTimeout, ""))
		return false
	}
	panic(http.ErrAbortHandler) // the client has disconnected
}

func (g *Gateway) proxyLeader(w *writer, r *http.Request) {
	addr := g.o.Leader()
	if addr == "" {
		writeError(w, openai.New(openai.ServiceUnavailable, "No controller leads at present; models serve on meanwhile."))
		return
	}
	cleanHead(r, false)
	p := g.newProxiedRequest(w, nil, nil)
	defer p.release()
	p.setTarget(addr, false)
	p.proxy.Transport = g.leader
	g.sendOnce(w, r, p, 0)
}

// writeFailure responds to a request that got no response from its backend.
func (g *Gateway) writeFailure(w *writer, r *http.Request, p *proxiedRequest, b *body, err error) {
	if w.hijacked || w.status != 0 {
		return
	}
	var large *http.MaxBytesError
	var op *net.OpError
	switch {
	case b != nil && b.timedOut.Load():
		writeError(w, openai.New(openai.RequestTimeout, ""))
		return
	case context.Cause(r.Context()) != nil:
		w.status = 0
		panic(http.ErrAbortHandler) // the client has disconnected
	case errors.As(err, &large):
		writeError(w, openai.New(openai.RequestTooLarge, ""))
		return
	case errors.As(err, &op) && op.Op == "dial":
		g.o.Log.Warn("cannot be reached", "host", r.Host, "address", p.address, "error", err)
		writeError(w, openai.New(openai.ServiceUnavailable, "The service behind "+functions.Clip(hostname(r.Host))+" cannot be reached now."))
		return
	}
	g.o.Log.Warn("no answer", "host", r.Host, "address", p.address, "error", err)
	writeError(w, openai.New(openai.EngineCrashed, "The service behind "+functions.Clip(hostname(r.Host))+" broke off before it answered."))
}

// keepBody is how many bytes of a body are kept for a second sending. A body of no greater
// declared length is read completely first, so that a client's disconnect is noticed.
const keepBody = 64 << 10

// serveFunction serves a request that was routed by host to one of our functions.
func (g *Gateway) serveFunction(w *writer, r *http.Request, to *rule, by *split) {
	plain, ok := g.act.External(by.Function)
	switch {
	case !ok:
		writeError(w, openai.New(openai.ModelLoading, "What the host "+functions.Clip(hostname(r.Host))+" leads to is being set up."))
		return
	case plain:
	case activator.ServesPath(r.URL.Path) || r.URL.Path == inferPath:
		g.openAI.Serve(w, r, by.serve)
		return
	case !slices.Contains(shimPaths, r.URL.Path):
		writeError(w, unknownpath.Error("a model's host does not answer", r.URL.Path))
		return
	}
	team := by.Function.Team
	account, _, _ := net.SplitHostPort(r.RemoteAddr) // the program checks its own credentials
	if !plain {
		// The pods of our engines need a key on every path.
		id, e := g.act.Caller(r.Header.Get)
		if e == nil && id.Team != team && !id.Admin {
			e = openai.New(openai.PermissionDenied, "This key is of another team.")
		}
		if e != nil {
			writeError(w, e)
			return
		}
		team = id.Team
		account = cmp.Or(id.KeyID, account)
	}
	g.holdAndProxy(w, r, to, by, team, account)
}

// inferPath takes a chat or a completion, by its body.
const inferPath = "/infer"

// shimPaths of a model's host are passed to the shim, which answers them without the engine.
var shimPaths = []string{"/readyz", "/livez", "/timeline"}

func (g *Gateway) holdAndProxy(w *writer, r *http.Request, to *rule, by *split, team, account string) {
	b := g.bodyOf(w, r)
	if b != nil {
		b.memory.Account = account
		defer b.release()
		if !g.readSmallBody(w, r, b) {
			return
		}
	}
	ctx := r.Context()
	want := activator.ReservationRequest{Name: by.Function, Team: team, Header: r.Header.Get}
	if b != nil {
		want.Bytes = int64(cap(b.kept))
	}
	if b != nil && !b.complete() && r.ProtoMajor == 1 {
		// net/http notices a disconnect only after the whole body was read.
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		want.OnWait = func() { b.readAhead(g.o.MaxBody, func() { cancel(httpserver.ErrGone) }) }
	}
	stay, e := g.act.Reserve(ctx, want)
	if b != nil {
		b.waiting.Store(false)
	}
	if e != nil {
		g.writeRefusal(w, b, e)
		return
	}
	p := g.newProxiedRequest(w, to, by)
	p.reservation, p.body = stay, b
	code := 499
	defer func() {
		if v := recover(); v != nil {
			if context.Cause(r.Context()) == nil { // else the client has disconnected
				stay.BrokeMidAnswer()
				code = 502
			}
			stay.Finish(code)
			p.release()
			panic(v)
		}
		stay.Finish(code)
		p.release()
	}()
	code = p.sendReserved(r)
}

// sendReserved sends a reserved request to replicas until one responds or the reservation
// ends, and returns the status sent to the client.
func (p *proxiedRequest) sendReserved(r *http.Request) int {
	g, w, b, stay := p.g, p.w, p.body, p.reservation
	if b != nil {
		r.Body, _ = b.send()
	}
	for {
		p.setTarget(stay.Endpoint, false)
		err := p.send(r)
		switch {
		case err == nil:
			return w.status
		case w.hijacked || w.status != 0:
			g.o.Log.Log(r.Context(), slog.LevelDebug, "a WebSocket broke", "host", r.Host, "error", err)
			return 502
		case b != nil && b.timedOut.Load():
			writeError(w, openai.New(openai.RequestTimeout, ""))
			return http.StatusRequestTimeout
		case context.Cause(r.Context()) != nil:
			panic(http.ErrAbortHandler)
		}
		var e *openai.Error
		again := true
		if b != nil {
			r.Body, again = b.send()
		}
		if again {
			e = stay.Failed(err)
		} else {
			e = stay.FailedForGood(err)
		}
		if b != nil {
			b.waiting.Store(false)
		}
		if e != nil {
			g.writeRefusal(w, b, e)
			return e.Status
		}
	}
}

// writeRefusal responds to a request that got no replica.
func (g *Gateway) writeRefusal(w *writer, b *body, e *openai.Error) {
	switch {
	case b != nil && b.timedOut.Load():
		e = openai.New(openai.RequestTimeout, "")
	case e.Status == 499:
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	writeError(w, e)
}
