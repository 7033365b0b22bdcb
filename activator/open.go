package activator

import (
	"cmp"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/admission"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/cache"
	"github.com/thaw-dev/thaw/activator/call"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/functions/openai/unknownpath"
)

// request is what is asked, by whom, and of which function. It stays as it was opened, but for
// the next target of its Router.
type request struct {
	a      *Activator
	source source
	http   httpSource   // the source of a client's request; zero where the body is the caller's alone
	caller *call.Caller // of a request of this program; else nil
	began  time.Time

	id, clientID string
	endpoint     *openai.Endpoint
	identity     auth.Identity // of the caller, once the head was checked
	team         string
	counted      bool // in Options.KeyRequests
	lease        ratelimit.Lease
	env          openai.Envelope
	stream       bool
	data         functions.DataClass
	hashed       cache.Body // zero until something needs it

	routing     *routing               // of a request to a Router; else nil
	composition *functions.Composition // of a request for one; else nil
	fn          *entry                 // nil until the function is found
	adapter     string                 // "" for the base model
	engineName  string                 // what the engine calls the model
	answerName  string                 // the model's name in the answer; "": as the engine writes it
	cached      *cache.Use             // nil until the function is found
}

// knowsBody is false for a reservation, whose body is its caller's alone.
func (r *request) knowsBody() bool { return r.http.req != nil }

// newRequest makes the request of a client, or takes up the one that Authorize has made. Path
// and method are checked, and the key once.
func (a *Activator) newRequest(req *httpserver.Request) (p *proxyRequest, e *openai.Error) {
	p, checked := req.Opened.(*proxyRequest)
	if checked {
		p.req.began = a.o.Now()
	} else {
		p = &proxyRequest{}
		p.init(a, &p.req.http)
		p.req.caller = call.Of(req)
		if id := req.Header("X-Client-Request-Id"); openai.ValidID(id) {
			p.req.clientID = id
		} else if id := req.Header("X-Request-Id"); openai.ValidID(id) {
			p.req.clientID = id
		}
	}
	p.req.http.req, p.req.endpoint = req, cmp.Or(openai.FindEndpoint(req.Path), &otherEndpoint)
	switch {
	case p.req.endpoint == &otherEndpoint:
		e = unknownpath.Error("this server does not answer", req.Path)
	case req.Method != "POST":
		e = openai.New(openai.MethodNotAllowed, "Use POST here.")
		e.Allow = "POST"
	case !checked:
		e = p.req.identify()
	}
	return p, e
}

// identify finds out who calls.
func (r *request) identify() (e *openai.Error) {
	if c := call.Of(r.http.req); c != nil {
		r.identity = c.Identity
		return nil
	}
	r.identity, e = r.a.Caller(r.http.req.Header)
	return e
}

// open checks the body behind a checked head, and finds the function: forced, or the one that the
// body names.
func (r *request) open(forced *functions.Name) *openai.Error {
	a, req, id := r.a, r.http.req, r.identity
	r.team = id.Team
	if e := r.countForKey(); e != nil {
		return e
	}
	var err error
	switch {
	case r.endpoint.Form && forced != nil:
		r.env, err = openai.PeekMultipartUnnamed(req.Header("Content-Type"), req.Body)
	case r.endpoint.Form:
		r.env, err = openai.PeekMultipart(req.Header("Content-Type"), req.Body)
	case forced != nil:
		r.env, err = openai.PeekUnnamed(req.Body)
	default:
		r.env, err = openai.Peek(req.Body)
	}
	if err != nil {
		if e, ok := err.(*openai.Error); ok {
			return e
		}
		return openai.New(openai.InvalidJSON, err.Error())
	}
	r.stream = r.env.Stream && r.endpoint.Streams
	if r.stream && req.Host == "" && req.HTTP10 {
		return openai.New(openai.InvalidRequest, "A stream needs HTTP/1.1, with Host: over HTTP/1.0 its break cannot be told from its end.")
	}
	asked, name := r.env.Model, functions.Name{}
	if forced != nil {
		name = *forced
		asked = a.names.publicName(name).Short()
		if _, adapter, ok := strings.Cut(r.env.Model, ":"); ok && functions.IsLabel(adapter) {
			name.Adapter = adapter
		}
	} else {
		name, err = functions.ParseName(asked, id.Team)
	}
	if err != nil || !canSee(id, name.Team) {
		return a.names.unknownModel(asked, functions.Name{Name: name.Name}, id)
	}
	if forced == nil {
		if c := a.names.compositions.Find(name); c != nil {
			return r.openComposition(c)
		}
		if by := a.names.findRouter(asked, name); by != nil {
			return r.chooseTarget(by)
		}
	}
	if e := r.readClass(); e != nil {
		return e
	}
	en, alias := a.names.lookup(name.WithoutAdapter())
	if en == nil && alias {
		return unpublishedError(name)
	}
	if forced != nil && en != nil && !en.Snapshot().DeclaresAdapter(name.Adapter) {
		name.Adapter = "" // the colon belongs to a name that is ignored
	}
	if en == nil || !r.use(en, name) {
		return a.names.unknownModel(asked, name, id)
	}
	if e := r.checkData(); e != nil {
		return e
	}
	return r.lookUp(nil)
}

// countForKey counts a client's request for its key until it ends. Calls of thaw itself have
// no connection.
func (r *request) countForKey() *openai.Error {
	if r.a.o.KeyRequests == nil || r.identity.KeyID == "" || r.caller != nil {
		return nil
	}
	if r.a.o.KeyRequests.Add(r.identity.KeyID, 1) != nil {
		r.a.o.Metrics.Series("thaw_quota_rejections_total", r.team, "key")(1)
		return openai.New(openai.RateLimitExceeded,
			"This key has as many requests under way as one key may: wait for some of them, or raise --client-share.")
	}
	r.counted = true
	return nil
}

// admit reads the request's priority and counts it against its team's limits. It waits a moment
// for units that another activator holds.
func (r *request) admit() (priority admission.Priority, e *openai.Error) {
	limits := r.a.o.Limits
	if priority, e = admission.ParsePriority(r.source.header(admission.PriorityHeader), r.team, limits.MaxPriority(r.team)); e != nil {
		return priority, e
	}
	if r.caller.Covered() {
		r.lease = limits.Cover(r.team)
		return priority, nil
	}
	over := ratelimit.RetryUntilAllotment(r.source.context, func() (over *ratelimit.Refusal) {
		r.lease, over = limits.Admit(r.team, r.began)
		return over
	})
	if over != nil {
		return priority, r.a.limitError(r.team, over)
	}
	return priority, nil
}

func (a *Activator) limitError(team string, r *ratelimit.Refusal) *openai.Error {
	a.o.Metrics.Series("thaw_quota_rejections_total", team, r.Limit)(1)
	return openai.New(openai.RateLimitExceeded, r.Message).After(max(time.Second, r.RetryAfter))
}

// Caller is the identity of a client; header returns the value of a field that it sent. The
// error is the answer to an unknown one: a key that is sent must be right, except before the
// first key exists, as clients insist on sending a dummy.
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
	return auth.Identity{}, openai.New(openai.InvalidAPIKey, "Incorrect API key provided: "+auth.Mistake(header))
}

// affinity is what the choice of replica depends on: the session where the client names one,
// else the beginning of the prompt.
func (r *request) affinity() (key uint64, session bool) {
	if s := r.source.header("thaw-session"); s != "" {
		return admission.AffinityKey([]byte(s)), true
	}
	return admission.AffinityKey(r.source.affinityText(&r.env)), false
}
