package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/platform/enroll"
	"github.com/thaw-dev/thaw/platform/mtls"
)

// These tests check access rights on the whole program: wrong wiring could bypass the
// checks of each package.

// callers holds the Authorization of each kind of caller.
type callers struct{ none, wrong, red, blue, adminKey, admin string }

func (p *platform) secret(file string) string {
	return strings.TrimSpace(contents(p.t, filepath.Join(p.data, file)))
}

func contents(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// key creates a key and returns its Authorization and its id.
func (p *platform) key(team string, admin bool) (bearer, id string) {
	p.t.Helper()
	r := p.do("POST", "/api/v1/keys", fmt.Sprintf(`{"team":%q,"admin":%t}`, team, admin), "Authorization", p.admin())
	var k struct{ Key, ID string }
	if json.Unmarshal([]byte(r.body), &k); r.status != 201 || k.Key == "" || k.ID == "" {
		p.t.Fatalf("a key for %s: %d %s", team, r.status, r.body)
	}
	return "Bearer " + k.Key, k.ID
}

// right is one path with its row in the documented table of rights.
type right struct {
	method, path, body string
	who                string // data, or a right of the control API
}

// rightsTable lists the paths of the data plane and, from the server's own description, one
// row of the control API for each right, method and first part of a path. The tests of the API
// have all rows.
func (p *platform) rightsTable(file string) []right {
	p.t.Helper()
	table := []right{
		{"GET", "/v1/models", "", "data"},
		{"GET", "/v1/models/a", "", "data"},
		{"POST", "/v1/chat/completions", `{"model":"nosuch","messages":[]}`, "data"},
		{"POST", "/v1/completions", `{"model":"nosuch"}`, "data"},
		{"POST", "/v1/embeddings", `{"model":"nosuch"}`, "data"},
		{"POST", "/v1/responses", `{"model":"nosuch"}`, "data"},
		{"POST", "/v1/messages", `{"model":"nosuch"}`, "data"},
		{"POST", "/tokenize", `{"model":"nosuch"}`, "data"},
		{"POST", "/rerank", `{"model":"nosuch"}`, "data"},
		{"GET", "/api/v1/nosuch", "", "data"}, // where all may read, a dummy key hides no path
		{"GET", "/", "", "data"},
	}
	bodies := map[string]string{ // that change nothing
		"PUT /api/v1/functions/{team}/{name}": file,
		"POST /api/v1/agents/tokens":          `{"agent":"NO AGENT"}`,
		"POST /api/v1/prewarm":                `{"model":"red/nosuch"}`,
	}
	var spec struct {
		Paths map[string]map[string]struct {
			Right string `json:"x-right"`
		}
	}
	if r := p.do("GET", "/openapi.json", "", "Authorization", p.admin()); json.Unmarshal([]byte(r.body), &spec) != nil ||
		len(spec.Paths) < 30 {
		p.t.Fatalf("the description of the API: %d %s", r.status, r.body)
	}
	seen := map[string]bool{}
	for _, pattern := range slices.Sorted(maps.Keys(spec.Paths)) {
		path := strings.NewReplacer("{team}", "red", "{kind}", "place", "{name}", "nosuch", "{id}", "nosuch", "{digest}",
			"nosuch").Replace(pattern)
		for _, method := range slices.Sorted(maps.Keys(spec.Paths[pattern])) {
			row, path := spec.Paths[pattern][method], path
			part := row.Right + strings.Join(strings.Split(pattern, "/")[:2], "/")
			if method = strings.ToUpper(method); seen[part+method] {
				continue
			}
			seen[part+method] = true
			if method == "PUT" {
				path = "/api/v1/functions/red/new?dryRun=true"
			}
			table = append(table, right{method, path, bodies[method+" "+pattern], row.Right})
		}
	}
	return table
}

func TestRights(t *testing.T) {
	t.Parallel()
	files := map[string]string{"a.yaml": tiny(t, "red/a", ""), "b.yaml": tiny(t, "blue/b", "")}
	for _, where := range []struct {
		addr string
		keys bool
		open bool
	}{
		{"127.0.0.1:0", false, true},
		{"127.0.0.1:0", true, false},
		{"127.0.0.2:0", false, true}, // all of 127.0.0.0/8 is loopback
		{"0.0.0.0:0", false, false},
		{"0.0.0.0:0", true, false},
	} {
		t.Run(fmt.Sprintf("%s keys=%t", where.addr, where.keys), func(t *testing.T) {
			if l, err := net.Listen("tcp", where.addr); err != nil {
				if errors.Is(err, syscall.EADDRNOTAVAIL) && where.addr == "127.0.0.2:0" {
					t.Skip(err) // by default macOS has only 127.0.0.1
				}
				t.Fatal(err)
			} else {
				l.Close()
			}
			p := start(t, files, "--addr", where.addr)
			c := callers{wrong: "Bearer sk-thaw-wrong", admin: p.admin()}
			known := map[string]string{c.admin: "admin"}
			if where.keys {
				c.red, _ = p.key("red", false)
				c.blue, _ = p.key("blue", false)
				c.adminKey, _ = p.key("red", true)
				known[c.red], known[c.blue], known[c.adminKey] = "team", "team", "admin"
			}
			table := p.rightsTable(tiny(t, "red/new", ""))
			for _, auth := range []string{c.none, c.wrong, c.red, c.blue, c.adminKey, c.admin, "Basic " + c.admin[7:], "Bearer", "Bearer  ", strings.ToLower(c.admin), c.admin[:len(c.admin)-1], c.admin + "x"} {
				for _, row := range table {
					var header []string
					if auth != "" {
						header = []string{"Authorization", auth}
					}
					r := p.do(row.method, row.path, row.body, header...)
					is := known[auth]
					want := 401 // 0: accepted
					switch {
					case row.who == "probe":
						want = 0
					case is == "admin":
						want = 0
					case row.who == "admin":
						if is == "team" {
							want = 403
						}
					case is == "team" && row.who == "own":
						want = 0
					case is == "team", row.who == "data" && where.open, row.who == "read" && where.open && auth == "":
						want = 0
					}
					let := r.status != 401 && r.status != 403 && r.status != 0
					if want == 0 && !let || want != 0 && r.status != want {
						t.Errorf("%s %s as %q (%s): %d %s %v, want %d", row.method, row.path, auth, is, r.status, r.body, r.err, want)
					}
					typed := r.failure().Code != "" || strings.HasPrefix(row.path, "/v1/messages") && strings.Contains(r.body, `{"type":"error","error":{"type":"`)
					if want != 0 && (!typed || strings.Contains(r.body, "red/a") || strings.Contains(r.body, "blue/b")) {
						t.Errorf("%s %s as %q: %s", row.method, row.path, auth, r.body)
					}
				}
			}
			if where.addr == "127.0.0.1:0" && where.keys {
				bearer, id := p.key("red", false)
				if r := p.do("GET", "/v1/models", "", "Authorization", bearer); r.status != 200 {
					t.Errorf("a new key: %d", r.status)
				}
				p.do("DELETE", "/api/v1/keys/"+id, "", "Authorization", c.admin)
				if r := p.do("GET", "/v1/models", "", "Authorization", bearer); r.status != 401 {
					t.Errorf("an ended key: %d", r.status)
				}
				for _, k := range p.itemsAs("/api/v1/keys", c.admin) {
					p.do("DELETE", fmt.Sprint("/api/v1/keys/", k["id"]), "", "Authorization", c.admin)
				}
				if n := len(p.itemsAs("/api/v1/keys", c.admin)); n != 0 {
					t.Errorf("%d keys are left", n)
				}
				for _, path := range []string{"/v1/models", "/api/v1/functions", "/metrics"} {
					if r := p.do("GET", path, ""); r.status != 401 {
						t.Errorf("%s is open after the last key has ended: %d", path, r.status)
					}
				}
			}
		})
	}
}

// TestPathConfusion: each path that changes something has one spelling. No other spelling
// reaches it, with any key.
func TestPathConfusion(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"a.yaml": tiny(t, "red/a", "")})
	team, _ := p.key("red", false)
	host := strings.TrimPrefix(p.url, "http://")
	targets := []string{"/api/v1/keys", "/api/v1/functions/red/a/wake", "/api/v1/functions/red/a/stop", "/api/v1/functions/red/a", "/api/v1/heartbeat", "/v1/chat/completions", "/metrics", "/v1/load_lora_adapter", "/v1/models"}
	spell := map[string]func(string) string{
		"double slash":    func(s string) string { return "/" + s },
		"inner double":    func(s string) string { return strings.Replace(s, "v1/", "v1//", 1) },
		"dot":             func(s string) string { return "/." + s },
		"inner dot":       func(s string) string { return strings.Replace(s, "v1/", "v1/./", 1) },
		"up":              func(s string) string { return "/healthz/.." + s },
		"up from models":  func(s string) string { return "/v1/models/../.." + s },
		"encoded up":      func(s string) string { return "/v1/models/%2e%2e/%2e%2e" + s },
		"encoded slash":   func(s string) string { return strings.Replace(s, "v1/", "v1%2f", 1) },
		"encoded letter":  func(s string) string { return strings.Replace(s, "v1", "%76%31", 1) },
		"twice encoded":   func(s string) string { return strings.Replace(s, "v1/", "v1%252f", 1) },
		"parameter":       func(s string) string { return s + ";x" },
		"early parameter": func(s string) string { return strings.Replace(s, "v1/", "v1;x/", 1) },
		"trailing slash":  func(s string) string { return s + "/" },
		"encoded end":     func(s string) string { return s + "%00" },
		"encoded query":   func(s string) string { return s + "%3fx" },
		"case":            strings.ToUpper,
		"backslash":       func(s string) string { return strings.ReplaceAll(s, "/", `\`) },
		"inner backslash": func(s string) string { return strings.Replace(s, "v1/", `v1\`, 1) },
		"absolute, name":  func(s string) string { return "http://" + strings.Replace(host, "127.0.0.1", "localhost", 1) + s },
		"absolute, user":  func(s string) string { return "http://a@" + host + s },
		"absolute, other": func(s string) string { return "http://x/healthz" + s },
		"authority":       func(s string) string { return "//" + host + s },
		"fragment":        func(s string) string { return "/healthz#" + s },
		"no slash":        func(s string) string { return s[1:] },
		"overlong slash":  func(s string) string { return strings.Replace(s, "v1/", "v1%c0%af", 1) },
		"tab":             func(s string) string { return s + "\t" },
		"space":           func(s string) string { return s + "%20" },
		"star":            func(string) string { return "*" },
	}
	status := regexp.MustCompile(`^HTTP/1\.1 (\d{3}) `)
	for name, f := range spell {
		for _, target := range targets {
			for _, method := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS"} {
				if f(target) == target || f(target) == "/v1/models/" {
					continue // the same path; and the list of models is also a folder
				}
				for who, auth := range map[string]string{"no key": "", "a team": "Authorization: " + team + "\r\n", "the admin": "Authorization: " + p.admin() + "\r\n"} {
					if who == "no key" && method != "POST" {
						continue // accepted for that time
					}
					got := p.raw(method + " " + f(target) + " HTTP/1.1\r\nHost: " + host + "\r\n" + auth +
						"Content-Type: application/json\r\nContent-Length: 14\r\nConnection: close\r\n\r\n{\"team\":\"red\"}")
					m := status.FindStringSubmatch(got)
					if m == nil || m[1][0] != '4' {
						t.Errorf("%s: %s %s as %s: %.300q", name, method, f(target), who, got)
					}
				}
			}
		}
	}
	// A target in absolute form with the authority of Host is the same path, with the same rights.
	for who, want := range map[string]string{"": "401", "Authorization: " + team + "\r\n": "403"} {
		got := p.raw("POST http://" + host + "/api/v1/keys HTTP/1.1\r\nHost: " + host + "\r\n" + who +
			"Content-Type: application/json\r\nContent-Length: 14\r\nConnection: close\r\n\r\n{\"team\":\"red\"}")
		if m := status.FindStringSubmatch(got); m == nil || m[1] != want {
			t.Errorf("absolute form with %q: %.300q, want %s", who, got, want)
		}
	}
	// X-Original-URL and similar headers are ignored, and so is a method in a header.
	for _, h := range []string{"X-Original-URL", "X-Rewrite-URL", "X-HTTP-Method-Override", "X-Forwarded-Prefix", "X-Forwarded-For"} {
		if r := p.do("POST", "/api/v1/keys", `{"team":"red"}`, "Authorization", team, h, map[bool]string{true: "GET", false: "127.0.0.1"}[strings.Contains(h, "Method")]); r.status != 403 {
			t.Errorf("with %s: %d %s", h, r.status, r.body)
		}
	}
	if n := len(p.itemsAs("/api/v1/keys", p.admin())); n != 1 {
		t.Errorf("%d keys, want the one that was made", n)
	}
	if n := len(p.itemsAs("/api/v1/coldstarts", p.admin())); n != 0 {
		t.Errorf("%d cold starts, want none", n)
	}
}

func (p *platform) itemsAs(path, auth string) (items []map[string]any) {
	p.t.Helper()
	r := p.do("GET", path, "", "Authorization", auth)
	var o struct{ Items []map[string]any }
	if err := json.Unmarshal([]byte(r.body), &o); err != nil || r.status != 200 {
		p.t.Fatalf("GET %s: %d %s %v", path, r.status, r.body, r.err)
	}
	return o.Items
}

// TestTeamsDoNotSeeEachOther: a team sees nothing of another one: no models, replicas,
// cold starts, logs, events or metrics, nor which team's model evicted its own.
func TestTeamsDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{
		"a.yaml": tiny(t, "crimson/ruby", "resources: {memory: 600Mi}"),
		"b.yaml": tiny(t, "azure/lapis", "resources: {memory: 600Mi}"),
		"c.yaml": tiny(t, "azure/toolarge", "resources: {memory: 900Gi}"),
	}, "--memory", "1Gi")
	crimson, _ := p.key("crimson", false)
	azure, _ := p.key("azure", false)
	// Each team evicts the other's model and has errors.
	ids := map[string]string{}
	for i, ask := range []struct{ model, auth string }{{"ruby", crimson}, {"lapis", azure}, {"ruby", crimson}, {"lapis", azure}} {
		r := p.chat(ask.model, `"max_tokens":2`, "Authorization", ask.auth, "X-Client-Request-Id", fmt.Sprintf("mine-%d", i))
		if r.status != 200 {
			t.Fatalf("%d: %s: %d %v %s", i, ask.model, r.status, r.err, r.body)
		}
		ids[ask.model] = r.header.Get("Thaw-Cold-Start")
	}
	p.chat("toolarge", "", "Authorization", azure, "thaw-max-wait", "100ms")
	replica := map[string]string{}
	for _, r := range p.itemsAs("/api/v1/replicas", p.admin()) {
		replica[fmt.Sprint(r["function"])] = fmt.Sprint(r["id"])
	}
	mine := map[string]bool{}
	for _, e := range p.itemsAs("/api/v1/events", p.admin()) {
		if id, _ := e["replica"].(string); e["function"] == "azure/lapis" {
			mine[id] = true
		}
	}

	foreign := regexp.MustCompile(`crimson|ruby`)
	for _, path := range []string{"/v1/models", "/api/v1/functions", "/api/v1/replicas", "/api/v1/nodes", "/api/v1/teams", "/api/v1/coldstarts", "/api/v1/events", "/metrics", "/readyz", "/healthz"} {
		r := p.do("GET", path, "", "Authorization", azure)
		if at := foreign.FindStringIndex(r.body); r.status != 200 || at != nil {
			t.Errorf("%s as azure: %d, tells of crimson: %s", path, r.status, textAround(r.body, at))
		}
		if !strings.HasPrefix(path, "/api/") {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		req, _ := http.NewRequestWithContext(ctx, "GET", p.url+path+"?watch", nil)
		req.Header.Set("Authorization", azure)
		if res, err := web.Do(req); err == nil {
			var b strings.Builder
			buf := make([]byte, 4096)
			for {
				n, err := res.Body.Read(buf)
				b.Write(buf[:n])
				if err != nil {
					break
				}
			}
			res.Body.Close()
			if at := foreign.FindStringIndex(b.String()); at != nil {
				t.Errorf("%s?watch as azure tells of crimson: %s", path, textAround(b.String(), at))
			}
		}
		cancel()
	}
	// Answers about another team's objects equal those about objects that do not exist.
	gone := strings.NewReplacer("crimson", "nobodys", "ruby", "none", ids["ruby"], "cs-none", "mine-0", "mine-9")
	same := gone.Replace
	for _, path := range []string{"/v1/models/crimson/ruby", "/v1/models/crimson%2Fruby", "/api/v1/functions/crimson/ruby", "/api/v1/teams/crimson", "/api/v1/coldstarts/" + ids["ruby"], "/api/v1/coldstarts/mine-0"} {
		a, b := p.do("GET", path, "", "Authorization", azure), p.do("GET", same(path), "", "Authorization", azure)
		if a.status != 404 || b.status != 404 || same(a.body) != b.body {
			t.Errorf("%s: %d %s; of what does not exist: %d %s", path, a.status, a.body, b.status, b.body)
		}
	}
	for _, body := range []string{`{"model":"crimson/ruby","messages":[]}`, `{"model":"ruby","messages":[]}`} {
		a := p.do("POST", "/v1/chat/completions", body, "Authorization", azure)
		b := p.do("POST", "/v1/chat/completions", same(body), "Authorization", azure)
		if a.status != 404 || b.status != 404 || same(a.body) != b.body {
			t.Errorf("%s: %d %s; of what does not exist: %d %s", body, a.status, a.body, b.status, b.body)
		}
	}
	for _, tail := range []string{"", "/logs"} {
		r := p.do("GET", "/api/v1/replicas/"+replica["azure/lapis"]+tail, "", "Authorization", crimson)
		if r.status != 404 {
			t.Errorf("another team's replica%s: %d %s", tail, r.status, r.body)
		}
		if own := p.do("GET", "/api/v1/replicas/"+replica["azure/lapis"]+tail, "", "Authorization", azure); own.status != 200 {
			t.Errorf("its own replica%s: %d %s", tail, own.status, own.body)
		}
	}
	if len(mine) < 2 {
		t.Errorf("azure saw no events: %v", mine)
	}
	// A client's own request id stays valid for it, even if another team uses it too.
	if r := p.do("GET", "/api/v1/coldstarts/mine-3", "", "Authorization", azure); r.status != 200 {
		t.Errorf("its own cold start by the client's id: %d %s", r.status, r.body)
	}
}

// textAround returns the text around a match.
func textAround(s string, at []int) string {
	if at == nil {
		return s
	}
	return s[max(0, at[0]-200):min(len(s), at[1]+200)]
}

// TestAgentRights: an agent's port takes its server alone, by certificate; the agents' port of
// the server takes heartbeats of an agent by that agent's certificate alone.
func TestAgentRights(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{"a.yaml": tiny(t, "a", "")})
	p.agent("second", "--memory", "4Gi")
	url := p.agentURL("second")
	if !strings.HasPrefix(url, "https://") {
		t.Errorf("the agent answers at %s", url)
	}
	server, _ := p.joinToken("")
	agents := &certificates{t: t, dir: filepath.Join(p.data, "agents")}
	stranger := &certificates{t: t, dir: t.TempDir()}
	second := filepath.Join(p.data+"-second", "identity")
	beat := func(id string) string { return fmt.Sprintf(`{"agent_id":%q,"url":"https://10.0.0.9:1"}`, id) }
	for _, x := range []struct {
		who, url, path, body string
		config               *tls.Config
		status               int // 0: the connection is refused
	}{
		{"the server", url, "/heartbeat", "{}", agents.client(enroll.ServerName, enroll.AgentName("second")), 200},
		{"no certificate", url, "/heartbeat", "{}", agents.client("", enroll.AgentName("second")), 0},
		{"another agent", url, "/load_model", "{}", agents.client(enroll.AgentName("third"), enroll.AgentName("second")), 0},
		{"another authority's server", url, "/load_model", "{}", agents.other(stranger.client(enroll.ServerName, ""), enroll.AgentName("second")), 0},
		{"an agent that never joined", server, "/api/v1/heartbeat", beat("third"), agents.client(enroll.AgentName("third"), enroll.ServerName), 403},
		{"no certificate", server, "/api/v1/heartbeat", beat("second"), agents.client("", enroll.ServerName), 401},
		{"another key of the same name", server, "/api/v1/heartbeat", beat("second"), agents.client(enroll.AgentName("second"), enroll.ServerName), 403},
		{"another authority's agent", server, "/api/v1/heartbeat", beat("second"), agents.other(stranger.client(enroll.AgentName("second"), ""), enroll.ServerName), 0},
		{"the agent for another", server, "/api/v1/heartbeat", beat("third"), folder(t, second, enroll.ServerName), 403},
		{"the agent with an absurd epoch", server, "/api/v1/heartbeat", `{"agent_id":"second","url":"https://10.0.0.9:1","epoch":9223372036854775807}`, folder(t, second, enroll.ServerName), 400},
		{"the agent without TLS of its own", server, "/api/v1/heartbeat", `{"agent_id":"second","url":"http://10.0.0.9:1"}`, folder(t, second, enroll.ServerName), 400},
		{"the agent's other wishes", server, "/api/v1/functions", "", folder(t, second, enroll.ServerName), 404},
	} {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: x.config, DisableKeepAlives: true}, Timeout: patience}
		res, err := client.Post(x.url+x.path, "application/json", strings.NewReader(x.body))
		status := 0
		if err == nil {
			status = res.StatusCode
			res.Body.Close()
		}
		if status != x.status {
			t.Errorf("%s at %s: %d %v, want %d", x.who, x.path, status, err, x.status)
		}
	}
	if res, err := http.Post(strings.Replace(url, "https:", "http:", 1)+"/heartbeat", "", nil); err == nil {
		res.Body.Close()
		if res.StatusCode == 200 {
			t.Error("the agent answers without TLS")
		}
	}
	// The model is placed on the agent and answers through TLS; after its removal the server
	// listens to it no more.
	if r := p.do("DELETE", "/api/v1/agents/second", "", "Authorization", p.admin()); r.status != 204 {
		t.Errorf("%d %s", r.status, r.body)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: folder(t, second, enroll.ServerName), DisableKeepAlives: true},
		Timeout: patience}
	res, err := client.Post(server+"/api/v1/heartbeat", "application/json", strings.NewReader(beat("second")))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 403 {
		t.Errorf("a removed agent: %d", res.StatusCode)
	}
}

// certificates are those of an authority in a folder.
type certificates struct {
	t   *testing.T
	dir string
}

// client returns the configuration of a client with a certificate of that name, or without.
func (c *certificates) client(name, server string) *tls.Config {
	c.t.Helper()
	ca, err := mtls.OpenCA(c.dir, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	id, err := ca.Identity(cmp.Or(name, "none"), time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	config := mtls.Client(id, server)
	if name == "" {
		config.Certificates = nil
	}
	return config
}

// other returns a configuration that trusts this authority and shows another's certificate.
func (c *certificates) other(of *tls.Config, server string) *tls.Config {
	config := c.client("", server)
	config.Certificates = of.Certificates
	return config
}

// folder returns the configuration of a client with the identity of a folder.
func folder(t *testing.T, dir, server string) *tls.Config {
	t.Helper()
	f, err := mtls.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	id, err := f.Identity()
	if err != nil {
		t.Fatal(err)
	}
	return mtls.Client(id, server)
}

// agentURL waits until an agent has joined and returns its URL.
func (p *platform) agentURL(name string) (url string) {
	p.t.Helper()
	p.eventually("the agent's address", func() bool {
		for _, n := range p.items("/api/v1/nodes") {
			if n["id"] == name {
				url, _ = n["url"].(string)
			}
		}
		return url != ""
	})
	return url
}
