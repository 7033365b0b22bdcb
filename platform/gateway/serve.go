package gateway

import (
	"bufio"
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

const maxHead = 8 << 10

type listenerHandler struct {
	g       *Gateway
	private bool
}

func (h *listenerHandler) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	g := h.g
	if c := connOf(r.Context()); c != nil && c.slot.Ended() {
		panic(http.ErrAbortHandler) // its client cannot be answered
	}
	g.mu.Lock()
	g.inFlight++
	g.mu.Unlock()
	defer g.endRequest()
	w := &writer{ResponseWriter: rw, r: r, to: toNothing}
	defer func() { g.o.Count(w.to, strconv.Itoa(w.status)) }() // a panic, which breaks the response off, goes on to the server
	unread := r.ContentLength != 0 && r.ProtoMajor == 1
	g.route(h, w, r)
	if unread && !w.hijacked {
		endBody(w)
	}
}

// endBody bounds what is still read of the body when the handler has ended.
func endBody(w *writer) {
	httpserver.EndUnread(w.ResponseWriter, w.r)
	if c := connOf(w.r.Context()); c != nil && w.status == http.StatusUnauthorized {
		c.slot.SetIdle(true) // it may end to make room for another
	}
}

// Targets of a request, for the metrics.
const (
	toNothing  = "nothing"  // refused by the gateway
	toModel    = "model"    // OpenAI's API, routed by model
	toHost     = "function" // a function, routed by host
	toService  = "service"  // any other service
	toLeader   = "controller"
	toRedirect = "https"
	toProbe    = "probe"
)

func (g *Gateway) route(s *listenerHandler, w *writer, r *http.Request) {
	if e := checkRequest(r); e != nil {
		w.Header().Set("Connection", "close")
		writeError(w, e)
		return
	}
	g.dropForwardedProto(r)
	t := g.table.Load()
	h := t.findHost(hostname(r.Host), s.private)
	if h == nil {
		g.unhosted(s, w, r)
		return
	}
	if h.Secure && !s.private && !strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		status := http.StatusMovedPermanently
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			status = http.StatusPermanentRedirect // 301 would turn it into a GET
		}
		w.Header().Set("Location", "https://"+hostname(r.Host)+r.URL.RequestURI())
		w.to = toRedirect
		w.WriteHeader(status)
		return
	}
	to := h.match(r.URL.Path, r.Header)
	if to == nil {
		writeError(w, openai.New(openai.NotFound, "No route of the host "+functions.Clip(h.Name)+" leads there."))
		return
	}
	split := to.draw(g.o.Draw)
	if split == nil {
		writeError(w, openai.New(openai.ServiceUnavailable, "The route of the host "+functions.Clip(h.Name)+" leads to nothing at present."))
		return
	}
	if r.Header.Get(probeField) == "probe" {
		w.to = toProbe
		answerProbe(w, r, split)
		return
	}
	cleanHead(r, s.private)
	if split.Function == (functions.Name{}) {
		w.to = toService
		g.proxyService(w, r, to, split)
		return
	}
	w.to = toHost
	g.serveFunction(w, r, to, split)
}

const probeField = "K-Network-Probe"

// answerProbe answers a probe of Knative's networking, which asks whether the request's
// route has this hash. The table answers it: no backend is contacted and no function is
// woken.
func answerProbe(w *writer, r *http.Request, to *split) {
	hash := r.Header.Get(hashField)
	if hash == "" {
		writeError(w, openai.New(openai.InvalidRequest, "A probe has the field "+hashField+"."))
		return
	}
	if to.hash != "" && hash == "override" {
		hash = to.hash
	}
	w.Header().Set(hashField, hash)
	w.WriteHeader(http.StatusOK)
}

