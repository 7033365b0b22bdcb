package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFolderOfAnotherMachine: a model whose source is a folder on the server's machine is
// staged by an agent on another machine, since the server's own node is full. Only files
// that the model needs or names are copied.
func TestFolderOfAnotherMachine(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(folder, os.DirFS(tinyDir(t))); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"extra.py": "pass", "secret.md": "CANARY"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := start(t, map[string]string{
		"a.yaml": tiny(t, "a", "resources: {memory: 64Mi}\nscale: {min: 1}"),
		"b.yaml": modelFile("b", "  source: "+folder+"\n  files: [\"*.py\"]\n  engine: ember\n  resources: {memory: 64Mi}\n"),
	}, "--memory", "100Mi", "--peer-addr", "127.0.0.1:0")
	p.bearer = p.admin()
	p.eventually("the server's node is full", func() bool { return p.state("default/a") == "READY" })
	kill := p.agent("two", "--machine", "another", "--memory", "100Mi", "--addr", "127.0.0.1:0")
	p.answered("two")
	if r := p.chat("b", ""); r.status != 200 || r.text() == "" {
		t.Fatalf("%d %s %v", r.status, r.body, r.err)
	}
	on := ""
	for _, r := range p.items("/api/v1/replicas") {
		if strings.HasSuffix(fmt.Sprint(r["function"]), "/b") {
			on = fmt.Sprint(r["node"])
		}
	}
	if on != "two" {
		t.Errorf("b runs on %q", on)
	}
	out, errs, code := verb(t, "cache", "ls", "--data", p.data+"-two", "-o", "json")
	if code != 0 || !strings.Contains(out, `"peer://`) || strings.Count(out, `"digest"`) != 1 {
		t.Errorf("%d\n%s%s", code, out, errs)
	}
	found, _ := filepath.Glob(filepath.Join(p.data+"-two", "store", "checkpoints", "*", "files", "*"))
	var names []string
	for _, f := range found {
		names = append(names, filepath.Base(f))
	}
	if s := strings.Join(names, " "); !strings.Contains(s, "extra.py") || strings.Contains(s, "secret.md") {
		t.Error(s)
	}
	kill()
}
