// Package engine has a table of the supported engines (vLLM, SGLang, llama.cpp, thaw's own ember):
// it makes their command line and environment, calls a started one over HTTP (health, first token,
// metrics, adapters, sleep), and finds in its log why it failed; it starts no process. The
// supervisor starts processes, the replica decides when.
//
// | engine | program | command line |
// | --- | --- | --- |
// | ember | the thaw binary itself | engine ember --model DIR --served-model-name NAME --host 127.0.0.1 --port N |
// | vllm | vllm | serve DIR --served-model-name NAME --host 127.0.0.1 --port N |
// | sglang | sglang | serve --model-path DIR --served-model-name NAME --host 127.0.0.1 --port N --enable-metrics |
// | llamacpp | llama-server | --model FILE.gguf --alias NAME --host 127.0.0.1 --port N --metrics |
// | llamacpp | a Python named by THAW_ENGINE_LLAMACPP | -m llama_cpp.server --model FILE.gguf
// --model_alias NAME --host 127.0.0.1 --port N |
// | command | args[0] | args with {port}, {model} and {name} filled in |
//
// A program is searched on PATH, unless THAW_ENGINE_EMBER, THAW_ENGINE_VLLM,
// THAW_ENGINE_SGLANG or THAW_ENGINE_LLAMACPP has its path.
//
// # Environment
//
// An engine inherits the agent's environment without secrets (see Environ). Added are
// the variables of its row (vLLM: HF_HUB_OFFLINE=1, since only the loader downloads),
// its API key where a variable sets it (SGLang reads it from a file that --config names;
// a command engine gets it where its env has {key}), the chosen GPUs (CUDA_VISIBLE_DEVICES; none chosen: none visible), and last the env
// of the model file, which has precedence.
//
// # Arguments
//
// The cause of a vLLM that does not take a flag of the model file names the nearest one
// that the supported version has (NameFlag). A vLLM without a
// GPU has these defaults: float32 if the CPU has no bfloat16, eager, a KV cache of
// resources.memory without weights and 1 GiB (else as large as the weights, 256 MiB to
// 4 GiB), and no worker process on a machine with one NUMA node. On GPUs
// resources.gpuMemory becomes --gpu-memory-utilization. The model file has precedence.
//
// # Starts
//
// Steps derives the steps of a start from a vLLM's log (imports, engine, weights,
// compile, warm-up, app) and ignores unknown lines.
//
// # Ready
//
// An engine is ready when it has answered a request for a token, or for what else it
// generates (embeddings, scores, a transcription, speech), at the first endpoint that does. An engine with sd_notify (ember)
// reports on NOTIFY_SOCKET that it serves; all are also probed: a refused connection is
// retried after 1 % of the elapsed time, between 1 and 50 ms, which finds readiness
// within a percent of the start. Then Token requests one token. An engine with Probe.None
// is asked for its health alone.
//
// An engine on files that are still arriving (Request.Streamed) maps none of them: ember
// gets --copy, llama.cpp --no-mmap.
//
// Engines listen on loopback only; a model file whose args set host or port is refused.
//
// # Size
//
// The package is one idea, the table of engines: each file is a column of it (arguments,
// environment, metrics, log, versions), and a new engine is a new row.
package engine
