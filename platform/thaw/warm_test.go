package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestVLLMWarmParentDies: killing a warm interpreter ends no engine, killing an engine's
// process group ends no interpreter, and a forked engine's answers equal those of one that
// was executed.
func TestVLLMWarmParentDies(t *testing.T) {
	checkpoint := realVLLM(t)
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("processes are found in /proc")
	}
	p := start(t, map[string]string{"v.yaml": vllmModel("v", checkpoint, "resources: {memory: 1000Mi}\n")}, "--memory", "8Gi", "--warm", "on")
	greedy := func() string {
		p.t.Helper()
		r := p.chat("v", `"max_tokens":12,"ignore_eos":true`)
		if r.status != 200 || r.text() == "" {
			p.t.Fatalf("%d %s", r.status, r.body)
		}
		return r.text()
	}
	how := func() string {
		for _, r := range p.items("/api/v1/replicas") {
			if r["state"] == "READY" {
				return fmt.Sprint(r["start"], " ", r["start_note"])
			}
		}
		return ""
	}
	ready := func(but int) (pid int) {
		p.eventuallyWithin(5*time.Minute, "a warm interpreter", func() bool {
			for _, n := range p.items("/api/v1/nodes") {
				parents, _ := n["warm"].([]any)
				for _, x := range parents {
					if w, _ := x.(map[string]any); w["state"] == "ready" {
						pid = p.processTitled("thaw: warm vllm")
					}
				}
			}
			return pid != 0 && pid != but
		})
		return pid
	}
	parent := ready(0)
	words := greedy()
	if s := how(); !strings.HasPrefix(s, "warm") {
		t.Fatalf("the first start: %q", s)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	res, lines := p.open(ctx, "v", 60)
	signalPID(t, parent, syscall.SIGKILL)
	rest, err := io.ReadAll(lines)
	res.Body.Close()
	if err != nil || !strings.Contains(string(rest), "data: [DONE]") {
		t.Errorf("a stream while the interpreter dies: %v: %.300s", err, rest)
	}
	if again := greedy(); again != words {
		t.Errorf("afterwards it says %q, before %q", again, words)
	}

	parent = ready(parent)
	signalPID(t, -p.leader("v"), syscall.SIGKILL)
	p.eventually("the engine is gone", func() bool { return p.state("default/v") != "READY" })
	if again := greedy(); again != words || !strings.HasPrefix(how(), "warm") {
		t.Errorf("started anew (%s) it says %q, before %q", how(), again, words)
	}
	if now := p.processTitled("thaw: warm vllm"); now != parent {
		t.Errorf("the interpreter was %d and is %d", parent, now)
	}
}

// processTitled finds the platform's process with this process title, 0 for none.
func (p *platform) processTitled(name string) int {
	for _, pid := range p.processes() {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.HasPrefix(line, []byte(name)) {
			return pid
		}
	}
	return 0
}

// leader returns the process group leader of the vLLM that serves a model.
func (p *platform) leader(name string) int {
	p.t.Helper()
	for _, pid := range p.processes() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(line, []byte("serve")) && bytes.Contains(line, []byte("--served-model-name "+name+" ")) {
			return pid
		}
	}
	p.t.Fatal("no engine of " + name)
	return 0
}
