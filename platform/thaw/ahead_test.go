package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/platform/api"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestPrewarm: a hint starts a model before its first request, a request for another model
// evicts it, and the learned usage is stored when the server ends.
func TestPrewarm(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{
		"a.yaml": tiny(t, "a", "resources: {memory: 600Mi}"),
		"b.yaml": tiny(t, "b", "resources: {memory: 600Mi}"),
	}, "--memory", "1Gi", "--keep-alive", "learned", "--prewarm", "on")
	auth := []string{"Authorization", p.admin()}
	until := time.Now().Add(time.Hour).Format(time.RFC3339)
	r := p.do("POST", "/api/v1/prewarm", `{"model":"a","until":"`+until+`"}`, auth...)
	var w api.Prewarmed
	if err := json.Unmarshal([]byte(r.body), &w); r.status != 202 || err != nil || w.ID == "" || w.Function != "default/a" || w.Left > 1 {
		t.Fatalf("%d %s %v", r.status, r.body, err)
	}
	p.eventually("a is ready ahead", func() bool { return p.state("default/a") == "READY" })
	if r := p.do("POST", "/api/v1/prewarm", `{"model":"b"}`, auth...); r.status != 429 || r.failure().Code != "prewarm_budget_exceeded" {
		t.Errorf("over the budget: %d %s", r.status, r.body)
	}
	if r := p.chat("b", `"max_tokens":2`); r.status != 200 {
		t.Fatalf("b beside what is only foreseen: %d %s", r.status, r.body)
	}
	var evicted bool
	p.eventually("the prewarm is over", func() bool {
		evicted = len(p.items("/api/v1/prewarm")) == 0
		return evicted
	})
	if r := p.do("GET", "/metrics", "", auth...); !strings.Contains(r.body, `thaw_prewarms_total{result="evicted"} 1`) || !strings.Contains(r.body, `thaw_prewarm_wasted_gpu_seconds_total{by="admin",team="default"}`) {
		t.Errorf("it is not counted")
	}
	file := filepath.Join(p.data, "history.json")
	p.stop()
	b, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(b, []byte(`"default/b"`)) {
		t.Errorf("what was learned: %s %v", b, err)
	}
}

// TestPrewarmSettings: invalid flag values are usage errors.
func TestPrewarmSettings(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--keep-alive forever", "fixed, learned"},
		{"--prewarm maybe", "off, on"},
		{"--prewarm-budget 0s", "prewarm-budget"},
		{"--prewarm-budget soon", "prewarm-budget"},
	} {
		var out, errs strings.Builder
		args := append([]string{"serve", "--data", t.TempDir()}, strings.Fields(c.args)...)
		if exit := run(t.Context(), args, strings.NewReader(""), &out, &errs); exit != kit.ExitUsage || !strings.Contains(errs.String(), c.says) {
			t.Errorf("%s: exit %d, %s", c.args, exit, &errs)
		}
	}
}
