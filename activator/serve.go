package activator

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// endpoint is one path that is proxied to an engine.
type endpoint struct {
	path    string
	streams bool // "stream": true makes the answer an event stream with an end mark
	form    bool // multipart/form-data
	usage   bool // supports stream_options.include_usage
	noop    func(b []byte, model string, created time.Time) []byte
}

// findEndpoint looks a path up in the allow-list. All others are refused: engines have
// many more paths, and some of them end the engine.
func findEndpoint(path string) *endpoint {
	switch path {
	case "/v1/chat/completions":
		return &chatEndpoint
	case "/v1/completions":
		return &completionsEndpoint
	case "/v1/responses":
		return &responsesEndpoint
	case "/v1/messages":
		return &messagesEndpoint
	}
	for i := range plainEndpoints {
		if plainEndpoints[i].path == path {
			return &plainEndpoints[i]
		}
	}
	return nil
}

var (
	chatEndpoint        = endpoint{path: "/v1/chat/completions", streams: true, usage: true, noop: openai.NoopChat}
	completionsEndpoint = endpoint{path: "/v1/completions", streams: true, usage: true, noop: openai.NoopCompletion}
	responsesEndpoint   = endpoint{path: "/v1/responses", streams: true} // events are numbered: comments only
	messagesEndpoint    = endpoint{path: "/v1/messages", streams: true}
	plainEndpoints      = [...]endpoint{
		{path: "/v1/embeddings"},
		{path: "/v1/messages/count_tokens"},
		{path: "/v1/rerank"}, {path: "/v2/rerank"}, {path: "/rerank"},
		{path: "/v1/score"},
		{path: "/tokenize"}, {path: "/detokenize"},
		{path: "/v1/audio/speech"},
		{path: "/v1/audio/transcriptions", form: true},
		{path: "/v1/audio/translations", form: true},
	}
)

const modelsPath = "/v1/models"

// ServesPath reports whether a path is the activator's: all of /v1, and the other
// paths of the allow-list.
func ServesPath(path string) bool {
	return strings.HasPrefix(path, "/v1/") || path == "/v1" || findEndpoint(path) != nil
}

// Serve answers one request. It is a [httpserver.Handler].
func (a *Activator) Serve(req *httpserver.Request, res *httpserver.Response) {
	a.serve(req, res, nil)
}

// ServeAs answers a request for a function that is known by other means, such as the
// host. The model in the body is ignored, but for an adapter. The caller has checked
// that the client may use the function. Only the paths of the allow-list are served.
func (a *Activator) ServeAs(name functions.Name, req *httpserver.Request, res *httpserver.Response) {
	a.serve(req, res, &name)
}

// Authorize checks the head of a request: path, method and key. It returns the
// key's id, or answers the request itself. It is [httpserver.Options].Authorize.
func (a *Activator) Authorize(req *httpserver.Request, res *httpserver.Response) (key string, ok bool) {
	if isModelsPath(req.Path) {
		a.serveModels(req, res, a.o.Now()) // needs no body
		return "", false
	}
	x := a.newRequest(req, nil)
	id, e := x.checkHead()
	if e != nil {
		x.refuseNow(res, e)
		return "", false
	}
	return id.KeyID, true
}

func isModelsPath(path string) bool {
	return path == modelsPath || strings.HasPrefix(path, modelsPath+"/")
}

func (a *Activator) newRequest(req *httpserver.Request, forced *functions.Name) *proxyRequest {
	x := &proxyRequest{a: a, req: req, caller: call.Of(req), id: openai.NewID(), began: a.o.Now(), endpoint: findEndpoint(req.Path), forced: forced}
	if id := req.Header("X-Client-Request-Id"); openai.ValidID(id) {
		x.clientID = id
	} else if id := req.Header("X-Request-Id"); openai.ValidID(id) {
		x.clientID = id
	}
	return x
}

func (a *Activator) serve(req *httpserver.Request, res *httpserver.Response, forced *functions.Name) {
	if isModelsPath(req.Path) {
		a.serveModels(req, res, a.o.Now())
		return
	}
	x := a.newRequest(req, forced)
	defer func() {
		if v := recover(); v != nil { // the server answers it; what the request holds must be released
			x.reason = string(openai.InternalError)
			x.finish(500)
			x.endRun(nil)
			panic(v)
		}
	}()
	id, e := x.open()
	if e == nil && x.composition == nil {
		if e = x.checkSuspect(); e == nil && !x.cached.Hit() && x.joinRun(id.KeyID, res) {
			return
		}
	}
	if e == nil {
		e = x.admitTeam(x.team)
	}
	switch {
	case e != nil:
		x.refuseNow(res, e)
	case x.composition != nil:
		x.compose(id, res)
	case x.cached.Hit():
		x.setCommonFields(res)
		x.cached.Replay(res, x.id)
		x.finish(200)
	default:
		x.run(res)
		x.cached.Record(res)
	}
	x.endRun(res)
}

