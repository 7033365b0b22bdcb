package activator

import (
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions/openai"
)

// GuardBrowser guards a handler against web pages in a browser on this machine. On
// loopback, Host must be a loopback name or address, or one of hosts, against DNS
// rebinding (421). On any listener, an Origin other than the Host itself is refused
// (403).
func GuardBrowser(loopback bool, hosts []string, next httpserver.Handler) httpserver.Handler {
	allowed := map[string]bool{"localhost": true}
	for _, h := range hosts {
		allowed[strings.ToLower(strings.TrimSuffix(h, "."))] = true
	}
	return func(req *httpserver.Request, res *httpserver.Response) {
		if loopback && !isLocalHost(req.Host, allowed) && !hasNoHost(req) {
			refuseBrowser(res, openai.New(openai.MisdirectedRequest, "This server answers on loopback only for loopback names; start it with --host to add one."))
			return
		}
		if o := req.Header("Origin"); o != "" && !sameOrigin(o, req.Host) {
			refuseBrowser(res, openai.New(openai.OriginNotAllowed, "Requests from other web sites are refused."))
			return
		}
		if s := req.Header("Sec-Fetch-Site"); s == "cross-site" {
			refuseBrowser(res, openai.New(openai.OriginNotAllowed, "Requests from other web sites are refused."))
			return
		}
		next(req, res)
	}
}

// hasNoHost reports whether a request of HTTP/1.0 came without Host. No browser sends such.
func hasNoHost(req *httpserver.Request) bool { return req.Host == "" && req.IsHTTP10() }

func refuseBrowser(res *httpserver.Response, e *openai.Error) {
	res.Status = e.Status
	res.Set("x-request-id", openai.NewID())
	writeError(res, e)
}

// isLocalHost reports whether a Host names this machine.
func isLocalHost(host string, allowed map[string]bool) bool {
	name := hostname(host)
	if allowed[name] {
		return true
	}
	if strings.HasSuffix(name, ".localhost") { // always resolves to this machine, RFC 6761
		return true
	}
	a, err := netip.ParseAddr(name)
	return err == nil && a.Unmap().IsLoopback()
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
