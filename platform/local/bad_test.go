//go:build linux

package local

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/agent"
	"github.com/thaw-dev/thaw/testkit"
)

// TestBadStarts: whatever prevents an engine's start, every waiting request gets the root
// cause, and after the fix the next request is answered.
func TestBadStarts(t *testing.T) {
	t.Parallel()
	breaks := filepath.Join(t.TempDir(), "broken")
	os.WriteFile(breaks, []byte("told to fail by a file"), 0o600)
	missing := filepath.Join(t.TempDir(), "weights")
	models := []*functions.Model{
		model(t, "exits", nil, "fail=ValueError: weights are truncated"),
		model(t, "mends", nil, "failif="+breaks),
		model(t, "nobinary", func(s *functions.ModelSpec) { s.Args[0] = "/nowhere/engine" }),
		model(t, "noweights", func(s *functions.ModelSpec) { s.Source = missing }),
		model(t, "toolarge", func(s *functions.ModelSpec) { s.Resources.Memory = 1 << 50 }),
	}
	c := serverConfig{Addr: freeAddr(t), Data: t.TempDir(), Memory: 1 << 30, Orphan: 3 * time.Second, Models: models}
	srv := begin(t, "test-server", c)
	defer showEvents(t, c.Addr)
	waitReady(t, c.Addr)
	answers := func(name string) (statuses []int, body string) {
		var all sync.WaitGroup
		var mu sync.Mutex
		for range 5 {
			all.Go(func() {
				s, b := postChat(c.Addr, name)
				mu.Lock()
				defer mu.Unlock()
				statuses, body = append(statuses, s), b
			})
		}
		all.Wait()
		return statuses, body
	}
	began := time.Now()
	for name, cause := range map[string]string{
		"exits": "weights are truncated", "mends": "told to fail by a file", "nobinary": "/nowhere/engine", "noweights": missing,
	} {
		statuses, body := answers(name)
		if fmt.Sprint(statuses) != "[503 503 503 503 503]" || !strings.Contains(body, "model_load_failed") || !strings.Contains(body, cause) {
			t.Errorf("%s: %v %s", name, statuses, body)
		}
	}
	starts := func(name string) (n int) {
		for _, e := range events(c.Addr) {
			if e.Kind == "start" && e.Function == "default/"+name {
				n++
			}
		}
		return n
	}
	// However fast requests come, no start happens before the backoff of the failed ones: a
	// second, then two.
	testkit.Eventually(t, "it is started again", func() bool {
		if s, b := postChat(c.Addr, "exits"); s != 503 {
			t.Fatalf("%d %s", s, b)
		}
		return starts("exits") >= 3
	})
	n := starts("exits")
	if took, minimum := time.Since(began), (time.Second<<(n-1))-time.Second; took < minimum {
		t.Errorf("%d starts in %v, not in %v", n, took, minimum)
	}
	os.Remove(breaks)
	testkit.Eventually(t, "it is answered after the fix", func() bool { s, _ := postChat(c.Addr, "mends"); return s == http.StatusOK })
	srv.Process.Signal(os.Interrupt)
	if err := srv.waitExit(); err != nil {
		t.Error(err)
	}
}

