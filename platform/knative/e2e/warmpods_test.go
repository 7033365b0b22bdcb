package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/azuretest"
)

// TestClusterVLLMWarm forks a real vLLM into a pod, which answers, scales to zero and
// leaves no process, twice.
func TestClusterVLLMWarm(t *testing.T) {
	s := open(t)
	if program, model := os.Getenv("THAW_ENGINE_VLLM"), os.Getenv("THAW_VLLM_MODEL"); program == "" || model == "" {
		testkit.Missing(t, `THAW_ENGINE_VLLM and THAW_VLLM_MODEL are not set: eval "$(.ci/components)" sets them`)
	}
	s.install(t)
	t.Run("warm", func(t *testing.T) { warmInPods(&bench{space: s.space(t)}) })
	t.Run("uninstall", func(t *testing.T) { s.uninstall(t) })
}

func warmInPods(b *bench) {
	h := vllmHost(b)
	b.lend(h)
	files, err := os.ReadDir(h.model)
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(h.model, f.Name()))
		if err != nil {
			b.Fatal(err)
		}
		b.blobs.Put(b.ns+"/vllm/"+f.Name(), data)
	}
	file := b.model("vllm", "source: "+azuretest.Location(b.ns+"/vllm"), "engine: vllm",
		`args: [--dtype, float32, --enforce-eager, --max-model-len, "512", --max-num-seqs, "8", --kv-cache-memory-bytes, "33554432"]`,
		"env: {VLLM_TARGET_DEVICE: cpu}", "scale: {idle: 2s}", "resources: {memory: 1500Mi}", "deadlines: {drain: 5s}")
	doc := b.rendered(file, "--image", "vllm=dev.local/hello:test")
	h.into(doc, nil, h.shimmed())
	b.post(doc, "vllm")
	revision := b.revision("vllm")
	said := ""
	for i := range 2 {
		a := b.must("a cold call", b.byModel("vllm", 8, false))
		_, t := b.shim("vllm")
		b.Logf("cold call %d: %s; %s %s %v", i+1, a.took.Round(10*time.Millisecond), t.Start, t.StartNote, t.Phases)
		if t.Start != functions.StartWarm {
			b.Errorf("start %d is %s: %s", i+1, t.Start, t.StartNote)
		}
		var answer struct {
			Choices []struct{ Message struct{ Content string } }
		}
		if err := json.Unmarshal([]byte(a.body), &answer); err != nil || len(answer.Choices) != 1 {
			b.Fatalf("%v: %s", err, a)
		}
		if i > 0 && answer.Choices[0].Message.Content != said {
			b.Errorf("another answer: %q, was %q", answer.Choices[0].Message.Content, said)
		}
		said = answer.Choices[0].Message.Content
		b.atZero(revision)
	}
	b.empty(revision)
	// All forked processes ended with their pods: the interpreter has no child and no engine
	// process is left.
	left := engines()
	if len(left) > 0 {
		b.Errorf("left: %v", left)
	}
}

// engines lists the processes of vLLM's engines on the cluster's nodes.
func engines() (left []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range all {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if line := strings.ReplaceAll(string(text), "\x00", " "); strings.Contains(line, "vllm serve ") ||
			strings.Contains(line, "VLLM::EngineCore") {
			left = append(left, line)
		}
	}
	return left
}
