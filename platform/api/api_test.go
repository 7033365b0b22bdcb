package api

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api/live"
)

var update = flag.Bool("update", false, "write the golden files anew")

// ask sends one request and gives status, head and body.
func (a *testAPI) ask(t *testing.T, method, path, key, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, a.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(b)
}

func codeOf(body string) string {
	var e struct {
		Error struct{ Code string } `json:"error"`
	}
	_ = json.Unmarshal([]byte(body), &e)
	return e.Error.Code
}

// canonicalHost fills a pattern with things that exist; every call of it does what it
// says and may be repeated.
func canonicalHost(e endpoint) (path, body string) {
	path = strings.NewReplacer("{team}", "a", "{name}", "one", "{digest}", idle, "{kind}", "place").Replace(e.path)
	switch {
	case strings.Contains(path, "replicas/{id}"):
		path = strings.Replace(path, "{id}", "r-1", 1)
	case strings.Contains(path, "agents/{id}"):
		path = strings.Replace(path, "{id}", "gone", 1)
	case strings.Contains(path, "nodes/{id}"):
		path = strings.Replace(path, "{id}", "here", 1)
	case strings.Contains(path, "coldstarts/{id}"):
		path = strings.Replace(path, "{id}", "cs-1", 1)
	case strings.Contains(path, "routes/{id}"), strings.Contains(path, "compositions/{id}"):
		path = strings.Replace(path, "{id}", "none", 1)
	case strings.Contains(path, "keys/{id}"):
		path = strings.Replace(path, "{id}", "none", 1)
	}
	switch e.method + " " + e.path {
	case "PUT /api/v1/functions/{team}/{name}":
		path = "/api/v1/functions/a/new"
		body = modelFile("a", "new")
	case "DELETE /api/v1/functions/{team}/{name}":
		path = "/api/v1/functions/a/gone" // 404: allowed, but there is none
	case "POST /api/v1/keys":
		body = `{"team":"a"}`
	case "DELETE /api/v1/cache":
		path += "?function=a/one"
	case "POST /api/v1/prewarm":
		body = `{"model":"a/one"}`
	case "POST /api/v1/prefetch":
		body = `{"model":"a/one"}`
	}
	return path, body
}

// TestRights asks every row of the table as everybody.
func TestRights(t *testing.T) {
	open, shut := start(t, nil), start(t, nil)
	shut.keys(t)
	public := start(t, func(o *Options) { o.Access.Open = false })
	publicKeys := start(t, func(o *Options) { o.Access.Open = false })
	publicKeys.keys(t)
	const wrong = "sk-thaw-wrong"
	for _, e := range open.api.routes {
		path, body := canonicalHost(e)
		for _, tt := range []struct {
			who  string
			rig  *testAPI
			key  string
			want [4]string // by right: read, admin, probe, own; "" is let in
		}{
			{"no key, on loopback without keys", open, "", [4]string{"", "invalid_api_key", "", "invalid_api_key"}},
			{"no key, with keys", shut, "", [4]string{"invalid_api_key", "invalid_api_key", "", "invalid_api_key"}},
			{"no key, not on loopback", public, "", [4]string{"invalid_api_key", "invalid_api_key", "", "invalid_api_key"}},
			{"a wrong key, on loopback without keys", open, wrong, [4]string{"invalid_api_key", "invalid_api_key", "", "invalid_api_key"}},
			{"a wrong key", shut, wrong, [4]string{"invalid_api_key", "invalid_api_key", "", "invalid_api_key"}},
			{"a team's key", shut, shut.keyA, [4]string{"", "permission_denied", "", ""}},
			{"a team's key, not on loopback", publicKeys, publicKeys.keyA, [4]string{"", "permission_denied", "", ""}},
			{"an admin key, not on loopback", publicKeys, publicKeys.keyAdm, [4]string{"", "", "", ""}},
			{"an admin key", shut, shut.keyAdm, [4]string{"", "", "", ""}},
			{"the admin token", shut, shut.admin, [4]string{"", "", "", ""}},
			{"the admin token, not on loopback", public, public.admin, [4]string{"", "", "", ""}},
		} {
			status, head, answer := tt.rig.ask(t, e.method, path, tt.key, body)
			want := tt.want[e.permission]
			got := codeOf(answer)
			if want != "" {
				if got != want || want == "invalid_api_key" && (status != 401 || head.Get("WWW-Authenticate") != "Bearer") ||
					want == "permission_denied" && status != 403 {
					t.Errorf("%s %s as %s: %d %s, want %s", e.method, e.path, tt.who, status, answer, want)
				}
				continue
			}
			if status >= 400 && got != "not_found" && status != 503 {
				t.Errorf("%s %s as %s: %d %s, want to be let in", e.method, e.path, tt.who, status, answer)
			}
		}
	}
}

