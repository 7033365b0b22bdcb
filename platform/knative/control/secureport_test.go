package control

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/election"
	"github.com/thaw-dev/thaw/platform/knative/team"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/platform/telemetry"
	"github.com/thaw-dev/thaw/testkit/httpservertest"
)

// TestSecurePort: with certificates, control streams need one, the control API needs TLS and
// the admin token, which is not that of the streams, metrics without TLS a token of their
// own, and probes need nothing.
func TestSecurePort(t *testing.T) {
	kube := fake.NewClientset()
	log := slog.New(slog.DiscardHandler)
	l := knative.NewControlSecrets(knative.ControlSecretsOptions{Secrets: kube.CoreV1().Secrets(knative.System), Secure: true,
		Leads: func() bool { return true }, Log: log})
	l.Reload(t.Context())
	s, err := kube.CoreV1().Secrets(knative.System).Get(t.Context(), knative.ControlTLSSecret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	id, err := mtls.Read(s.Data["ca.crt"], mtls.Leaf{Cert: s.Data["loader.crt"], Key: s.Data["loader.key"]})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &control{o: Options{Listener: listener, Secure: true, Log: log}, secrets: l, election: &election.Election{},
		metrics: telemetry.NewProcess()}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	failed := make(chan error, 4)
	go func() { defer close(done); c.serve(ctx, func(err error) { failed <- err }) }()
	defer func() { end(); <-done }()
	hub := controlstream.NewHub(controlstream.HubOptions{Tokens: l.Tokens})
	defer hub.Close()
	r := &leaderTerm{c: c, hub: hub, teams: team.NewWatcher(team.WatcherOptions{Client: kube, Tokens: l.AdminTokens})}
	r.metrics = c.metrics.Extend(hub.Samples)
	r.api = r.control()
	c.term.Store(r)

	get := func(url, token string) (int, string) {
		t.Helper()
		transport := &http.Transport{DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{RootCAs: id.Roots, ServerName: controlstream.NameController}}
		req, err := http.NewRequestWithContext(t.Context(), "GET", strings.Replace(url, "://", "://"+listener.Addr().String(), 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := (&http.Client{Transport: transport, Timeout: 30 * time.Second}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	admin, mounted, metrics := l.AdminTokens()[0], l.Tokens()[0], string(s.Data[knative.MetricsEntry])
	for _, x := range []struct {
		url, token string
		code       int
		has        string
	}{
		{"http:///healthz", "", 200, "ok"},
		{"http:///metrics", "", 401, "metrics-token"},
		{"http:///metrics", mounted, 401, "metrics-token"},
		{"http:///metrics", admin, 401, "metrics-token"},
		{"http:///metrics", metrics, 200, "thaw_control_streams"},
		{"https:///api/v1/functions", metrics, 401, "invalid_api_key"},
		{"http://" + controlstream.Endpoint, mounted, 403, "certificate"},
		{"https://" + controlstream.Endpoint, mounted, 403, "certificate"},
		{"http:///api/v1/keys", admin, 403, "TLS only"},
		{"https:///api/v1/keys", "", 401, "invalid_api_key"},
		{"https:///api/v1/keys", mounted, 401, "invalid_api_key"},
		{"https:///api/v1/functions", mounted, 401, "invalid_api_key"},
		{"https:///api/v1/keys", admin, 200, "items"},
		{"https:///metrics", "", 401, "invalid_api_key"},
		{"https:///metrics", mounted, 401, "invalid_api_key"},
		{"https:///metrics", admin, 200, "thaw_control_streams"},
	} {
		if code, body := get(x.url, x.token); code != x.code || !strings.Contains(body, x.has) {
			t.Errorf("%s: %d %.200s, want %d %s", x.url, code, body, x.code, x.has)
		}
	}
	linked := make(chan struct{})
	once := sync.OnceFunc(func() { close(linked) })
	client := controlstream.NewClient(controlstream.ClientOptions{
		Addr: listener.Addr().String(), Token: l.Tokens()[0], Hello: controlstream.Hello{Kind: controlstream.KindNode, ID: "n1"},
		TLS:  func() (*tls.Config, error) { return mtls.Client(id, controlstream.NameController), nil },
		Down: func(controlstream.Update) { once() }, // called for each control stream
	})
	running, stop := context.WithCancel(ctx)
	ran := make(chan error, 1)
	go func() { ran <- client.Run(running) }()
	select {
	case <-linked:
	case <-time.After(30 * time.Second):
		t.Error("no link with a certificate")
	}
	stop()
	<-ran
	select {
	case err := <-failed:
		t.Error(err)
	default:
	}
}

// TestPortIsBounded: what a client without rights keeps open at the controller's port ends:
// a connection without a request, and one whose body does not come.
func TestPortIsBounded(t *testing.T) {
	for request, most := range map[string]time.Duration{
		"":                                  10 * time.Second,
		"GET / HTTP/":                       10 * time.Second,
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n": 2 * time.Minute,
		"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n":               2 * time.Second,
		"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n": 2 * time.Second,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00": 2 * time.Minute,
	} {
		t.Run(request, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ln := httpservertest.Listen()
				s := newServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
				served := make(chan error, 1)
				go func() { served <- s.Serve(ln) }()
				defer func() { s.Close(); <-served }()
				c, err := ln.Dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				began := time.Now()
				defer time.AfterFunc(time.Hour, func() { c.Close() }).Stop()
				go io.WriteString(c, request)
				io.Copy(io.Discard, c)
				if took := time.Since(began); took > most+2*time.Second {
					t.Errorf("%q ended after %s, want %s", request, took, most)
				}
			})
		})
	}
}

var _ controlstream.Coordinator = (*ratelimit.Coordinator)(nil)
