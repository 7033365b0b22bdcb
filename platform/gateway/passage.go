package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/functions/openai"
)

// passage is one request on its way through, unread, and its answer back.
type passage struct {
	g       *Gateway
	proxy   httputil.ReverseProxy
	w       *writer
	rule    *rule
	split   *split
	stay    *activator.Stay
	address string // host:port
	prefix  string // of the path at the address
	reached bool   // the head of an answer came
	err     error  // why there is no answer
}

func (g *Gateway) passage(w *writer, to *rule, by *split) *passage {
	p, ok := g.pool.Get().(*passage)
	if !ok {
		p = &passage{g: g}
		p.proxy = httputil.ReverseProxy{
			Rewrite:        p.rewrite,
			ModifyResponse: p.head,
			ErrorHandler:   p.broke,
			BufferPool:     g,
			ErrorLog:       g.quiet,
		}
	}
	p.w, p.rule, p.split = w, to, by
	return p
}

func (p *passage) free() {
	proxy := p.proxy
	proxy.Transport = nil
	*p = passage{g: p.g, proxy: proxy}
	p.g.pool.Put(p)
}

const bufferSize = 16 << 10

// Get and Put make the gateway the proxies' pool of buffers.
func (g *Gateway) Get() []byte {
	if b, ok := g.buffers.Get().(*[bufferSize]byte); ok {
		return b[:]
	}
	return make([]byte, bufferSize)
}

// Put takes a buffer back.
func (g *Gateway) Put(b []byte) {
	if len(b) == bufferSize {
		g.buffers.Put((*[bufferSize]byte)(b))
	}
}

// to says where the request goes.
func (p *passage) to(endpoint string, h2c bool) {
	if rest, ok := strings.CutPrefix(endpoint, "h2c://"); ok {
		endpoint, h2c = rest, true
	}
	endpoint = strings.TrimPrefix(endpoint, "http://")
	p.address, p.prefix = endpoint, ""
	if i := strings.IndexByte(endpoint, '/'); i >= 0 {
		p.address, p.prefix = endpoint[:i], strings.TrimSuffix(endpoint[i:], "/")
	}
	if p.proxy.Transport = p.g.h1; h2c {
		p.proxy.Transport = p.g.h2
	}
}

