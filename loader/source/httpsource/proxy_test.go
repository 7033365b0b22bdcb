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
