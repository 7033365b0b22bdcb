package httpsource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source"
)

// HostsVariable names hosts that sources may point at although their addresses are not
// public.
const HostsVariable = "THAW_SOURCE_HOSTS"

// HostTrust is the hosts and networks that the operator allows, whatever their address.
type HostTrust struct {
	hosts    map[string]bool // host or host:port, small letters
	suffixes []string        // ".example.org"
	nets     []netip.Prefix
}

// NewHostTrust reads THAW_SOURCE_HOSTS and the proxies of the environment, and adds the
// hosts of endpoints (URLs; empty ones are skipped).
func NewHostTrust(getenv func(string) string, endpoints ...string) *HostTrust {
	t := &HostTrust{hosts: make(map[string]bool)}
	for h := range strings.SplitSeq(getenv(HostsVariable), ",") {
		h = strings.ToLower(strings.TrimSpace(h))
		if h == "" {
			continue
		}
		if p, err := netip.ParsePrefix(h); err == nil {
			t.nets = append(t.nets, p.Masked())
		} else if a, err := netip.ParseAddr(h); err == nil {
			t.nets = append(t.nets, netip.PrefixFrom(a, a.BitLen()))
		} else if s, ok := strings.CutPrefix(h, "*"); ok || strings.HasPrefix(h, ".") {
			t.suffixes = append(t.suffixes, s)
		} else {
			t.hosts[h] = true
		}
	}
	for _, v := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		endpoints = append(endpoints, getenv(v))
	}
	for _, e := range endpoints {
		t.AddEndpoint(e)
	}
	return t
}

// AddEndpoint trusts the host and port of an endpoint. It is called before the first
// dial.
func (t *HostTrust) AddEndpoint(endpoint string) {
	if endpoint == "" {
		return
	}
	if !strings.Contains(endpoint, "://") {
		endpoint = "http://" + endpoint
	}
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		t.hosts[strings.ToLower(HostPort(u))] = true
	}
}

// HostPort is the address a URL is dialled at.
func HostPort(u *url.URL) string {
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443", "socks5": "1080"}[u.Scheme]))
}

func (t *HostTrust) trustsHost(trustsHost, port string) bool {
	trustsHost = strings.ToLower(strings.TrimSuffix(trustsHost, "."))
	return t.hosts[trustsHost] || t.hosts[net.JoinHostPort(trustsHost, port)] ||
		slices.ContainsFunc(t.suffixes, func(s string) bool { return strings.HasSuffix(trustsHost, s) })
}

// Trusts reports whether the operator allows the host of a URL, by name or by address.
func (t *HostTrust) Trusts(u *url.URL) bool {
	_, port, _ := net.SplitHostPort(HostPort(u))
	if t.trustsHost(u.Hostname(), port) {
		return true
	}
	a, err := netip.ParseAddr(u.Hostname())
	return err == nil && t.trustsAddr(a.Unmap().WithZone(""))
}

func (t *HostTrust) trustsAddr(a netip.Addr) bool {
	return slices.ContainsFunc(t.nets, func(n netip.Prefix) bool { return n.Contains(a) })
}

// refusedAddr is the error of a dial to an address that is not public.
type refusedAddr struct{ addr netip.Addr }

func (r refusedAddr) Error() string {
	return fmt.Sprintf("%s is not a public address; name its host in %s if it is meant", r.addr, HostsVariable)
}

// checkAddr returns an error for an address that must not be dialled.
func (t *HostTrust) checkAddr(a netip.Addr) error {
	if a = a.Unmap().WithZone(""); t.trustsAddr(a) || Public(a) {
		return nil
	}
	return refusedAddr{a}
}

// DialPublic dials by d. Unless the operator trusts the host, every address is checked at the
// moment of the dial, so that a name cannot resolve to one address for the check and to another
// for the connection.
func (t *HostTrust) DialPublic(ctx context.Context, d net.Dialer, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if control := d.Control; !t.trustsHost(host, port) {
		d.Control = func(network, address string, c syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return refusedAddr{}
			}
			if err := t.checkAddr(ap.Addr()); err != nil || control == nil {
				return err
			}
			return control(network, address, c)
		}
	}
	return d.DialContext(ctx, network, addr)
}

