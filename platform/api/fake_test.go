package api

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/telemetry"
)

// fakePlatform is a platform of one node that does what it is told at once.
type fakePlatform struct {
	mu        sync.Mutex
	snapshots map[functions.Name]snapshot.Snapshot
	replicas  []functions.Replica
	colds     []functions.Timeline
	events    []functions.Event
	wakes     map[functions.Name]time.Duration
	stopped   []functions.Name
	reasons   []string
	nodeLost  bool // its node is
	changed   chan struct{}
}

var began = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func (p *fakePlatform) Function(n functions.Name) (snapshot.Snapshot, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, ok := p.snapshots[n]
	return f, ok
}

func (p *fakePlatform) Replicas() []functions.Replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]functions.Replica(nil), p.replicas...)
}

func (p *fakePlatform) Nodes() []functions.Node {
	return []functions.Node{{ID: "here", URL: "https://two.internal:9000", Replicas: 2, Warm: []functions.WarmParent{{Program: "two"}}, State: functions.NodeIdle, Lost: p.nodeLost, Seen: began, Memory: functions.Capacity{Total: 8 << 30}, Cached: []functions.CachedModel{{Source: "az://a/c/secret"}, {Source: "file:///w/x", Tier: functions.TierDRAM}}}}
}

func (p *fakePlatform) ColdStart(id string) (functions.Timeline, bool) {
	for _, t := range p.colds {
		if t.ID == id {
			return t, true
		}
	}
	return functions.Timeline{}, false
}

func (p *fakePlatform) ColdStarts(limit int) []functions.Timeline { return p.colds }

func (p *fakePlatform) Events(after uint64) []functions.Event {
	var out []functions.Event
	for _, e := range p.events {
		if e.Seq > after {
			out = append(out, e)
		}
	}
	return out
}

func (p *fakePlatform) WakeFor(n functions.Name, lease time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wakes[n] = lease
	return "cs-1"
}

func (p *fakePlatform) Stop(n functions.Name) { p.stopped = append(p.stopped, n) }

func (p *fakePlatform) ColdStartOf(id string) (string, bool) { return "cs-1", id == "req-1" }

func (p *fakePlatform) Position(id string) (int, functions.Name, bool) {
	if id == "req-1" {
		return 3, functions.Name{Team: "a", Name: "one"}, true
	}
	return 0, functions.Name{}, false
}

// testAPI is an API behind a real door.
type testAPI struct {
	*fakePlatform
	api                *API
	url                string
	cat                *catalog.Catalog
	folder             string
	admin              string
	keyA, keyB, keyAdm string // filled by keys
	server             httpserver.Server
	down               bool // a test has shut it down
}

const model = "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: NAME, namespace: TEAM}\nspec: {source: /w/x, engine: ember}\n"

func modelFile(team, name string) string {
	return strings.NewReplacer("NAME", name, "TEAM", team).Replace(model)
}