// checkHead checks the endpoint, the method and the key.
func (p *proxyRequest) checkHead() (auth.Identity, *openai.Error) {
	if p.endpoint == nil {
		return auth.Identity{}, openai.UnknownPath("this server does not answer", p.req.Path)
	}
	if p.req.Method != "POST" {
		e := openai.New(openai.MethodNotAllowed, "Use POST here.")
		e.Allow = "POST"
		return auth.Identity{}, e
	}
	return p.a.identify(p.req)
}

// open checks the head and the body, finds the function and returns the caller.
func (p *proxyRequest) open() (auth.Identity, *openai.Error) {
	a, req := p.a, p.req
	id, e := p.checkHead()
	if e != nil {
		return id, e
	}
	p.team, p.keyID = id.Team, id.KeyID
	forced := p.forced != nil
	var err error
	switch {
	case p.endpoint.form && forced:
		p.env, err = openai.PeekMultipartUnnamed(req.Header("Content-Type"), req.Body)
	case p.endpoint.form:
		p.env, err = openai.PeekMultipart(req.Header("Content-Type"), req.Body)
	case forced:
		p.env, err = openai.PeekUnnamed(req.Body)
	default:
		p.env, err = openai.Peek(req.Body)
	}
	if err != nil {
		if e, ok := err.(*openai.Error); ok {
			return id, e
		}
		return id, openai.New(openai.InvalidJSON, err.Error())
	}
	p.stream = p.env.Stream && p.endpoint.streams
	if p.stream && req.Host == "" && req.IsHTTP10() {
		return id, openai.New(openai.InvalidRequest, "A stream needs HTTP/1.1, with Host: over HTTP/1.0 its break cannot be told from its end.")
	}
	asked, name := p.env.Model, functions.Name{}
	if forced {
		name = *p.forced
		asked = a.publicName(name).Short()
		if _, adapter, ok := strings.Cut(p.env.Model, ":"); ok && functions.IsLabel(adapter) {
			name.Adapter = adapter
		}
	} else if name, err = functions.ParseName(asked, id.Team); err != nil {
		return id, a.unknownModel(asked, functions.Name{Name: name.Name}, id)
	}
	if !canSee(id, name.Team) {
		return id, a.unknownModel(asked, functions.Name{Name: name.Name}, id)
	}
	if !forced {
		if c := a.findComposition(name); c != nil {
			return id, p.openComposition(c)
		}
		if r := a.findRouter(asked, name); r != nil {
			return id, p.chooseTarget(r, id)
		}
	}
	if p.data, e = a.routers.Load().Class(nil, id.Team, req.Header("thaw-data")); e != nil {
		return id, e
	}
	en, alias := a.lookup(name.WithoutAdapter())
	if en == nil {
		if alias {
			return id, unpublishedError(name)
		}
		return id, a.unknownModel(asked, name, id)
	}
	if forced && !en.Snapshot().DeclaresAdapter(name.Adapter) {
		name.Adapter = "" // the colon belongs to a name that is ignored
	}
	if !p.use(en, name) {
		return id, a.unknownModel(asked, name, id)
	}
	if e = p.checkData(); e == nil {
		e = p.lookUp(nil)
	}
	return id, e
}

func (p *proxyRequest) limitError(r *ratelimit.Refusal) *openai.Error {
	p.a.countLimited(p.team, r.Limit)
	return openai.New(openai.RateLimitExceeded, r.Message).After(max(time.Second, r.RetryAfter))
}

// identify returns the identity of the caller. A key that is sent must be right,
// except before the first key exists: clients insist on sending a dummy.
func (a *Activator) identify(req *httpserver.Request) (auth.Identity, *openai.Error) {
	if c := call.Of(req); c != nil {
		return c.Identity, nil
	}
	return a.Caller(req.Header)
}

// Caller is the identity of a client; header returns the value of a field that it sent. The
// error is the answer to an unknown one.
func (a *Activator) Caller(header func(name string) string) (auth.Identity, *openai.Error) {
	secret := auth.Secret(header)
	if secret != "" {
		if id, ok := a.o.Keys.Lookup(secret); ok {
			return id, nil
		}
	}
	if a.o.Open && !a.o.Keys.Required() {
		// A machine of one user, who may do everything.
		return auth.Identity{Team: functions.DefaultTeam, Admin: true}, nil
	}
	if secret == "" {
		return auth.Identity{}, openai.New(openai.InvalidAPIKey, "Incorrect API key provided: none was sent. Send it as Authorization: Bearer KEY.")
	}
	return auth.Identity{}, openai.New(openai.InvalidAPIKey, "Incorrect API key provided.")
}

