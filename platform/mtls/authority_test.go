package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func issue(t testing.TB, at time.Time) *Issued {
	t.Helper()
	i, err := Issue(at, "controller", "activator", "loader")
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func identity(t testing.TB, leaf Leaf, roots ...*Issued) *Identity {
	t.Helper()
	var all []byte
	for _, r := range roots {
		all = append(all, r.Root...)
	}
	id, err := Read(all, leaf)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// meet connects two ends, which exchange one word.
func meet(t testing.TB, server, client *tls.Config) (who string, atServer, atClient error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		s := tls.Server(conn, server)
		if err = s.Handshake(); err != nil {
			closeReadable(conn)
			done <- err
			return
		}
		state := s.ConnectionState()
		who = Name(&state)
		_, err = s.Write([]byte("y"))
		s.Close()
		done <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	c := tls.Client(conn, client)
	if _, atClient = c.Write([]byte("x")); atClient == nil {
		_, atClient = io.ReadFull(c, make([]byte, 1))
	}
	conn.Close()
	return who, <-done, atClient
}

// TestMeet: which certificates are accepted, and which errors the others get.
func TestMeet(t *testing.T) {
	now := time.Now()
	ours, other, next := issue(t, now), issue(t, now), issue(t, now)
	past, future := issue(t, now.Add(-Valid-time.Hour)), issue(t, now.Add(3*time.Hour))
	for _, c := range []struct {
		name           string
		server, client *Identity
		to             string
		who            string
		server_, clien string // in the errors
	}{
		{name: "an activator", server: identity(t, ours.Leaves["controller"], ours), client: identity(t, ours.Leaves["activator"], ours), who: "activator"},
		{name: "a loader, while authorities change", server: identity(t, ours.Leaves["controller"], ours, next), client: identity(t, next.Leaves["loader"], next, ours), who: "loader"},
		{name: "a certificate that is none to come in with", server: identity(t, ours.Leaves["controller"], ours),
			client:  identity(t, ours.Leaves["controller"], ours),
			server_: "that of \"controller\", not of activator or loader", clien: "not one that may come in"},
		{name: "none", server: identity(t, ours.Leaves["controller"], ours),
			client:  &Identity{Roots: identity(t, ours.Leaves["loader"], ours).Roots},
			server_: "didn't provide a certificate", clien: "it wants a certificate, and we have none"},
		{name: "another authority's", server: identity(t, ours.Leaves["controller"], ours), client: identity(t, other.Leaves["activator"], ours),
			server_: "authority that is not believed here", clien: "authority that is not believed there"},
		{name: "an old authority's", server: identity(t, next.Leaves["controller"], next),
			client:  identity(t, ours.Leaves["activator"], ours, next),
			server_: "authority that is not believed here", clien: "authority that is not believed there"},
		{name: "a server of another authority", server: identity(t, other.Leaves["controller"], ours),
			client: identity(t, ours.Leaves["activator"], ours),
			clien:  "authority that is not believed here", server_: "does not take our certificate"},
		{name: "a server of another name", server: identity(t, ours.Leaves["loader"], ours), client: identity(t, ours.Leaves["activator"], ours),
			clien: "that of \"loader\", not of \"controller\"", server_: "does not take our certificate"},
		{name: "one that has run out", server: identity(t, ours.Leaves["controller"], ours, past),
			client:  identity(t, past.Leaves["activator"], ours),
			server_: "and not now", clien: "has run out"},
		{name: "one that is not good yet", server: identity(t, ours.Leaves["controller"], ours, future),
			client:  identity(t, future.Leaves["activator"], ours),
			server_: "and not now", clien: "has run out"},
		{name: "a server's that has run out", server: identity(t, past.Leaves["controller"], ours),
			client: identity(t, ours.Leaves["activator"], ours, past),
			clien:  "and not now", server_: "does not take our certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := Server(func() (*Identity, error) { return c.server, nil }, "activator", "loader")
			client := Client(c.client, "controller")
			if c.client.Cert.Certificate == nil {
				client.Certificates = nil
			}
			who, atServer, atClient := meet(t, server, client)
			if who != c.who && c.server_ == "" {
				t.Errorf("it is %q", who)
			}
			for _, e := range []struct {
				where string
				err   error
				want  string
			}{{"server", atServer, c.server_}, {"client", atClient, c.clien}} {
				if (e.err == nil) != (e.want == "") || e.err != nil && !strings.Contains(Explain(e.err).Error(), e.want) {
					t.Errorf("%s: %v, want %q", e.where, Explain(e.err), e.want)
				}
			}
		})
	}
	if err := errors.New("else"); Explain(err) != err || Explain(nil) != nil {
		t.Error("what is about something else")
	}
}

// TestOld: a certificate is replaced after half of its lifetime.
func TestOld(t *testing.T) {
	now := time.Now()
	cert := issue(t, now).Leaves["loader"].Cert
	for after, old := range map[time.Duration]bool{0: false, Valid/2 - 2*time.Hour: false, Valid/2 + 2*time.Hour: true, 2 * Valid: true} {
		if Old(cert, now.Add(after)) != old {
			t.Errorf("after %v: old is %v", after, !old)
		}
	}
	if !Old(nil, now) || !Old([]byte("x"), now) || !Old([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), now) {
		t.Error("what is none is good")
	}
}

// TestCARenews: a process beside the authority keeps its certificate until half of its
// lifetime is over, and then presents another of the same authority.
func TestCARenews(t *testing.T) {
	now := time.Now()
	ca, err := OpenCA(t.TempDir(), now)
	if err != nil {
		t.Fatal(err)
	}
	at := func(later time.Duration) *x509.Certificate {
		t.Helper()
		id, err := ca.Identity("server", now.Add(later))
		if err != nil {
			t.Fatal(err)
		}
		return id.Cert.Leaf
	}
	first := at(0)
	if again := at(Valid / 4); !again.Equal(first) {
		t.Error("another certificate after a quarter of its lifetime")
	}
	next := at(Valid * 3 / 4)
	if next.Equal(first) || next.NotAfter.Before(now.Add(Valid)) {
		t.Errorf("after three quarters of its lifetime the certificate ends at %v", next.NotAfter)
	}
	if err := next.CheckSignatureFrom(ca.root); err != nil {
		t.Error(err)
	}
}

func put(t testing.TB, dir string, roots []byte, l Leaf) {
	t.Helper()
	for name, b := range map[string][]byte{RootFile: roots, CertFile: l.Cert, KeyFile: l.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFolder: a complete change is read, a partial change is ignored.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Errorf("an empty folder: %v", err)
	}
	put(t, dir, []byte("none"), Leaf{})
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "no certificate of an authority") {
		t.Errorf("no authority: %v", err)
	}
	one, two := issue(t, time.Now()), issue(t, time.Now())
	put(t, dir, one.Root, one.Leaves["loader"])
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := f.Identity()
	if again, _ := f.Identity(); again != first {
		t.Error("read anew though nothing changed")
	}
	put(t, dir, two.Root, Leaf{two.Leaves["loader"].Cert, one.Leaves["loader"].Key}) // the key of another certificate
	if same, err := f.Identity(); same != first || err != nil {
		t.Errorf("half a change: %v", err)
	}
	put(t, dir, two.Root, two.Leaves["loader"])
	if next, err := f.Identity(); next == first || err != nil {
		t.Errorf("a change is not seen: %v", err)
	}
	os.Remove(filepath.Join(dir, KeyFile))
	if _, err := f.Identity(); err != nil {
		t.Errorf("what was read is kept: %v", err)
	}
}

