package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// These are the first steps of a new user, on the embedded engine.

func TestColdStreamed(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"tiny.yaml": tiny(t, "tiny", "")})
	if s := p.state("default/tiny"); s != "" {
		t.Fatalf("a replica before any request: %s", s)
	}
	r := p.chat("tiny", `"stream":true,"max_tokens":24`)
	if r.status != 200 || r.err != nil || r.text() == "" || !strings.HasSuffix(r.body, "data: [DONE]\n\n") {
		t.Fatalf("%d %v\n%s", r.status, r.err, r.body)
	}
	id := r.header.Get("Thaw-Cold-Start")
	if id == "" || !strings.Contains(r.header.Get("Server-Timing"), "warmup;dur=") || r.header.Get("X-Request-Id") == "" {
		t.Errorf("head of a cold answer: %v", r.header)
	}
	for _, ask := range []string{id, r.header.Get("X-Request-Id")} {
		c := p.do("GET", "/api/v1/coldstarts/"+ask, "")
		var tl struct {
			ID, State string
			Phases    []struct{ Phase string }
		}
		if err := json.Unmarshal([]byte(c.body), &tl); err != nil || tl.ID != id || tl.State != "READY" {
			t.Fatalf("timeline by %s: %d %s", ask, c.status, c.body)
		}
		var got []string
		for _, ph := range tl.Phases {
			got = append(got, ph.Phase)
		}
		if want := "queue place stage spawn load warmup first_token"; strings.Join(got, " ") != want {
			t.Errorf("phases %v, want %s", got, want)
		}
	}
	warm := p.chat("tiny", `"stream":true,"max_tokens":24`)
	if warm.header.Get("Thaw-Cold-Start") != "" || warm.text() != r.text() {
		t.Errorf("warm answer: %v %q, cold said %q", warm.header, warm.text(), r.text())
	}
}

func TestColdPlain(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"tiny.yaml": tiny(t, "tiny", "")})
	r := p.chat("tiny", `"max_tokens":24`)
	if r.status != 200 || r.text() == "" || !strings.Contains(r.body, `"usage"`) {
		t.Fatalf("%d %v %s", r.status, r.err, r.body)
	}
	c := p.do("POST", "/v1/completions", `{"model":"default/tiny","prompt":"thaw","max_tokens":3}`)
	e := p.do("POST", "/v1/embeddings", `{"model":"tiny","input":["thaw"]}`)
	if c.status != 200 || e.status != 200 || !strings.Contains(e.body, `"embedding"`) {
		t.Errorf("completions %d %s, embeddings %d %.100s", c.status, c.body, e.status, e.body)
	}
}

// TestIdleToZeroAndBack: an idle model is unloaded, stays listed, and starts again.
func TestIdleToZeroAndBack(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"tiny.yaml": tiny(t, "tiny", "scale: {idle: 300ms}")})
	for range 2 {
		if r := p.chat("tiny", `"max_tokens":2`); r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		p.eventually("the idle replica gone", func() bool { return p.state("default/tiny") == "" && p.engine("tiny") == 0 })
		if m := p.do("GET", "/v1/models", ""); !strings.Contains(m.body, `"id":"tiny"`) || !strings.Contains(m.body, `"unloaded"`) {
			t.Fatalf("a model at rest in /v1/models: %s", m.body)
		}
	}
	if n := len(p.items("/api/v1/coldstarts")); n != 2 {
		t.Errorf("%d cold starts, want 2", n)
	}
}

// TestManyWaitersOneWake: many concurrent requests cause one start.
func TestManyWaitersOneWake(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"tiny.yaml": tiny(t, "tiny", "args: [--ready-delay, 500ms]")})
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]int{}
	for range 60 {
		wg.Go(func() {
			r := p.chat("tiny", `"max_tokens":2`)
			mu.Lock()
			defer mu.Unlock()
			if r.status != 200 {
				t.Errorf("%d %v %s", r.status, r.err, r.body)
			}
			ids[r.header.Get("Thaw-Cold-Start")]++
		})
	}
	wg.Wait()
	if n := len(p.items("/api/v1/coldstarts")); n != 1 || ids[""] == 60 || len(ids) > 2 {
		t.Errorf("%d cold starts; answers by cold start: %v", n, ids)
	}
}

// TestEviction: memory holds one of two models, and the idle one is evicted.
func TestEviction(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{
		"a.yaml": tiny(t, "a", "resources: {memory: 600Mi}"),
		"b.yaml": tiny(t, "b", "resources: {memory: 600Mi}"),
	}, "--memory", "1Gi")
	for i, m := range []string{"a", "b", "a"} {
		if r := p.chat(m, `"max_tokens":2`); r.status != 200 {
			t.Fatalf("%d: %s: %d %v %s", i, m, r.status, r.err, r.body)
		}
		other := map[string]string{"a": "b", "b": "a"}[m]
		if s := p.state("default/" + other); s != "" {
			t.Errorf("%s is %s beside %s", other, s, m)
		}
	}
	var evicted int
	for _, e := range p.items("/api/v1/events") {
		if e["reason"] == "evicted" {
			evicted++
		}
	}
	if evicted == 0 {
		t.Errorf("nothing was evicted: %v", p.items("/api/v1/events"))
	}
}

