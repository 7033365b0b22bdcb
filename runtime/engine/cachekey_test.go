package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// python makes an environment with a vllm program in it.
func python(t *testing.T, packages ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, p := range packages {
		if err := os.MkdirAll(filepath.Join(root, "lib/python3.12/site-packages", p+".dist-info"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(root, "bin", "vllm")
	if err := os.WriteFile(program, []byte("#!"+root+"/bin/python3 -u\nimport vllm\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}

func TestCacheKey(t *testing.T) {
	program := python(t, "vllm-0.32.0", "torch-2.13.0", "requests-1.0")
	of := func(program string) Programs {
		return Programs{Environ: func() []string { return []string{"THAW_ENGINE_VLLM=" + program} }}
	}
	spec := functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--dtype", "float32"}, Env: map[string]string{"VLLM_USE_X": "1", "VLLM_API_KEY": "canary", "HOME": "/root"}}
	key := of(program).CacheKey(spec, "NVIDIA H200", 2)
	if !strings.HasPrefix(key, "vllm torch-2.13.0 vllm-0.32.0; ") || !strings.Contains(key, "NVIDIA H200 x2; flags ") ||
		strings.Contains(key, "requests") {
		t.Fatal(key)
	}
	if got := CacheEnvironment(key); got != "vllm torch-2.13.0 vllm-0.32.0" {
		t.Error(got)
	}
	// A program that is linked to from elsewhere, or a wrapper elsewhere that
	// names the environment's interpreter, is the same.
	link := filepath.Join(t.TempDir(), "vllm")
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "vllm")
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, b, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{link, copied} {
		if got := of(p).CacheKey(spec, "NVIDIA H200", 2); got != key {
			t.Errorf("%s: %s", p, got)
		}
	}
	same, other := spec, spec
	same.Env = map[string]string{"VLLM_USE_X": "1", "VLLM_API_KEY": "another", "HOME": "/"}
	if got := of(program).CacheKey(same, "NVIDIA H200", 2); got != key {
		t.Error("what does not matter matters:", got)
	}
	other.Args = []string{"--dtype", "bfloat16"}
	for what, got := range map[string]string{
		"flags":    of(program).CacheKey(other, "NVIDIA H200", 2),
		"GPU":      of(program).CacheKey(spec, "NVIDIA L4", 2),
		"count":    of(program).CacheKey(spec, "NVIDIA H200", 1),
		"CPU":      of(program).CacheKey(spec, "NVIDIA H200", 0),
		"versions": of(python(t, "vllm-0.33.0", "torch-2.13.0")).CacheKey(spec, "NVIDIA H200", 2),
	} {
		if got == key || got == "" {
			t.Errorf("%s: %s", what, got)
		}
	}
	for what, got := range map[string]string{
		"no version": of(python(t)).CacheKey(spec, "x", 1),
		"no program": of("/nowhere/vllm").CacheKey(spec, "x", 1),
		"no caches":  Programs{Thaw: "/x"}.CacheKey(functions.ModelSpec{Engine: functions.EngineEmber}, "", 0),
	} {
		if got != "" {
			t.Errorf("%s: %s", what, got)
		}
	}
}

func TestCacheShared(t *testing.T) {
	for _, c := range []struct {
		environ []string
		want    string
	}{
		{[]string{"HOME=/h", "XDG_CACHE_HOME=/x", "VLLM_CACHE_ROOT=/v"}, "/v/modelinfos"},
		{[]string{"HOME=/h", "XDG_CACHE_HOME=/x"}, "/x/vllm/modelinfos"},
		{[]string{"HOME=/h"}, "/h/.cache/vllm/modelinfos"},
		{[]string{"HOME=."}, ""},
		{nil, ""},
	} {
		if got := CacheShared(functions.EngineVLLM, c.environ); len(got) != 1 || got["modelinfos"] != c.want {
			t.Errorf("%v: %v", c.environ, got)
		}
	}
	if got := CacheShared(functions.EngineEmber, nil); got != nil {
		t.Error(got)
	}
}
