package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/pythonjson"
	"github.com/thaw-dev/thaw/runtime/hostinfo"
)

// parallel are the flags for several workers of a vLLM.
var parallel = []string{"--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"}

// vllmArgs is the command line of a vLLM, without vllmOnCPU.
func vllmArgs(r Request) ([]string, error) {
	a := []string{"serve", r.Path, "--served-model-name", r.Name, "--host", "127.0.0.1", "--port", strconv.Itoa(r.Port)}
	if n := max(len(r.GPUs), r.Spec.Resources.GPUs); n > 1 && !hasFlag(r.Spec.Args, parallel...) {
		a = append(a, "--tensor-parallel-size", strconv.Itoa(n))
	}
	if s := gpuMemoryShare(r); s != "" && !hasFlag(r.Spec.Args, "--gpu-memory-utilization") {
		a = append(a, "--gpu-memory-utilization", s)
	}
	// Without it the API server hangs after SIGTERM until every stream is closed.
	if !hasFlag(r.Spec.Args, "--shutdown-timeout") {
		a = append(a, "--shutdown-timeout", "1")
	}
	return append(a, loraArgs(r.Spec)...), nil
}

// vllmOnCPU returns arguments and variables of a vLLM without a GPU, each unless the
// model file sets it: vLLM's defaults are for GPUs.
//
//   - float32 if the CPU has no bfloat16 instructions, since bfloat16 is six times
//     slower then, and the weights are not quantized.
//   - Eager: compiling takes longer than it saves on a CPU. TORCHDYNAMO_DISABLE=1
//     with it, or the first logprobs take 10 s.
//   - The size of the KV cache. vLLM's default is 90 % of the machine, and it fails
//     if that is not free.
//   - No worker process on a machine with one NUMA node: the worker runs in
//     EngineCore, which halves imports and shared memory.
func vllmOnCPU(r Request, h Host) (args, env []string) {
	if len(r.GPUs) > 0 || r.Spec.Resources.GPUs > 0 {
		return nil, nil
	}
	hasAny := func(flags ...string) bool { return hasFlag(r.Spec.Args, flags...) }
	set := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { _, ok := r.Spec.Env[n]; return ok })
	}
	dtype := flagValue(r.Spec.Args, "--dtype")
	config := readConfig(r.Path)
	if dtype == "" && !h.BF16 && config.Quantization == nil { // a quantized model has its own dtype
		dtype = "float32"
		args = append(args, "--dtype", dtype)
	}
	if hasAny("--enforce-eager") {
		env = append(env, "TORCHDYNAMO_DISABLE=1")
	} else if !hasAny("--no-enforce-eager", "--optimization-level", "--compilation-config", "-cc") &&
		!slices.ContainsFunc(r.Spec.Args, func(a string) bool { return strings.HasPrefix(a, "-O") || strings.HasPrefix(a, "-cc") }) {
		args, env = append(args, "--enforce-eager"), append(env, "TORCHDYNAMO_DISABLE=1")
	}
	if !hasAny("--kv-cache-memory-bytes", "--gpu-memory-utilization", "--num-gpu-blocks-override") && !set("VLLM_CPU_KVCACHE_SPACE") {
		args = append(args, "--kv-cache-memory-bytes", strconv.FormatInt(kvBytes(r, dtype == "float32", h), 10))
	}
	if h.Nodes == 1 && !hasAny(parallel...) && !hasAny("--distributed-executor-backend") &&
		!set("VLLM_CPU_OMP_THREADS_BIND", "VLLM_ENABLE_V1_MULTIPROCESSING") {
		args, env = append(args, "--distributed-executor-backend", "uni"), append(env, "VLLM_ENABLE_V1_MULTIPROCESSING=0")
	}
	return args, env
}

const (
	// kvProgram is the memory of a vLLM besides weights and KV cache.
	kvProgram = 1 << 30
	// The cache of a model without resources.memory is as large as its weights,
	// between kvLeast and kvMost, and at most 1/kvShare of the free memory: all of
	// it is written at the start.
	kvLeast, kvMost, kvShare = 256 << 20, 4 << 30, 4
)

