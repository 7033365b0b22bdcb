package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// What a vLLM on a CPU gets where the model file leaves it open.
func TestOnCPU(t *testing.T) {
	model := t.TempDir()
	for name, size := range map[string]int64{"model-00001-of-00002.safetensors": 1 << 30, "model-00002-of-00002.safetensors": 1 << 30, "README.md": 1 << 30} {
		f, err := os.Create(filepath.Join(model, name))
		if err == nil {
			err = f.Truncate(size)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if err := os.WriteFile(filepath.Join(model, "config.json"), []byte(`{"torch_dtype":"bfloat16"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	plain := Host{Available: 64 << 30, Nodes: 1}
	for _, c := range []struct {
		name string
		spec functions.ModelSpec
		host Host
		args string
		env  string
	}{
		{name: "nothing said", host: plain, args: "--dtype float32 --enforce-eager --kv-cache-memory-bytes 4294967296 --distributed-executor-backend uni", env: "TORCHDYNAMO_DISABLE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0"},
		{name: "little memory", host: Host{Available: 4 << 30, Nodes: 1, BF16: true}, args: "--enforce-eager --kv-cache-memory-bytes 1073741824 --distributed-executor-backend uni", env: "TORCHDYNAMO_DISABLE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0"},
		{name: "memory of the model file, less wide weights and the program",
			spec: functions.ModelSpec{Resources: functions.Resources{Memory: 8 << 30}}, host: plain,
			args: "--dtype float32 --enforce-eager --kv-cache-memory-bytes 3221225472 --distributed-executor-backend uni",
			env:  "TORCHDYNAMO_DISABLE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0"},
		{name: "as they are", spec: functions.ModelSpec{Args: []string{"--dtype=bfloat16"}, Resources: functions.Resources{Memory: 8 << 30}}, host: plain,
			args: "--enforce-eager --kv-cache-memory-bytes 5368709120 --distributed-executor-backend uni",
			env:  "TORCHDYNAMO_DISABLE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0"},
		{name: "memory too small for them", spec: functions.ModelSpec{Resources: functions.Resources{Memory: 2 << 30}}, host: plain,
			args: "--dtype float32 --enforce-eager --kv-cache-memory-bytes 268435456 --distributed-executor-backend uni",
			env:  "TORCHDYNAMO_DISABLE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0"},
		{name: "nothing is known of the machine", args: "--dtype float32 --enforce-eager --kv-cache-memory-bytes 16777216", env: "TORCHDYNAMO_DISABLE=1"},
		{name: "two nodes", host: Host{Available: 64 << 30, Nodes: 2, BF16: true}, args: "--enforce-eager --kv-cache-memory-bytes 2147483648", env: "TORCHDYNAMO_DISABLE=1"},
		{name: "everything said", host: plain, spec: functions.ModelSpec{Args: []string{"--dtype", "auto", "-O1", "--kv_cache_memory_bytes=1000", "--distributed-executor-backend", "mp"}}},
		{name: "said by environment", host: plain, spec: functions.ModelSpec{Args: []string{"--dtype", "auto", "--compilation-config.mode=0", "--compilation-config", "0"},
			Env: map[string]string{"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}}},
		{name: "eager by itself", host: plain, spec: functions.ModelSpec{Args: []string{"--dtype", "auto", "--enforce-eager", "--gpu-memory-utilization", "0.1", "-tp", "2"}}, env: "TORCHDYNAMO_DISABLE=1"},
		{name: "a GPU", host: plain, spec: functions.ModelSpec{Resources: functions.Resources{GPUs: 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args, env := vllmOnCPU(Request{Spec: c.spec, Path: model}, c.host)
			if got := strings.Join(args, " "); got != c.args {
				t.Errorf("args %s\nwant %s", got, c.args)
			}
			if got := strings.Join(env, " "); got != c.env {
				t.Errorf("env %s\nwant %s", got, c.env)
			}
		})
	}
}

// Quantized weights have a type of their own.
func TestOnCPUQuantized(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"torch_dtype":"float16","quantization_config":{"quant_method":"awq"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if args, _ := vllmOnCPU(Request{Path: dir}, Host{Available: 64 << 30, Nodes: 1}); slices.Contains(args, "--dtype") {
		t.Error(args)
	}
}

func TestAdapterArgs(t *testing.T) {
	two := []functions.Adapter{{Name: "a", Rank: 9}, {Name: "b"}}
	many := slices.Repeat([]functions.Adapter{{Name: "x", Rank: 64}}, 20)
	for _, c := range []struct {
		spec functions.ModelSpec
		want string
	}{
		{functions.ModelSpec{}, ""},
		{functions.ModelSpec{Adapters: two}, "--enable-lora --max-loras 2 --max-lora-rank 16"},
		{functions.ModelSpec{Adapters: two[1:]}, "--enable-lora --max-loras 1"},
		{functions.ModelSpec{Adapters: many}, "--enable-lora --max-loras 8 --max-lora-rank 64"},
		{functions.ModelSpec{Adapters: two, Args: []string{"--enable-lora", "--max_loras=1", "--max-lora-rank", "320"}}, ""},
	} {
		if got := strings.Join(loraArgs(c.spec), " "); got != c.want {
			t.Errorf("%v: %s, want %s", c.spec.Args, got, c.want)
		}
	}
	spec := functions.ModelSpec{Args: []string{"--max-loras=3", "--max-lora-rank", "320"}}
	if AdapterSlots(spec) != 3 || MaxRank(spec) != 320 || AdapterSlots(functions.ModelSpec{}) != 1 {
		t.Error(AdapterSlots(spec), MaxRank(spec))
	}
}

func TestSleeps(t *testing.T) {
	for _, c := range []struct {
		spec functions.ModelSpec
		want bool
	}{
		{functions.ModelSpec{Engine: functions.EngineVLLM}, false},
		{functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--enable_sleep_mode"}}, true},
		{functions.ModelSpec{Engine: functions.EngineVLLM, Env: map[string]string{"VLLM_SERVER_DEV_MODE": "1"}}, true},
		{functions.ModelSpec{Engine: functions.EngineEmber, Args: []string{"--enable-sleep-mode"}}, false},
	} {
		if Sleeps(c.spec) != c.want {
			t.Errorf("%+v", c.spec)
		}
	}
	r := Request{Spec: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--enable-sleep-mode"}}, Path: "/m", Name: "m", Port: 1, Scratch: "/run/x", Cache: "/cache"}
	c, err := programs().Prepare(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{devMode, "TMPDIR=/run/x", "VLLM_RPC_BASE_PATH=/run/x", "VLLM_CACHE_ROOT=/cache"} {
		if !slices.Contains(c.Env, want) {
			t.Errorf("no %s in %q", want, c.Env)
		}
	}
}
