package coldstart

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/bench/served"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// platform is a fake of the control API that the benchmark calls, with one function that
// is up or down.
type platform struct {
	mu     sync.Mutex
	up     bool
	stops  int
	stream string
	id     string
}

func (p *platform) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer secret" {
		http.Error(w, "no key", http.StatusUnauthorized)
		return
	}
	switch r.URL.Path {
	case "/api/v1/functions/default/tiny/stop":
		p.up = false
		p.stops++
		w.WriteHeader(http.StatusAccepted)
	case "/api/v1/replicas":
		items := []map[string]any{{"id": "old", "function": "default/tiny", "state": "UNLOADED"}, {"id": "o", "function": "team/tiny", "state": "READY"}}
		if p.up {
			items = append(items, map[string]any{"id": "r", "function": "default/tiny", "state": "READY"})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
	case "/v1/chat/completions":
		p.up = true
		if p.id != "" {
			w.Header().Set("thaw-cold-start", p.id)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, p.stream)
		w.(http.Flusher).Flush()
	case "/api/v1/coldstarts/c1":
		_ = json.NewEncoder(w).Encode(functions.Timeline{ID: "c1", Total: 0.004, Phases: []functions.Span{
			{Phase: functions.PhaseSpawn, Start: 0, Duration: 0.003}, {Phase: functions.PhaseStage, Start: 0.001, Duration: 0.001},
			{Phase: functions.PhaseFirstToken, Start: 0.003, Duration: 0.001},
		}})
	default:
		http.NotFound(w, r)
	}
}

func serve(t *testing.T, p *platform) *served.Platform {
	t.Helper()
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	at, err := served.At(strings.TrimPrefix(s.URL, "http://"), "secret")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(at.End)
	return at
}

func TestRunAndWrite(t *testing.T) {
	p := &platform{stream: ": thaw state=loading\n" + string(fake.StreamBody(3)), id: "c1"}
	seen := 0
	rounds, err := Run(t.Context(), serve(t, p), Options{
		Function: functions.Name{Team: "default", Name: "tiny"}, Rounds: 3, Each: 40 * time.Second,
		Progress: func(done, of int, _ Round) { seen = done*10 + of },
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rounds) != 3 || p.stops != 4 || seen != 33 {
		t.Fatalf("%d rounds, %d stops, progress %d", len(rounds), p.stops, seen)
	}
	r := Result{Provenance: report.NewProvenance(Kind, nil, time.Now()), Function: "default/tiny", Phases: Reduce(rounds), Rounds: rounds}
	var names []string
	for _, row := range r.Phases {
		names = append(names, row.Phase)
	}
	if want := []string{"stage", "spawn", "first_token", Ready, Unmeasured, FirstToken}; !slices.Equal(names, want) {
		t.Errorf("rows %v, want %v", names, want)
	}
	dir := t.TempDir()
	if err := r.Write(dir, []Regression{{"spawn", 1, 2}}); err != nil {
		t.Fatal(err)
	}
	back, err := Read(filepath.Join(dir, "coldstart.json"))
	if err != nil || len(back.Rounds) != 3 || len(Compare(r, back)) != 0 {
		t.Errorf("read back %+v, %v", back, err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "coldstart.html"))
	if err != nil || !strings.Contains(string(page), "spawn got worse: 2000 ms, was 1000 ms") || strings.Contains(string(page), "NaN") {
		t.Errorf("%v: %s", err, page)
	}
	if _, err := os.Stat(filepath.Join(dir, "coldstart.svg")); err != nil {
		t.Error(err)
	}
}

func TestRunRefuses(t *testing.T) {
	whole := string(fake.StreamBody(3))
	for name, c := range map[string]struct {
		p    *platform
		want string
	}{
		"cut stream":  {&platform{stream: strings.TrimSuffix(whole, "data: [DONE]\n\n"), id: "c1"}, "no whole stream"},
		"no text":     {&platform{stream: "data: [DONE]\n\n", id: "c1"}, "no whole stream"},
		"not thaw":    {&platform{stream: whole}, "is this thaw?"},
		"no timeline": {&platform{stream: whole, id: "c2"}, "404"},
	} {
		_, err := Run(t.Context(), serve(t, c.p),
			Options{Function: functions.Name{Team: "default", Name: "tiny"}, Rounds: 1, Each: 40 * time.Second})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, serve(t, &platform{}), Options{Rounds: 1, Each: time.Second}); err == nil {
		t.Error("ran though nobody waits")
	}
}

func summary(p25, p50 float64) report.Summary { return report.Summary{N: 20, P25: p25, P50: p50} }

func TestCompare(t *testing.T) {
	was := Result{Phases: []Row{{"spawn", summary(0.09, 0.100)}, {"queue", summary(0.0001, 0.0002)}}}
	for _, c := range []struct {
		name string
		rows []Row
		want string
	}{
		{"same", was.Phases, ""},
		{"a little", []Row{{"spawn", summary(0.105, 0.115)}}, ""},
		{"much, but tiny", []Row{{"queue", summary(0.003, 0.004)}}, ""},
		{"one slow quarter", []Row{{"spawn", summary(0.09, 0.130)}}, ""},
		{"worse", []Row{{"spawn", summary(0.12, 0.130)}}, "spawn got worse: 130 ms, was 100 ms (median)"},
		{"new phase", []Row{{"load", summary(1, 1)}}, ""},
	} {
		got := ""
		for _, w := range Compare(was, Result{Phases: c.rows}) {
			got += w.String()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestCovered(t *testing.T) {
	for _, c := range []struct {
		spans []functions.Span
		want  float64
	}{
		{nil, 0},
		{[]functions.Span{{Start: 1, Duration: 2}, {Start: 0, Duration: 1.5}}, 3},
		{[]functions.Span{{Start: 0, Duration: 5}, {Start: 1, Duration: 1}, {Start: 7, Duration: 1}}, 6},
	} {
		if got := covered(c.spans); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("covered(%v) = %v, want %v", c.spans, got, c.want)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, s := range map[string]string{"broken.json": "{", "other.json": `{"apiVersion":"thaw.dev/v1","kind":"GatewayBench"}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s was read", name)
		}
	}
	if _, err := Read(filepath.Join(dir, "none.json")); err == nil {
		t.Error("a file that is not there was read")
	}
}
