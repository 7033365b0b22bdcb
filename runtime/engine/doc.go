// Package engine is a table of engines: how each is started, asked, watched
// and understood when it dies. Starting a process is the supervisor's business and
// deciding when is the replica's; this room turns a model into a command line
// and speaks HTTP to what came of it.
//
// | engine | program | command line |
// | --- | --- | --- |
// | ember | the thaw binary itself | engine ember --model DIR --served-model-name NAME --host 127.0.0.1 --port N |
// | vllm | vllm | serve DIR --served-model-name NAME --host 127.0.0.1 --port N |
// | sglang | sglang | serve --model-path DIR --served-model-name NAME --host 127.0.0.1 --port N --enable-metrics |
// | llamacpp | llama-server | --model FILE.gguf --alias NAME --host 127.0.0.1 --port N --metrics |
// | llamacpp | a Python named by THAW_ENGINE_LLAMACPP | -m llama_cpp.server --model FILE.gguf --model_alias NAME --host 127.0.0.1 --port N |
// | command | args[0] | args with {port}, {model} and {name} filled in |
//
// A program is found on PATH, or where THAW_ENGINE_EMBER, THAW_ENGINE_VLLM,
// THAW_ENGINE_SGLANG or THAW_ENGINE_LLAMACPP say.
//
// # Environment
//
// An engine inherits the agent's environment less its secrets (Environ has the
// rule), then gets what its row wants (vLLM: HF_HUB_OFFLINE=1, nothing is
// fetched behind the loader's back), the GPUs the scheduler chose
// (CUDA_VISIBLE_DEVICES; none chosen: none visible), and last the env of the
// model file, which wins.
//
// # Arguments
//
// Flags of the model file are checked before anything starts against what the
// installed engine takes (Manual, from its own --help): one it does not know is
// an error that names the nearest it does. A vLLM without a GPU gets what suits
// a CPU where the model file leaves it open: float32 where the CPU has no
// bfloat16, eager, a KV cache of resources.memory less weights and 1 GiB (else as
// large as the weights, 256 MiB to 4 GiB), and no worker process of its own on a
// machine with one NUMA node. On GPUs resources.gpuMemory becomes
// --gpu-memory-utilization. What the model file says wins.
//
// # Starts
//
// Steps reads a vLLM's log for where its start is (imports, engine, weights,
// compile, warm-up, app); lines it does not know change nothing.
//
// # Ready
//
// An engine is ready when it has generated a token. Where it knows sd_notify
// (ember) it says so itself on NOTIFY_SOCKET; all are also probed: a refused
// connection is retried after 1 ms or 1 % of the time elapsed, at most 50 ms,
// so readiness is noticed within a percent of the start at little CPU. Then
// Token asks for one token and reads the answer.
//
// An engine that is started on files still arriving (Request.Streamed) keeps none
// of them mapped: ember gets --copy, llama.cpp --no-mmap.
//
// Engines bind loopback only: host and port are thaw's, and a model file whose
// args set them is refused.
package engine
