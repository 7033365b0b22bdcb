package engine

import (
	"errors"
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
	if err != nil || c.Key != "sk-1" || !slices.Contains(c.Env, "VLLM_API_KEY=sk-1") ||
		strings.Count(strings.Join(c.Env, "\n"), "VLLM_API_KEY=") != 1 || strings.Contains(strings.Join(c.Argv, " "), "sk-1") {
		t.Errorf("%v %+v", err, c)
	}
	r.Spec.Args = []string{"--api-key", "mine"}
	if _, err := p.Prepare(r); err == nil || !strings.Contains(err.Error(), "--api-key") {
		t.Errorf("%v", err)
	}
	// SGLang reads it from a file: its flag would show it to every user. One of an unknown
	// version gets none.
	sglang := Request{Spec: functions.ModelSpec{Engine: functions.EngineSGLang}, Name: "m", Path: "/m", Port: 7, Key: "sk-1", Scratch: "/s"}
	for version, want := range map[string]string{"0.5.6": "sk-1", "0.5.3": "", "": ""} {
		program := filepath.Join(t.TempDir(), "bin", "sglang")
		site := filepath.Join(filepath.Dir(filepath.Dir(program)), "lib", "python3.12", "site-packages", "sglang-"+version+".dist-info")
		if err := errors.Join(os.MkdirAll(filepath.Dir(program), 0o755), os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
		if version != "" {
			if err := os.MkdirAll(site, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		p.Look = func(string) (string, error) { return program, nil }
		c, err = p.Prepare(sglang)
		if err != nil || c.Key != want || strings.Contains(strings.Join(append(c.Env, c.Argv...), " "), "sk-1") {
			t.Errorf("SGLang %q: %v %+v", version, err, c)
		}
		if file := c.ScratchFiles["key.yaml"]; want != "" && (file != "api-key: sk-1\n" || !slices.Contains(c.Argv, "--config=/s/key.yaml")) ||
			want == "" && len(c.ScratchFiles) > 0 {
			t.Errorf("SGLang %q: %q %q", version, file, c.Argv)
		}
	}
	sglang.Spec.Args = []string{"--api-key", "mine"}
	if _, err := p.Prepare(sglang); err == nil || !strings.Contains(err.Error(), "--api-key") {
		t.Errorf("%v", err)
	}
	// A command engine gets it where its env asks for it.
	command := Request{Spec: functions.ModelSpec{Engine: functions.EngineCommand, Args: []string{"serve", "{port}"}, Env: map[string]string{"SERVE_KEY": "{key}"}}, Name: "m", Port: 7, Key: "sk-1"}
	if c, err = p.Prepare(command); err != nil || c.Key != "sk-1" || !slices.Contains(c.Env, "SERVE_KEY=sk-1") {
		t.Errorf("%v %+v", err, c)
	}
	command.Spec.Env = nil
	if c, err = p.Prepare(command); err != nil || c.Key != "" {
		t.Errorf("%v %+v", err, c)
	}
	command.Spec.Args = []string{"serve", "{port}", "--key={key}"}
	if _, err = p.Prepare(command); err == nil || !strings.Contains(err.Error(), "{key}") {
		t.Errorf("%v", err)
	}
}
