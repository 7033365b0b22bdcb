package cli

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

var update = flag.Bool("update", false, "write the golden files anew")

// clock of the tests: everything began a minute ago.
var (
	noon  = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	began = noon.Add(-time.Minute)
)

// fakePlatform is a small platform: a woken function goes one step further every time
// a request reads it.
type fakePlatform struct {
	mu       sync.Mutex
	steps    []functions.Timeline // of cs-1, told one after the other
	told     int
	leases   map[functions.Name]time.Duration
	replicas []functions.Replica
	requests map[string]string // to cold starts
	looked   chan struct{}     // closed when cs-1 is asked for; nil: no test waits for it
	reasons  []string
	chat     func(req *httpserver.Request, res *httpserver.Response)
}

func (p *fakePlatform) Function(n functions.Name) (snapshot.Snapshot, bool) {
	switch n.Name {
	case "llama":
		return snapshot.Snapshot{Name: n, State: functions.Ready, Replicas: []snapshot.Replica{{ID: "r-2"}}, ColdStart: &functions.Timeline{ID: "cs-2"},
			Forecast: functions.Forecast{P50: 21500 * time.Millisecond}}, true
	case "tiny":
		return snapshot.Snapshot{Name: n, State: functions.Downloading,
			Progress: functions.Progress{State: functions.Downloading, Percent: 41, ETA: 12 * time.Second}, Forecast: functions.NoForecast}, true
	case "blocked":
		return snapshot.Snapshot{Name: n, State: functions.Unloaded,
			Blocked:  &snapshot.Blocked{Code: "no_capacity", Message: "it needs 3 GPUs on one node, and the largest has 1", Final: true},
			Forecast: functions.NoForecast}, true
	case "broken":
		return snapshot.Snapshot{Name: n, State: functions.Unloaded,
			Failure: &snapshot.Failure{Reason: "weights_missing: no \x1b[31mconfig.json"}, Forecast: functions.NoForecast}, true
	}
	return snapshot.Snapshot{}, false
}

func (p *fakePlatform) Replicas() []functions.Replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]functions.Replica(nil), p.replicas...)
}

func (p *fakePlatform) Nodes() []functions.Node {
	return []functions.Node{
		{ID: "here", State: functions.NodeInferring, Seen: noon, Memory: functions.Capacity{Total: 8 << 30, Used: 1 << 30},
			Store: functions.StoreUse{Bytes: 100 << 30, Used: 3 << 30}, Replicas: 2, Version: "v1",
			Cached: []functions.CachedModel{{Source: "az://acct/models/llama", Tier: functions.TierDRAM, Bytes: 16 << 30}},
			Warm:   []functions.WarmParent{{Engine: "vllm", State: "ready", Version: "0.32.0", Memory: 612 << 20, Forks: 3}},
			GPUs:   []functions.GPU{{Index: 0, Name: "H200", MemoryTotal: 139 << 30, MemoryFree: 100 << 30, Health: "ok"}}},
		{ID: "there", Lost: true, Seen: began, URL: "http://10.0.0.2:8090"},
	}
}

var past = functions.Timeline{ID: "cs-2", Function: "ml/llama", Replica: "r-2", Node: "here", Began: began, State: functions.Ready,
	Total: 20.5, Bytes: 16 << 30, Tier: functions.TierRemote,
	Phases: []functions.Span{
		{Phase: functions.PhaseQueue, Duration: 0.001}, {Phase: functions.PhasePlace, Start: 0.001, Duration: 0.002}, {Phase: functions.PhaseStage, Start: 0.003, Duration: 11.2},
		{Phase: functions.PhaseSpawn, Start: 0.003, Duration: 6}, {Phase: functions.PhaseLoad, Start: 11.2, Duration: 8.3}, {Phase: functions.PhaseWarmup, Start: 19.5, Duration: 0.8}, {Phase: functions.PhaseFirstToken, Start: 20.3, Duration: 0.2},
	}}

