package httpsource

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// Conns bounds the connections to one host: an account serves some 60 MB/s on each,
// and a fast link needs many.
const Conns = 256

type Options struct {
	// Trust guards what is dialled; nil dials any address: for hosts that no model
	// file can name.
	Trust *HostTrust
	// Follow follows redirects, within bounds; otherwise they are returned as they
	// are.
	Follow bool
	// Dial replaces the network; nil: this machine's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Roots that server certificates are checked against; Roots() when nil.
	Roots *x509.CertPool

	resolver *net.Resolver // of tests
}

// The bounds of a request: dialTimeout includes the look-up of the name, headerTimeout runs
// from the end of the request to the answer's header. The loader bounds the body
// (loader.Retry.Idle).
const (
	dialTimeout      = 5 * time.Second
	handshakeTimeout = 5 * time.Second
	headerTimeout    = 10 * time.Second
)

func Client(o Options) *http.Client {
	if o.Roots == nil {
		o.Roots = Roots()
	}
	d := &net.Dialer{KeepAlive: 15 * time.Second, Control: limitReceiveBuffer, Resolver: o.resolver}
	t := &http.Transport{
		Proxy:                  ProxyFor,
		OnProxyConnectResponse: checkConnect,
		TLSHandshakeTimeout:    handshakeTimeout,
		ResponseHeaderTimeout:  headerTimeout,
		IdleConnTimeout:        60 * time.Second,
		MaxIdleConns:           0, // the bound is per host
		MaxIdleConnsPerHost:    Conns,
		MaxConnsPerHost:        Conns,
		// Body bytes that arrive with the header are copied once more out of this
		// buffer; everything after goes straight to the reader, because reads
		// are larger than it. So it is small.
		ReadBufferSize: 16 << 10,
		// Digests are of the stored bytes, and ranges of a body
		// compressed on the way would not fit together.
		DisableCompression: true,
		// HTTP/2 puts all ranges on one connection: one window, one packet loss, one
		// core.
		TLSNextProto:    map[string]func(string, *tls.Conn) http.RoundTripper{},
		TLSClientConfig: &tls.Config{RootCAs: o.Roots, NextProtos: []string{"http/1.1"}},
	}
	dial := d.DialContext
	switch {
	case o.Dial != nil:
		dial = o.Dial
	case o.Trust != nil:
		dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return o.Trust.DialPublic(ctx, *d, network, addr)
		}
	}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		return dial(ctx, network, addr)
	}
	c := &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if o.Follow {
		c.CheckRedirect = checkRedirect(o.Trust)
	}
	return c
}

// ProxyFor returns the environment's proxy, and none for a metadata service, which is one hop away.
// ALL_PROXY is that of both schemes, where they have none of their own.
func ProxyFor(req *http.Request) (*url.URL, error) {
	if ip := net.ParseIP(req.URL.Hostname()); ip != nil && (ip.IsLinkLocalUnicast() || ip.IsLoopback()) {
		return nil, nil
	}
	c, all := httpproxy.FromEnvironment(), cmp.Or(os.Getenv("ALL_PROXY"), os.Getenv("all_proxy"))
	c.HTTPProxy, c.HTTPSProxy = strings.TrimSpace(cmp.Or(c.HTTPProxy, all)), strings.TrimSpace(cmp.Or(c.HTTPSProxy, all))
	return c.ProxyFunc()(req.URL)
}