// DialLoopback dials TCP by d, at addresses of this machine alone.
func DialLoopback(ctx context.Context, d net.Dialer, addr string) (net.Conn, error) {
	d.Control = func(_, address string, _ syscall.RawConn) error {
		if ap, err := netip.ParseAddrPort(address); err != nil || !ap.Addr().Unmap().IsLoopback() {
			return refusedAddr{ap.Addr()}
		}
		return nil
	}
	return d.DialContext(ctx, "tcp", addr)
}

// IsRefused reports whether err is the refusal of an address that is not public, and which.
func IsRefused(err error) (addr netip.Addr, ok bool) {
	r, ok := errors.AsType[refusedAddr](err)
	return r.addr, ok
}

// privateNames end names that only a private network knows.
var privateNames = []string{".local", ".svc", ".home.arpa"}

// CheckURL refuses a URL whose host is a forbidden address or a name of this machine:
// behind a proxy, dial checks no address. Where no private network is allowed it also
// refuses names that only such a network knows: the error of a look-up would tell which
// ones there are.
func (t *HostTrust) CheckURL(u *url.URL) error {
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if t.Trusts(u) {
		return nil
	}
	bad := func(reason string) error {
		return &source.Error{Kind: source.Refused, Detail: reason, Fix: "if it is meant, name the host in " + HostsVariable}
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if err := t.checkAddr(a); err != nil {
			return bad(fmt.Sprintf("%s is not a public address", a))
		}
		return nil
	}
	switch {
	case host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost") || strings.HasSuffix(host, ".internal"),
		len(t.nets) == 0 && (!strings.Contains(host, ".") ||
			slices.ContainsFunc(privateNames, func(s string) bool { return strings.HasSuffix(host, s) })):
		return bad(fmt.Sprintf("%q is not a public host", host))
	case strings.Trim(host, "0123456789.x") == "" || strings.HasPrefix(host, "0x"):
		// 2130706433, 0177.1, 0x7f.1: some resolvers read these as addresses.
		return bad(fmt.Sprintf("%q is neither a name nor an address as they are written", host))
	}
	return nil
}

// reservedNets are networks within the unicast ranges that are not part of the
// internet, or embed another address.
var reservedNets = func() (out []netip.Prefix) {
	for _, s := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "168.63.129.16/32",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}()

var global6 = netip.MustParsePrefix("2000::/3")

// Public reports whether a is a unicast address of the internet.
func Public(a netip.Addr) bool {
	a = a.Unmap()
	if !a.IsValid() || a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
		return false
	}
	if a.Is6() {
		b := a.As16()
		// ISATAP: the last four bytes are an address of IPv4.
		if !global6.Contains(a) || b[10] == 0x5e && b[11] == 0xfe && b[9] == 0 && b[8]&^2 == 0 {
			return false
		}
	}
	return !slices.ContainsFunc(reservedNets, func(p netip.Prefix) bool { return p.Contains(a) })
}

const maxRedirects = 5

// checkRedirect allows few redirects, none from https to http, and none to an address
// that a source must not name.
func checkRedirect(t *HostTrust) func(req *http.Request, via []*http.Request) error {
	return func(req *http.Request, via []*http.Request) error {
		switch {
		case len(via) > maxRedirects:
			return source.Fail(source.Refused, "redirects too often", "name the address at the end of the redirects")
		case req.URL.Scheme != "https" && (req.URL.Scheme != "http" || via[len(via)-1].URL.Scheme == "https"):
			return source.Fail(source.Refused, "redirects from https to "+functions.Clip(req.URL.Scheme+"://"+req.URL.Host),
				"name the https address that it is at")
		}
		if t == nil {
			return nil
		}
		return t.CheckURL(req.URL)
	}
}