// TestSplit: one port serves TLS and plain connections, each from its own listener.
func TestSplit(t *testing.T) {
	ours := issue(t, time.Now())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := identity(t, ours.Leaves["controller"], ours)
	s := NewSplit(l, Server(func() (*Identity, error) { return server, nil }, "loader"), slog.New(slog.DiscardHandler))
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 3)
	go func() { done <- s.Run(ctx) }()
	say := func(word string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", word, Name(r.TLS)) })
	}
	secure, plain := &http.Server{Handler: say("secure")}, &http.Server{Handler: say("plain")}
	go func() { done <- secure.Serve(s.Secure) }()
	go func() { done <- plain.Serve(s.Plain) }()

	get := func(config *tls.Config, scheme string) (string, error) {
		tr := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Get(scheme + "://" + l.Addr().String())
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return string(b), err
	}
	if got, err := get(nil, "http"); got != "plain " || err != nil {
		t.Error(got, err)
	}
	if got, err := get(Client(identity(t, ours.Leaves["loader"], ours), "controller"), "https"); got != "secure loader" || err != nil {
		t.Error(got, err)
	}
	if got, err := get(Client(identity(t, ours.Leaves["activator"], ours), "controller"), "https"); err == nil {
		t.Error("let in:", got)
	}
	// A silent connection delays no other.
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	half, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	half.Write([]byte{recordHandshake, 3})
	if got, err := get(nil, "http"); got != "plain " || err != nil {
		t.Error(got, err)
	}
	// Connections that come and go leave room for others.
	for range 2 * greetMost {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	late := time.After(20 * time.Second)
	for answered := false; !answered; {
		select {
		case <-late:
			t.Fatal("no answer after many connections without a word")
		default:
			got, _ := get(nil, "http")
			answered = got == "plain "
		}
	}
	end()
	for range 3 {
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		case <-late:
			t.Fatal("the port is not closed: it waits for a connection in its handshake")
		}
	}
	secure.Close()
	plain.Close()
}

