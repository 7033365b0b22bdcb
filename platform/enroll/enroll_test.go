package enroll

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/mtls"
	"github.com/thaw-dev/thaw/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a server and its agents' port.
type world struct {
	*Server
	t   *testing.T
	url string

	mu    sync.Mutex
	now   time.Time
	beats []functions.Heartbeat

	removed []string
	own     string
}

func newWorld(t *testing.T, dir string) *world {
	t.Helper()
	w := &world{t: t, now: time.Now(), own: "head"}
	s, err := Open(Options{
		Dir: dir, Log: slog.New(slog.DiscardHandler),
		Heartbeat: func(hb functions.Heartbeat, sameMachine bool) error {
			if !sameMachine {
				t.Error("a heartbeat over loopback is taken for one of another machine")
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.beats = append(w.beats, hb)
			return nil
		},
		Removed: func(agent string) { w.removed = append(w.removed, agent) },
		Own:     func() string { w.mu.Lock(); defer w.mu.Unlock(); return w.own },
		Peers:   func(agent string) []functions.Peer { return []functions.Peer{{ID: "not-" + agent}} },
		Now:     func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return w.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Server = s
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.url = "https://" + l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) later(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) token(agent string) string {
	w.t.Helper()
	token, _, err := w.NewToken(agent, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

func (w *world) join(id, token, dir string) (*Identity, error) {
	return Join(w.t.Context(), JoinOptions{Server: w.url + "/", Token: token, ID: id, Dir: dir, Log: slog.New(slog.DiscardHandler)})
}

// must joins with a new token for any agent.
func (w *world) must(id, dir string) *Identity {
	w.t.Helper()
	i, err := w.join(id, w.token(""), dir)
	if err != nil {
		w.t.Fatal(err)
	}
	return i
}

// post sends a body as the holder of an identity; 0 means that the connection was refused.
func (w *world) post(config *tls.Config, path, body string) (status int, answer string) {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: 30 * time.Second}
	res, err := client.Post(w.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// TestJoin: who may join with which token, once.
func TestJoin(t *testing.T) {
	w := newWorld(t, t.TempDir())
	first, err := w.join("gpu-1", w.token(""), t.TempDir())
	if err != nil {
		t.Fatalf("%+v %v", first, err)
	}
	used, dir := w.token(""), t.TempDir()
	if _, err := w.join("gpu-2", used, dir); err != nil {
		t.Fatal(err)
	}
	expired := w.token("")
	w.later(DefaultExpiry)
	named, foreign := w.token("gpu-1"), newWorld(t, t.TempDir()).token("")
	for _, x := range []struct{ who, id, token, want string }{
		{"a used token", "gpu-3", used, "unknown, expired or used"},
		{"an expired token", "gpu-3", expired, "unknown, expired or used"},
		{"no token", "gpu-3", "", "no join token"},
		{"a token of nothing", "gpu-3", "thaw-join-secret", "none that thaw agents token made"},
		{"a name that is taken", "gpu-1", w.token(""), "there is an agent gpu-1 already"},
		{"a token for another", "gpu-3", named, "for the agent gpu-1, not for gpu-3"},
		{"no name", "GPU 3", w.token(""), "no DNS label"},
		{"a token of another server", "gpu-3", foreign, "its authority has another fingerprint"},
	} {
		i, err := w.join(x.id, x.token, t.TempDir())
		if i != nil || err == nil || !strings.Contains(err.Error(), x.want) || x.token != "" && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want %q", x.who, err, x.want)
		}
	}
	if _, err := w.join("gpu-1", named, t.TempDir()); err != nil {
		t.Errorf("a token for a name that is taken replaces its agent: %v", err)
	}
	if status, answer := w.post(first.ServerTLS(), heartbeatPath, `{"agent_id":"gpu-1"}`); status != 403 || !strings.Contains(answer, "replaced") {
		t.Errorf("the replaced agent: %d %s", status, answer)
	}
	for what, d := range map[string]time.Duration{"none": -1, "a month": 30 * 24 * time.Hour} {
		if _, _, err := w.NewToken("", d); err == nil {
			t.Errorf("a token that lasts %s", what)
		}
	}
	if _, _, err := w.NewToken("A B", 0); err == nil {
		t.Error("a token for what is no name")
	}
}

// TestServersOwnName: an agent with the name of the server's node does not join, and its token
// stays good; one that has joined before the server got that name is refused for good.
func TestServersOwnName(t *testing.T) {
	w := newWorld(t, t.TempDir())
	token := w.token("")
	if _, err := w.join("head", token, t.TempDir()); !errors.Is(err, ErrRefused) ||
		!strings.Contains(err.Error(), "head is the name of the server's own node: give the agent another with --name") {
		t.Errorf("%v", err)
	}
	if len(w.Agents()) != 0 {
		t.Errorf("joined: %+v", w.Agents())
	}
	if _, _, err := w.NewToken("head", 0); err == nil || !strings.Contains(err.Error(), "own node") {
		t.Errorf("%v", err)
	}
	i, err := w.join("gpu-1", token, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.own = "gpu-1"
	w.mu.Unlock()
	if status, answer := w.post(i.ServerTLS(), heartbeatPath, `{"agent_id":"gpu-1"}`); status != 403 || !strings.Contains(answer, "wrong_agent") {
		t.Errorf("%d %s", status, answer)
	}
}

// TestLostReply: a token that was used is accepted again with the same key, and an agent that
// has its identity needs none.
func TestLostReply(t *testing.T) {
	w, dir := newWorld(t, t.TempDir()), t.TempDir()
	token := w.token("")
	if _, err := w.join("gpu-1", token, dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, mtls.CertFile)); err != nil { // as if the reply had not come
		t.Fatal(err)
	}
	if _, err := w.join("gpu-1", token, dir); err != nil {
		t.Errorf("the same agent again: %v", err)
	}
	w.later(DefaultExpiry)
	for _, again := range []string{"", token} { // the file is still there at the next start
		if i, err := w.join("gpu-1", again, dir); err != nil || i == nil {
			t.Errorf("an agent that has joined: %v", err)
		}
	}
	if _, err := w.join("other", "", dir); !errors.Is(err, ErrNoToken) {
		t.Errorf("under another name: %v", err)
	}
	if i, err := w.join("gpu-1", w.token(""), dir); err != nil || i == nil {
		t.Errorf("with a new token and its own key: %v", err)
	}
}

// TestUsedTokenBesideIdentity: a token that is used up or expired is ignored, with a line in
// the log, where the folder has an identity that the server knows.
func TestUsedTokenBesideIdentity(t *testing.T) {
	w, dir := newWorld(t, t.TempDir()), t.TempDir()
	var log strings.Builder
	join := func(w *world, token, dir string) (*Identity, error) {
		log.Reset()
		return Join(t.Context(), JoinOptions{Server: w.url, Token: token, ID: "gpu-1", Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
	}
	if _, err := join(w, w.token(""), dir); err != nil {
		t.Fatal(err)
	}
	used := w.token("")
	if _, err := w.join("gpu-2", used, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	expired := w.token("")
	w.later(DefaultExpiry)
	for what, token := range map[string]string{"used": used, "expired": expired} {
		i, err := join(w, token, dir)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if !strings.Contains(log.String(), "the join token is refused and ignored") ||
			!strings.Contains(log.String(), "unknown, expired or used") {
			t.Errorf("%s: the log is %q", what, log.String())
		}
		if status, answer := w.post(i.ServerTLS(), heartbeatPath, `{"agent_id":"gpu-1"}`); status != 200 {
			t.Errorf("%s: %d %s", what, status, answer)
		}
	}
	// The identity of another server is none here.
	other, elsewhere := newWorld(t, t.TempDir()), t.TempDir()
	if _, err := join(other, other.token(""), elsewhere); err != nil {
		t.Fatal(err)
	}
	if i, err := join(w, used, elsewhere); i != nil || !errors.Is(err, ErrRefused) {
		t.Errorf("with the identity of another server: %v", err)
	}
	if err := w.Remove("gpu-1"); err != nil {
		t.Fatal(err)
	}
	if i, err := join(w, used, dir); i != nil || !errors.Is(err, ErrRefused) {
		t.Errorf("a removed agent: %v", err)
	}
}

// TestOtherServer: an agent ends, with the reason, where another try would find the same: a
// server that did not make the token, and the port of an API.
func TestOtherServer(t *testing.T) {
	w, other := newWorld(t, t.TempDir()), newWorld(t, t.TempDir())
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	page := httptest.NewTLSServer(http.NotFoundHandler())
	defer page.Close()
	for _, x := range []struct{ url, token, want string }{
		{w.url, other.token(""), "the server is not the one that made the token"},
		{"https" + strings.TrimPrefix(plain.URL, "http"), w.token(""), "speaks no TLS: it is the port of its API, not its --agents-addr"},
		{page.URL, w.token(""), "the server is not the one that made the token"},
	} {
		_, err := Join(t.Context(), JoinOptions{Server: x.url, Token: x.token, ID: "gpu-1", Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", x.url, err)
		}
	}
}

// TestExpiredToken: a token is refused once its time is over, also before another is made.
func TestExpiredToken(t *testing.T) {
	w := newWorld(t, t.TempDir())
	token := w.token("")
	w.later(DefaultExpiry)
	if _, err := w.join("late", token, t.TempDir()); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "expired") ||
		len(w.Agents()) != 0 {
		t.Errorf("%v, %v have joined", err, w.Agents())
	}
}

// TestServerFails: an agent tries again where its server fails, such as for a full disk.
func TestServerFails(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir)
	inWay := filepath.Join(w.file(), "in the way")
	if err := os.MkdirAll(inWay, 0o700); err != nil {
		t.Fatal(err)
	}
	var log testkit.Buffer
	joined := make(chan error, 1)
	go func() {
		_, err := Join(t.Context(),
			JoinOptions{Server: w.url, Token: w.token(""), ID: "gpu-1", Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
		joined <- err
	}()
	testkit.Eventually(t, "the server has failed once",
		func() bool { return len(joined) > 0 || strings.Contains(log.String(), "cannot be joined yet") })
	if err := os.RemoveAll(w.file()); err != nil {
		t.Fatal(err)
	}
	if err := <-joined; err != nil || len(w.Agents()) != 1 {
		t.Errorf("%v, %v have joined", err, w.Agents())
	}
}

// TestTokenOnce: a used token admits its key under its first id only, and no more after that
// agent is removed or replaced.
func TestTokenOnce(t *testing.T) {
	w, dir := newWorld(t, t.TempDir()), t.TempDir()
	again := func(what, id, token string) {
		t.Helper()
		os.Remove(filepath.Join(dir, mtls.CertFile)) // the identity is not there, and its key is
		if _, err := w.join(id, token, dir); err == nil || !strings.Contains(err.Error(), "unknown, expired or used") {
			t.Errorf("%s: %v", what, err)
		}
	}
	used := w.token("")
	if _, err := w.join("gpu-1", used, dir); err != nil {
		t.Fatal(err)
	}
	again("a second id", "gpu-2", used)
	if err := w.Remove("gpu-1"); err != nil {
		t.Fatal(err)
	}
	again("a removed agent", "gpu-1", used)
	next := w.token("")
	if _, err := w.join("gpu-1", next, dir); err != nil {
		t.Fatalf("a removed agent with a new token: %v", err)
	}
	again("a removed agent that is back, with its old token", "gpu-1", used)
	if _, err := w.join("gpu-1", w.token("gpu-1"), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	again("a replaced agent", "gpu-1", next)
	if all := w.Agents(); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

// TestHeartbeats: an agent speaks for itself alone, until it is removed.
func TestHeartbeats(t *testing.T) {
	data := t.TempDir()
	w := newWorld(t, data)
	dir := t.TempDir()
	one, two := w.must("gpu-1", dir), w.must("gpu-2", t.TempDir())
	if status, answer := w.post(one.ServerTLS(), heartbeatPath, `{"agent_id":"gpu-1","news":1}`); status != 200 || !strings.Contains(answer, `"not-gpu-1"`) {
		t.Errorf("%d %s", status, answer)
	}
	none := one.ServerTLS()
	none.GetClientCertificate = nil
	for _, x := range []struct {
		who, path, body string
		config          *tls.Config
		status          int
	}{
		{"another agent's", heartbeatPath, `{"agent_id":"gpu-1"}`, two.ServerTLS(), 403},
		{"without a certificate", heartbeatPath, `{"agent_id":"gpu-1"}`, none, 401},
		{"renewal without a certificate", renewPath, `{}`, none, 401},
		{"no JSON", heartbeatPath, `{"agent_id":`, one.ServerTLS(), 400},
		{"a long join", joinPath, `{"token":"` + strings.Repeat("x", maxJoin) + `"}`, none, 413},
		{"no certificate request", joinPath, `{"token":"x","id":"y"}`, none, 400},
		{"another path", "/api/v1/functions", ``, one.ServerTLS(), 404},
		{"renewal", renewPath, `{}`, one.ServerTLS(), 200},
	} {
		if status, answer := w.post(x.config, x.path, x.body); status != x.status {
			t.Errorf("%s: %d %s, want %d", x.who, status, answer, x.status)
		}
	}
	if len(w.beats) != 1 || len(w.Agents()) != 2 {
		t.Errorf("heartbeats %+v of %+v", w.beats, w.Agents())
	}
	if err := w.Remove("gpu-1"); err != nil {
		t.Error(err)
	}
	if len(w.removed) != 1 || w.removed[0] != "gpu-1" {
		t.Errorf("removed: %v", w.removed)
	}
	if err := w.Remove("gpu-1"); !errors.Is(err, functions.ErrNotFound) {
		t.Error(err)
	}
	if status, _ := w.post(one.ServerTLS(), heartbeatPath, `{"agent_id":"gpu-1"}`); status != 403 {
		t.Errorf("a removed agent: %d", status)
	}
	// A restart of the server keeps the authority, who has joined, and who was removed.
	again := newWorld(t, data)
	if status, answer := again.post(two.ServerTLS(), heartbeatPath, `{"agent_id":"gpu-2"}`); status != 200 {
		t.Errorf("after a restart: %d %s", status, answer)
	}
	if status, _ := again.post(one.ServerTLS(), heartbeatPath, `{"agent_id":"gpu-1"}`); status != 403 {
		t.Errorf("a removed agent after a restart: %d", status)
	}
	if _, err := again.join("gpu-1", again.token(""), dir); err != nil {
		t.Errorf("a removed agent joins again: %v", err)
	}
}

// TestAgentPort: an agent takes its server alone, and a server finds at an address only the
// agent that it means.
func TestAgentPort(t *testing.T) {
	w := newWorld(t, t.TempDir())
	one, two := w.must("gpu-1", t.TempDir()), w.must("gpu-2", t.TempDir())
	other := newWorld(t, t.TempDir())
	other.must("gpu-1", t.TempDir())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "yes") }),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(tls.NewListener(l, one.AgentTLS())) }()
	defer func() { srv.Close(); <-done }()
	plain := w.AgentTLS("gpu-1")
	plain.GetClientCertificate = nil
	posing := two.ServerTLS()
	posing.ServerName = AgentName("gpu-1")
	for who, x := range map[string]struct {
		config *tls.Config
		ok     bool
	}{
		"its server":              {w.AgentTLS("gpu-1"), true},
		"its server, for another": {w.AgentTLS("gpu-2"), false},
		"another server":          {other.AgentTLS("gpu-1"), false},
		"no certificate":          {plain, false},
		"another agent":           {posing, false},
	} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: x.config, DisableKeepAlives: true}, Timeout: 30 * time.Second}
		res, err := client.Get("https://" + l.Addr().String())
		if err == nil {
			res.Body.Close()
		}
		if (err == nil) != x.ok {
			t.Errorf("%s: %v", who, err)
		}
	}
	if err := w.Remove("gpu-1"); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: w.AgentTLS("gpu-1"), DisableKeepAlives: true},
		Timeout: 30 * time.Second}
	if res, err := client.Get("https://" + l.Addr().String()); err == nil {
		res.Body.Close()
		t.Error("the server asks an agent that was removed")
	}
}

// TestRenewal: a certificate is renewed when half of its lifetime is over, for the same key.
func TestRenewal(t *testing.T) {
	w, dir := newWorld(t, t.TempDir()), t.TempDir()
	i := w.must("gpu-1", dir)
	cert := func() string {
		b, err := os.ReadFile(filepath.Join(dir, mtls.CertFile))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: i.ServerTLS(), DisableKeepAlives: true}, Timeout: 30 * time.Second}
	before := cert()
	if err := i.renew(t.Context(), client, time.Now()); err != nil || cert() != before {
		t.Errorf("renewed too early: %v", err)
	}
	if err := i.renew(t.Context(), client, time.Now().Add(mtls.Valid*2/3)); err != nil || cert() == before {
		t.Errorf("not renewed: %v", err)
	}
	if status, answer := w.post(i.ServerTLS(), heartbeatPath, `{"agent_id":"gpu-1"}`); status != 200 {
		t.Errorf("with the new certificate: %d %s", status, answer)
	}
}

// TestDamaged: damaged files are reported, and no other authority is made in their place.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	agent := t.TempDir()
	newWorld(t, dir).must("gpu-1", agent)
	for _, name := range []string{"agents.json", mtls.RootFile, "ca.key"} {
		path := filepath.Join(dir, name)
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
		for _, damaged := range []string{"{", "", string(good[:len(good)/2])} {
			os.WriteFile(path, []byte(damaged), 0o600)
			_, err := Open(Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "every agent has to join again") {
				t.Errorf("%s is damaged (%.5q): %v", name, damaged, err)
			}
		}
		os.WriteFile(path, good, 0o600)
	}
	os.Remove(filepath.Join(dir, "ca.key"))
	if _, err := Open(Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "key") {
		t.Errorf("without its key: %v", err)
	}
	os.WriteFile(filepath.Join(agent, mtls.KeyFile), nil, 0o600)
	_, _, err := openIdentity(JoinOptions{Dir: agent, ID: "gpu-1"})
	if err == nil || !strings.Contains(err.Error(), "thaw agents token --name gpu-1") || !strings.Contains(err.Error(), "remove "+agent) {
		t.Errorf("an agent's damaged identity: %v", err)
	}
}
