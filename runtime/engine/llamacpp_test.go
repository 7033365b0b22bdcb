package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// A Python named as llama.cpp's program is asked for its module; a llama-server
// is started as itself. Both get the key through the environment alone.
func TestLlamaCppPrograms(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "m.gguf")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		program, argv, health, key string
	}{
		{"/opt/v/bin/python3.12", "/opt/v/bin/python3.12 -m llama_cpp.server --model " + file + " --model_alias m --host 127.0.0.1 --port 7 --n_ctx 64", "/v1/models", "API_KEY"},
		{"/opt/llama-server", "/opt/llama-server --model " + file + " --alias m --host 127.0.0.1 --port 7 --metrics --n_ctx 64", "/health", "LLAMA_API_KEY"},
	} {
		p := Programs{Look: func(s string) (string, error) { return s, nil }, Environ: func() []string { return []string{"THAW_ENGINE_LLAMACPP=" + x.program} }}
		c, err := p.Prepare(Request{Spec: functions.ModelSpec{Engine: functions.EngineLlamaCpp, Args: []string{"--n_ctx", "64"}}, Name: "m", Path: dir, Port: 7, Key: "sk-1"})
		if err != nil || strings.Join(c.Argv, " ") != x.argv || c.Health != x.health || c.Key != "sk-1" {
			t.Errorf("%v %+v", err, c)
		}
		if !slices.Contains(c.Env, x.key+"=sk-1") {
			t.Errorf("%s: %v", x.program, c.Env)
		}
	}
}

// TestKeys: every replica has a key of its own, which stands after the model's
// own variables and on no command line; a model cannot set it.
func TestKeys(t *testing.T) {
	if a, b := NewKey(), NewKey(); a == b || len(a) < 20 {
		t.Errorf("%q %q", a, b)
	}
	p := Programs{Look: func(s string) (string, error) { return s, nil }, Environ: func() []string { return []string{"VLLM_API_KEY=inherited"} }}
	r := Request{Spec: functions.ModelSpec{Engine: functions.EngineVLLM, Env: map[string]string{"VLLM_API_KEY": "the model's"}}, Name: "m", Path: "/m", Port: 7, Key: "sk-1"}
	c, err := p.Prepare(r)
	if err != nil || c.Key != "sk-1" || !slices.Contains(c.Env, "VLLM_API_KEY=sk-1") || strings.Count(strings.Join(c.Env, "\n"), "VLLM_API_KEY=") != 1 || strings.Contains(strings.Join(c.Argv, " "), "sk-1") {
		t.Errorf("%v %+v", err, c)
	}
	r.Spec.Args = []string{"--api-key", "mine"}
	if _, err := p.Prepare(r); err == nil || !strings.Contains(err.Error(), "--api-key") {
		t.Errorf("%v", err)
	}
	// Where only the command line could tell it, there is none.
	c, err = p.Prepare(Request{Spec: functions.ModelSpec{Engine: functions.EngineSGLang}, Name: "m", Path: "/m", Port: 7, Key: "sk-1"})
	if err != nil || c.Key != "" || strings.Contains(strings.Join(append(c.Env, c.Argv...), " "), "sk-1") {
		t.Errorf("%v %+v", err, c)
	}
}
