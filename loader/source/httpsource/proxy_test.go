package httpsource

import (
	"errors"
	"net"
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
