package activator

import (
	"strings"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/modellist"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

const modelsPath = "/v1/models"

var modelsEndpoint = openai.Endpoint{Path: modelsPath}

// ServesPath reports whether a path is the activator's: all of /v1, and the other
// paths of the allow-list.
func ServesPath(path string) bool {
	return strings.HasPrefix(path, "/v1/") || path == "/v1" || openai.FindEndpoint(path) != nil
}

// Serve answers one request. It is a [httpserver.Handler].
func (a *Activator) Serve(req *httpserver.Request, res *httpserver.Response) { a.serve(req, res, nil) }

// ServeAs answers a request for a function that is known by other means, such as the
// host. The model in the body is ignored, but for an adapter. The caller has checked
// that the client may use the function. Only the paths of the allow-list are served.
func (a *Activator) ServeAs(name functions.Name, req *httpserver.Request, res *httpserver.Response) {
	a.serve(req, res, &name)
}

// Authorize checks the head of a request: path, method and key. It returns the
// key's id and leaves the request for Serve, or answers it. It is [httpserver.Options].Authorize.
func (a *Activator) Authorize(req *httpserver.Request, res *httpserver.Response) (key string, ok bool) {
	if isModelsPath(req.Path) {
		a.serveModels(req, res) // needs no body
		return "", false
	}
	p, e := a.newRequest(req)
	if e != nil {
		p.refuseNow(res, e)
		return "", false
	}
	req.Opened = p
	return p.req.identity.KeyID, true
}

func isModelsPath(path string) bool {
	return path == modelsPath || strings.HasPrefix(path, modelsPath+"/")
}

func (a *Activator) serve(req *httpserver.Request, res *httpserver.Response, forced *functions.Name) {
	if isModelsPath(req.Path) {
		a.serveModels(req, res)
		return
	}
	p, e := a.newRequest(req)
	defer func() {
		if v := recover(); v != nil { // the server answers it; what the request holds must be released
			p.finish(500, string(openai.InternalError))
			p.req.http.endRun(nil)
			panic(v)
		}
	}()
	if e == nil {
		e = p.req.open(forced)
	}
	if e == nil && p.req.composition == nil {
		if e = p.suspicion.check(); e == nil && !p.req.cached.Hit() && p.joinRun(res) {
			return
		}
	}
	if e == nil {
		p.wait.queued.Priority, e = p.req.admit()
	}
	switch {
	case e != nil:
		p.refuseNow(res, e)
	case p.req.composition != nil:
		p.compose(res)
	case p.req.cached.Hit():
		p.setCommonFields(res)
		p.req.cached.Replay(res, p.req.id)
		p.finish(200, "")
	default:
		p.run(res)
		p.req.cached.Record(res)
	}
	p.req.http.endRun(res)
}

func (a *Activator) serveModels(req *httpserver.Request, res *httpserver.Response) {
	p := proxyRequest{}
	p.init(a, &p.req.http)
	p.req.http.req, p.req.endpoint = req, &modelsEndpoint
	form := modellist.Form(p.req.http.header("anthropic-version") != "")
	e := func() *openai.Error {
		if req.Method != "GET" && req.Method != "HEAD" {
			e := openai.New(openai.MethodNotAllowed, "Use GET here.")
			e.Allow = "GET, HEAD"
			return e
		}
		if e := p.req.identify(); e != nil {
			return e
		}
		p.req.team = p.req.identity.Team
		one := strings.TrimPrefix(strings.TrimPrefix(req.Path, modelsPath), "/")
		if strings.Contains(one, "%") {
			// Clients escape the slash and the colon; a name with other escapes does not exist.
			one = strings.NewReplacer("%2F", "/", "%2f", "/", "%3A", ":", "%3a", ":").Replace(one)
		}
		return a.names.listModels(p.req.identity, one, form, res)
	}()
	if e != nil {
		if form == modellist.Anthropic {
			e = e.For("/v1/messages")
		}
		p.refuseNow(res, e)
		return
	}
	res.Set("x-request-id", p.req.id)
	p.finish(200, "")
}