func (a *Activator) serveModels(req *httpserver.Request, res *httpserver.Response, began time.Time) {
	x := proxyRequest{a: a, req: req, id: openai.NewID(), began: began, route: modelsPath}
	e := func() *openai.Error {
		if req.Method != "GET" && req.Method != "HEAD" {
			e := openai.New(openai.MethodNotAllowed, "Use GET here.")
			e.Allow = "GET, HEAD"
			return e
		}
		id, e := a.identify(req)
		if e != nil {
			return e
		}
		x.team = id.Team
		one := strings.TrimPrefix(strings.TrimPrefix(req.Path, modelsPath), "/")
		if strings.Contains(one, "%") {
			one = unescapeModelName(one)
		}
		return a.listModels(id, one, res)
	}()
	if e != nil {
		x.refuseNow(res, e)
		return
	}
	res.Set("x-request-id", x.id)
	x.finish(200)
}

// unescapeModelName undoes the escapes that clients put into a model's name: the slash
// and the colon. A name with others does not exist.
func unescapeModelName(s string) string {
	return strings.NewReplacer("%2F", "/", "%2f", "/", "%3A", ":", "%3a", ":").Replace(s)
}

// refuseNow answers with an error and ends the request.
func (p *proxyRequest) refuseNow(res *httpserver.Response, e *openai.Error) {
	res.Status = e.Status
	p.setCommonFields(res)
	writeError(res, e.For(p.req.Path))
	p.finish(e.Status)
}

func writeError(res *httpserver.Response, e *openai.Error) {
	e.Header(func(name, value string) bool { res.Set(name, value); return true })
	res.Body = e.Body()
}

// setCommonFields sets the fields every answer carries.
func (p *proxyRequest) setCommonFields(res *httpserver.Response) {
	if cap(res.Fields) == 0 {
		res.Fields = make([]httpserver.Field, 0, 12)
	}
	res.Set("x-request-id", p.id)
	if p.clientID != "" {
		res.Set("thaw-client-request-id", p.clientID)
	}
	now := p.a.o.Now()
	res.Set("openai-processing-ms", strconv.FormatInt(now.Sub(p.began).Milliseconds(), 10))
	if p.team != "" {
		p.a.o.Limits.Usage(p.team, now).SetFields(res)
	}
	if p.queued.Cold {
		if p.resolveColdStart(); p.queued.ColdStart != "" {
			res.Set("thaw-cold-start", p.queued.ColdStart)
		}
	}
	if p.fn != nil {
		res.Set("Server-Timing", p.serverTiming(now))
	}
	if p.routing != nil {
		res.Set("thaw-route", p.routing.header)
	}
	p.cached.SetField(res)
}

// serverTiming is the Server-Timing of the phases known so far.
func (p *proxyRequest) serverTiming(now time.Time) string {
	b := make([]byte, 0, 96)
	add := func(name string, d time.Duration) {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = append(append(b, name...), ";dur="...)
		b = strconv.AppendFloat(b, float64(d.Microseconds())/1000, 'f', 1, 64)
	}
	var few [8]openai.Span
	for _, s := range p.phases(few[:0]) {
		add(s.Phase, s.Took)
	}
	add("total", now.Sub(p.began))
	return string(b)
}

// phases appends the known phases of the request's cold start, or its own wait.
func (p *proxyRequest) phases(spans []openai.Span) []openai.Span {
	if p.waited > 0 || !p.queued.Cold {
		spans = append(spans, openai.Span{Phase: string(functions.PhaseQueue), Took: p.waited})
	}
	if p.queued.Cold {
		if t := p.fn.Snapshot().ColdStart; t != nil && t.ID == p.queued.ColdStart {
			for _, phase := range t.Phases {
				if phase.Phase != functions.PhaseQueue && phase.Phase != functions.PhaseFirstToken {
					spans = append(spans, openai.Span{Phase: string(phase.Phase), Took: time.Duration(phase.Duration * float64(time.Second))})
				}
			}
		}
	}
	if p.first > 0 {
		spans = append(spans, openai.Span{Phase: string(functions.PhaseFirstToken), Took: p.first})
	}
	return spans
}

