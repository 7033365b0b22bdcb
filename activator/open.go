package activator

import (
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

// newRequest makes the request of a client, or takes up the one that Authorize has made. Path
// and method are checked, and the key once.
func (a *Activator) newRequest(req *httpserver.Request) (p *proxyRequest, e *openai.Error) {
	p, checked := req.Opened.(*proxyRequest)
	if !checked {
		p = &proxyRequest{a: a, caller: call.Of(req), id: openai.NewID()}
		p.source = &p.http
		if id := req.Header("X-Client-Request-Id"); openai.ValidID(id) {
			p.clientID = id
		} else if id := req.Header("X-Request-Id"); openai.ValidID(id) {
			p.clientID = id
		}
	}
	p.http.req, p.began, p.endpoint = req, a.o.Now(), openai.FindEndpoint(req.Path)
	if e = p.checkHead(); e == nil && !checked {
		p.identity, e = a.identify(req)
	}
	return p, e
}

func (p *proxyRequest) checkHead() *openai.Error {
	if p.endpoint == nil {
		return openai.UnknownPath("this server does not answer", p.http.req.Path)
	}
	if p.http.req.Method != "POST" {
		e := openai.New(openai.MethodNotAllowed, "Use POST here.")
		e.Allow = "POST"
		return e
	}
	return nil
}

// open checks the body behind a checked head, and finds the function.
func (p *proxyRequest) open() *openai.Error {
	a, req, id := p.a, p.http.req, p.identity
	p.team = id.Team
	if e := p.countForKey(); e != nil {
		return e
	}
	forced := p.forced != nil
	var err error
	switch {
	case p.endpoint.Form && forced:
		p.env, err = openai.PeekMultipartUnnamed(req.Header("Content-Type"), req.Body)
	case p.endpoint.Form:
		p.env, err = openai.PeekMultipart(req.Header("Content-Type"), req.Body)
	case forced:
		p.env, err = openai.PeekUnnamed(req.Body)
	default:
		p.env, err = openai.Peek(req.Body)
	}
	if err != nil {
		if e, ok := err.(*openai.Error); ok {
			return e
		}
		return openai.New(openai.InvalidJSON, err.Error())
	}
	p.stream = p.env.Stream && p.endpoint.Streams
	if p.stream && req.Host == "" && req.IsHTTP10() {
		return openai.New(openai.InvalidRequest, "A stream needs HTTP/1.1, with Host: over HTTP/1.0 its break cannot be told from its end.")
	}
	asked, name := p.env.Model, functions.Name{}
	if forced {
		name = *p.forced
		asked = a.publicName(name).Short()
		if _, adapter, ok := strings.Cut(p.env.Model, ":"); ok && functions.IsLabel(adapter) {
			name.Adapter = adapter
		}
	} else if name, err = functions.ParseName(asked, id.Team); err != nil {
		return a.unknownModel(asked, functions.Name{Name: name.Name}, id)
	}
	if !canSee(id, name.Team) {
		return a.unknownModel(asked, functions.Name{Name: name.Name}, id)
	}
	if !forced {
		if c := a.findComposition(name); c != nil {
			return p.openComposition(c)
		}
		if r := a.findRouter(asked, name); r != nil {
			return p.chooseTarget(r)
		}
	}
	if e := p.readClass(); e != nil {
		return e
	}
	en, alias := a.lookup(name.WithoutAdapter())
	if en == nil {
		if alias {
			return unpublishedError(name)
		}
		return a.unknownModel(asked, name, id)
	}
	if forced && !en.Snapshot().DeclaresAdapter(name.Adapter) {
		name.Adapter = "" // the colon belongs to a name that is ignored
	}
	if !p.use(en, name) {
		return a.unknownModel(asked, name, id)
	}
	if e := p.checkData(); e != nil {
		return e
	}
	return p.lookUp(nil)
}

// countForKey counts a client's request for its key until it ends. Calls of thaw itself have
// no connection.
func (p *proxyRequest) countForKey() *openai.Error {
	if p.a.o.KeyRequests == nil || p.identity.KeyID == "" || call.Of(p.http.req) != nil {
		return nil
	}
	if p.a.o.KeyRequests.Add(p.identity.KeyID, 1) != nil {
		p.a.countLimited(p.team, "key")
		return openai.New(openai.RateLimitExceeded,
			"This key has as many requests under way as one key may: wait for some of them, or raise --client-share.")
	}
	p.counted = true
	return nil
}

func (a *Activator) limitError(team string, r *ratelimit.Refusal) *openai.Error {
	a.countLimited(team, r.Limit)
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
		return auth.Identity{}, openai.New(openai.InvalidAPIKey,
			"Incorrect API key provided: none was sent. Send it as Authorization: Bearer KEY.")
	}
	return auth.Identity{}, openai.New(openai.InvalidAPIKey, "Incorrect API key provided.")
}

// setAffinity sets what the choice of replica depends on: the session where the client names
// one, else the beginning of the prompt.
func (p *proxyRequest) setAffinity() {
	text := p.source.affinityText(&p.env)
	if s := p.source.header("thaw-session"); s != "" && len(s) <= 256 {
		text, p.queued.Session = []byte(s), true
	}
	p.queued.Key = admission.AffinityKey(text)
}
