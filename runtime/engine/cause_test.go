package engine

import (
	"os"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"unicode/utf8"
)

func TestRootCause(t *testing.T) {
	for name, want := range map[string]string{
		"vllm-oom-load":          "out of GPU memory: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.06 GiB is free. (a shorter context, fewer requests at once, a quantised variant or more GPUs need less; `thaw init SOURCE` works out what the model needs)",
		"vllm-memory-share":      "out of GPU memory: Free memory on device (3.11/79.11 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes. (resources.gpuMemory in the model file sets that share of the GPU, unless its args name the flag (--gpu-memory-utilization of vllm, --mem-fraction-static of sglang); a shorter context, fewer requests at once, a quantised variant or more GPUs need less; `thaw init SOURCE` works out what the model needs)",
		"vllm-bad-architecture":  "The checkpoint you are trying to load has model type `newllama` but Transformers does not recognize this architecture. (where the model is newer than the engine, a newer engine takes it)",
		"vllm-missing-weights":   "RuntimeError: Cannot find any model weights with `/data/store/empty` (the source lacks weights that this engine reads: `thaw init SOURCE` lists what is there)",
		"vllm-bad-flag":          "bad args in the model file: unrecognized arguments: --no-such-flag",
		"vllm-port-taken":        "port taken: (APIServer pid=71) OSError: [Errno 98] Address already in use (an engine listens at {port}, a free one, which args or env pass to it; a port of its own may be another program's)",
		"vllm-truncated-weights": "SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
		"llamacpp-oom":           "out of GPU memory: cudaMalloc failed: out of memory (a shorter context, fewer requests at once, a quantised variant or more GPUs need less; `thaw init SOURCE` works out what the model needs)",
		"llamacpp-port":          "port taken: start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080 (an engine listens at {port}, a free one, which args or env pass to it; a port of its own may be another program's)",
		"ember-truncated":        `model.safetensors: tensor "model.layers.3.mlp.down_proj.weight" ends at byte 181002 of 90112`,
		"ember-port":             "port taken: error: listen tcp 127.0.0.1:18200: bind: address already in use (an engine listens at {port}, a free one, which args or env pass to it; a port of its own may be another program's)",
		"go-panic":               "runtime error: index out of range [3] with length 3",
		"sglang-oom":             "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. (resources.gpuMemory in the model file sets that share of the GPU, unless its args name the flag (--gpu-memory-utilization of vllm, --mem-fraction-static of sglang); a shorter context, fewer requests at once, a quantised variant or more GPUs need less; `thaw init SOURCE` works out what the model needs)",
		"vllm-core-killed":       "its EngineCore died unexpectedly; exit code 1",
		"vllm-bad-value":         "bad args in the model file: argument --max-num-batched-tokens: invalid human_readable_int value: 'x'",
		"vllm-unknown-model":     "The checkpoint you are trying to load has model type `nosuch` but Transformers does not recognize this architecture. This could be because of an issue with the checkpoint, or because your version of Transformers is out of date. (where the model is newer than the engine, a newer engine takes it)",
		"vllm-missing-shard":     "FileNotFoundError: Weight files referenced in index but missing: {'m-shard/model-00002-of-00002.safetensors'}",
		"vllm-no-memory":         "out of memory: Available memory on node 0 (17.09/19.96 GiB) on kv cache allocation is less than requested memory for kv (92.2 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other processes.",
		"vllm-kv-too-small":      "too little memory for the KV cache: To serve at least one request with the model's max seq len (512), (0.0 GiB KV cache is needed, which is larger than the available KV cache memory (0.0 GiB). Based on the available memory, the estimated maximum model length is 256. Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more deta… (resources.gpuMemory in the model file sets that share of the GPU, unless its args name the flag (--gpu-memory-utilization of vllm, --mem-fraction-static of sglang); a shorter context, fewer requests at once, a quantised variant or more GPUs need less; `thaw init SOURCE` works out what the model needs)",
		"vllm-cpu-share":         "out of memory: Available memory on node 0 (17.29/19.96 GiB) on startup is less than desired CPU memory utilization (0.92, 18.37 GiB). On the CPU backend, the `--gpu-memory-utilization` flag controls the fraction of CPU memory reserved (despite its name). To resolve: decrease `--gpu-memory-utilization` (e.g. `--gpu-memory-utilization 0.5`) or reduce CPU memory used by other processes.",
		"silent":                 "exit code 1; it wrote nothing",
		"shell":                  "exit code 1; it wrote: /bin/sh: 1: exec: python9: not found (name the program by its whole path, that of its own environment (venv, conda), or set PATH in env)",
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
	// A-3, as transformers says it within vLLM.
	for _, text := range []string{
		"pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, The repository /data/store/x contains custom code which must be executed to correctly load the model. You can inspect the repository content at /data/store/x.\nPlease pass the argument `trust_remote_code=True` to allow custom code to be run. [type=value_error, input_value=ArgsKwargs]",
		"ValueError: The repository x references custom code contained in y which must be executed to correctly load the model.",
	} {
		if got := RootCause(text, "exit code 1"); !strings.Contains(got, "--trust-remote-code") || strings.Contains(got, "…") {
			t.Errorf("a checkpoint with code: %s", got)
		}
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
	longest := 0
	for _, a := range advices {
		longest = max(longest, len(a.text)+len(" ()"))
	}
	f.Fuzz(func(t *testing.T, tail string) {
		got := RootCause(tail, "exit code 1")
		if got == "" || strings.Contains(got, "\n") || len(got) > maxCause+len("…")+longest {
			t.Errorf("%q", got)
		}
		if !utf8.ValidString(got) {
			t.Errorf("not UTF-8: %q", got)
		}
	})
}

// TestBlamesFile: causes for which a checkpoint is read again, and others that say nothing
// about its files.
func TestBlamesFile(t *testing.T) {
	for cause, want := range map[string]bool{
		"SafetensorError: Error while deserializing header: MetadataIncompleteBuffer": true,
		"SafetensorError: Error while deserializing header: incomplete metadata":      true,
		"OSError: [Errno 5] Input/output error":                                       true,
		"gguf_init_from_file_impl: failed to read tensor info":                        true,
		"llama_model_load: error loading model: tensor data is corrupt":               true,
		"/w/1/model/model.safetensors: the header is not a JSON object":               true, // ember's
		"/w/1/model/config.json: invalid character '\\x01'":                           true, // ember's
		"json.decoder.JSONDecodeError: Expecting value: line 1 column 1":              true,
		"out of GPU memory: CUDA out of memory. Tried to allocate 2 GiB":              false,
		"port taken: address already in use":                                          false,
		"bad args in the model file: argument --dtype: invalid choice":                false,
		"ValueError: bad kernel":                                                      false,
	} {
		if got := BlamesFile(cause); got != want {
			t.Errorf("%s: %t", cause, got)
		}
	}
}

func TestShortOf(t *testing.T) {
	for cause, want := range map[string]functions.Shortage{
		"vllm ended while loading: out of GPU memory: CUDA out of memory. Tried to allocate 2 GiB; of GPU 2 process 4711 (python3) holds 60 GiB": functions.ShortOfGPUMemory,
		"vllm: first token: HTTP 500: CUDA out of memory":                                                    functions.ShortOfGPUMemory,
		"insufficient_gpu_memory: GPU 0 has 1 GiB free, the model needs 20 GiB":                              functions.ShortOfGPUMemory,
		"vllm ended while loading: out of memory: Available memory on node 0 (17/19 GiB) is less than 92":    functions.ShortOfHostMemory,
		"command ended while loading: killed by the kernel: out of memory":                                   functions.ShortOfHostMemory,
		"sglang ended while loading: MemoryError":                                                            functions.ShortOfHostMemory,
		"ember ended while loading: mmap: cannot allocate memory":                                            functions.ShortOfHostMemory,
		"vllm ended while loading: too little memory for the KV cache: To serve at least one request with x": "",
		"weights are truncated": "",
		"":                      "",
	} {
		if got := ShortOf(cause); got != want {
			t.Errorf("%s: %q, want %q", cause, got, want)
		}
	}
}
