package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
)

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