// rewrite makes the request that goes on.
func (p *passage) rewrite(pr *httputil.ProxyRequest) {
	in, out := pr.In, pr.Out
	out.URL.Scheme, out.URL.Host = "http", p.address
	out.URL.RawQuery = in.URL.RawQuery // as it came
	if p.prefix != "" {
		out.URL.Path, out.URL.RawPath = p.prefix+in.URL.Path, p.prefix+in.URL.EscapedPath()
	}
	out.Trailer = in.Trailer // filled when the body has ended
	h := out.Header
	client, _, err := net.SplitHostPort(in.RemoteAddr)
	if prior := in.Header["X-Forwarded-For"]; err == nil {
		if len(prior) > 0 {
			client = strings.Join(prior, ", ") + ", " + client
		}
		h["X-Forwarded-For"] = []string{client}
	}
	if proto := in.Header["X-Forwarded-Proto"]; len(proto) > 0 { // of a load balancer that has ended TLS
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
	if p.rule != nil && p.rule.rewrite != "" {
		out.Host = p.rule.rewrite
	}
	if s := p.stay; s != nil {
		if len(h["X-Request-Id"]) == 0 {
			h["X-Request-Id"] = []string{s.ID}
		}
		switch {
		case s.Plain: // whom it knows is its own affair
		case s.Token != "":
			h["Authorization"] = []string{"Bearer " + s.Token}
		case s.Key != "":
			h["Authorization"] = []string{"Bearer " + s.Key}
		default:
			delete(h, "Authorization") // that key opens us, not an engine
		}
		if !s.Plain {
			delete(h, "X-Api-Key")
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

// head sees the head of the answer.
func (p *passage) head(res *http.Response) error {
	p.reached = true
	if p.stay != nil {
		p.stay.First()
		if id := p.stay.ColdStart(); id != "" {
			res.Header.Set("Thaw-Cold-Start", id)
		}
	}
	return nil
}

// broke is told that there is no answer, or that a connection could not become a
// WebSocket.
func (p *passage) broke(_ http.ResponseWriter, _ *http.Request, err error) { p.err = err }

// send sends the request once. It returns nil when an answer has gone out, be it
// in part: then a panic says so.
func (p *passage) send(r *http.Request) error {
	p.err, p.reached = nil, false
	p.proxy.ServeHTTP(p.w, r)
	return p.err
}

// pass takes a request to a service that is none of ours.
func (g *Gateway) pass(w *writer, r *http.Request, to *rule, by *split) {
	p := g.passage(w, to, by)
	defer p.free()
	p.to(by.address, by.h2c)
	b := newBody(w, r)
	if b != nil {
		r.Body = b
	}
	if err := p.send(r); err != nil {
		g.unreached(w, r, p, err)
	}
}

// leader takes a request to the API of the controller.
func (g *Gateway) leader(w *writer, r *http.Request) {
	addr := g.o.Leader()
	if addr == "" {
		fail(w, openai.New(openai.ServiceUnavailable, "No controller leads at present; models serve on meanwhile."))
		return
	}
	clean(r, false)
	p := g.passage(w, nil, nil)
	defer p.free()
	p.to(addr, false)
	if b := newBody(w, r); b != nil {
		r.Body = b
	}
	if err := p.send(r); err != nil {
		g.unreached(w, r, p, err)
	}
}

// unreached answers where no answer came.
func (g *Gateway) unreached(w *writer, r *http.Request, p *passage, err error) {
	if w.hijacked || w.status != 0 {
		return
	}
	var large *http.MaxBytesError
	var op *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && p.bodyLate(r):
		fail(w, openai.New(openai.RequestTimeout, ""))
		return
	case context.Cause(r.Context()) != nil:
		w.status = 0
		panic(http.ErrAbortHandler) // nobody is there
	case errors.As(err, &large):
		fail(w, openai.New(openai.RequestTooLarge, ""))
		return
	case errors.As(err, &op) && op.Op == "dial":
		g.o.Log.Warn("cannot be reached", "host", r.Host, "address", p.address, "error", err)
		fail(w, openai.New(openai.ServiceUnavailable, "The service behind "+clip(hostname(r.Host))+" cannot be reached now."))
		return
	}
	g.o.Log.Warn("no answer", "host", r.Host, "address", p.address, "error", err)
	fail(w, openai.New(openai.EngineCrashed, "The service behind "+clip(hostname(r.Host))+" broke off before it answered."))
}

func (p *passage) bodyLate(r *http.Request) bool {
	b, ok := r.Body.(*body)
	return ok && b.late.Load()
}

// keepBody is up to where a body is read whole before the request goes on, so that
// it can be sent a second time and a client that leaves is noticed.
const keepBody = 64 << 10

// function takes a request that came by host to a function of ours.
func (g *Gateway) function(w *writer, r *http.Request, to *rule, by *split) {
	plain, ok := g.act.Plain(by.function)
	switch {
	case !ok:
		fail(w, openai.New(openai.ModelLoading, "What the host "+clip(hostname(r.Host))+" leads to is being set up."))
		return
	case plain:
	case activator.Serves(r.URL.Path):
		g.guest.Serve(w, r, by.serve)
		return
	}
	team := by.function.Team
	if !plain {
		// An engine is asked by those who have a key, whatever the path.
		id, e := g.act.Caller(r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"))
		if e == nil && id.Team != team && !id.Admin {
			e = openai.New(openai.PermissionDenied, "This key is of another team.")
		}
		if e != nil {
			fail(w, e)
			return
		}
		team = id.Team
	}
	g.hold(w, r, to, by, team)
}

func (g *Gateway) hold(w *writer, r *http.Request, to *rule, by *split, team string) {
	b := newBody(w, r)
	if b != nil {
		r.Body = b
		if err := b.keep(r.ContentLength); err != nil {
			if b.late.Load() {
				fail(w, openai.New(openai.RequestTimeout, ""))
				return
			}
			panic(http.ErrAbortHandler)
		}
	}
	ctx := r.Context()
	want := activator.Want{Name: by.function, Team: team, Header: r.Header.Get}
	if b != nil {
		want.Bytes = int64(len(b.kept))
	}
	stop := func() {}
	if b != nil && !b.whole && r.ProtoMajor == 1 {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		want.Wait = func() {
			stop()
			stop = watch(ctx, connOf(r.Context()), cancel)
		}
	}
	stay, e := g.act.Hold(ctx, want)
	stop()
	stop = func() {}
	if e != nil {
		g.refuse(w, e)
		return
	}
	p := g.passage(w, to, by)
	p.stay = stay
	code := 499
	defer func() {
		if v := recover(); v != nil {
			if context.Cause(r.Context()) == nil { // else the client left
				stay.Broke()
				code = 502
			}
			stay.Done(code)
			p.free()
			panic(v)
		}
		stay.Done(code)
		p.free()
	}()
	for {
		p.to(stay.Endpoint, false)
		err := p.send(r)
		switch {
		case err == nil:
			code = w.status
			return
		case w.hijacked || w.status != 0:
			code = 502
			g.o.Log.Log(r.Context(), slog.LevelDebug, "a WebSocket broke", "host", r.Host, "error", err)
			return
		case b != nil && b.late.Load():
			code = http.StatusRequestTimeout
			fail(w, openai.New(openai.RequestTimeout, ""))
			return
		case context.Cause(r.Context()) != nil:
			panic(http.ErrAbortHandler)
		}
		var e *openai.Error
		if b != nil && !b.again() {
			e = stay.GiveUp(err)
		} else {
			e = stay.Failed(err)
		}
		stop()
		stop = func() {}
		if e != nil {
			code = e.Status
			g.refuse(w, e)
			return
		}
	}
}

// refuse answers a request that was not let to a replica.
func (g *Gateway) refuse(w *writer, e *openai.Error) {
	if e.Status == 499 {
		panic(http.ErrAbortHandler) // nobody is there
	}
	fail(w, e)
}

// body is that of a request that goes on. Of a small one all is kept.
type body struct {
	in      io.ReadCloser
	control *http.ResponseController
	sized   bool // its length was said: it is to come at some pace
	until   time.Time

	kept  []byte // of a small one
	whole bool   // kept is all of it
	at    int    // how much of kept was read

	read   atomic.Bool // some of it was, and was not kept
	closed atomic.Bool // by whoever sends it; the server closes in
	late   atomic.Bool // it did not come in time
}

// bodyIdle is how long a body whose length was said may not come on.
const bodyIdle = 60 * time.Second

func newBody(w *writer, r *http.Request) *body {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil
	}
	return &body{in: r.Body, control: http.NewResponseController(w.ResponseWriter), sized: r.ContentLength > 0}
}

// keep reads a small body whole.
func (b *body) keep(length int64) error {
	if length < 0 || length > keepBody {
		return nil
	}
	b.kept = make([]byte, length+1) // one more, to find its end
	n, err := io.ReadFull(reader(b.fill), b.kept)
	b.kept = b.kept[:n]
	if !errors.Is(err, io.ErrUnexpectedEOF) || int64(n) != length {
		return io.ErrUnexpectedEOF
	}
	b.whole = true
	return nil
}

type reader func([]byte) (int, error)

func (f reader) Read(p []byte) (int, error) { return f(p) }

// fill reads from the client.
func (b *body) fill(p []byte) (int, error) {
	if b.sized {
		if now := time.Now(); b.until.Sub(now) < bodyIdle {
			b.until = now.Add(bodyIdle + bodyIdle/8)
			b.control.SetReadDeadline(b.until)
		}
	}
	n, err := b.in.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.late.Store(true)
	case b.sized:
		b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (b *body) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if b.whole {
		n := copy(p, b.kept[b.at:])
		b.at += n
		if b.at == len(b.kept) {
			return n, io.EOF
		}
		return n, nil
	}
	b.read.Store(true)
	return b.fill(p)
}

// Close ends its reading by the one who sends it.
func (b *body) Close() error {
	b.closed.Store(true)
	return nil
}

// again makes it ready to be sent once more; false where that cannot be.
func (b *body) again() bool {
	if !b.whole && b.read.Load() {
		return false
	}
	b.at = 0
	b.closed.Store(false)
	return true
}