func (p *fakePlatform) ColdStart(id string) (functions.Timeline, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case id == "cs-2":
		return past, true
	case id == "cs-1" && len(p.steps) > 0:
		t := p.steps[min(p.told, len(p.steps)-1)]
		if p.told++; p.told == 1 && p.looked != nil {
			close(p.looked)
		}
		return t, t.ID != ""
	}
	return functions.Timeline{}, false
}

func (p *fakePlatform) ColdStarts(int) []functions.Timeline { return []functions.Timeline{past} }

func (p *fakePlatform) Events(after uint64) []functions.Event {
	return []functions.Event{
		{Seq: 1, At: began, Kind: "node_joined", Node: "here"},
		{Seq: 2, At: began, Kind: "start", Function: "ml/llama", Replica: "r-2", Node: "here", Reason: "demand"},
		{Seq: 3, At: noon, Kind: "ready", Function: "ml/llama", Replica: "r-2", Node: "here"},
	}
}

func (p *fakePlatform) WakeFor(n functions.Name, lease time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leases[n] = lease
	return "cs-1"
}

func (p *fakePlatform) Stop(functions.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replicas = nil
}

func (p *fakePlatform) ColdStartOf(id string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of, ok := p.requests[id]
	return of, ok
}

// follow notes that a request takes part in a cold start.
func (p *fakePlatform) follow(request, coldStart string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests[request] = coldStart
}

func (p *fakePlatform) Position(string) (int, functions.Name, bool) {
	return 0, functions.Name{}, false
}

// server starts a platform behind a real door and says how to reach it.
type server struct {
	*fakePlatform
	url, dir, data string
	cat            *catalog.Catalog
	env            map[string]string
}

const shipped = `apiVersion: thaw.dev/v1
kind: Model
metadata: {name: tiny}
spec: {source: ./tiny, engine: ember}
---
apiVersion: thaw.dev/v1
kind: Model
metadata: {name: llama, namespace: ml}
spec: {source: "az://acct/models/llama", engine: vllm, resources: {gpus: 1, gpuMemory: 40Gi}, adapters: [{name: pirate, source: az://acct/p}]}
---
apiVersion: thaw.dev/v1
kind: Model
metadata: {name: broken, namespace: ml}
spec: {source: /w/broken, engine: ember}
---
apiVersion: thaw.dev/v1
kind: Team
metadata: {name: ml}
spec: {gpus: {guaranteed: 1, max: 4}, limits: {requestsPerMinute: 60, gpuSecondsPerDay: 3600, heldRequests: 100}}
`

// joinedAgents are the agents of a server, of which gpu-1 has joined.
type joinedAgents struct{}

func (*joinedAgents) NewToken(agent string, expiry time.Duration) (string, time.Time, error) {
	if agent == "A" {
		return "", time.Time{}, errors.New("that is no name of an agent")
	}
	return "thaw-join-secret." + agent, began.Add(expiry), nil
}

func (*joinedAgents) Agents() []functions.JoinedAgent {
	return []functions.JoinedAgent{{ID: "gpu-1", Key: strings.Repeat("ab", 32), Joined: began}}
}

func (*joinedAgents) Remove(id string) error {
	if id != "gpu-1" {
		return functions.ErrNotFound
	}
	return nil
}

// TestAgentsVerbs: the verbs about agents print a token alone, list who has joined and remove.
func TestAgentsVerbs(t *testing.T) {
	s := start(t)
	for _, x := range []struct {
		line, out, errs string
		exit            int
	}{
		{"agents token", "thaw-join-secret.\n", "--server https://10.0.0.1:8090", 0},
		{"agents token --name gpu-2 -o json", `"agent": "gpu-2"`, "", 0},
		{"agents token --name A", "", "no name of an agent", kit.ExitUsage},
		{"agents list -o name", "gpu-1\n", "", 0},
		{"agents list", "abababababab", "", 0},
		{"agents rm gpu-1", "gpu-1 removed\n", "", 0},
		{"agents rm gpu-9", "", "gpu-9 does not exist", kit.ExitNotFound},
	} {
		out, errs, exit := s.thaw(t, "", strings.Fields(x.line)...)
		if exit != x.exit || !strings.Contains(out, x.out) || !strings.Contains(errs, x.errs) {
			t.Errorf("thaw %s: exit %d\n%s%s", x.line, exit, out, errs)
		}
	}
}

