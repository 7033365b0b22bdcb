package control

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative"
	"github.com/thaw-dev/thaw/platform/knative/election"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// TestControlToken: a changed token is valid at once, and the previous one for a while.
func TestControlToken(t *testing.T) {
	kube := fake.NewClientset()
	now, told := time.Now(), 0
	l := &controlTLS{kube: kube, namespace: knative.System, leads: func() bool { return true }, changed: func() { told++ }, log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }}
	if _, err := l.identity(); err == nil {
		t.Error("an identity of nothing")
	}
	l.reload(t.Context())
	first := l.tokens()
	if len(first) != 1 || len(first[0]) < 32 || told != 1 {
		t.Fatal(first, told)
	}
	secrets := kube.CoreV1().Secrets(knative.System)
	s, err := secrets.Get(t.Context(), knative.ControlTLSSecret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Repeat("n", 40)
	s.Data[knative.TokenKey] = []byte(other)
	if _, err := secrets.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.reload(t.Context())
	if got := l.tokens(); !slices.Equal(got, []string{other, first[0]}) || told != 2 {
		t.Error(got, told)
	}
	now = now.Add(formerTokenGrace)
	l.reload(t.Context())
	if got := l.tokens(); !slices.Equal(got, []string{other}) || told != 3 {
		t.Error(got, told)
	}
	before, _ := l.identity()
	if err := secrets.Delete(t.Context(), knative.ControlTLSSecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.leads = func() bool { return false } // only the leader creates one
	l.reload(t.Context())
	if after, _ := l.identity(); after != before || !slices.Equal(l.tokens(), []string{other}) {
		t.Error("what was read is forgotten")
	}
}

// TestSecurePort: with certificates, control streams need one; probes do not.
func TestSecurePort(t *testing.T) {
	kube := fake.NewClientset()
	log := slog.New(slog.DiscardHandler)
	l := &controlTLS{kube: kube, namespace: knative.System, leads: func() bool { return true }, log: log, now: time.Now}
	l.reload(t.Context())
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
	c := &control{o: Options{Listener: listener, Secure: true, Log: log}, tls: l, election: &election.Election{}}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	failed := make(chan error, 4)
	go func() { defer close(done); c.serve(ctx, func(err error) { failed <- err }) }()
	defer func() { end(); <-done }()
	hub := controlstream.NewHub(controlstream.HubOptions{Tokens: l.tokens})
	defer hub.Close()
	c.term.Store(&leaderTerm{hub: hub})

	get := func(path string) (int, string) {
		t.Helper()
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}).Get("http://" + listener.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Error("no probe:", code)
	}
	if code, body := get(controlstream.Endpoint); code != http.StatusForbidden || !strings.Contains(body, "certificate") {
		t.Error(code, body)
	}
	linked := make(chan struct{})
	once := sync.OnceFunc(func() { close(linked) })
	client := controlstream.NewClient(controlstream.ClientOptions{
		Addr: listener.Addr().String(), Token: l.tokens()[0], Hello: controlstream.Hello{Kind: controlstream.KindNode, ID: "n1"},
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

var _ controlstream.Coordinator = (*ratelimit.Coordinator)(nil)
