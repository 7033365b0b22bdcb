package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCachedAnswersOfEditedFolder: the answers of a model whose folder is edited while it is
// cold are not given again; those of one that is the same are, and start nothing.
func TestCachedAnswersOfEditedFolder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(tinyDir(t))); err != nil {
		t.Fatal(err)
	}
	p := start(t, map[string]string{"m.yaml": modelFile("m", "  source: "+folder+"\n  engine: ember\n  cache: {exact: {ttl: 1h}}\n")})
	stop := func() {
		t.Helper()
		p.do("POST", "/api/v1/functions/default/m/stop", "", "Authorization", p.admin())
		p.eventually("the model is cold", func() bool { return p.state("default/m") == "" })
	}
	ask := func(hit bool) {
		t.Helper()
		r := p.do("POST", "/v1/chat/completions", `{"model":"m","max_tokens":2,"temperature":0,"messages":[{"role":"user","content":"hi"}]}`)
		if got := r.header.Get("thaw-cache"); r.status != 200 || (got == "miss") == hit {
			t.Fatalf("%d, thaw-cache: %s, %s", r.status, got, r.body)
		}
	}
	ask(false)
	ask(true)
	stop()
	ask(true)
	if state := p.state("default/m"); state != "" {
		t.Errorf("the hit started it: %s", state)
	}
	if err := os.WriteFile(filepath.Join(folder, "generation_config.json"), []byte(`{"do_sample": false}`), 0o644); err != nil {
		t.Fatal(err)
	}
	ask(false)
	ask(true)
	stop()
	ask(true)
}
