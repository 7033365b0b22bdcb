package engine

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// TestNameFlag: a wrong flag has its nearest one.
func TestNameFlag(t *testing.T) {
	const vllm, before = functions.EngineVLLM, "bad args in the model file: unrecognized arguments: "
	for _, x := range []struct {
		engine       functions.Engine
		cause, added string
	}{
		{vllm, before + "--max-model-length 4096", "--max-model-len"},
		{vllm, before + "--gpu_memory_utilisation=0.5", "--gpu-memory-utilization"},
		{vllm, before + "--memory-utilization 0.5", "--gpu-memory-utilization"},
		{vllm, before + "17 --tensor-paralel-size 2", "--tensor-parallel-size"},
		{vllm, before + "--no-enable-prefix-cache", "--no-enable-prefix-caching"},
		{vllm, before + "--dtype half", ""}, // the supported version has it
		{vllm, before + "--xyzzy-of-nothing-like-it", ""},
		{vllm, before + "--no-such-flag", ""},
		{vllm, before + "x", ""},
		{vllm, "bad args in the model file: expected one argument", ""},
		{functions.EngineSGLang, before + "--max-model-length 4096", ""},
		{functions.EngineCommand, before + "--max-model-length 4096", ""},
	} {
		want := x.cause
		if x.added != "" {
			want += " (did you mean " + x.added + "?)"
		}
		if got := NameFlag(x.engine, x.cause); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestFlagList: the list has every flag of the recorded help.
func TestFlagList(t *testing.T) {
	flags := strings.Fields(vllmFlags)
	if len(flags) < 300 || !slices.IsSorted(flags) {
		t.Errorf("%d flags", len(flags))
	}
	help, err := os.ReadFile("testdata/vllm-help.txt") // the first 420 lines of what vLLM 0.32 says on `serve --help=all`
	if err != nil {
		t.Fatal(err)
	}
	listed := regexp.MustCompile(`(?m)^  (?:-[^ ].*?, )?(--[^\s,=]+)`).FindAllStringSubmatch(string(help), -1)
	if len(listed) < 50 {
		t.Fatalf("the help lists %d flags", len(listed))
	}
	for _, m := range listed {
		f := m[1]
		if positive := "--" + strings.TrimPrefix(f, "--no-"); f != "--help" && !slices.Contains(flags, f) && !slices.Contains(flags, positive) {
			t.Errorf("%s is missing", f)
		}
	}
}