// L6 and the like: whatever a team's key may ask, on loopback or not, the answer shows
// nothing of another team; what is another team's does not exist for it.
func TestTeamKeyOnEveryRoute(t *testing.T) {
	loopback, public := start(t, nil), start(t, func(o *Options) { o.Access.Open = false })
	foreign := regexp.MustCompile(`two|secret|\br-2\b|\bcs-2\b|"b"|\bb/`)
	of := strings.NewReplacer("/a/one", "/b/two", "a/one", "b/two", "/teams/a", "/teams/b", "r-1", "r-2", "cs-1", "cs-2")
	for name, r := range map[string]*testAPI{"on loopback": loopback, "not on loopback": public} {
		r.keys(t)
		for _, e := range r.api.routes {
			path, body := canonicalHost(e)
			status, _, answer := r.ask(t, e.method, path, r.keyA, body)
			switch {
			case e.permission == admin:
				if status != 403 || codeOf(answer) != "permission_denied" {
					t.Errorf("%s %s with a team's key %s: %d %s", e.method, path, name, status, answer)
				}
			case e.path == "/openapi.json" || e.path == "/api/v1/schema": // the same for every caller
			case status >= 300 && status != 404 || foreign.MatchString(answer):
				t.Errorf("%s %s with a team's key %s: %d %s", e.method, path, name, status, answer)
			}
			if theirs, theirBody := of.Replace(path), of.Replace(body); theirs+theirBody != path+body && e.permission != admin {
				if status, _, answer := r.ask(t, e.method, theirs, r.keyA, theirBody); status != 404 {
					t.Errorf("%s %s %s with the key of another team %s: %d %s", e.method, theirs, theirBody, name, status, answer)
				}
			}
		}
	}
}

func TestTeamKeySeesItsTeam(t *testing.T) {
	r := start(t, nil)
	r.keys(t)
	for _, path := range []string{"/api/v1/functions", "/api/v1/replicas", "/api/v1/teams", "/api/v1/coldstarts", "/api/v1/events", "/api/v1/nodes", "/metrics"} {
		status, _, body := r.ask(t, "GET", path, r.keyA, "")
		if status != 200 || strings.Contains(body, "b/two") || strings.Contains(body, `"name":"b"`) || strings.Contains(body, `team="b"`) || strings.Contains(body, "az://") {
			t.Errorf("%s: %d %s", path, status, body)
		}
		_, _, all := r.ask(t, "GET", path, r.admin, "")
		if len(all) <= len(body) {
			t.Errorf("%s: the admin sees no more: %s", path, all)
		}
	}
	for _, path := range []string{"/api/v1/functions/b/two", "/api/v1/replicas/r-2", "/api/v1/replicas/r-2/logs", "/api/v1/replicas/r-old/logs", "/api/v1/teams/b", "/api/v1/coldstarts/cs-2"} {
		status, _, body := r.ask(t, "GET", path, r.keyA, "")
		unknownID, _, none := r.ask(t, "GET",
			strings.NewReplacer("two", "xyz", "r-2", "r-9", "r-old", "r-9", "teams/b", "teams/x", "cs-2", "cs-9").Replace(path), r.keyA, "")
		if status != 404 || unknownID != 404 || codeOf(body) != codeOf(none) {
			t.Errorf("%s: %d %s, and for what does not exist %d %s", path, status, body, unknownID, none)
		}
		if status, _, body := r.ask(t, "GET", path, r.admin, ""); status != 200 {
			t.Errorf("%s as admin: %d %s", path, status, body)
		}
	}
	if _, _, body := r.ask(t, "GET", "/api/v1/functions/a/oen", r.keyA, ""); !strings.Contains(body, "a/one") {
		t.Error(body)
	}
}

