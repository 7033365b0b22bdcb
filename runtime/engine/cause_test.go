package engine

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestRootCause(t *testing.T) {
	for name, want := range map[string]string{
		"vllm-oom-load":          "out of GPU memory: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.06 GiB is free.",
		"vllm-memory-share":      "out of GPU memory: Free memory on device (3.11/79.11 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
		"vllm-bad-architecture":  "The checkpoint you are trying to load has model type `newllama` but Transformers does not recognize this architecture.",
		"vllm-missing-weights":   "RuntimeError: Cannot find any model weights with `/data/store/empty`",
		"vllm-bad-flag":          "bad args: unrecognized arguments: --no-such-flag",
		"vllm-port-taken":        "port taken: address already in use",
		"vllm-truncated-weights": "SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
		"llamacpp-oom":           "out of GPU memory: cudaMalloc failed: out of memory",
		"llamacpp-port":          "port taken: address already in use",
		"ember-truncated":        `model.safetensors: tensor "model.layers.3.mlp.down_proj.weight" ends at byte 181002 of 90112`,
		"ember-port":             "port taken: address already in use",
		"go-panic":               "runtime error: index out of range [3] with length 3",
		"sglang-oom":             "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
		"vllm-core-killed":       "its EngineCore died unexpectedly; exit code 1",
		"silent":                 "exit code 1; it wrote nothing",
		"shell":                  "exit code 1; last line: /bin/sh: 1: exec: python9: not found",
	} {
		t.Run(name, func(t *testing.T) {
			b, err := os.ReadFile("testdata/logs/" + name + ".log")
			if err != nil {
				t.Fatal(err)
			}
			if got := RootCause(string(b), "exit code 1"); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	if !PortTaken(RootCause("OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 80): address already in use", "")) {
		t.Error("port not seen as taken")
	}
}

func FuzzRootCause(f *testing.F) {
	f.Add("ValueError: x\nRuntimeError: Engine core initialization failed.")
	f.Add("error: \xff\xfe")
	f.Add("Value error, ")
	f.Add("Value error, \x00")
	f.Add("error: \x01\x02")
	f.Fuzz(func(t *testing.T, tail string) {
		got := RootCause(tail, "exit code 1")
		if got == "" || strings.Contains(got, "\n") || len(got) > maxCause+len("…") {
			t.Errorf("%q", got)
		}
		if !utf8.ValidString(got) {
			t.Errorf("not UTF-8: %q", got)
		}
	})
}
