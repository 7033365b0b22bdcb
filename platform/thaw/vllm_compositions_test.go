package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
)

// recorder is a Remote that passes requests on to a server, and keeps their bodies.
type recorder struct {
	url    string
	to     atomic.Pointer[url.URL]
	mu     sync.Mutex
	bodies []string
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{}
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(r.to.Load()) }}
	r.url = testkit.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.bodies = append(r.bodies, string(b))
		r.mu.Unlock()
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(string(b))), int64(len(b))
		proxy.ServeHTTP(w, req)
	})).URL
	return r
}

// take returns the bodies since the last time.
func (r *recorder) take() (bodies []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bodies, r.bodies = r.bodies, nil
	return bodies
}

// TestVLLMCompositions runs the four patterns with their own prompts on a real instruct
// model, which vLLM and ember serve. It asserts what holds however good the answers are: the
// small model may write a plan or none. The engines draw other tokens from the same seed, so
// their answers differ, and the coordinator has to write one.
func TestVLLMCompositions(t *testing.T) {
	realVLLM(t)
	checkpoint := os.Getenv("THAW_VLLM_INSTRUCT")
	if checkpoint == "" {
		testkit.Missing(t, `THAW_VLLM_INSTRUCT is not set: eval "$(.ci/components)" sets it`)
	}
	judge := newRecorder(t)
	const more = "deadlines: {firstToken: 10m, hang: 5m}\nscale: {min: 1}\n"
	composed := func(pattern, members string) string {
		return compositionFile(pattern, "pattern: "+pattern+", members: "+members+", coordinator: judge, budget: {calls: 8, time: 30m}")
	}
	p := start(t, map[string]string{
		"a.yaml": modelFile("a", "  source: "+checkpoint+`
  engine: vllm
  args: [--dtype, float32, --enforce-eager, --max-model-len, "4096", --max-num-seqs, "8", --kv-cache-memory-bytes, "536870912",
    --override-generation-config, '{"max_new_tokens": 256}']
  env: {TORCHDYNAMO_DISABLE: "1", VLLM_TARGET_DEVICE: cpu}
`+indent("resources: {memory: 2Gi}\n"+more)),
		"b.yaml": modelFile("b", "  source: "+checkpoint+"\n  engine: ember\n"+indent("resources: {memory: 1Gi}\n"+more)),
		"judge.yaml": "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: judge}\nspec: {url: " + judge.url + "/v1, model: a, " +
			"allow: internal, timeouts: {firstToken: 10m, idle: 10m}}\n",
		"ensemble.yaml": composed("ensemble", "[a, b]"), "debate.yaml": composed("debate", "[a, b], rounds: 1"),
		"maestro.yaml": composed("maestro", "{reasoning: a, research: b, critic: a}"), "graph.yaml": composed("graph", "[a, b]"),
	}, "--memory", "4Gi")
	to, err := url.Parse(p.url)
	if err != nil {
		t.Fatal(err)
	}
	judge.to.Store(to)
	p.eventuallyWithin(10*time.Minute, "both engines ready", func() bool {
		return p.state("default/a") == "READY" && p.state("default/b") == "READY"
	})
	for _, pattern := range []string{"ensemble", "debate", "maestro", "graph"} {
		t.Run(pattern, func(t *testing.T) {
			began := time.Now()
			r := p.do("POST", "/v1/chat/completions", `{"model":"`+pattern+`","stream":true,"stream_options":{"include_usage":true},`+
				`"temperature":0.8,"seed":7,"stop":["."],"max_tokens":100,"messages":[{"role":"user","content":"Why is the sky blue? Name two reasons."}]}`)
			a := readComposedAnswer(t, r)
			t.Logf("%v: %d calls, plan: %q, %q", time.Since(began).Round(time.Second), len(a.thaw.Calls), a.thaw.PlanError, a.text)
			checkComposed(t, &a)
			checkComposedOrder(t, r.body, &a)
			bodies := judge.take()
			checkPlans(t, pattern, bodies, &a)
			for _, body := range bodies {
				checkFences(t, body)
			}
		})
	}
}

