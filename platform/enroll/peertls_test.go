package enroll

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/p2p"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// noBlocks is a node's store without checkpoints.
type noBlocks struct{}

func (noBlocks) ReadBlock(context.Context, string, string, int64, int64) (*loader.BlockRead, error) {
	return nil, &source.Error{Kind: source.Missing}
}
func (noBlocks) HasPlan(string) bool { return true }

// servePeers serves blocks as the node of an identity.
func servePeers(t *testing.T, id string, secure *p2p.TLS) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	node := p2p.New(p2p.Options{ID: id, TLS: secure, Nodes: func() []p2p.Peer { return nil }})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Serve(ctx, l, noBlocks{}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		node.Close()
	})
	return "https://" + l.Addr().String()
}

// TestPeerTLS: the nodes of one server answer each other, and announcements come under the ID
// of their certificate alone. Other agents, removed ones, and processes without a certificate
// get no answer.
func TestPeerTLS(t *testing.T) {
	w, other := newWorld(t, t.TempDir()), newWorld(t, t.TempDir())
	one, two, gone, foreign := w.must("one", t.TempDir()), w.must("two", t.TempDir()), w.must("gone", t.TempDir()),
		other.must("two", t.TempDir())
	atAgent, atServer := servePeers(t, "one", one.PeerTLS()), servePeers(t, "home", w.PeerTLS())
	through := func(secure *p2p.TLS) *http.Transport {
		return &http.Transport{DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return secure.Connect(ctx, conn)
		}}
	}
	announce := func(secure *p2p.TLS, at, as string) (status int, answer string) {
		t.Helper()
		transport := through(secure)
		transport.DisableKeepAlives = true
		client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
		r, err := client.Post(at+"/peers/meet?plan=x", "application/json", strings.NewReader(`{"id":"`+as+`","state":"arriving"}`))
		if err != nil {
			return 0, err.Error()
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(b)
	}
	own, err := foreign.folder.Identity()
	if err != nil {
		t.Fatal(err)
	}
	// goes on where the server's certificate is not its own authority's
	anyNode := func(cert tls.Certificate) *p2p.TLS {
		return &p2p.TLS{Connect: func(ctx context.Context, conn net.Conn) (*tls.Conn, error) {
			config := mtls.PeerClient(&mtls.Identity{Cert: cert, Roots: one.roots()}, func(tls.ConnectionState) error { return nil })
			return mtls.Connect(ctx, conn, config)
		}}
	}
	type caller struct {
		name   string
		secure *p2p.TLS
		as     string
		agent  int // status at an agent
		server int // and at the server's own node
	}
	check := func(callers ...caller) {
		t.Helper()
		for _, x := range callers {
			for at, want := range map[string]int{atAgent: x.agent, atServer: x.server} {
				status, answer := announce(x.secure, at, x.as)
				if status != want || status != 200 && (strings.Contains(answer, `"home"`) || strings.Contains(answer, `"one"`)) {
					t.Errorf("%s at %s: %d %s, want %d", x.name, at, status, answer, want)
				}
			}
		}
	}
	check(
		caller{"another agent", two.PeerTLS(), "two", 200, 200},
		caller{"a pull on its machine", two.PeerTLS(), "pull.XYZ", 200, 200},
		caller{"an agent under another's name", two.PeerTLS(), "home", 403, 403},
		caller{"no certificate", anyNode(tls.Certificate{}), "two", 0, 0},
		caller{"an agent of another server", anyNode(own.Cert), "two", 0, 0},
		caller{"an agent that is removed later", gone.PeerTLS(), "gone", 200, 200},
	)
	if status, answer := announce(w.PeerTLS(), atAgent, "home"); status != 200 {
		t.Errorf("the server's node at an agent: %d %s", status, answer)
	}
	if status, answer := announce(foreign.PeerTLS(), atAgent, "two"); status != 0 || !strings.Contains(answer, "unknown authority") {
		t.Errorf("an agent asks a node of another server: %d %s", status, answer)
	}

	if err := w.Remove("gone"); err != nil {
		t.Fatal(err)
	}
	check(caller{"a removed agent before the next heartbeat", gone.PeerTLS(), "gone", 200, 0})
	// A connection that is open already ends too.
	transport := through(gone.PeerTLS())
	defer transport.CloseIdleConnections()
	open := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	ask := func() int {
		r, err := open.Get(atAgent + "/peers/folder?folder=/")
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
		return r.StatusCode
	}
	if status := ask(); status != 404 {
		t.Errorf("before the heartbeat: %d", status)
	}
	one.SetRemoved(w.removedFor("two", two))
	if status := ask(); status != 403 {
		t.Errorf("over an open connection: %d", status)
	}
	check(
		caller{"a removed agent", gone.PeerTLS(), "gone", 0, 0},
		caller{"an agent that stays", two.PeerTLS(), "two", 200, 200},
	)
}

// removedFor sends a heartbeat and returns the keys that the server names as removed.
func (w *world) removedFor(id string, i *Identity) []string {
	w.t.Helper()
	var reply functions.HeartbeatReply
	status, answer := w.post(i.ServerTLS(), heartbeatPath, `{"agent_id":"`+id+`"}`)
	if err := json.Unmarshal([]byte(answer), &reply); status != 200 || err != nil {
		w.t.Fatalf("%d %s", status, answer)
	}
	return reply.Removed
}

// TestRemovedKeys: the keys of removed and replaced agents are named to the others, also after
// a restart of the server, until the agent is back with that key or its certificate is over.
func TestRemovedKeys(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t, dir)
	stays := w.must("stays", t.TempDir())
	folders := map[string]string{"removed": t.TempDir(), "replaced": t.TempDir(), "back": t.TempDir()}
	keys := map[string]string{}
	for id, folder := range folders {
		w.must(id, folder)
		keys[id] = w.agents[id].Key
	}
	expect := func(what string, w *world, ids ...string) {
		t.Helper()
		var want []string
		for _, id := range ids {
			want = append(want, keys[id])
		}
		slices.Sort(want)
		if got := slices.Sorted(slices.Values(w.removedFor("stays", stays))); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want those of %q", what, got, ids)
		}
	}
	expect("at first", w)
	for _, id := range []string{"removed", "back"} {
		if err := w.Remove(id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.join("replaced", w.token("replaced"), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	expect("removed and replaced", w, "removed", "replaced", "back")
	w.must("back", folders["back"])
	expect("one is back", w, "removed", "replaced")
	for _, a := range w.Agents() {
		if !a.Removed.IsZero() {
			t.Errorf("listed as an agent: %+v", a)
		}
	}
	again := newWorld(t, dir)
	expect("after a restart", again, "removed", "replaced")
	again.later(mtls.Valid + time.Hour)
	again.Server.mu.Lock()
	err := again.save(again.agents)
	again.Server.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if got := again.removedKeys(); len(got) != 0 {
		t.Errorf("after their certificates have expired: %q", got)
	}
}