// TestInUse: two servers cannot use one folder, and a refused one has not raised its
// epoch.
func TestInUse(t *testing.T) {
	dir := t.TempDir()
	o := Options{Config: agent.Config{Data: dir, Options: agent.Options{Memory: 1 << 30, ID: "here"}}, Catalog: &menu{}}
	first, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(o); err == nil || !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "--data DIR") {
		t.Fatalf("a second server: %v", err)
	}
	if e, err := os.ReadFile(filepath.Join(dir, "epoch")); err != nil || string(e) != "1\n" {
		t.Errorf("epoch %q, %v", e, err)
	}
	first.lock.Unlock()
	os.WriteFile(filepath.Join(dir, "epoch"), []byte("many\n"), 0o600)
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), "epoch") {
		t.Fatalf("an epoch that is none: %v", err)
	}
	os.WriteFile(filepath.Join(dir, "epoch"), []byte("41\n"), 0o600)
	again, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := os.ReadFile(filepath.Join(dir, "epoch")); err != nil || string(e) != "42\n" {
		t.Errorf("epoch %q, %v", e, err)
	}
	again.lock.Unlock()
	o.Data = t.TempDir() // whose file of the lock cannot be locked, as on a mount without locks
	if err := os.Mkdir(filepath.Join(o.Data, "local.lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := New(o); err == nil || errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), o.Data+" cannot be locked: open ") ||
		!strings.Contains(err.Error(), "name a folder on a local disk with --data DIR") {
		t.Errorf("a folder without locks: %v", err)
	}
}

func TestHeartbeats(t *testing.T) {
	l, err := New(Options{Config: agent.Config{Data: t.TempDir(), Options: agent.Options{Memory: 1 << 30, ID: "here"}}, Catalog: &menu{}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.lock.Unlock()
	for _, x := range []struct {
		id, url string
		ok      bool
	}{
		{"b", "http://10.0.0.1:9000", true}, {"b", "https://host:9000", true}, {"b", "http://[::1]:9000", true},
		{"here", "http://10.0.0.1:9000", false}, {"", "http://10.0.0.1:9000", false}, {"B/..", "http://10.0.0.1:9000", false},
		{"b", "", false}, {"b", "10.0.0.1:9000", false}, {"b", "file:///etc/passwd", false}, {"b", "http://u:p@host:1", false},
		{"b", "http://host:0", false}, {"b", "http://host", false}, {"b", "http://:1", false}, {"b", "http://host:1?x", false},
	} {
		if err := l.OnHeartbeat(functions.Heartbeat{AgentID: x.id, URL: x.url, Epoch: math.MaxInt64}, false); err == nil {
			t.Errorf("%q at %q: an epoch that would supersede this server for good is taken", x.id, x.url)
		}
		if err := l.OnHeartbeat(functions.Heartbeat{AgentID: x.id, URL: x.url}, false); (err == nil) != x.ok {
			t.Errorf("%q at %q: %v", x.id, x.url, err)
		}
	}
}

// TestForeignEndpoint: the replicas of an agent are reached through the agent, or on loopback
// if the agent is on the server's machine.
func TestForeignEndpoint(t *testing.T) {
	l, err := New(Options{Config: agent.Config{Data: t.TempDir(), Options: agent.Options{Memory: 1 << 30, ID: "here"}}, Catalog: &menu{}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.lock.Unlock()
	for _, x := range []struct {
		endpoint        string
		remote, machine bool // whether it is taken from another machine, and from this one
	}{
		{"", true, true}, {"https://10.0.0.2:9000/replicas/a", true, true},
		{"http://127.0.0.1:7001", false, true}, {"http://127.0.0.1:7001/prefix", false, false}, {"http://127.0.0.1:7001@host", false, false},
		{"http://10.0.0.2:9000/replicas/a", false, false}, {"https://10.0.0.2:9000/store", false, false}, {"https://10.0.0.2:90001/replicas/a", false, false},
		{"https://10.0.0.3:9000/replicas/a", false, false}, {"http://10.0.0.3:80", false, false}, {"http://169.254.169.254/latest", false, false},
	} {
		for same, ok := range map[bool]bool{false: x.remote, true: x.machine} {
			hb := functions.Heartbeat{AgentID: "b", URL: "https://10.0.0.2:9000/", Models: []functions.ReplicaStatus{{ID: "a", State: functions.Ready, Endpoint: x.endpoint, Key: "k"}}}
			err := l.OnHeartbeat(hb, same)
			if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "endpoint") {
				t.Errorf("%q, same machine %v: %v", x.endpoint, same, err)
			}
		}
	}
}

// TestSharedAddress: an address belongs to one agent: to another one only after the first was
// removed or is no longer heard, and then the first is forgotten.
func TestSharedAddress(t *testing.T) {
	l, err := New(Options{Config: agent.Config{Data: t.TempDir(), Options: agent.Options{Memory: 1 << 30, ID: "here"}}, Catalog: &menu{}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.lock.Unlock()
	beat := func(id, url string) error {
		return l.OnHeartbeat(functions.Heartbeat{AgentID: id, URL: url, PeerURL: "http://10.0.0.2:1"}, false)
	}
	const url = "https://10.0.0.2:9000"
	known := func(want string) {
		t.Helper()
		if ids := slices.Sorted(maps.Keys(l.remote)); strings.Join(ids, " ") != want || len(l.Peers("")) != len(ids) {
			t.Errorf("%v %v, want %s", ids, l.Peers(""), want)
		}
	}
	for _, err := range []error{beat("a", url), beat("a", url+"/")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := beat("b", url); err == nil || !strings.Contains(err.Error(), "the agent a") {
		t.Errorf("the address of a live agent: %v", err)
	}
	known("a")
	l.remote["a"].seen = time.Now().Add(-liveWithin)
	if err := beat("b", url); err != nil {
		t.Error(err)
	}
	known("b")
	l.Forget("b")
	if err := beat("c", url+"/"); err != nil {
		t.Error(err)
	}
	known("c")
	l.remote["c"].seen = time.Now().Add(-forgetAfter)
	if err := beat("d", "https://10.0.0.4:9000"); err != nil {
		t.Error(err)
	}
	known("d")
}
