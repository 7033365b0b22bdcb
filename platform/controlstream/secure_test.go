package controlstream

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/platform/mtls"
)

// TestCertificates: a control stream needs certificates of one authority with the names of
// both ends, and a stream that is refused says why.
func TestCertificates(t *testing.T) {
	issue := func(names ...string) map[string]*mtls.Identity {
		made, err := mtls.Issue(time.Now(), names...)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]*mtls.Identity{}
		for _, n := range names {
			if out[n], err = mtls.Read(made.Root, made.Leaves[n]); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	ours, others := issue(NameController, NameLoader, NameActivator, "guest"), issue(NameController, NameLoader)
	for what, c := range map[string]struct {
		id     *mtls.Identity
		plain  bool // no TLS at the client
		former bool
		want   string
	}{
		"a loader":                  {id: ours[NameLoader]},
		"another authority":         {id: others[NameLoader], want: "not believed"},
		"another name":              {id: ours["guest"], want: "does not take our certificate"},
		"no TLS":                    {plain: true, want: "certificate only"},
		"a controller of version 2": {id: ours[NameLoader], former: true, want: "another version of the protocol than thaw-control/4"},
	} {
		t.Run(what, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			joined := make(chan string, 1)
			h := NewHub(HubOptions{Tokens: tokens(secret), Joined: func(_ Kind, id string) { joined <- id }})
			config := mtls.Server(func() (*mtls.Identity, error) { return ours[NameController], nil }, NameActivator, NameLoader)
			if newest := config.GetConfigForClient; c.former { // it offers HTTP/1 only
				config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
					made, err := newest(hello)
					made.NextProtos = []string{"http/1.1"}
					return made, err
				}
			}
			split := mtls.NewSplit(l, config, slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 3)
			go func() { done <- split.Run(ctx) }()
			secure, plain := &http.Server{Handler: h},
				&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })}
			Configure(secure)
			Configure(plain)
			go func() { done <- secure.Serve(split.Secure) }()
			go func() { done <- plain.Serve(split.Plain) }()
			defer func() {
				cancel()
				h.Close()
				secure.Close()
				plain.Close()
				for range 3 {
					<-done
				}
			}()
			o := ClientOptions{Token: secret}
			if !c.plain {
				o.TLS = func() (*tls.Config, error) { return mtls.Client(c.id, NameController), nil }
			}
			s, err := NewClient(o).openStream(ctx, l.Addr().String())
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				if s != nil {
					s.end(nil)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer s.end(nil)
			for kind, in := range map[Kind]bool{KindNode: true, KindActivator: false} {
				s, err := NewClient(o).openStream(ctx, l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				if err := s.write((Report{Hello: &Hello{Kind: kind, ID: "x"}}).pack(true, 0, time.Now())); err != nil {
					t.Fatal(err)
				}
				var f updateFrame
				if err := s.read(&f); (err == nil) != in || !in && !errors.Is(err, errLost) {
					t.Errorf("kind %s with the certificate of a loader: %v", kind, err)
				}
				s.end(nil)
			}
			if id := <-joined; id != "x" {
				t.Error(id)
			}
		})
	}
}
