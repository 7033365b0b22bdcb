package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestStartShortOfMemory: a start that finds too little memory, although the room was
// reserved, evicts the idle model and is repeated: its request is answered. Where the other
// model is in use, the start fails.
func TestStartShortOfMemory(t *testing.T) {
	memory := filepath.Join(t.TempDir(), "memory")
	if err := os.WriteFile(memory, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Parallel()
	p := spawn(t, map[string]string{
		"one.yaml": fakeModel("one", "--memory "+memory, ""),
		"two.yaml": fakeModel("two", "--memory "+memory+" --holds "+memory, ""), // a stream lasts
	})
	idle := func(name string) {
		t.Helper()
		if r := p.chat(name, `"max_tokens":2`); r.status != 200 {
			t.Fatalf("%s: %d %s", name, r.status, r.body)
		}
		began := time.Now()
		p.eventually(name+" has been idle for longer than the residency", func() bool {
			return p.state("default/"+name) == "READY" && time.Since(began) > 2*time.Second
		})
	}
	idle("one")
	idle("two") // it is answered although one holds the memory
	if got := p.state("default/one"); got != "" {
		t.Errorf("one is %s", got)
	}
	retried := 0
	for _, e := range p.items("/api/v1/events") {
		if e["kind"] == "retry" && e["function"] == "default/two" && e["reason"] == "host_memory" &&
			strings.Contains(fmt.Sprint(e["message"]), "MemoryError") {
			retried++
		}
	}
	if retried != 1 {
		t.Errorf("%d events of a retry: %v", retried, p.items("/api/v1/events"))
	}
	text, errs, _ := verb(t, "describe", "two", "--server", p.url)
	if !strings.Contains(text, "started once more, after idle models were evicted: command ended while loading: MemoryError") {
		t.Errorf("describe does not name the first failure: %s%s", text, errs)
	}
	stream, err := newRequest(t.Context(), p.url+"/v1/chat/completions", strings.NewReader(chatBody("two", `"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	if r := p.chat("one", `"max_tokens":2`); r.status != 503 || r.failure().Code != "model_load_failed" || !strings.Contains(r.body, "MemoryError") {
		t.Errorf("beside a model in use: %d %s", r.status, r.body)
	}
}