// TestHeldStreamReportsState: a held stream has comments with the state, then the timeline.
func TestHeldStreamReportsState(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("holds a stream for four seconds")
	}
	p := start(t, map[string]string{"tiny.yaml": tiny(t, "tiny", "args: [--ready-delay, 3500ms]")})
	r := p.chat("tiny", `"stream":true,"max_tokens":4`)
	if r.status != 200 || !strings.HasPrefix(r.body, ": thaw state=") || !strings.Contains(r.body, ": thaw state=loading") ||
		!strings.Contains(r.body, ": thaw timeline queue=") || r.text() == "" {
		t.Fatalf("%d %v\n%s", r.status, r.err, r.body)
	}
	for i, line := range strings.Split(r.body, "\n\n") {
		if part := line[strings.LastIndex(line, "\n")+1:]; part != "" && !strings.HasPrefix(part, "data: ") {
			t.Errorf("part %d: a blank line not after data: %q", i, line)
		}
	}
}

func TestToolShapedBodyPassesThrough(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"m.yaml": fakeModel("m", "", "")})
	body := `{ "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"model" : "default/m", "messages":[{"role":"user","content":"echo-body"}], "x":["echo-body", 1e3, "\u00e9"]}`
	r := p.do("POST", "/v1/chat/completions", body)
	if want := strings.Replace(body, `"default/m"`, `"m"`, 1); r.text() != want {
		t.Errorf("the engine got\n%s\nwant\n%s", r.text(), want)
	}
}

func TestDeployGetRemove(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	file := tiny(t, "late", "")
	if r := p.do("PUT", "/api/v1/functions/default/late", file); r.status != 401 {
		t.Errorf("PUT without a token: %d %s", r.status, r.body)
	}
	if r := p.do("PUT", "/api/v1/functions/default/late", file, "Authorization", p.admin(), "Content-Type",
		"application/yaml"); r.status/100 != 2 {
		t.Fatalf("PUT: %d %s", r.status, r.body)
	}
	if r := p.chat("late", `"max_tokens":2`); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if r := p.do("DELETE", "/api/v1/functions/default/late", "", "Authorization", p.admin()); r.status/100 != 2 {
		t.Fatalf("DELETE: %d %s", r.status, r.body)
	}
	p.eventually("its engine gone", func() bool { return p.engine("late") == 0 })
	if r := p.chat("late", ""); r.status != 404 || r.failure().Code != "model_not_found" {
		t.Errorf("after the end: %d %s", r.status, r.body)
	}
}

// TestTeams checks keys, teams and limits.
func TestTeams(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{
		"all.yaml": tiny(t, "red/tiny", "") + "---\n" + tiny(t, "blue/tiny", "") +
			"---\napiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: red}\nspec: {limits: {requestsPerMinute: 2}}\n",
	})
	key := func(team string) string {
		r := p.do("POST", "/api/v1/keys", fmt.Sprintf(`{"team":%q}`, team), "Authorization", p.admin())
		var k struct{ Key string }
		if json.Unmarshal([]byte(r.body), &k); r.status/100 != 2 || k.Key == "" {
			t.Fatalf("key for %s: %d %s", team, r.status, r.body)
		}
		return "Bearer " + k.Key
	}
	red, blue := key("red"), key("blue")
	if r := p.chat("tiny", ""); r.status != 401 || r.failure().Code != "invalid_api_key" || r.header.Get("X-Should-Retry") != "false" {
		t.Errorf("no key: %d %v %s", r.status, r.header, r.body)
	}
	if r := p.chat("red/tiny", "", "Authorization", blue); r.status != 404 || r.failure().Code != "model_not_found" {
		t.Errorf("another team's model: %d %s", r.status, r.body)
	}
	// Wakes the model first: red's rate limit grants another request after half a minute.
	p.do("POST", "/api/v1/functions/red/tiny/wake", `{"lease":"5m"}`, "Authorization", p.admin())
	p.eventually("red's model is READY", func() bool {
		return strings.Contains(fmt.Sprint(p.itemsAs("/api/v1/replicas", p.admin())), "state:READY")
	})
	for i, want := range []int{200, 200, 429} {
		r := p.chat("tiny", `"max_tokens":1`, "Authorization", red)
		if r.status != want {
			t.Errorf("red's request %d: %d %s", i+1, r.status, r.body)
		}
		if want == 429 && (r.failure().Code != "rate_limit_exceeded" || r.header.Get("Retry-After") == "") {
			t.Errorf("429: %v %s", r.header, r.body)
		}
	}
	if r := p.chat("tiny", `"max_tokens":1`, "Authorization", blue); r.status != 200 {
		t.Errorf("blue is held to red's limit: %d %s", r.status, r.body)
	}
	if m := p.do("GET", "/v1/models", "", "Authorization", blue); strings.Contains(m.body, "red") {
		t.Errorf("blue sees red: %s", m.body)
	}
}
