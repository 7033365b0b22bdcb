package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// cloudAPI is an OpenAI-compatible API of another party, on this machine.
type cloudAPI struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
}

func newCloudAPI(t *testing.T) *cloudAPI {
	c := &cloudAPI{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		c.mu.Lock()
		c.bodies = append(c.bodies, string(b))
		c.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"c","object":"chat.completion","model":"vendor-large","choices":[{"index":0,"message":{"role":"assistant","content":"from the cloud"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6}}`)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *cloudAPI) seen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.bodies...)
}

const autoFile = `apiVersion: thaw.dev/v1
kind: Router
metadata: {name: auto}
spec:
  data: public
  cold: hedge
  retry: {escalate: true}
  rules:
    - {name: extract, when: {structuredOutput: true, tokensBelow: 800}, to: [small]}
    - {name: code, when: {code: true}, to: [coder]}
    - {name: hard, when: {complexityAbove: 0.6}, to: [big, cloud]}
    - {name: general, to: [small]}
`

// hardPrompt is a task of several steps with constraints.
const hardPrompt = `Prove that for every prime p greater than 3 the number p*p - 1 is divisible by 24, then derive a bound for the sum of the reciprocals of all such primes below n, compare the asymptotic behaviour of two different estimates step by step, and explain under which assumptions each of them fails.`

// TestAuto: one file makes "auto". Short structured requests go to the small model, code
// to the model for code and the hard rest to the big one, for which a Remote answers while
// it is cold; what may not leave does not leave; each decision can be explained.
func TestAuto(t *testing.T) {
	t.Parallel()
	cloud := newCloudAPI(t)
	p := start(t, map[string]string{
		"small.yaml": tiny(t, "small", ""), "coder.yaml": tiny(t, "coder", ""), "big.yaml": tiny(t, "big", ""),
		"cloud.yaml": "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: cloud}\nspec: {url: " + cloud.URL + "/v1, model: vendor-large, price: {input: 1, output: 2}}\n",
		"auto.yaml":  autoFile,
	}, "--prewarm", "on")
	auth := []string{"Authorization", p.admin()}
	ask := func(prompt, more string, head ...string) (reply, functions.RouteRecord) {
		t.Helper()
		content, _ := json.Marshal(prompt)
		r := p.do("POST", "/v1/chat/completions", `{"model":"auto","max_tokens":4,`+more+`"messages":[{"role":"user","content":`+string(content)+`}]}`, head...)
		var rec functions.RouteRecord
		d := p.do("GET", "/api/v1/routes/"+r.header.Get("x-request-id"), "", auth...)
		if err := json.Unmarshal([]byte(d.body), &rec); r.status != 200 || d.status != 200 || err != nil {
			t.Fatalf("%d %s\n%d %s %v", r.status, r.body, d.status, d.body, err)
		}
		return r, rec
	}
	names := func(r reply, model string) bool { return strings.Contains(r.body, `"model":"`+model+`"`) }

	r, rec := ask("Extract the name and the age as JSON: Anna is 31.", "")
	if rec.Rule != "extract" || rec.Target != "small" || !names(r, "small") ||
		!strings.HasPrefix(r.header.Get("thaw-route"), "router=auto; rule=extract; target=small; stage=rules; ") {
		t.Errorf("structured: %v %+v", r.header, rec)
	}
	if r, rec = ask("Why does this not compile?\n```go\nfunc main() { x := 1 }\n```", ""); rec.Rule != "code" || !names(r, "coder") {
		t.Errorf("code: %+v", rec)
	}
	if r, rec = ask("hi", ""); rec.Rule != "general" || !names(r, "small") {
		t.Errorf("general: %+v", rec)
	}
	if n := len(cloud.seen()); n != 0 {
		t.Errorf("%d requests left", n)
	}

	// The big model is cold: the Remote answers, and the model is started.
	r, rec = ask(hardPrompt, "")
	if rec.Rule != "hard" || rec.Stage != functions.StageScore || rec.Target != "cloud" || rec.Prewarm != "big" || !names(r, "cloud") ||
		!strings.Contains(r.body, "from the cloud") ||
		!strings.HasSuffix(r.header.Get("thaw-route"), "target=cloud; stage=score; cache=off; state=ready; prewarm=big") {
		t.Fatalf("hedge: %s %v %+v", r.body, r.header, rec)
	}
	if seen := cloud.seen(); len(seen) != 1 || !strings.Contains(seen[0], `"vendor-large"`) {
		t.Errorf("%v", seen)
	}
	explained := r.header.Get("x-request-id")
	p.eventually("the big model is ready ahead", func() bool { return p.state("default/big") == "READY" })
	if r, rec = ask(hardPrompt, ""); rec.Target != "big" || rec.Prewarm != "" || !names(r, "big") {
		t.Errorf("the next request: %+v", rec)
	}

	// What is secret stays here, also where the big model is cold again.
	p.do("POST", "/api/v1/functions/default/big/stop", "", auth...)
	p.eventually("the big model is cold", func() bool { return p.state("default/big") == "" })
	if r, rec = ask(hardPrompt, "", "thaw-data", "secret"); rec.Target != "big" || rec.Data != "secret" || !names(r, "big") ||
		!strings.Contains(rec.Candidates[1].WhyNot, "the data is secret") {
		t.Errorf("secret: %+v", rec)
	}
	if r := p.do("POST", "/v1/chat/completions", `{"model":"cloud","messages":[{"role":"user","content":"hi"}]}`); r.status != 403 || r.failure().Code != "data_class_refused" {
		t.Errorf("by name: %d %s", r.status, r.body)
	}
	if n := len(cloud.seen()); n != 1 {
		t.Errorf("%d requests have left, want the one", n)
	}

	verb := func(args ...string) string {
		t.Helper()
		var out, errs strings.Builder
		if code := run(t.Context(), append(args, "--server", p.url, "--data", p.data), strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("thaw %v: %d %s", args, code, &errs)
		}
		return out.String()
	}
	if out := verb("explain", "route", explained); !strings.Contains(out, "auto: cloud\n") || !strings.Contains(out, "prewarmed  big") ||
		strings.Contains(out, "Prove that") {
		t.Errorf("%s", out)
	}
	if out := verb("route", hardPrompt); !strings.Contains(out, "rule       hard") || !strings.Contains(out, "complexity") {
		t.Errorf("%s", out)
	}
	list := p.do("GET", "/v1/models", "")
	if !strings.Contains(list.body, `"id":"auto","object":"model","created":1767225600,"owned_by":"router"`) || !strings.Contains(list.body, `"id":"cloud","object":"model","created":1767225600,"owned_by":"remote"`) {
		t.Errorf("%s", list.body)
	}
	if r := p.do("POST", "/api/v1/routes/"+explained+"/outcome", `{"score":1}`, auth...); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	metrics := p.do("GET", "/metrics", "", auth...).body
	for _, want := range []string{
		`thaw_route_decisions_total{cache="off",router="default/auto",rule="hard",stage="score",state="ready",target="cloud",team="default"} 1`,
		`thaw_route_outcomes_count{router="default/auto",rule="hard",target="cloud",team="default"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
	if text := p.log.String(); !strings.Contains(text, `"rule":"hard"`) && !strings.Contains(text, "rule=hard") || strings.Contains(text, "Prove that") {
		t.Error("the log lacks the decision, or it has the prompt")
	}
}
