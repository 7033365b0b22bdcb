package api

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/browser"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
	"github.com/thaw-dev/thaw/functions/openai/unknownpath"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// State is the present state of the platform. The caller may keep its answers.
type State interface {
	// Function is the picture of one, false where the platform has none yet.
	Function(name functions.Name) (snapshot.Snapshot, bool)
	Replicas() []functions.Replica
	Nodes() []functions.Node
}

// History is what was. Lists are newest first, Events oldest first.
type History interface {
	ColdStart(id string) (functions.Timeline, bool)
	ColdStarts(limit int) []functions.Timeline
	Events(after uint64) []functions.Event
}

// Starter starts and stops functions; neither call blocks.
type Starter interface {
	// WakeFor requests a replica that stays for lease without requests, and
	// returns the id of the cold start under way.
	WakeFor(name functions.Name, lease time.Duration) string
	Stop(name functions.Name)
}

// Requests is what the data path knows of recent requests. An id is the
// request's own or the client's.
type Requests interface {
	ColdStartOf(id string) (coldStart string, ok bool)
	Position(id string) (position int, name functions.Name, ok bool)
}

// Agents makes and ends the rights of agents of other machines: *enroll.Server.
type Agents interface {
	// NewToken makes a join token for an agent, or with "" for any; 0 is the usual expiry.
	NewToken(agent string, expiry time.Duration) (secret string, expires time.Time, err error)
	Agents() []functions.JoinedAgent
	Remove(id string) error // functions.ErrNotFound
}

// Catalog is which functions exist. *catalog.Catalog is one; its errors are those
// that are told apart here.
type Catalog interface {
	Model(name functions.Name) *functions.Model
	Models() []*functions.Model
	Documents() []catalog.Document // the functions of all kinds, by name
	Teams() []*functions.Team
	// Lookup returns the function of a name, of any kind.
	Lookup(name functions.Name) (catalog.Document, bool)
	// Check reads a file as Put would keep it.
	Check(name functions.Name, doc []byte, beside ...functions.Name) (catalog.Checked, error)
	Put(name functions.Name, doc []byte) (created bool, err error)
	Delete(name functions.Name) error
}

var _ Catalog = (*catalog.Catalog)(nil)

// Spending is the money of today, which ends at midnight UTC.
type Spending interface {
	SpentToday(remote functions.Name) float64
	TeamSpentToday(team string) float64
}

// Options of an API. Those without "may be nil" must be set.
type Options struct {
	Platform  Platform
	Access    Access
	Functions Functions
	Caches    Caches
	Decisions Decisions
	Requests  Requests // may be nil: only ids of cold starts are known
	Ahead     Ahead    // may be nil: no hints are taken
	// Agents knows who may join from other machines, at AgentsURL; nil: none may.
	Agents    Agents
	AgentsURL string
	// Logs opens the log of a replica from its last tail lines on; with follow
	// it goes on until ctx ends. The error is ErrNotFound where there is none.
	Logs func(ctx context.Context, replica string, tail int, follow bool) (io.ReadCloser, error)
	// Changed is a channel that gets something, or is closed, after the world has
	// changed; watchers look again then, and every second. May be nil.
	Changed func(ctx context.Context) <-chan struct{}
	// Explain returns the reasons of a function's state, without events; false for
	// an unknown function. May be nil.
	Explain func(kind string, name functions.Name) (functions.Explanation, bool)
	// Ready lists the reasons why no requests are accepted; empty when they are.
	Ready func() []string
	// Metrics returns the metrics as text for Prometheus, with a team those that it
	// may read.
	Metrics func(team string) (text []byte, contentType string, err error)
	Version string
	Log     *slog.Logger // may be nil
}

// Platform is what the platform is and was, which several groups of paths show.
type Platform struct {
	Catalog Catalog
	State   State
	History History
	// Demand is how many requests of a function are at engines and held, and when the oldest of
	// these arrived, if that is known.
	Demand func(name functions.Name) (active, queued int, oldest time.Time)
	// Spending is what was spent today; nil: nothing.
	Spending Spending
	// Usage is what a team has used of its limits; nil: nothing.
	Usage func(team string) ratelimit.Usage
	// TeamUse is what a team has had and has of the fleet; may be nil.
	TeamUse func(team string) functions.TeamUse
}

// Access is who may call.
type Access struct {
	Keys *auth.KeyStore
	// Open: the server listens on loopback only, so reading needs no key until
	// the first one exists.
	Open bool
	// Hosts are further names that Host may have on loopback.
	Hosts []string
}

// API answers. Its methods may be called concurrently.
type API struct {
	access *Access
	guard  *browser.Guard
	routes []endpoint
}

// New makes an API; it starts nothing.
func New(o Options) *API {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	// Links of other sites may lead here: their pages cannot read what is shown.
	a := &API{access: &o.Access, guard: browser.New(o.Access.Open, o.Access.Hosts, nil).Exact().ForPages()}
	a.routes = a.table(&o)
	return a
}

// caller is the identity of a request.
type caller struct {
	id            auth.Identity
	authenticated bool // by a secret
}

// team is whose things the caller sees; "" is everybody's.
func (c caller) team() string {
	if !c.authenticated || c.id.Admin {
		return ""
	}
	return c.id.Team
}

// ownTeam is the team of names that have none.
func (c caller) ownTeam() string {
	if c.id.Admin {
		return functions.DefaultTeam
	}
	return c.id.Team
}

func (c caller) mayRead(team string) bool { return c.team() == "" || c.team() == team }