// kvBytes is the size of the KV cache of a vLLM on a CPU: the model's memory without
// weights and program, at least an eighth of it, in whole MiB.
func kvBytes(r Request, float32 bool, h Host) int64 {
	w := weightBytes(r.Path, float32)
	size := max(w, kvLeast)
	if want := int64(r.Spec.Resources.Memory); want > 0 {
		size = max(want-w-kvProgram, want/8)
	} else {
		size = min(size, kvMost, max(int64(h.Available)/kvShare, 16<<20))
	}
	return max(size>>20, 16) << 20
}

// weightBytes estimates the memory of a checkpoint's weights.
func weightBytes(dir string, float32Weights bool) (size int64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".safetensors", ".bin", ".pt":
			if st, err := os.Stat(filepath.Join(dir, e.Name())); err == nil {
				size += st.Size()
			}
		}
	}
	if c := readConfig(dir); float32Weights && strings.HasSuffix(c.Dtype+c.New, "float16") {
		size *= 2
	}
	return size
}

// config is the used part of a checkpoint's config.json.
type config struct {
	Dtype        string         `json:"torch_dtype"`
	New          string         `json:"dtype"`
	Quantization map[string]any `json:"quantization_config"`
}

// maxConfig bounds config.json, which the author of a checkpoint writes.
const maxConfig = 1 << 20

func readConfig(dir string) (c config) {
	_ = pythonjson.ReadFile(filepath.Join(dir, "config.json"), maxConfig, &c) // the engine reports a bad file
	return c
}

// ranks are the values of --max-lora-rank.
var ranks = []int{1, 8, 16, 32, 64, 128, 256, 320, 512}

// loraArgs are the arguments of vLLM and ember for a model with adapters, without those
// that the model file sets.
func loraArgs(spec functions.ModelSpec) (a []string) {
	if len(spec.Adapters) == 0 {
		return nil
	}
	if !hasFlag(spec.Args, "--enable-lora") {
		a = append(a, "--enable-lora")
	}
	if !hasFlag(spec.Args, "--max-loras") {
		a = append(a, "--max-loras", strconv.Itoa(AdapterSlots(spec)))
	}
	if !hasFlag(spec.Args, "--max-lora-rank") {
		if rank := MaxRank(spec); rank > 0 {
			a = append(a, "--max-lora-rank", strconv.Itoa(rank))
		}
	}
	return a
}

// MaxRank is the largest adapter rank of a model's engine: from its args, else what its
// adapters need, rounded up to a value that vLLM supports; 0 if neither is set.
func MaxRank(spec functions.ModelSpec) int {
	if n := FlagNumber(spec.Args, "--max-lora-rank"); n > 0 {
		return n
	}
	maximum := 0
	for _, d := range spec.Adapters {
		maximum = max(maximum, d.Rank)
	}
	if i := slices.IndexFunc(ranks, func(r int) bool { return r >= maximum }); maximum > 0 && i >= 0 {
		return ranks[i]
	}
	return 0
}

// maxSlots of adapters are given to a model whose args do not say.
const maxSlots = 8

// AdapterSlots is how many adapters an engine holds at once.
func AdapterSlots(spec functions.ModelSpec) int {
	if n := FlagNumber(spec.Args, "--max-loras"); n > 0 {
		return n
	}
	return min(max(len(spec.Adapters), 1), maxSlots)
}

// Host describes the machine of an engine without a GPU.
type Host struct {
	Available functions.Bytes // free memory; 0 unknown
	Nodes     int             // NUMA nodes; 0 unknown
	BF16      bool            // the CPU has bfloat16 instructions
}

// ThisHost reads it from /proc and /sys; where there is none, nothing is known.
func ThisHost() (h Host) {
	if m, err := hostinfo.ReadMemory(); err == nil {
		h.Available = functions.Bytes(m.Available)
	}
	if nodes, err := filepath.Glob("/sys/devices/system/node/node[0-9]*"); err == nil {
		h.Nodes = len(nodes)
	}
	h.BF16 = slices.ContainsFunc(processorFlags(), func(f string) bool { return f == "avx512_bf16" || f == "amx_bf16" || f == "bf16" })
	return h
}

// processorFlags lists the features of the first core, as all are alike; none if unknown.
func processorFlags() []string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, v, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "flags" || strings.TrimSpace(name) == "Features" {
			return strings.Fields(v)
		}
	}
	return nil
}