// unhosted routes a request by its path if no route has its host.
func (g *Gateway) unhosted(s *listenerHandler, w *writer, r *http.Request) {
	path := r.URL.Path
	switch {
	case activator.ServesPath(path):
		w.to = toModel
		g.openAI.ServeHTTP(w, r)
		return
	case g.o.Leader != nil && strings.HasPrefix(path, "/api/v1/") && !s.private && !g.o.PublicAPI:
		writeError(w, openai.New(openai.NotFound,
			"The control API is not served at this address: use the Service thaw-local inside the cluster, or thaw --to knative."))
		return
	case g.o.Leader != nil && (strings.HasPrefix(path, "/api/v1/") || path == "/metrics" && s.private):
		w.to = toLeader
		g.proxyLeader(w, r)
		return
	}
	writeError(w, openai.New(openai.NotFound,
		"No service answers for the host "+functions.Clip(r.Host)+" here, and the path is none of OpenAI's API."))
}

// checkRequest returns an error for requests that are unsupported or ambiguous.
func checkRequest(r *http.Request) *openai.Error {
	switch {
	case r.Method == http.MethodConnect:
		return openai.New(openai.MethodNotAllowed, "CONNECT is not served.")
	case r.URL.Scheme != "" || r.URL.Opaque != "" || !strings.HasPrefix(r.RequestURI, "/"):
		return openai.New(openai.InvalidRequest, "The request's head is not well formed: the target is not a path.")
	case r.Host == "":
		return openai.New(openai.InvalidRequest, "The request's head is not well formed: exactly one Host is expected.")
	}
	size := len(r.Method) + len(r.RequestURI) + len(r.Host) + 32
	for name, values := range r.Header {
		for _, v := range values {
			size += len(name) + len(v) + 4
		}
	}
	if size > maxHead {
		return openai.New(openai.HeadTooLarge, "")
	}
	return nil
}

// cleanHead removes fields that only the network may set, and upgrades to anything but a
// WebSocket: h2c, which some clients offer on every connection, would bypass the gateway.
func cleanHead(r *http.Request, private bool) {
	for name := range r.Header {
		switch {
		case strings.HasPrefix(name, "K-Network-"), name == "K-Proxy-Request", name == "K-Kubelet-Probe", name == "Http2-Settings":
			delete(r.Header, name)
		case name == "K-Original-Host" && !private: // kept from inside the cluster, for a route that leads back to the gateway
			delete(r.Header, name)
		case name == "Upgrade" && !strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
			delete(r.Header, name)
		}
	}
}

// writer is the ResponseWriter of a request, with what is recorded of its response.
type writer struct {
	http.ResponseWriter
	r        *http.Request
	to       string // target of the request, for the metrics
	status   int    // status sent to the client; 0: none yet
	hijacked bool   // the connection became a WebSocket
}

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends a head. A 1xx head is not the last one.
func (w *writer) WriteHeader(status int) {
	if status >= 200 && w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	w.status = cmp.Or(w.status, http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Hijack hands the connection to the caller.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, b, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.hijacked, w.status = true, http.StatusSwitchingProtocols
	}
	return c, b, err
}

// OnFailureSent has the connection end by FIN after this response, which reports its failure.
func (w *writer) OnFailureSent() {
	if c := connOf(w.r.Context()); c != nil && w.r.ProtoMajor == 1 {
		c.last.Store(true)
	}
}

// ParsePrefixes parses the address ranges of Options.TrustedProxies, such as 10.0.0.0/8 or
// a single address.
func ParsePrefixes(ranges []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range ranges {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, bad := netip.ParseAddr(text)
			if bad != nil {
				return nil, fmt.Errorf("%q is no address range, such as 10.0.0.0/8", text)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// trusts reports whether a connection's peer is a proxy whose X-Forwarded-Proto is
// believed.
func (g *Gateway) trusts(remote string) bool {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	peer := at.Addr().Unmap().WithZone("")
	if len(g.o.TrustedProxies) == 0 {
		return peer.IsPrivate() || peer.IsLoopback() || peer.IsLinkLocalUnicast()
	}
	return slices.ContainsFunc(g.o.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// dropForwardedProto removes the field with which a proxy reports that TLS ended there,
// where the peer is no such proxy: neither a redirect nor a backend must go by it.
func (g *Gateway) dropForwardedProto(r *http.Request) {
	if len(r.Header["X-Forwarded-Proto"]) > 0 && !g.trusts(r.RemoteAddr) {
		delete(r.Header, "X-Forwarded-Proto")
	}
}