// exchange is one request while it is answered.
type exchange struct {
	*httpserver.Request
	caller
	args  []string // of the pattern's {…}, in their order
	query query
}

// Serve answers one request; it is a httpserver.Handler.
func (a *API) Serve(req *httpserver.Request, res *httpserver.Response) {
	if err := a.serve(req, res); err != nil {
		writeError(res, err)
	}
}

// Authorize checks what the head of a request tells: path, method and secret. It returns
// the id of the key, if it is one, or answers the request itself. It is
// [httpserver.Options].Authorize.
func (a *API) Authorize(req *httpserver.Request, res *httpserver.Response) (key string, ok bool) {
	e, _, caller, err := a.authorize(req)
	if err == nil && e.body == nil && !caller.authenticated {
		err = openai.New(openai.RequestTooLarge, "This path takes no body.")
	}
	if err != nil {
		writeError(res, err)
		return "", false
	}
	return caller.id.KeyID, true
}

// authorize finds the endpoint of a request and checks that the caller may use it.
func (a *API) authorize(req *httpserver.Request) (*endpoint, []string, caller, *openai.Error) {
	if err := a.guard.Check(req); err != nil {
		if err.Code == openai.OriginNotAllowed {
			err.Message = "The control API takes no requests from pages of other web sites, also not of those that --origin names."
		}
		return nil, nil, caller{}, err
	}
	e, args, allow := a.match(req.Method, req.Path)
	if e == nil {
		// Who may not read learns no more about a path than about any other.
		if _, err := a.access.identify(req, read); err != nil {
			return nil, nil, caller{}, err
		}
		if allow != nil {
			err := openai.New(openai.MethodNotAllowed, "")
			err.Allow = strings.Join(allow, ", ")
			return nil, nil, caller{}, err
		}
		return nil, nil, caller{}, unknownpath.Error("this server does not answer", req.Path)
	}
	c, err := a.access.identify(req, e.permission)
	return e, args, c, err
}

func (a *API) serve(req *httpserver.Request, res *httpserver.Response) *openai.Error {
	e, args, caller, err := a.authorize(req)
	if err != nil {
		return err
	}
	q, ok := parseQuery(req.Query, e.query)
	if !ok {
		return openai.New(openai.InvalidValue, "The query is not one this endpoint knows; it takes: "+strings.Join(e.query, ", "))
	}
	if name := q.badSwitch(); name != "" {
		return openai.New(openai.InvalidValue, name+" is `"+functions.Clip(q[name])+"`; want true or false.").With(name)
	}
	x := &exchange{Request: req, caller: caller, args: args, query: q}
	res.Set("cache-control", "no-store")
	res.Set("x-content-type-options", "nosniff")
	res.Status = e.status
	return e.do(x, res)
}

// identify decides whether the caller may use a path of this right.
func (a *Access) identify(req *httpserver.Request, r permission) (caller, *openai.Error) {
	bearer := req.Header("Authorization")
	secret := auth.Bearer(bearer)
	if bearer == "" {
		// What stands between may keep that one for itself, as Kubernetes' API server does.
		secret = auth.Secret(req.Header)
		bearer = secret
	}
	id, ok := a.Keys.Lookup(secret)
	switch {
	case r == probe:
	case bearer != "" && !ok:
		// Also where none is needed: a wrong key that works would hide that it is wrong.
		return caller{}, openai.New(openai.InvalidAPIKey, "")
	case r == own && !ok:
		return caller{}, openai.New(openai.InvalidAPIKey,
			"Incorrect API key provided: this path requires a key of the model's team or of an admin. Send Authorization: Bearer KEY.")
	case r == read && !ok && !a.open():
		return caller{}, openai.New(openai.InvalidAPIKey, "Incorrect API key provided: a key is needed here. Send Authorization: Bearer KEY.")
	case r == admin && !ok:
		return caller{}, openai.New(openai.InvalidAPIKey,
			"Incorrect API key provided: this wants the admin token (DATA/admin-token) or an admin key.")
	case r == admin && !id.Admin:
		return caller{}, openai.New(openai.PermissionDenied, "This key may not do that: it wants the admin token or an admin key.")
	}
	return caller{id, ok}, nil
}

// open reports whether reading needs no key.
func (a *Access) open() bool { return a.Open && !a.Keys.Required() }

// match finds the row for a path. allow are the methods of the path's rows when
// none has this one.
func (a *API) match(method, path string) (e *endpoint, args, allow []string) {
	if method == "HEAD" {
		method = "GET"
	}
	for i := range a.routes {
		r := &a.routes[i]
		got, ok := r.match(path)
		if !ok {
			continue
		}
		if r.method == method {
			return r, got, nil
		}
		allow = append(allow, r.method)
	}
	return nil, nil, allow
}

// match compares byte by byte; a {…} takes one segment that is a plain word.
func (e *endpoint) match(path string) (args []string, ok bool) {
	for i, want := range e.segments {
		got, rest, more := strings.Cut(path, "/")
		path = rest
		if more != (i < len(e.segments)-1) {
			return nil, false
		}
		if want[:min(1, len(want))] != "{" {
			if got != want {
				return nil, false
			}
			continue
		}
		if !openai.ValidID(got) || got == "." || got == ".." {
			return nil, false
		}
		args = append(args, got)
	}
	return args, true
}

func writeError(res *httpserver.Response, err *openai.Error) {
	*res = httpserver.Response{}
	res.Refuse(err)
	res.Body = append(res.Body, '\n')
	res.Set("cache-control", "no-store")
}
