package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
)

// TestCommandKey: a command engine whose env has {key} gets a random key that its command
// line does not show; it answers thaw, and refuses others at its own port.
func TestCommandKey(t *testing.T) {
	t.Parallel()
	p := start(t, map[string]string{
		"closed.yaml": fakeModel("closed", "", "env: {FAKE_KEY: \"{key}\"}\n"),
		"open.yaml":   fakeModel("open", "", ""),
	})
	for name, want := range map[string]int{"closed": http.StatusUnauthorized, "open": http.StatusOK} {
		if r := p.chat(name, `"max_tokens":2`); r.status != 200 {
			t.Fatalf("%s: %d %s", name, r.status, r.body)
		}
		r, err := http.Post(p.endpoint(name)+"/v1/chat/completions", "application/json", strings.NewReader(chatBody(name, "")))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("%s answers a caller without its key with %d, want %d", name, r.StatusCode, want)
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.engine(name)))
		if err != nil || strings.Contains(string(line), "sk-") {
			t.Errorf("%s: %v, its command line is %q", name, err, line)
		}
	}
}
