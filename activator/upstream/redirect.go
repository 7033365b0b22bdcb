package upstream

import (
	"net"
	"net/url"
	"strings"
)

// slashRedirect returns the path of a redirect to the same host and port whose path
// differs from the request's by a final slash, as FastAPI sends it. Others are not
// followed: where an engine listens is the platform's to say.
func slashRedirect(r *Request, res *Response) (path string, ok bool) {
	if res.Status != 307 && res.Status != 308 || r.Prefix != "" {
		return "", false
	}
	from, err := url.ParseRequestURI(r.Path)
	if err != nil {
		return "", false
	}
	to, err := url.Parse(res.Header("location"))
	if err != nil || to.User != nil || to.Fragment != "" || to.Opaque != "" || to.RawQuery != from.RawQuery {
		return "", false
	}
	scheme, port := "http", "80"
	if r.Secure {
		scheme, port = "https", "443"
	}
	if to.Host != "" || to.Scheme != "" {
		host := to.Host
		if to.Port() == "" {
			host = net.JoinHostPort(to.Hostname(), port)
		}
		if to.Scheme != scheme && to.Scheme != "" || !strings.EqualFold(host, r.Addr) {
			return "", false
		}
	}
	a, b := from.EscapedPath(), to.EscapedPath()
	if a+"/" != b && a != b+"/" || b == "" {
		return "", false
	}
	return to.RequestURI(), true
}
