package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEmberAdapters: the shipped engine serves a model with adapters whole. They are
// listed, staged and loaded at their first request; with one slot they take turns; an
// invalid one fails only its own requests.
func TestEmberAdapters(t *testing.T) {
	t.Parallel()
	at, err := filepath.Abs("../../deploy/example/switchboard")
	if err != nil {
		t.Fatal(err)
	}
	biased := t.TempDir()
	for _, name := range []string{"adapter_config.json", "adapter_model.safetensors"} {
		b, err := os.ReadFile(filepath.Join(at, "billing", name))
		if err != nil {
			t.Fatal(err)
		}
		b = []byte(strings.Replace(string(b), `"bias": "none"`, `"bias": "lora_only"`, 1))
		if err := os.WriteFile(filepath.Join(biased, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := start(t, map[string]string{"m.yaml": tiny(t, "m", fmt.Sprintf(`args: [--max-loras, "1"]
adapters: [{name: billing, source: %s/billing, rank: 4}, {name: repair, source: %s/repair}, {name: biased, source: %s}]
resources: {memory: 64Mi}
`, at, at, biased))}, "--warm", "off")
	ask := func(model, question string) reply {
		return p.do("POST", "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"temperature":0,"max_tokens":40,"messages":[{"role":"user","content":%q}]}`, model, question))
	}
	for _, x := range []struct{ model, question, want string }{
		{"m:billing", "Where is my invoice?", "Billing desk. The invoice is on its way."}, // loads model and adapter
		{"m", "Count to five.", "One, two, three, four, five."},
		{"m:repair", "My screen is broken.", "Repair desk. Turn it off, wait, and turn it on again."},
		{"m:billing", "Where is my invoice?", "Billing desk. The invoice is on its way."},
	} {
		if r := ask(x.model, x.question); r.status != 200 || r.text() != x.want {
			t.Errorf("%s: %d %s", x.model, r.status, r.body)
		}
	}
	if r := ask("m:biased", "Hello"); r.status != 400 || r.failure().Code != "adapter_invalid" || !strings.Contains(r.body, "bias") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := p.do("GET", "/v1/models", ""); !strings.Contains(r.body, `"id":"m:billing"`) || !strings.Contains(r.body, `"parent":"m"`) {
		t.Errorf("%s", r.body)
	}
	if r := ask("m:repair", "My screen is broken."); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	p.eventually("the replica has the last adapter alone", func() bool {
		return fmt.Sprint(p.items("/api/v1/replicas")[0]["adapters"]) == "[repair]"
	})
}