// TestSilentPeer: a connection that says nothing, or stops in its handshake, is closed.
func TestSilentPeer(t *testing.T) {
	for name, first := range map[string]string{"silent": "", "half a handshake": string([]byte{recordHandshake, 3})} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Split{log: slog.New(slog.DiscardHandler), config: &tls.Config{}}
				peer, conn := net.Pipe()
				ctx, end := context.WithTimeout(t.Context(), time.Hour)
				defer end()
				go s.greet(ctx, conn)
				began := time.Now()
				if first != "" {
					io.WriteString(peer, first)
				}
				for err := error(nil); err == nil; { // an alert may come first
					_, err = peer.Read(make([]byte, 1<<10))
				}
				if took := time.Since(began); took < greetFor || took > greetFor+2*time.Second {
					t.Errorf("closed after %v", took)
				}
			})
		})
	}
}

// TestOldTLS: a peer with a valid certificate that speaks no TLS 1.3 is refused.
func TestOldTLS(t *testing.T) {
	ours := issue(t, time.Now())
	server := Server(func() (*Identity, error) { return identity(t, ours.Leaves["controller"], ours), nil }, "loader")
	client := Client(identity(t, ours.Leaves["loader"], ours), "controller")
	if _, atServer, atClient := meet(t, server, client); atServer != nil || atClient != nil {
		t.Fatal(atServer, atClient)
	}
	client.MinVersion, client.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if _, atServer, atClient := meet(t, server, client); atServer == nil || atClient == nil {
		t.Errorf("TLS 1.2 is let in: %v, %v", atServer, atClient)
	}
}

// TestRefusalsLogged: refused connections are logged once in sayEvery, and a connection
// that the other end closed is not.
func TestRefusalsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		s := &Split{log: slog.New(slog.NewTextHandler(&out, nil))}
		for range 3 {
			s.refused(&net.TCPAddr{}, io.EOF)
		}
		for want := range 3 {
			if got := strings.Count(out.String(), "\n"); got != want {
				t.Errorf("%d lines, want %d: %s", got, want, out.String())
			}
			for range 100 {
				s.refused(&net.TCPAddr{}, errors.New("refused"))
			}
			time.Sleep(sayEvery)
		}
	})
}