func start(t *testing.T) *server {
	t.Helper()
	dir := t.TempDir()
	user := filepath.Join(dir, "functions")
	if err := os.MkdirAll(user, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(user, "shipped.yaml"), []byte(shipped), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &server{dir: dir, data: filepath.Join(dir, "data")}
	s.fakePlatform = &fakePlatform{leases: map[functions.Name]time.Duration{}, requests: map[string]string{"req-1": "cs-2"}, replicas: []functions.Replica{
		{ID: "r-1", Function: "default/tiny", Node: "here", State: functions.Downloading, Tier: functions.TierRemote, Since: noon.Add(-3 * time.Second), Bytes: 1 << 20, Total: 3 << 20, Percent: new(41)},
		{ID: "r-2", Function: "ml/llama", Node: "here", State: functions.Ready, Tier: functions.TierGPU, Endpoint: "http://127.0.0.1:9", Since: began, InFlight: 2, QueueLength: 3, KVCacheHitRate: 0.62, Total: 16 << 30, Bytes: 16 << 30, GPUs: []int{0}},
	}}
	var err error
	if s.cat, err = catalog.Open(catalog.Options{Folder: user, Deployed: filepath.Join(s.data, "functions")}); err != nil {
		t.Fatal(err)
	}
	book, err := auth.Open(filepath.Join(s.data, "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := auth.AdminToken(s.data)
	if err != nil {
		t.Fatal(err)
	}
	book.Trust(token)
	var teams []functions.Team
	for _, x := range s.cat.Teams() {
		teams = append(teams, *x)
	}
	limits := &ratelimit.Limits{}
	limits.SetTeams(teams)
	a := api.New(api.Options{
		Platform: api.Platform{Catalog: s.cat, State: s.fakePlatform, History: s.fakePlatform, Spending: spending{},
			Demand: func(n functions.Name) (_, queued int, _ time.Time) {
				if n.Name == "tiny" {
					queued = 3
				}
				return 0, queued, time.Time{}
			},
			Usage: func(team string) ratelimit.Usage { return limits.Usage(team, time.Now()) },
			TeamUse: func(team string) functions.TeamUse {
				if team != "ml" {
					return functions.TeamUse{}
				}
				left, resets := 1800.0, noon.Add(12*time.Hour)
				return functions.TeamUse{GPUs: 2, RecentGPUs: 1.25, Today: 1800, Total: 98765.4, Left: &left, Resets: &resets, EvictionsInflicted: 3,
					EvictionsSuffered: 4, Thrash: 1}
			},
		},
		Access:    api.Access{Keys: book, Open: true},
		Functions: api.Functions{Starter: s.fakePlatform},
		Requests:  s.fakePlatform,
		Caches:    api.Caches{Stores: stores{}, ForgetAnswers: func(n functions.Name) int { return len(n.Name) }},
		Explain: func(kind string, n functions.Name) (functions.Explanation, bool) {
			e := functions.Explanation{Kind: kind, Function: n.String(), State: functions.Ready, Now: "It serves 2 requests with 1 replica."}
			if kind == "place" {
				few, many := 12.5, 31.0
				e.Decided, e.Chosen, e.Reason, e.Others = began, "here", "requests wait for it", 3
				e.Candidates = []functions.Candidate{
					{Node: "here", Tier: functions.TierDRAM, Score: &few, Parts: []functions.ScorePart{{Name: "ready", Value: 12}, {Name: "packing", Value: 0.5}}},
					{Node: "there", Tier: functions.TierRemote, Score: &many, Parts: []functions.ScorePart{{Name: "ready", Value: 31}, {Name: "packing"}}},
					{Node: "small", Why: "it has no GPU"},
				}
			}
			return e, true
		},
		Logs: func(_ context.Context, id string, _ int, _ bool) (io.ReadCloser, error) {
			if id == "r-2" || id == "r-9" {
				return io.NopCloser(strings.NewReader("hello from " + id + "\n")), nil
			}
			return nil, functions.ErrNotFound
		},
		Ready:     func() []string { return s.reasons },
		Decisions: api.Decisions{Log: decisions(), DryRoute: dryRoute},
		Agents:    &joinedAgents{}, AgentsURL: "https://10.0.0.1:8090", Version: "test",
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + l.Addr().String()
	srv := httpserver.NewFiberServer(httpserver.Options{CutGrace: 10 * time.Millisecond,
		Handler: func(req *httpserver.Request, res *httpserver.Response) {
			if strings.HasPrefix(req.Path, "/v1/") {
				s.chat(req, res)
				return
			}
			a.Serve(req, res)
		}})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = srv.Shutdown(ctx) // what is cut is the tests' own watches
		<-done
	})
	s.env = map[string]string{"THAW_SERVER": s.url, "THAW_DATA": s.data, "HOME": dir}
	return s
}

// thaw runs a verb against the server.
func (s *server) thaw(t *testing.T, stdin string, args ...string) (out, errs string, exit int) {
	t.Helper()
	var o, e strings.Builder
	exit = Main(t.Context(), args, strings.NewReader(stdin), &o, &e, Programs{
		Getenv: func(k string) string { return s.env[k] }, Now: func() time.Time { return noon },
	})
	return o.String(), e.String(), exit
}

// golden compares with testdata/NAME; paths and ports that differ from run to
// run are written as words.
func (s *server) golden(t *testing.T, name, got string) {
	t.Helper()
	got = strings.NewReplacer(s.url, "SERVER", s.dir, "DIR").Replace(got)
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

var unsafeName = regexp.MustCompile(`[^a-z0-9]+`)

// TestGolden: what every listing looks like. JSON and YAML are an interface: a
// difference there breaks scripts of users.
func TestGolden(t *testing.T) {
	s := start(t)
	for _, line := range []string{
		"explain place llama", "explain place llama -o json", "explain evict tiny", "events llama", "events --kind ready -o name",
		"models", "models -o wide", "models -o json", "models -o yaml", "models -o name",
		"ps", "ps -o wide", "ps -o json", "ps -o name",
		"get functions tiny", "get function ml/llama -o yaml", "get nodes", "get nodes -o wide", "get nodes -o json", "get teams", "get coldstarts", "get coldstarts cs-2 -o json", "get events", "get events -o json",
		"get teams -o json", "describe team ml", "describe team ml -o json", "describe llama", "describe llama -o json", "describe tiny", "explain req-1", "explain cs-2 -o yaml",
		"explain route req-1", "explain route req-1 -o json", "explain route mine -o name", "route hello --router ml/auto",
	} {
		out, errs, exit := s.thaw(t, "", strings.Fields(line)...)
		if exit != 0 {
			t.Errorf("thaw %s: exit %d: %s", line, exit, errs)
		}
		if strings.ContainsAny(out+errs, "\x1b\r") {
			t.Errorf("thaw %s commands the terminal", line)
		}
		text := "$ thaw " + line + "\n" + out
		if line == "models -o wide" { // its widths are those of a folder's name
			text = regexp.MustCompile(`  +`).ReplaceAllString(text, "  ")
		}
		if errs != "" {
			text += "--- stderr\n" + errs
		}
		s.golden(t, unsafeName.ReplaceAllString(line, "_")+".txt", text)
	}
}

func TestExitCodes(t *testing.T) {
	s := start(t)
	key, _, _ := s.thaw(t, "", "keys", "create", "--team", "ml")
	key = strings.TrimSpace(key)
	gone := filepath.Join(s.dir, "gone.yaml")
	file := filepath.Join(s.dir, "bad.yaml")
	if err := os.WriteFile(file,
		[]byte("apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: x}\nspec: {engine: vlm, source: x, scale: {mx: 1}}\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		line string
		exit int
		says string
	}{
		{"describe tinny", kit.ExitNotFound, "hint: did you mean tiny?"},
		{"describe ml/lama", kit.ExitNotFound, "Did you mean ml/llama?"},
		{"describe A_B", kit.ExitUsage, "is no function name"},
		{"get nodes heree", kit.ExitNotFound, "did you mean here"},
		{"get nods", kit.ExitUsage, "did you mean nodes?"},
		{"get routes", kit.ExitUsage, "did you mean routers?"},
		{"get remote tiny", kit.ExitNotFound, "default/tiny is a Model"},
		{"get keys --watch", kit.ExitUsage, "keys cannot be watched"},
		{"models -o jsn", kit.ExitUsage, "table, wide, json, yaml, name"},
		{"explain none", kit.ExitNotFound, "The cold start none does not exist"},
		{"explain none", kit.ExitNotFound, "thaw explain route none"},
		{"explain llama", kit.ExitNotFound, "ml/llama is a model: thaw explain place ml/llama"},
		{"explain ml/llama", kit.ExitUsage, "thaw explain place ml/llama"},
		{"explain place", kit.ExitUsage, "the name of a model is missing"},
		{"explain route", kit.ExitUsage, "the id of a request is missing"},
		{"explain route none", kit.ExitNotFound, "No decision about the request none is remembered"},
		{"route", kit.ExitUsage, "either a text or a file is needed"},
		{"route hello -f " + file, kit.ExitUsage, "either a text or a file is needed"},
		{"route -f " + gone, kit.ExitNotFound, "there is no file"},
		{"route hello --router lama", kit.ExitNotFound, "The Router lama does not exist"},
		{"route hello --path /v1/models", kit.ExitUsage, "path is one of"},
		{"explain plaice llama", kit.ExitUsage, "did you mean place?"},
		{"explain place lama", kit.ExitNotFound, "did you mean llama?"},
		{"events lama", kit.ExitNotFound, "did you mean llama?"},
		{"rm tiny", kit.ExitFailed, "belongs to you and is never written"},
		{"logs broken", kit.ExitNotFound, "has no replica"},
		{"logs ml/lama", kit.ExitNotFound, "Did you mean ml/llama?"},
		{"keys create", kit.ExitUsage, "--team is missing"},
		{"keys rm none", kit.ExitNotFound, "does not exist"},
		{"--key " + key + " stop llama", kit.ExitDenied, "admin"},
		{"--key sk-thaw-wrong models", kit.ExitDenied, "the key came from --key"},
		{"--key " + key + " describe default/tiny", kit.ExitNotFound, "does not exist"},
		{"--server http://127.0.0.1:1 models", kit.ExitUnavailable, "hint: start one with thaw serve"},
		{"--server ftp://x models", kit.ExitUsage, "is no server"},
		{"--timeout 50ms models --watch", kit.ExitTimeout, "not done within 50ms"},
		{"deploy", kit.ExitUsage, "-f FILE is missing"},
		{"deploy -f " + gone, kit.ExitNotFound, "there is no file"},
		{"deploy -f " + file, kit.ExitUsage, "bad.yaml:4:40: spec.scale.mx: unknown key (did you mean max?)"},
		{"deploy -f " + filepath.Join(s.dir, "functions"), kit.ExitUsage, "a team cannot be deployed"},
		{"check " + file, kit.ExitFailed, "did you mean max?"},
		{"check", kit.ExitUsage, "a file or folder is missing"},
		{"run", kit.ExitUsage, "the name of a model is missing"},
		{"run tiny", kit.ExitUsage, "there is no prompt"},
		{"rm", kit.ExitUsage, "the name of a function is missing"},
		{"keys rm", kit.ExitUsage, "the id of a key is missing"},
		{"get nodes here there", kit.ExitUsage, "is more than thaw get takes"},
		{"wake", kit.ExitUsage, "the name of a model is missing"},
	} {
		out, errs, exit := s.thaw(t, "", strings.Fields(tt.line)...)
		if exit != tt.exit || !strings.Contains(errs, tt.says) {
			t.Errorf("thaw %s: exit %d, want %d that says %q\n%s%s", tt.line, exit, tt.exit, tt.says, out, errs)
		}
		if !strings.HasPrefix(errs, "error: ") && !strings.Contains(errs, "\nerror: ") {
			t.Errorf("thaw %s: no error line: %s", tt.line, errs)
		}
	}
	// Without a token and a key the caller is unknown.
	s.env["THAW_DATA"] = filepath.Join(s.dir, "elsewhere")
	if _, errs, exit := s.thaw(t, "", "models"); exit != kit.ExitDenied || !strings.Contains(errs, "give --key KEY") {
		t.Errorf("%d %s", exit, errs)
	}
	s.env["THAW_KEY"] = key
	if out, errs, exit := s.thaw(t, "", "models", "-o", "name"); exit != 0 || out != "ml/broken\nml/llama\n" {
		t.Errorf("%d %s%s", exit, out, errs)
	}
}

func TestInterrupted(t *testing.T) {
	s := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	exit := make(chan int, 1)
	go func() {
		exit <- Main(ctx, []string{"models", "--watch"}, strings.NewReader(""), w, io.Discard, Programs{Getenv: func(k string) string { return s.env[k] }})
		w.Close()
	}()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	_, _ = io.Copy(io.Discard, r)
	if got := <-exit; got != kit.ExitInterrupted {
		t.Errorf("exit %d", got)
	}
}

func TestDeploy(t *testing.T) {
	s := start(t)
	file := filepath.Join(s.dir, "new.yaml")
	if err := os.WriteFile(file,
		[]byte("# mine\napiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: new}\nspec: {engine: ember, source: ./weights}\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	name := functions.Name{Team: "default", Name: "new"}
	out, errs, exit := s.thaw(t, "", "deploy", "-f", file, "--dry-run")
	if exit != 0 || out != "default/new would be created\n" || s.cat.Model(name) != nil {
		t.Fatalf("%d %s%s", exit, out, errs)
	}
	out, errs, exit = s.thaw(t, "", "deploy", "-f", file)
	m := s.cat.Model(name)
	if exit != 0 || out != "default/new created\n" || m == nil || m.Spec.Source != filepath.Join(s.dir, "weights") ||
		!strings.Contains(errs, "curl -N "+s.url+"/v1/chat/completions") {
		t.Fatalf("%d %s%s %+v", exit, out, errs, m)
	}
	// Waiting shows the way, in plain lines.
	step := func(st functions.State, percent int, bytes functions.Bytes, err string) functions.Timeline {
		return functions.Timeline{ID: "cs-1", Function: "default/new", State: st, Error: err,
			Progress: functions.Progress{State: st, Percent: percent, Bytes: bytes, Total: 4 << 20, ETA: 3 * time.Second}}
	}
	s.steps = []functions.Timeline{{}, step(functions.Downloading, 25, 1<<20, ""), step(functions.Downloading, 50, 2<<20, ""), step(functions.Loading, 10, 4<<20, ""), step(functions.Ready, 100, 4<<20, "")}
	out, errs, exit = s.thaw(t, "", "deploy", "-f", file, "--wait")
	if exit != 0 || out != "default/new unchanged\n" ||
		!strings.HasPrefix(errs,
			"new staging [######..................] 25% 1 MiB/4 MiB eta 3s\nnew loading [##......................] 10% eta 3s\ntry it:\n") {
		t.Fatalf("%d %s%s", exit, out, errs)
	}
	// And a start that fails says so.
	failed := step(functions.Failed, -1, 0, "engine_missing: no ember")
	failed.Node = "here"
	s.told, s.steps = 0, []functions.Timeline{failed}
	if _, errs, exit = s.thaw(t, "", "wake", "new", "--wait"); exit != kit.ExitFailed || !strings.Contains(errs, "engine_missing: no ember") ||
		!strings.Contains(errs, "hint: thaw describe new and thaw logs new") {
		t.Fatalf("%d %s", exit, errs)
	}
	if out, errs, exit = s.thaw(t, "", "wake", "new", "--lease", "2h"); exit != 0 || s.leases[name] != 2*time.Hour {
		t.Fatalf("%d %s%s", exit, out, errs)
	}
	if out, errs, exit = s.thaw(t, "", "pull", "new"); exit != 0 || out != "/store/x\n" ||
		!strings.Contains(errs, "new ready on here: 4 MiB") {
		t.Fatalf("%d %s%s", exit, out, errs)
	}
	if out, errs, exit = s.thaw(t, "", "rm", "new"); exit != 0 || out != "default/new removed\n" || s.cat.Model(name) != nil {
		t.Fatalf("%d %s%s", exit, out, errs)
	}
	if out, errs, exit = s.thaw(t, "", "stop", "llama", "--wait"); exit != 0 || out != "ml/llama cold\n" {
		t.Fatalf("%d %s%s", exit, out, errs)
	}
}

func TestKeysAndLogs(t *testing.T) {
	s := start(t)
	out, errs, exit := s.thaw(t, "", "keys", "create", "--team", "ml", "--name", "laptop")
	if exit != 0 || !regexp.MustCompile(`^sk-thaw-\S+\n$`).MatchString(out) || !strings.Contains(errs, "not shown again") || strings.Contains(errs, strings.TrimSpace(out)) {
		t.Fatalf("%d %q %q", exit, out, errs)
	}
	list, _, _ := s.thaw(t, "", "keys", "list", "-o", "name")
	if out, _, exit := s.thaw(t, "", "keys", "rm", strings.TrimSpace(list)); exit != 0 || !strings.HasSuffix(out, "ended\n") {
		t.Errorf("%d %s", exit, out)
	}
	for _, arg := range []string{"llama", "r-2", "r-9"} {
		if out, errs, exit := s.thaw(t, "", "logs", arg); exit != 0 || !strings.HasPrefix(out, "hello from r-") {
			t.Errorf("%s: %d %s%s", arg, exit, out, errs)
		}
		_, errs, exit := s.thaw(t, "", "logs", "-f", arg)
		if exit != 0 || !strings.Contains(errs, " has ended; thaw logs "+arg+" -f follows the next one") {
			t.Errorf("%s: exit %d: %s", arg, exit, errs)
		}
	}
	if out, errs, exit := s.thaw(t, "", "check", filepath.Join(s.dir, "functions")); exit != 0 ||
		out != "model default/tiny\nmodel ml/llama\nmodel ml/broken\nteam ml\n" ||
		!strings.HasSuffix(errs, "\n4 good\n") || strings.Count(errs, "is not on this machine") != 2 {
		t.Errorf("%d %s%s", exit, out, errs)
	}
	if out, _, exit := s.thaw(t, "", "check", "--schema"); exit != 0 || out != string(functions.Schema()) {
		t.Error(exit)
	}
}

func TestDoctor(t *testing.T) {
	s := start(t)
	vllm := filepath.Join(s.dir, "vllm") // one of its models needs it
	if err := os.WriteFile(vllm, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s.env["THAW_ENGINE_VLLM"] = vllm
	out, errs, exit := s.thaw(t, "", "doctor", "-o", "json")
	for _, want := range []string{`"check": "memory"`, `"check": "disk"`, `"check": "open files"`, `"check": "engine vllm"`, `takes requests`, `"check": "node there"`, `can be written`} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not in %s%s", want, out, errs)
		}
	}
	if exit != 0 {
		t.Error(exit, errs)
	}
	s.env["THAW_ENGINE_VLLM"] = filepath.Join(s.dir, "no-vllm")
	s.env["THAW_DATA"] = filepath.Join(s.dir, "functions", "shipped.yaml", "below")
	s.reasons = []string{"no agent"}
	out, errs, exit = s.thaw(t, "", "doctor")
	if exit != kit.ExitFailed || !strings.Contains(out, "no-vllm: ") || !strings.Contains(errs, "mend THAW_ENGINE_VLLM") ||
		!strings.Contains(out, "takes no requests: no agent") {
		t.Errorf("%d %s%s", exit, out, errs)
	}
}
