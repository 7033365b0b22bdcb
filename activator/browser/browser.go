// Package browser protects HTTP handlers from foreign web pages: its Guard refuses origins that are
// not allowed and, on loopback, a wrong Host, and answers the CORS preflights of allowed origins;
// it starts no browser.
package browser

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// Guard guards handlers. It is immutable.
type Guard struct {
	loopback bool
	exact    bool // see Exact
	pages    bool
	hosts    map[string]bool
	origins  map[string]bool // scheme://host[:port], or scheme://*
}

// New makes a guard. On loopback, Host must be a loopback name or address, or one of
// hosts, against DNS rebinding (421). On any listener an Origin other than the Host itself
// is refused (403) unless it is one of origins, which have passed CheckOrigin.
func New(loopback bool, hosts, origins []string) *Guard {
	g := &Guard{loopback: loopback, hosts: map[string]bool{"localhost": true}, origins: map[string]bool{}}
	for _, h := range hosts {
		g.hosts[strings.ToLower(strings.TrimSuffix(h, "."))] = true
	}
	for _, o := range origins {
		g.origins[normalize(o)] = true
	}
	return g
}

// ForPages returns a guard of pages that hold no data: links of other sites may lead to them.
func (g *Guard) ForPages() *Guard {
	p := *g
	p.pages = true
	return &p
}

// Exact returns a guard that takes no NAME.localhost and no 0.0.0.0, unless they are among its
// hosts: neither is a loopback name or address, and some resolvers ask foreign servers for the first.
func (g *Guard) Exact() *Guard {
	e := *g
	e.exact = true
	return &e
}

// CheckOrigin reports what is wrong with an origin that pages may have:
// https://host[:port], http://host[:port], or scheme://* for other schemes.
func CheckOrigin(origin string) error {
	const want = "want https://HOST[:PORT], http://HOST[:PORT], or SCHEME://* for a desktop app's own scheme"
	scheme, host, ok := strings.Cut(origin, "://")
	web := strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https")
	u, err := url.Parse(strings.TrimSuffix(origin, "*"))
	switch {
	case origin == "*":
		return fmt.Errorf("origin: * would let every web page in: name the origins")
	case !ok || host == "" || strings.ContainsAny(origin, " ,\t"):
		return fmt.Errorf("origin: %q is no origin: %s", functions.Clip(origin), want)
	case host == "*" && !web && err == nil:
		return nil
	case strings.Contains(host, "*"), !web:
		return fmt.Errorf("origin: %q: a pattern is SCHEME://*, of a scheme other than http and https", functions.Clip(origin))
	case err != nil || u.Host != host || u.User != nil || u.Hostname() == "":
		return fmt.Errorf("origin: %q has more than a scheme, a host and a port: %s", functions.Clip(origin), want)
	}
	return nil
}

// normalize is an origin in lower case without its scheme's own port, as browsers send it.
func normalize(origin string) string {
	o := strings.ToLower(origin)
	switch scheme, host, _ := strings.Cut(o, "://"); scheme {
	case "http":
		return "http://" + strings.TrimSuffix(host, ":80")
	case "https":
		return "https://" + strings.TrimSuffix(host, ":443")
	}
	return o
}

// lets reports whether a page of a foreign origin may use the server.
func (g *Guard) lets(origin string) bool {
	o := normalize(origin)
	if g.origins[o] {
		return true
	}
	scheme, _, ok := strings.Cut(o, "://")
	return ok && scheme != "http" && scheme != "https" && g.origins[scheme+"://*"]
}

// Check refuses a request of a foreign page, or for a foreign host; nil lets it pass.
func (g *Guard) Check(req *httpserver.Request) *openai.Error {
	// no browser sends a request of HTTP/1.0 without Host
	if g.loopback && !g.isLocalHost(req.Host) && (req.Host != "" || !req.HTTP10) {
		return openai.New(openai.MisdirectedRequest,
			"This server answers on loopback only for loopback names; to add this one, start it with --host "+functions.Clip(hostname(req.Host))+
				" (THAW_HOST).")
	}
	origin := req.Header("Origin")
	switch {
	case origin != "" && (sameOrigin(origin, req.Host) || g.lets(origin)):
		return nil
	case origin != "" && CheckOrigin(origin) == nil:
		return openai.New(openai.OriginNotAllowed,
			"Requests from other web sites are refused; to let this one in, start the server with --origin "+functions.Clip(normalize(origin))+
				" (THAW_ORIGIN).")
	case origin != "":
		if scheme, _, ok := strings.Cut(normalize(origin), "://"); ok && CheckOrigin(scheme+"://*") == nil {
			return openai.New(openai.OriginNotAllowed,
				"Requests from other web sites are refused; to let this app in, start the server with --origin "+functions.Clip(scheme)+
					"://* (THAW_ORIGIN).")
		}
	case req.Header("Sec-Fetch-Site") != "cross-site", g.pages && req.Header("Sec-Fetch-Mode") == "navigate":
		return nil
	}
	return openai.New(openai.OriginNotAllowed,
		"Requests from other web sites are refused; --origin (THAW_ORIGIN) names the origins that are let in.")
}