// finish releases what the request holds and accounts for it. It is the one end of
// every request; a second call does nothing. code is the status, or that of the error
// a stream broke with, or 499 for a client that left.
func (p *proxyRequest) finish(code int) {
	if p.finished {
		return
	}
	p.finished = true
	a := p.a
	p.stopEngine()
	p.leave()
	now := a.o.Now()
	took := now.Sub(p.began)
	if p.suspected && p.first > 0 && code < 499 {
		a.suspects.Acquit(p.fingerprint())
	}
	charge := p.remote.End(p.usage, code, now)
	p.cached.End(code, p.usage)
	p.estimateUsage()
	used := p.usage
	if charge.Estimated {
		used, p.usage.Known = charge.Usage, false // also where the remote's claim cannot be true
	}
	p.lease.End(int(used.Prompt+used.Completion), now)
	p.countEnd(code, now, took)
	if p.routing != nil {
		a.decisions.Finish(p.id, code)
	}
	ctx := context.Background() // the line is written even if the request was cancelled
	if !a.o.Log.Enabled(ctx, slog.LevelInfo) || !a.refusals.LogsEnd(p.team, code, now, a.o.Log) {
		return
	}
	attrs := make([]slog.Attr, 0, 12)
	attrs = append(attrs, slog.String("id", p.id), slog.Int("code", code))
	if p.fn != nil {
		attrs = append(attrs, slog.String("route", p.endpoint.path), slog.String("model", a.metricsOf(p.fn).full), slog.String("team", p.team), slog.Bool("stream", p.stream))
		if p.fn.Snapshot().ServedModelName != "" {
			attrs = append(attrs, slog.String("revision", p.fn.Name.Name))
		}
	} else if p.composition == nil {
		attrs = append(attrs, slog.String("route", p.route))
	}
	if p.composition != nil {
		attrs = append(attrs, slog.String("route", p.endpoint.path), slog.String("model", p.composition.FullName().String()), slog.String("team", p.team), slog.Bool("stream", p.stream))
		attrs = p.composed.Attrs(attrs)
	}
	if p.routing != nil {
		attrs = p.routeFields(attrs)
	}
	attrs = p.cached.Attrs(attrs)
	if p.caller.Covered() {
		attrs = append(attrs, slog.String("parent", p.caller.Parent))
	}
	if p.reason != "" {
		attrs = append(attrs, slog.String("error", p.reason))
	}
	if p.shared != nil && !p.leads() {
		attrs = append(attrs, slog.String("joined", p.shared.ID))
	}
	if p.waited > 0 {
		attrs = append(attrs, slog.Duration("waited", p.waited))
	}
	if p.queued.Cold {
		attrs = append(attrs, slog.String("cold_start", p.queued.ColdStart))
	}
	if p.first > 0 {
		attrs = append(attrs, slog.Duration("first_token", p.first))
	}
	attrs = append(attrs, slog.Duration("took", took))
	attrs = p.usageAttrs(attrs)
	attrs = charge.Attrs(attrs)
	line := slog.NewRecord(now, slog.LevelInfo, "request", 0) // without the source position, which is always this
	line.AddAttrs(attrs...)
	a.o.Log.Handler().Handle(ctx, line)
}

// countEnd counts the request, which ended with code after the time that it took.
func (p *proxyRequest) countEnd(code int, now time.Time, took time.Duration) {
	a := p.a
	if p.composition != nil {
		p.countComposition(code, took)
	} else if p.fn == nil {
		if p.endpoint != nil {
			p.route = p.endpoint.path
		} else if p.route == "" {
			p.route = otherLabel
		}
		team := p.team
		if team == "" {
			team = otherLabel
		}
		a.countRefused(team, p.route, code)
	} else {
		if code == 200 && !p.sentAt.IsZero() {
			p.fn.Data.pace.Observe(p.stream, p.first, now.Sub(p.sentAt), p.usage.Completion)
		}
		s := a.metricsOf(p.fn)
		s.countEnd(p.endpoint.path, code, p.queued.Cold, took)
		if p.usage.Known {
			s.prompt(float64(p.usage.Prompt))
			s.completion(float64(p.usage.Completion))
			s.observeTokenTime(p, took)
		}
	}
}

// affinityKey hashes what the choice of replica depends on: the session where the client
// names one, else the beginning of the prompt.
func (p *proxyRequest) affinityKey() uint64 {
	if s := p.header("thaw-session"); s != "" && len(s) <= 256 {
		return admission.AffinityKey([]byte(s))
	}
	if p.reservation != nil {
		return 0
	}
	if p.env.User != "" {
		return admission.AffinityKey([]byte(p.env.User))
	}
	// The adapter needs no part in the key: it limits the choice already.
	return admission.AffinityKey(admission.Opening(p.req.Body))
}