func start(t *testing.T, edit func(*Options)) *testAPI {
	t.Helper()
	dir := t.TempDir()
	folder := filepath.Join(dir, "user")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"a/one", "b/two"} {
		team, name, _ := strings.Cut(n, "/")
		if err := os.WriteFile(filepath.Join(folder, name+".yaml"), []byte(modelFile(team, name)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cat, err := catalog.Open(catalog.Options{Folder: folder, Deployed: filepath.Join(dir, "deployed")})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := auth.Open(filepath.Join(dir, "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := &testAPI{cat: cat, folder: folder, admin: strings.Repeat("t", 40)}
	keys.Trust(r.admin)
	one := functions.Name{Team: "a", Name: "one"}
	r.fakePlatform = &fakePlatform{
		snapshots: map[functions.Name]snapshot.Snapshot{one: {Name: one, State: functions.Loading,
			Progress: functions.Progress{State: functions.Loading, Percent: 41, ETA: 12 * time.Second},
			Forecast: functions.Forecast{P50: 20 * time.Second}, ColdStart: &functions.Timeline{ID: "cs-1", StartNote: "the hub answers 429"}}},
		replicas: []functions.Replica{
			{ID: "r-1", Function: "a/one", Node: "here", State: functions.Loading, Tier: functions.TierNVMe, Since: began, InFlight: 0, Percent: positivePtr(41)},
			{ID: "r-2", Function: "b/two", Node: "here", State: functions.Ready, Tier: functions.TierGPU, Endpoint: "http://127.0.0.1:9", Since: began, InFlight: 2},
		},
		colds: []functions.Timeline{
			{ID: "cs-2", Function: "b/two", Began: began, State: functions.Ready, Total: 1.5, Phases: []functions.Span{{Phase: functions.PhaseLoad, Duration: 1.5}}},
			{ID: "cs-1", Function: "a/one", Began: began, State: functions.Loading, Progress: functions.Progress{State: functions.Loading, Percent: 41, ETA: 12 * time.Second}},
		},
		events: []functions.Event{{Seq: 1, At: began, Kind: "node_joined", Node: "here"}, {Seq: 2, At: began, Kind: "stop", Function: "a/one", Reason: "evicted", For: "b/two"}, {Seq: 3, At: began, Kind: "ready", Function: "b/two"}},
		wakes:  map[functions.Name]time.Duration{}, changed: make(chan struct{}, 1),
	}
	metrics := telemetry.New(func(yield func(string, float64, ...string)) {
		yield("thaw_active_requests", 1, "one", "a")
		yield("thaw_active_requests", 1, "two", "b")
	})
	o := Options{
		Platform: Platform{Catalog: cat, State: r.fakePlatform, History: r.fakePlatform,
			Demand:  func(n functions.Name) (int, int, time.Time) { return 1, 2, began },
			TeamUse: func(team string) functions.TeamUse { return functions.TeamUse{GPUs: 1, EvictionsInflicted: 7} }},
		Access:    Access{Keys: keys, Open: true, Hosts: []string{"thaw.example"}},
		Functions: Functions{Starter: r.fakePlatform},
		Caches:    Caches{Stores: &stores{}}, Requests: r.fakePlatform, Ahead: &fakeAhead{},
		Agents: &fakeAgents{}, AgentsURL: "https://server:1",
		Logs: func(_ context.Context, id string, tail int, follow bool) (io.ReadCloser, error) {
			if id != "r-1" && id != "r-2" && id != "r-old" {
				return nil, functions.ErrNotFound
			}
			return io.NopCloser(strings.NewReader("line of " + id + "\n")), nil
		},
		Changed: func(context.Context) <-chan struct{} { return r.fakePlatform.changed },
		Explain: func(kind string, n functions.Name) (functions.Explanation, bool) {
			score := 1.5
			return functions.Explanation{Kind: kind, Function: n.String(), State: functions.Unloaded, Now: "It is cold.", Decided: began,
				Chosen: "two-1", Reason: "demand", For: "b/two", Others: 1,
				Candidates: []functions.Candidate{{Node: "here", Replica: "two-1", Function: "b/two", Score: &score, Parts: []functions.ScorePart{{Name: "idle", Value: 1.5}}}, {Node: "there", Replica: "one-1", Function: "a/one", Why: "it is in use"}}}, n.Name != "new"
		},
		Ready:   func() []string { r.mu.Lock(); defer r.mu.Unlock(); return r.reasons },
		Metrics: metrics.Text, Version: "test",
	}
	if edit != nil {
		edit(&o)
	}
	r.api = New(o)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.url = "http://" + l.Addr().String()
	r.server = httpserver.NewFiberServer(httpserver.Options{Handler: r.api.Serve, CutGrace: 10 * time.Millisecond})
	done := make(chan error, 1)
	go func() { done <- r.server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if !r.down {
			_ = r.server.Shutdown(ctx) // what is cut is the tests' own watches
		}
		<-done
	})
	return r
}

// fakeAgents are the agents of a server, of which "here" alone has joined.
type fakeAgents struct{}

func (*fakeAgents) NewToken(agent string, expiry time.Duration) (string, time.Time, error) {
	if agent == "none" {
		return "", time.Time{}, errors.New("there is no such name")
	}
	return "token-of-" + agent, began.Add(expiry), nil
}

func (*fakeAgents) Agents() []functions.JoinedAgent {
	return []functions.JoinedAgent{{ID: "here", Joined: began}}
}

func (*fakeAgents) Remove(id string) error {
	if id != "here" {
		return functions.ErrNotFound
	}
	return nil
}

func (a *testAPI) keys(t *testing.T) {
	t.Helper()
	for _, k := range []struct {
		to    *string
		team  string
		admin bool
	}{{&a.keyA, "a", false}, {&a.keyB, "b", false}, {&a.keyAdm, "a", true}} {
		secret, _, err := a.api.access.Keys.Create(k.team, "test", k.admin)
		if err != nil {
			t.Fatal(err)
		}
		*k.to = secret
	}
}
