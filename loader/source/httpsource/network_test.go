package httpsource

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/loader/source"
)

// acceptAll accepts the connections of a network that hides a server, which reads what
// comes, writes answer to it, and then is silent.
func acceptAll(answer string) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			b := make([]byte, 4096)
			for first := true; ; first = false {
				if _, err := there.Read(b); err != nil {
					there.Close()
					return
				}
				if first && answer != "" {
					if _, err := io.WriteString(there, answer); err != nil {
						return
					}
				}
			}
		}()
		return here, nil
	}
}

// TestNetworkFaults: a request to a host that cannot be reached ends within its bound, with
// an error that says why and is tried again.
func TestNetworkFaults(t *testing.T) {
	fails := func(err error) func(context.Context, string, string) (net.Conn, error) {
		return func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
		}
	}
	hangs := func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	}
	for _, c := range []struct {
		name, scheme string
		dial         func(context.Context, string, string) (net.Conn, error)
		took         time.Duration
		text         string
	}{
		{"no such name", "https", fails(&net.DNSError{Err: "no such host", Name: "models.example", IsNotFound: true}), 0, "DNS knows no models.example"},
		{"a name server that fails", "https", fails(&net.DNSError{Err: "server misbehaving", Name: "models.example", IsTemporary: true}), 0, "DNS gives no answer for models.example"},
		{"a refused connection", "https", fails(errors.New("connection refused")), 0, "connection refused"},
		{"packets that vanish", "https", hangs, 5 * time.Second, "dial"},
		{"no TLS handshake", "https", acceptAll(""), 5 * time.Second, ""},
		{"no answer", "http", acceptAll(""), 10 * time.Second, "no answer in time"},
		{"half of a header", "http", acceptAll("HTTP/1.1 206 Partial Content\r\nContent-"), 10 * time.Second, "no answer in time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := Client(Options{Dial: c.dial})
				defer client.CloseIdleConnections()
				began := time.Now()
				body, _, err := Range(t.Context(), client, RangeRequest{URL: c.scheme + "://models.example/weights?sig=CANARY", Source: "s", File: source.File{Name: "f", Size: 10}, Length: 10})
				if err == nil {
					body.Close()
				}
				if source.KindOf(err) != source.Unavailable || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "CANARY") ||
					time.Since(began) != c.took {
					t.Errorf("after %v: %v, want %q after %v", time.Since(began), err, c.text, c.took)
				}
			})
		})
	}
}

// TestProxyRefuses: what a proxy answers to CONNECT names the proxy, the host and the way out.
func TestProxyRefuses(t *testing.T) {
	for _, c := range []struct {
		answer string
		kind   source.Kind
		want   string
	}{
		{"407 Proxy Authentication Required", source.Denied, "answered 407 for models.example:443 (the proxy asks for a login: HTTPS_PROXY=http://NAME"},
		{"403 Forbidden", source.Refused, "answered 403 for models.example:443 (let it through there; NO_PROXY names"},
		{"503 Service Unavailable", source.Unavailable, "answered 503 for models.example:443 (let it"},
	} {
		client := Client(Options{Dial: acceptAll("HTTP/1.1 " + c.answer + "\r\nContent-Length: 0\r\n\r\n")})
		proxy := url.URL{Scheme: "http", Host: "proxy.example:3128", User: url.UserPassword("a", "CANARY")}
		client.Transport.(*http.Transport).Proxy = http.ProxyURL(&proxy)
		_, err := Send(t.Context(), client, http.MethodGet, "https://models.example/x?sig=CANARY", "s", "f", nil)
		if source.KindOf(err) != c.kind || !strings.Contains(err.Error(), "the proxy proxy.example:3128 "+c.want) ||
			strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: %v, want %s", c.answer, err, c.want)
		}
		client.CloseIdleConnections()
	}
}