// Wrap guards a handler. It answers the preflights of pages that are let in, and sets the
// fields that let them read answers, errors too.
func (g *Guard) Wrap(next httpserver.Handler) httpserver.Handler {
	return func(req *httpserver.Request, res *httpserver.Response) {
		if e := g.Check(req).For(req.Path); e != nil {
			res.Set("x-request-id", openai.NewID())
			res.Refuse(e)
			if len(g.origins) > 0 {
				res.Set("Vary", "Origin")
			}
			return
		}
		if req.Method == "OPTIONS" && req.Header("Access-Control-Request-Method") != "" && g.lets(req.Header("Origin")) {
			g.preflight(req, res)
			return
		}
		next(req, res)
		g.SetFields(req, res)
	}
}

// WrapAuthorize guards the check of a head in the same way.
func (g *Guard) WrapAuthorize(next func(*httpserver.Request, *httpserver.Response) (string, bool)) func(*httpserver.Request,
	*httpserver.Response) (string, bool) {
	return func(req *httpserver.Request, res *httpserver.Response) (account string, ok bool) {
		g.Wrap(func(req *httpserver.Request, res *httpserver.Response) { account, ok = next(req, res) })(req, res)
		return account, ok
	}
}

// exposed are the fields of answers that pages may read.
const exposed = "x-request-id, thaw-client-request-id, thaw-route, thaw-cold-start, thaw-cache, thaw-session, server-timing, " +
	"retry-after, x-should-retry, openai-processing-ms, " +
	"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, " +
	"x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"

// SetFields sets the fields of an answer that depend on the origin. The answer's own may be shared with
// other requests, and are not appended to in place.
func (g *Guard) SetFields(req *httpserver.Request, res *httpserver.Response) {
	if len(g.origins) == 0 {
		return
	}
	res.Fields = slices.Clip(res.Fields)
	res.Set("Vary", "Origin")
	if o := req.Header("Origin"); o != "" && g.lets(o) {
		res.Set("Access-Control-Allow-Origin", o)
		res.Set("Access-Control-Expose-Headers", exposed)
	}
}

const maxRequestHeaders = 1 << 10

func (g *Guard) preflight(req *httpserver.Request, res *httpserver.Response) {
	res.Status = 204
	res.Set("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network")
	res.Set("Access-Control-Allow-Origin", req.Header("Origin"))
	res.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, DELETE")
	if h := req.Header("Access-Control-Request-Headers"); h != "" && len(h) <= maxRequestHeaders {
		res.Set("Access-Control-Allow-Headers", h)
	}
	if strings.EqualFold(req.Header("Access-Control-Request-Private-Network"), "true") {
		res.Set("Access-Control-Allow-Private-Network", "true")
	}
	res.Set("Access-Control-Max-Age", "600")
}

// isLocalHost reports whether a Host names this machine.
func (g *Guard) isLocalHost(host string) bool {
	name := hostname(host)
	a, err := netip.ParseAddr(name)
	switch {
	case g.hosts[name], err == nil && a.Unmap().IsLoopback():
		return true
	case g.exact:
		return false
	}
	// .localhost always resolves to this machine, RFC 6761; clients connect to 0.0.0.0 as to loopback.
	return strings.HasSuffix(name, ".localhost") || err == nil && a.IsUnspecified()
}

// hostname is a Host without port, brackets and final dot, in lower case.
func hostname(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && (strings.IndexByte(host, ':') == i || strings.HasSuffix(host[:i], "]")) {
		host = host[:i]
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// sameOrigin reports whether an Origin is the very host and port asked. A page
// of another port on this machine is another site.
func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return false // "null" too
	}
	return strings.EqualFold(withPort(u.Host, u.Scheme), withPort(host, u.Scheme))
}

func withPort(host, scheme string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	if scheme == "https" {
		return host + ":443"
	}
	return host + ":80"
}
