package httpsource

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestProxyThatDoesNotAnswer: the proxy's failure names the variables of proxies, not the host.
func TestProxyThatDoesNotAnswer(t *testing.T) {
	refused := errors.New("connection refused")
	if err := NoAnswer(&net.OpError{Op: "proxyconnect", Net: "tcp", Err: refused}); !strings.Contains(err.Fix, "HTTPS_PROXY") {
		t.Error(err)
	}
	socks := NoAnswer(&net.OpError{Op: "socks connect", Net: "tcp", Err: errors.New("no acceptable authentication methods")})
	if !strings.Contains(socks.Fix, "HTTPS_PROXY") || socks.Detail != "the proxy: socks connect: no acceptable authentication methods" {
		t.Error(socks)
	}
	if err := NoAnswer(&net.OpError{Op: "dial", Net: "tcp", Err: refused}); strings.Contains(err.Fix, "PROXY") {
		t.Error(err)
	}
}

// TestProxyForMetadata: a metadata service is asked without the environment's proxy.
func TestProxyForMetadata(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://proxy.example:3128")
	for _, host := range []string{"169.254.169.254", "169.254.170.2:80", "[fe80::1]", "127.0.0.1", "[::1]"} {
		if u, err := ProxyFor(&http.Request{URL: &url.URL{Scheme: "http", Host: host}}); err != nil || u != nil {
			t.Errorf("%s goes by %v, %v", host, u, err)
		}
	}
}

// TestProxyLogins: a proxy's demand for a login names the variable, or the scheme that is not spoken.
func TestProxyLogins(t *testing.T) {
	for _, c := range []struct {
		asks []string
		want string
	}{
		{nil, "HTTPS_PROXY=http://NAME:PASSWORD@HOST:PORT"}, {[]string{`Basic realm="x"`}, "HTTPS_PROXY=http://NAME:PASSWORD@HOST:PORT"},
		{[]string{"Negotiate", "NTLM", "basic"}, "HTTPS_PROXY=http://NAME:PASSWORD@HOST:PORT"},
		{[]string{"NTLM"}, "by NTLM, which is not spoken here"}, {[]string{"Negotiate", "NTLM TlRMTVNTUAAC"}, "by Negotiate or NTLM, which is not spoken here"},
	} {
		if got := ProxyLogin(http.Header{"Proxy-Authenticate": c.asks}); !strings.Contains(got, c.want) || strings.Contains(got, "TlRM") {
			t.Errorf("%v: %s", c.asks, got)
		}
	}
	r := &http.Response{StatusCode: 403, Header: http.Header{"X-Squid-Error": {"ERR_ACCESS_DENIED 0"}}}
	err := checkConnect(t.Context(), &url.URL{Host: "p:1"}, &http.Request{Host: "h:443"}, r)
	if want := "the proxy p:1 answered 403 for h:443: ERR_ACCESS_DENIED 0 ("; !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

// TestAllProxy: ALL_PROXY is the proxy of a scheme without one of its own, also for NO_PROXY.
func TestAllProxy(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD"} {
		t.Setenv(name, "")
	}
	for _, c := range []struct{ env, value, host, want string }{
		{"ALL_PROXY", "http://all:1", "h", "http://all:1"}, {"all_proxy", "socks5://all:1", "h", "socks5://all:1"},
		{"HTTPS_PROXY", " http://own:1\n", "h", "http://own:1"}, {"ALL_PROXY", "http://all:1", "127.0.0.1", ""},
		{"ALL_PROXY", "http://all:1", "169.254.169.254", ""}, {"ALL_PROXY", "http://all:1", "a.internal", ""},
	} {
		t.Setenv("NO_PROXY", ".internal")
		t.Setenv(c.env, c.value)
		u, err := ProxyFor(&http.Request{URL: &url.URL{Scheme: "https", Host: c.host}})
		if got := ""; err != nil || u != nil && u.String() != c.want || u == nil && c.want != got {
			t.Errorf("%+v: %v, %v", c, u, err)
		}
		t.Setenv(c.env, "")
	}
}
