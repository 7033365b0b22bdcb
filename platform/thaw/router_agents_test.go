package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// TestAutoOnAgents: a Router's models run on an agent. A Remote answers while the large one starts
// there, and again once the agent is killed; what is secret does not leave then either.
func TestAutoOnAgents(t *testing.T) {
	t.Parallel()
	cloud := newCloudAPI(t)
	const there = "resources: {memory: 2Gi}\nqueue: {requests: 10, wait: 2s}\n"
	p := spawn(t, map[string]string{
		"small.yaml": tiny(t, "small", there), "coder.yaml": tiny(t, "coder", there), "big.yaml": tiny(t, "big", there),
		"cloud.yaml": "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: cloud}\nspec: {url: " + cloud.URL + "/v1, model: vendor-large}\n",
		"auto.yaml":  autoFile,
	}, "--memory", "1Gi")
	kill := p.agent("second", "--memory", "5Gi")
	p.eventually("two nodes", func() bool { return len(p.items("/api/v1/nodes")) == 2 })
	auth := []string{"Authorization", p.admin()}
	ask := func(prompt string, head ...string) (reply, functions.RouteRecord) {
		t.Helper()
		content, _ := json.Marshal(prompt)
		r := p.do("POST", "/v1/chat/completions", `{"model":"auto","max_tokens":4,"messages":[{"role":"user","content":`+string(content)+`}]}`, head...)
		var rec functions.RouteRecord
		d := p.do("GET", "/api/v1/routes/"+r.header.Get("x-request-id"), "", auth...)
		if err := json.Unmarshal([]byte(d.body), &rec); err != nil {
			t.Fatalf("%d %s\n%d %s %v", r.status, r.body, d.status, d.body, err)
		}
		return r, rec
	}
	if r, rec := ask("hi"); r.status != 200 || rec.Rule != "general" || rec.Target != "small" {
		t.Errorf("%+v %+v", r, rec)
	}
	if r, rec := ask(hardPrompt); r.status != 200 || rec.Target != "cloud" || rec.Prewarm != "big" {
		t.Fatalf("%+v %+v", r, rec)
	}
	p.eventually("the large model is ready ahead", func() bool { return p.state("default/big") == "READY" })
	if r, rec := ask(hardPrompt); r.status != 200 || rec.Target != "big" || !strings.Contains(r.body, `"model":"big"`) {
		t.Errorf("%+v %+v", r, rec)
	}
	for _, x := range p.items("/api/v1/replicas") {
		if x["node"] != "second" {
			t.Errorf("%v", x)
		}
	}

	kill() // the engine answers until its supervisor ends it
	p.eventually("the Remote answers again, and no request is lost meanwhile", func() bool {
		r, rec := ask(hardPrompt)
		if r.status != 200 || rec.Code != 200 || strings.Contains(r.body, "from the cloud") != (rec.Target == "cloud") {
			t.Fatalf("without its agent: %+v %+v", r, rec)
		}
		return rec.Target == "cloud"
	})
	left := len(cloud.seen())
	if r, rec := ask(hardPrompt, "thaw-data", "secret"); r.status < 500 || r.failure().Code == "" || rec.Target == "cloud" {
		t.Errorf("secret: %+v %+v", r, rec)
	}
	if n := len(cloud.seen()); left != 2 || n != left {
		t.Errorf("%d requests left, and then %d", left, n-left)
	}
}