// TestLogsOfEnded: a team reads the kept log of a replica that its cold start names, and of no
// other team's; where there is none, the reason is said.
func TestLogsOfEnded(t *testing.T) {
	r := start(t, func(o *Options) {
		o.Logs = func(context.Context, string, int, bool) (io.ReadCloser, error) {
			return nil, fmt.Errorf("%w: no engine was started", functions.ErrNotFound)
		}
	})
	r.keys(t)
	r.colds = append(r.colds, functions.Timeline{ID: "cs-8", Function: "a/one", Replica: "r-mine"},
		functions.Timeline{ID: "cs-9", Function: "b/two", Replica: "r-theirs"})
	for _, x := range []struct {
		id, key string
		status  int
		want    string
	}{
		{"r-mine", r.keyA, 404, "The log of r-mine does not exist: no engine was started."},
		{"r-theirs", r.keyA, 404, "The replica r-theirs does not exist."},
		{"r-theirs", r.admin, 404, "no engine was started"},
	} {
		if status, _, body := r.ask(t, "GET", "/api/v1/replicas/"+x.id+"/logs", x.key, ""); status != x.status ||
			!strings.Contains(body, x.want) {
			t.Errorf("%s: %d %s", x.id, status, body)
		}
	}
}

// TestExplain: a decision is told with its candidates; those of another team as
// something, without a name.
func TestExplain(t *testing.T) {
	var other atomic.Bool // another decision is explained
	r := start(t, func(o *Options) {
		usual := o.Explain
		o.Explain = func(kind string, n functions.Name) (functions.Explanation, bool) {
			if other.Load() {
				return functions.Explanation{Chosen: "two-1", Others: 1, Candidates: []functions.Candidate{{Replica: "one-1", Function: "a/one"}}}, true
			}
			return usual(kind, n)
		}
	})
	r.keys(t)
	body := func(key string) (e functions.Explanation) {
		t.Helper()
		status, _, body := r.ask(t, "GET", "/api/v1/explain/evict/a/one", key, "")
		if status != 200 || json.Unmarshal([]byte(body), &e) != nil {
			t.Fatalf("%d %s", status, body)
		}
		return e
	}
	e := body(r.admin)
	if e.Kind != "evict" || e.Chosen != "two-1" || e.For != "b/two" || len(e.Candidates) != 2 || *e.Candidates[0].Score != 1.5 ||
		e.Candidates[0].Parts[0].Name != "idle" || e.Candidates[1].Score != nil || e.Others != 1 {
		t.Errorf("%+v", e)
	}
	if len(e.Events) != 1 || e.Events[0].Kind != "stop" || e.Events[0].For != "b/two" {
		t.Errorf("its events: %+v", e.Events)
	}
	e = body(r.keyA)
	if c := e.Candidates[0]; e.Chosen != "" || e.For != "" || c.Function != "" || c.Replica != "" || c.Node != "here" ||
		e.Candidates[1].Function != "a/one" || e.Events[0].For != "" {
		t.Errorf("another team is named: %+v", e)
	}
	other.Store(true)
	if e := body(r.keyA); e.Chosen != "" {
		t.Errorf("a replica of another team is named: %+v", e)
	}
	if status, _, body := r.ask(t, "GET", "/api/v1/explain/weather/a/one", r.admin, ""); status != 404 ||
		!strings.Contains(body, "place, evict, cold, scale") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := r.ask(t, "GET", "/api/v1/events?function=a/one&kind=stop", r.admin, ""); status != 200 || !strings.Contains(body, `"seq":2`) || strings.Contains(body, `"seq":3`) || strings.Contains(body, `"seq":1,`) {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := r.ask(t, "GET", "/api/v1/events?kind=start", r.admin, ""); status != 200 || strings.TrimSpace(body) != `{"items":[]}` {
		t.Errorf("%d %s", status, body)
	}
}

// TestPaths: one path has one spelling.
func TestPaths(t *testing.T) {
	r := start(t, nil)
	for _, path := range []string{"/", "/api", "/api/v1", "/api/v1/", "/api/v1/functions/", "//api/v1/functions", "/api//v1/functions", "/api/v1/./functions", "/api/v1/x/../functions",
		"/api/v1/functions;x", "/api/v1/%66unctions", "/API/v1/functions", "/api/v1/functions/a", "/api/v1/functions/a/one/", "/api/v1/functions/a%2fone", "/api/v1/functions/a/one/wake/x", "/metrics/", "/api/v1/functions/a/%2e%2e", "/api/v1/replicas/.."} {
		if status, _, body := r.ask(t, "GET", path, "", ""); status != 404 || codeOf(body) != "unknown_endpoint" {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	status, head, body := r.ask(t, "PATCH", "/api/v1/functions/a/one", r.admin, "")
	if status != 405 || head.Get("Allow") != "GET, PUT, DELETE" || codeOf(body) != "method_not_allowed" {
		t.Errorf("%d %v %s", status, head, body)
	}
	// A path tells nothing to who may not read.
	r.keys(t)
	for _, path := range []string{"/nothing", "/api/v1/functions/a/one"} {
		if status, _, body := r.ask(t, "PATCH", path, "", ""); status != 401 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _, _ := r.ask(t, "HEAD", "/api/v1/functions", r.admin, ""); status != 200 {
		t.Error("HEAD", status)
	}
	if status, _, body := r.ask(t, "PUT", "/api/v1/functions/a/new?dryrun", r.admin, modelFile("a", "new")); status != 400 ||
		r.cat.Model(functions.Name{Team: "a", Name: "new"}) != nil {
		t.Errorf("a misspelt dryRun: %d %s", status, body)
	}
}

func TestBrowsers(t *testing.T) {
	r := start(t, nil)
	self := strings.TrimPrefix(r.url, "http://")
	for _, tt := range []struct {
		host, origin string
		status       int
	}{
		{"", "", 200}, {"localhost:8080", "", 200}, {"LocalHost", "", 200}, {"127.0.0.1", "", 200}, {"[::1]:8080", "", 200}, {"thaw.example", "", 200}, {"thaw.example:80", "", 200},
		{"models.localhost:8080", "", 421}, {"0.0.0.0:8080", "", 421}, {"[::]:8080", "", 421},
		{"evil.example", "", 421}, {"evil.example:8080", "", 421}, {"127.0.0.1.evil.example", "", 421}, {"localhost.evil.example", "", 421}, {"10.0.0.1", "", 421},
		{"", "http://" + self, 200}, {"", "http://evil.example", 403}, {"", "null", 403}, {"", "http://localhost:1", 403},
		{"evil.example", "http://evil.example", 421},
	} {
		var h []string
		if tt.host != "" {
			h = append(h, "Host", tt.host)
		}
		if tt.origin != "" {
			h = append(h, "Origin", tt.origin)
		}
		if status, _, body := r.ask(t, "GET", "/api/v1/functions", "", "", h...); status != tt.status {
			t.Errorf("Host %q, Origin %q: %d %s, want %d", tt.host, tt.origin, status, body, tt.status)
		} else if way := map[int]string{421: "start it with --host", 403: "--origin"}[status]; !strings.Contains(body, way) {
			t.Errorf("Host %q, Origin %q: %s names no way out", tt.host, tt.origin, body)
		}
	}
	for mode, want := range map[string]int{"navigate": 200, "no-cors": 403} { // a link of another site, and a script
		status, _, body := r.ask(t, "GET", "/api/v1/functions", "", "", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", mode)
		if status != want {
			t.Errorf("Sec-Fetch-Mode %s: %d %s, want %d", mode, status, body, want)
		}
	}
	for raw, want := range map[string]string{
		"GET /livez HTTP/1.0\r\n\r\n": "200", "GET /healthz HTTP/1.0\r\n\r\n": "200", "GET /readyz HTTP/1.0\r\n\r\n": "200", // as old health checks do
		"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": "200",
		"GET /readyz HTTP/1.0\r\nHost: evil.example\r\n\r\n":                  "421",
		"GET /readyz HTTP/1.1\r\n\r\n":                                        "400",
	} {
		conn, err := net.Dial("tcp", self)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, raw)
		answer, _ := io.ReadAll(conn)
		conn.Close()
		if fields := strings.Fields(string(answer)); len(fields) < 2 || fields[1] != want {
			t.Errorf("%q: %s", raw, answer)
		}
	}
	public := start(t, func(o *Options) { o.Access.Open = false })
	if status, _, body := public.ask(t, "GET", "/api/v1/functions", public.admin, "", "Host", "thaw.company.example"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

func TestReadinessReasonsNeedRead(t *testing.T) {
	r := start(t, nil)
	r.reasons = []string{"no agent has joined"}
	status, _, body := r.ask(t, "GET", "/readyz", "", "")
	if status != 503 || !strings.Contains(body, "no agent") {
		t.Errorf("%d %s", status, body)
	}
	r.keys(t)
	if status, _, body := r.ask(t, "GET", "/readyz", "", ""); status != 503 || strings.Contains(body, "agent") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := r.ask(t, "GET", "/readyz", r.keyA, ""); status != 503 || !strings.Contains(body, "no agent") {
		t.Errorf("%d %s", status, body)
	}
	r.mu.Lock()
	r.reasons = nil
	r.mu.Unlock()
	if status, _, body := r.ask(t, "GET", "/readyz", "", ""); status != 200 || body != `{"ready":true}`+"\n" {
		t.Errorf("%d %s", status, body)
	}
}

// TestDocument: every row is in the OpenAPI document, and every operation of it
// is served.
func TestDocument(t *testing.T) {
	r := start(t, nil)
	_, head, body := r.ask(t, "GET", "/openapi.json", "", "")
	if head.Get("Content-Type") != "application/json" {
		t.Error(head)
	}
	made := string(makeDocument(r.api.routes))
	if *update {
		if err := os.WriteFile("openapi.json", []byte(made), 0o644); err != nil {
			t.Fatal(err)
		}
		document = made // as it will be in the next build
		_, _, body = r.ask(t, "GET", "/openapi.json", "", "")
	}
	if body != strings.Replace(made, `"{version}"`, `"test"`, 1) {
		t.Error("the API has changed: go test ./platform/api -run TestDocument -update, and read the difference")
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		}
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	ids, operations := map[string]bool{}, 0
	for path, methods := range doc.Paths {
		for method, op := range methods {
			operations++
			if ids[op.OperationID] {
				t.Errorf("%s twice", op.OperationID)
			}
			ids[op.OperationID] = true
			e := endpoint{method: strings.ToUpper(method), path: path}
			p, b := canonicalHost(e)
			if status, _, answer := r.ask(t, e.method, p, r.admin, b); codeOf(answer) == "unknown_endpoint" || status == 405 {
				t.Errorf("%s %s is not served: %s", method, path, answer)
			}
		}
	}
	if operations != len(r.api.routes) {
		t.Errorf("%d operations for %d rows", operations, len(r.api.routes))
	}
	for _, m := range regexpRefs(body) {
		if !strings.Contains(body, `"`+m+`": {`) {
			t.Errorf("schema %s is not defined", m)
		}
	}
}

func regexpRefs(body string) []string {
	var names []string
	for _, part := range strings.Split(body, `"#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		names = append(names, name)
	}
	return names
}

func client(t *testing.T, r *testAPI, key string) *Client {
	t.Helper()
	c, err := NewClient(r.url, key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestClient(t *testing.T) {
	r := start(t, nil)
	c := client(t, r, r.admin)
	ctx := t.Context()
	fs, err := c.Functions(ctx)
	if err != nil || len(fs) != 2 {
		t.Fatal(fs, err)
	}
	want := Function{Name: "a/one", Team: "a", Model: "one", Kind: functions.KindModel, State: functions.Loading, Engine: "ember",
		Source: "/w/x", Active: 1, Queued: 2, Waiting: new(began),
		Percent: positivePtr(41), ETA: optionalSeconds(12 * time.Second), Expected: optionalSeconds(20 * time.Second), ColdStart: "cs-1",
		Origin: fs[0].Origin, Problem: "the hub answers 429"}
	if !reflect.DeepEqual(fs[0], want) {
		t.Errorf("got %+v", fs[0])
	}
	one := functions.Name{Team: "a", Name: "one"}
	if f, err := c.Function(ctx, one); err != nil || f.Spec == nil || f.Spec.Scale.Target != 8 {
		t.Errorf("%+v %v", f, err)
	}

	next := functions.Name{Team: "c", Name: "new"}
	if d, err := c.Deploy(ctx, next, []byte(modelFile("c", "new")), true); err != nil || !d.Created || !d.DryRun || r.cat.Model(next) != nil {
		t.Errorf("%+v %v", d, err)
	}
	if d, err := c.Deploy(ctx, next, []byte(modelFile("c", "new")), false); err != nil || !d.Created || r.cat.Model(next) == nil {
		t.Errorf("%+v %v", d, err)
	}
	if d, err := c.Deploy(ctx, next, []byte(modelFile("c", "new")), false); err != nil || d.Created {
		t.Errorf("%+v %v", d, err)
	}
	for _, tt := range []struct {
		name     functions.Name
		file     string
		code     string
		wantText string
	}{
		{next, modelFile("c", "new") + "x: 1\n", "invalid_value", "c/new:5:1: x: unknown key"},
		{one, modelFile("a", "one"), "conflict", "one.yaml:1"},
		{next, modelFile("c", "other"), "invalid_value", "the path about c/new"},
	} {
		_, err := c.Deploy(ctx, tt.name, []byte(tt.file), false)
		var s *StatusError
		if !errors.As(err, &s) || s.Code != tt.code || !strings.Contains(s.Message, tt.wantText) {
			t.Errorf("got %v, want %s that says %s", err, tt.code, tt.wantText)
		}
	}
	if err := c.Delete(ctx, "/api/v1/functions/"+next.Team, next.Name); err != nil || r.cat.Model(next) != nil {
		t.Error(err)
	}
	var s *StatusError
	if err := c.Delete(ctx, "/api/v1/functions/"+next.Team, next.Name); !errors.As(err, &s) || s.Status != 404 {
		t.Error(err)
	}
	if err := c.Delete(ctx, "/api/v1/functions/"+one.Team, one.Name); !errors.As(err, &s) || s.Status != 409 {
		t.Error(err)
	}

	if w, err := c.Wake(ctx, one, 10*time.Minute); err != nil || w.ColdStart != "cs-1" || r.wakes[one] != 10*time.Minute {
		t.Errorf("%+v %v", w, err)
	}
	for _, bad := range []string{`{"lease":"-1s"}`, `{"lease":"200h"}`, `{"until":"2001-01-01T00:00:00Z"}`, `{"lease":"1m","until":"2099-01-01T00:00:00Z"}`, `{"leas":"1m"}`, `[]`, `{} {}`} {
		if status, _, body := r.ask(t, "POST", "/api/v1/functions/a/one/wake", r.admin, bad); status != 400 {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
	w, err := Request[WakeReply](ctx, c, "POST", FunctionPath(one)+"/stop", nil)
	if err != nil || w.Function != "a/one" || len(r.stopped) != 1 {
		t.Errorf("%+v %v", w, err)
	}
	if rs, err := c.Replicas(ctx); err != nil || len(rs) != 2 || !reflect.DeepEqual(rs[0], r.replicas[0]) {
		t.Errorf("%+v %v", rs, err)
	}
	if ns, err := GetItems[Node](ctx, c, "/api/v1/nodes"); err != nil || len(ns) != 1 || ns[0].ID != "here" {
		t.Errorf("%+v %v", ns, err)
	}
	if ts, err := GetItems[Team](ctx, c, "/api/v1/teams"); err != nil || len(ts) != 2 || ts[0].Functions != 1 || ts[0].Active != 3 ||
		ts[0].TeamUse.GPUs != 1 || ts[0].EvictionsInflicted != 7 {
		t.Errorf("%+v %v", ts, err)
	}
	for id, position := range map[string]int{"cs-1": 0, "req-1": 3} {
		if cs, err := c.ColdStart(ctx, id); err != nil || cs.ID != "cs-1" || cs.Position != position || *cs.ETA != 12 {
			t.Errorf("%+v %v", cs, err)
		}
	}
	if cs, err := GetItems[ColdStart](ctx, c, "/api/v1/coldstarts?limit=1"); err != nil || len(cs) != 1 || cs[0].ID != "cs-2" {
		t.Errorf("%+v %v", cs, err)
	}
	if ev, err := c.Events(ctx, "b/two", "ready"); err != nil || len(ev) != 1 || ev[0].Seq != 3 {
		t.Errorf("%+v %v", ev, err)
	}
	if e, err := c.Explain(ctx, "place", functions.Name{Team: "a", Name: "one"}); err != nil || e.Kind != "place" || e.Now == "" {
		t.Errorf("%+v %v", e, err)
	}
	if ev, err := GetItems[functions.Event](ctx, c, "/api/v1/events?since=1"); err != nil || len(ev) != 2 || ev[0].Seq != 2 {
		t.Errorf("%+v %v", ev, err)
	}
	k, err := Request[NewKey](ctx, c, "POST", "/api/v1/keys", KeyRequest{Team: "a", Name: "laptop"})
	if err != nil || !strings.HasPrefix(k.Secret, "sk-thaw-") || k.Team != "a" {
		t.Fatalf("%+v %v", k, err)
	}
	if ks, err := GetItems[auth.Key](ctx, c, "/api/v1/keys?team=a"); err != nil || len(ks) != 1 || ks[0].ID != k.ID {
		t.Errorf("%+v %v", ks, err)
	}
	if _, _, body := r.ask(t, "GET", "/api/v1/keys", r.admin, ""); strings.Contains(body, k.Secret) {
		t.Error("the secret is told again")
	}
	if err := c.Delete(ctx, "/api/v1/keys", k.ID); err != nil {
		t.Error(err)
	}
	if err := c.Delete(ctx, "/api/v1/keys", k.ID); !errors.As(err, &s) || s.Status != 404 {
		t.Error(err)
	}
	if _, err := Request[NewKey](ctx, c, "POST", "/api/v1/keys", KeyRequest{Team: "A B"}); !errors.As(err, &s) || s.Status != 400 {
		t.Error(err)
	}
	logs, err := c.Logs(ctx, "r-old", 10, false)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(logs)
	logs.Close()
	if string(b) != "line of r-old\n" {
		t.Errorf("%q", b)
	}
	if rd, err := c.Ready(ctx); err != nil || !rd.Ready {
		t.Errorf("%+v %v", rd, err)
	}
	if schema, err := Request[map[string]any](ctx, c, "GET", "/api/v1/schema", nil); err != nil || schema["$schema"] == nil {
		t.Error(err, schema)
	}

	newToken := func(r JoinTokenRequest) (JoinToken, error) {
		return Request[JoinToken](ctx, c, "POST", "/api/v1/agents/tokens", r)
	}
	if token, err := newToken(JoinTokenRequest{Agent: "n2", Expiry: functions.Duration(time.Hour)}); err != nil ||
		token.Token != "token-of-n2" || token.Server != "https://server:1" || !token.Expires.Equal(began.Add(time.Hour)) {
		t.Errorf("%+v %v", token, err)
	}
	if _, err := newToken(JoinTokenRequest{Agent: "none"}); !errors.As(err, &s) || s.Status != 400 {
		t.Error(err)
	}
	if list, err := GetItems[functions.JoinedAgent](ctx, c, "/api/v1/agents"); err != nil || len(list) != 1 || list[0].ID != "here" {
		t.Errorf("%+v %v", list, err)
	}
	if err := c.Delete(ctx, "/api/v1/agents", "n9"); !errors.As(err, &s) || s.Status != 404 {
		t.Error(err)
	}
	if err := c.Delete(ctx, "/api/v1/agents", "here"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "ftp://x", "http://", "http://u:p@x", "http://x?y", "http://[::1"} {
		if _, err := NewClient(bad, ""); err == nil {
			t.Errorf("%q is no server", bad)
		}
	}
}

func TestWatch(t *testing.T) {
	r := start(t, nil)
	c := client(t, r, r.admin)
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	var got []string
	err := Watch(ctx, c, "/api/v1/functions", func(ch Change[Function]) bool {
		name := ch.Name
		if ch.Item != nil {
			name = ch.Item.Name + " " + ch.Item.State.Word()
		}
		got = append(got, strings.TrimSpace(ch.Event+" "+name))
		switch len(got) {
		case 3: // synced: now something changes
			one := functions.Name{Team: "a", Name: "one"}
			r.mu.Lock()
			f := r.snapshots[one]
			f.State = functions.Ready
			r.snapshots[one] = f
			r.mu.Unlock()
			r.changed <- struct{}{}
		case 4:
			if _, err := r.cat.Put(functions.Name{Team: "z", Name: "z"}, []byte(modelFile("z", "z"))); err != nil {
				t.Error(err)
			}
			r.changed <- struct{}{}
		case 5:
			if err := r.cat.Delete(functions.Name{Team: "z", Name: "z"}); err != nil {
				t.Error(err)
			}
			r.changed <- struct{}{}
		case 6:
			return false
		}
		return true
	})
	want := []string{"put a/one loading", "put b/two cold", "synced", "put a/one ready", "put z/z cold", "removed z/z"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v\ngot  %q\nwant %q", err, got, want)
	}

	// A watch ends with the right to it: the first key closes the open door.
	anon := client(t, r, "")
	err = Watch(ctx, anon, "/api/v1/functions", func(ch Change[Function]) bool {
		if ch.Event == "synced" {
			r.keys(t)
			r.changed <- struct{}{}
		}
		return true
	})
	if !errors.Is(err, ErrLost) {
		t.Errorf("got %v", err)
	}
}

// TestAuthorizationIsExact: what looks nearly like a key is none.
func TestAuthorizationIsExact(t *testing.T) {
	r := start(t, nil)
	r.keys(t)
	for _, auth := range []string{"", "Basic " + r.admin, r.admin, "Bearer", "Bearer ", "Bearer " + r.admin + "x", "Bearer " + r.admin[1:], "Bearer " + strings.ToUpper(r.keyA), "Bearer " + strings.Repeat("x", 600)} {
		status, _, body := r.ask(t, "GET", "/api/v1/functions", "", "", "Authorization", auth)
		if status != 401 || strings.Contains(body, r.admin) {
			t.Errorf("%q: %d %s", auth, status, body)
		}
	}
}

// TestWatchSendsEmptyLines: an empty line now and then, and an end with the client.
func TestWatchSendsEmptyLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		items := []live.Item{{Key: "a", JSON: []byte(`{"name":"a"}`)}, {Key: "b", JSON: []byte(`{"name":"b"}`)}}
		changes := live.New("", func() []live.Item { return items }, time.Now).Watch()
		w := &stream{ctx: ctx, cancel: cancel, buf: changes.Append(nil), look: func(b []byte) ([]byte, bool) { return changes.Append(b), true }}
		items = items[:1]
		buf := make([]byte, 4096)
		var got []string
		began := time.Now()
		for len(got) < 3 {
			n, err := w.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(buf[:n]))
		}
		if !strings.HasPrefix(got[0], `{"event":"put","item":{"name":"a"`) || got[1] != `{"event":"removed","name":"b"}`+"\n" || got[2] != "\n" || time.Since(began) != time.Second+aliveEvery {
			t.Errorf("%q after %s", got, time.Since(began))
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if _, err := w.Read(buf); err != io.EOF {
			t.Error(err)
		}
	})
}

// waiting is a log in which nothing happens.
type waiting struct{ ctx context.Context }

func (w waiting) Read([]byte) (int, error) { <-w.ctx.Done(); return 0, io.EOF }
func (w waiting) Close() error             { return nil }

// TestShutdownWaitsForNoWatcher: who only looks does not hold up the end.
func TestShutdownWaitsForNoWatcher(t *testing.T) {
	r := start(t, func(o *Options) {
		o.Logs = func(ctx context.Context, _ string, _ int, _ bool) (io.ReadCloser, error) { return waiting{ctx}, nil }
	})
	ended := make(chan string, 2)
	looking := make(chan struct{})
	c := client(t, r, r.admin)
	go func() {
		_ = Watch(t.Context(), c, "/api/v1/nodes", func(ch Change[Node]) bool {
			if ch.Event == "synced" {
				close(looking)
			}
			return true
		})
		ended <- "watch"
	}()
	<-looking
	go func() {
		if l, err := c.Logs(t.Context(), "r-1", 0, true); err == nil {
			_, _ = io.Copy(io.Discard, l)
			l.Close()
		}
		ended <- "log"
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	r.down = true
	if err := r.server.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	<-ended
	<-ended
}

// TestAuthorize: a body is read only for a caller who may send one to the path.
func TestAuthorize(t *testing.T) {
	open, shut := start(t, nil), start(t, nil)
	shut.keys(t)
	for _, c := range []struct {
		rig          *testAPI
		method, path string
		key          string
		want         string // "": the body is read
	}{
		{shut, "PUT", "/api/v1/functions/a/one", "sk-thaw-wrong", "invalid_api_key"},
		{shut, "PUT", "/api/v1/functions/a/one", shut.keyA, "permission_denied"},
		{shut, "PUT", "/api/v1/functions/a/one", shut.admin, ""},
		{shut, "POST", "/api/v1/prewarm", "", "invalid_api_key"},
		{shut, "POST", "/api/v1/prewarm", shut.keyA, ""},
		{shut, "GET", "/healthz", "", "request_too_large"},
		{open, "GET", "/api/v1/functions", "", "request_too_large"},
		{open, "POST", "/api/v1/none", "", "unknown_endpoint"},
	} {
		asked := make(chan bool, 1)
		srv := httptest.NewServer(
			httpserver.NewNetHTTPHandler(httpserver.Options{Authorize: c.rig.api.Authorize,
				Handler: func(*httpserver.Request, *httpserver.Response) { asked <- true }}))
		req, _ := http.NewRequest(c.method, srv.URL+c.path, strings.NewReader(strings.Repeat("x", 64<<10)))
		req.Header.Set("Authorization", "Bearer "+c.key)
		if c.key == "" {
			req.Header.Del("Authorization")
		}
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		srv.CloseClientConnections()
		srv.Close()
		if got := codeOf(string(b)); got != c.want || c.want == "" != (len(asked) == 1) {
			t.Errorf("%s %s with %q: %d %s, want %q", c.method, c.path, c.key, res.StatusCode, b, c.want)
		}
	}
}