// checkComposed checks an answer and its record: there is one, its calls are those of the
// file within the budget, and the usage is their sum.
func checkComposed(t *testing.T, a *composedAnswer) {
	t.Helper()
	calls := a.thaw.Calls
	var prompt, completion int64
	for i, c := range calls {
		prompt, completion = prompt+c.Prompt, completion+c.Completion
		if !slices.Contains([]string{"a", "b", "judge"}, c.Member) || c.Final && (i != len(calls)-1 || c.Member != "judge") ||
			c.Estimated || c.Error == "" && (c.Prompt == 0 || c.Completion == 0) {
			t.Errorf("%+v", c)
		}
	}
	if len(calls) < 2 || len(calls) > 8 || strings.TrimSpace(a.text) == "" || a.finish != "stop" && a.finish != "length" ||
		!calls[len(calls)-1].Final {
		t.Errorf("%+v", a)
	}
	if int64(a.usage.Prompt) != prompt || int64(a.usage.Completion) != completion || completion == 0 {
		t.Errorf("usage %+v, the calls used %d and %d", a.usage, prompt, completion)
	}
}

// checkComposedOrder checks that no content comes before the members' answers, the plan and
// the comparison.
func checkComposedOrder(t *testing.T, body string, a *composedAnswer) {
	t.Helper()
	content := regexp.MustCompile(`"delta":\{"(role":"assistant",")?content":"[^"]`).FindStringIndex(body)
	if content == nil {
		t.Fatalf("no content: %s", body)
	}
	before := map[string]bool{": thaw state=planned": a.thaw.Pattern == functions.PatternGraph || a.thaw.Pattern == functions.PatternMaestro,
		": thaw state=compared": a.thaw.Agreement != nil}
	for comment, wanted := range before {
		if at := strings.Index(body, comment); (at >= 0) != wanted || at > content[0] {
			t.Errorf("%q at %d, the content at %d", comment, at, content[0])
		}
	}
	for _, role := range []string{"role=member", "role=reasoning", "role=research", "role=critic"} {
		if at := strings.LastIndex(body, role); at > content[0] {
			t.Errorf("%s at %d, behind the content at %d", role, at, content[0])
		}
	}
}

// checkPlans checks what a coordinator was asked for a plan, and what came of it. The schema
// goes along; a plan that cannot be used is quoted back once, and then replaced.
func checkPlans(t *testing.T, pattern string, bodies []string, a *composedAnswer) {
	t.Helper()
	plans := 0
	for _, c := range a.thaw.Calls {
		if c.Role == "coordinator" && !c.Final {
			plans++
		}
	}
	schemas := 0
	for _, body := range bodies {
		if strings.Contains(body, `"response_format":{"type":"json_schema"`) {
			schemas++
		}
	}
	most := map[string]int{"maestro": 2, "graph": 2}[pattern]
	if plans != schemas || plans > most || (plans == 0) != (most == 0) || a.thaw.PlanError != "" && plans != 2 {
		t.Errorf("%d plans, %d with a schema, of %d; error %q", plans, schemas, most, a.thaw.PlanError)
	}
}

// fenceLine is a line that opens or closes a quotation.
var fenceLine = regexp.MustCompile(`(?m)^.*<<<(begin|end) ([0-9a-f]{32})>>>$`)

// checkFences checks that each quotation of a request has its own end, with one mark for all of
// a message. Another mark is one that a model has repeated.
func checkFences(t *testing.T, body string) {
	t.Helper()
	var q struct {
		Messages []struct{ Role, Content string }
	}
	if err := json.Unmarshal([]byte(body), &q); err != nil {
		t.Fatal(err)
	}
	for _, m := range q.Messages {
		open, mark := false, ""
		for _, line := range fenceLine.FindAllStringSubmatch(m.Content, -1) {
			if mark == "" {
				mark = line[2]
			}
			if line[2] != mark {
				continue
			}
			if (line[1] == "begin") == open || m.Role != "user" {
				t.Fatalf("the quotations of a message of %s are broken: %s", m.Role, m.Content)
			}
			open = !open
		}
		if open {
			t.Fatalf("a quotation has no end: %s", m.Content)
		}
	}
}
