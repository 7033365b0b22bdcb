package engine

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// TestRootCauseForms: failures as engines of several languages and their loggers write them,
// from public reports. The cause has the words of the failure and not those of what follows
// from it, and what helps where the words do not tell.
func TestRootCauseForms(t *testing.T) {
	for name, c := range map[string]struct {
		log  string
		want []string
	}{
		"sglang, a child's traceback":                           {"[2025-08-08 09:09:09 TP0] Scheduler hit an exception: Traceback (most recent call last):\n    raise RuntimeError(f\"NCCL error: {error_str}\")\nRuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n\n[2025-08-08 09:09:09] Received sigquit from a child process. It usually means the child failed.", []string{"RuntimeError: NCCL error: unhandled system error", "/dev/shm"}},
		"sglang, a scheduler that was killed":                   {"[12-16 14:27:08] Rank 0 scheduler is dead. Please check if there are relevant logs.\n[12-16 14:27:10] Exit code: -9\nTraceback (most recent call last):\nEOFError", []string{"was killed", "out of memory of the host"}},
		"an older vLLM below Ray":                               {"(RayWorkerWrapper pid=5486) ERROR 05-06 08:55:19 worker_base.py:145] Traceback (most recent call last):\n(RayWorkerWrapper pid=5486) ERROR 05-06 08:55:19 worker_base.py:145]     return executor(*args)\n(RayWorkerWrapper pid=5486) ERROR 05-06 08:55:19 worker_base.py:145] ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. for example: --dtype=half.", []string{"ValueError: Bfloat16", "--dtype=half"}},
		"torch's rank before each line":                         {"[rank0]:     return forward_call(*args)\n[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error\n[rank0]: Last error:\n[rank0]: Error while creating shared memory segment /dev/shm/nccl-dAwSNd (size 9637888)", []string{"DistBackendError: NCCL error in", "/dev/shm"}},
		"a GPU that the build does not know":                    {"(EngineCore_0 pid=227) ERROR 08-19 12:27:37 [core.py:700] RuntimeError: CUDA error: no kernel image is available for execution on the device\n(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.", []string{"no kernel image", "install the build"}},
		"kernels that do not compile":                           {"FAILED: [code=1] sampling.cuda.o \nnvcc fatal   : Unsupported gpu architecture 'compute_120a'\nninja: build stopped: subcommand failed.\nRuntimeError: Ninja build failed. Ninja output:", []string{"Unsupported gpu architecture 'compute_120a'", "install the build"}},
		"an exception without words":                            {"ERROR 11-21 14:02:11 [core.py:708]     assert param.shape == loaded.shape\nERROR 11-21 14:02:11 [core.py:708]            ^^^^^^^^^\nERROR 11-21 14:02:11 [core.py:708] AssertionError\nRuntimeError: Engine core initialization failed.", []string{"AssertionError, at: assert param.shape == loaded.shape"}},
		"an exception with a key alone":                         {"    param = params_dict[name]\n            ~~~~~~~~~~~^^^^^^\nKeyError: 'layers.0.w13_weight'", []string{"KeyError: 'layers.0.w13_weight', at: param = params_dict[name]"}},
		"an exception of several lines":                         {"ValueError: Couldn't instantiate the backend tokenizer from one of: \n(1) a file, \n(2) a slow tokenizer instance to convert or \n(3) a class.\nYou need to have sentencepiece or tiktoken installed", []string{"one of: (1) a file,", "You need to have sentencepiece"}},
		"the plain Exception":                                   {"Traceback (most recent call last):\nException: data did not match any variant of untagged enum ModelWrapper at line 757479 column 3", []string{"Exception: data did not match", "a newer engine"}},
		"a file that was not staged":                            {"OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.", []string{"couldn't connect", "name it under files", "HF_HUB_OFFLINE"}},
		"vLLM, the context and the share":                       {"ValueError: To serve at least one request with the models's max seq len (32768), (4.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.79 GiB). Based on the available memory, the estimated maximum model length is 14576. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.\nRuntimeError: Engine core initialization failed. See root cause above.", []string{"length is 14576. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`", "resources.gpuMemory in the model file"}},
		"keys among its arguments":                              {"ERROR cannot bind with api_key='sk-B7L3ABCDEFGHIJKLMNOPQRSTUV' and hf_abcdefghijklmnopqrstuvwxyz0123 (sk-short)", []string{"cannot bind with api_key='sk-…' and hf_… (sk-short)"}},
		"a library":                                             {"/opt/llama-server: error while loading shared libraries: libcublas.so.12: cannot open shared object file: No such file or directory", []string{"exit code 1; it wrote: /opt/llama-server", "libcublas.so.12", "LD_LIBRARY_PATH"}},
		"a wrapper that lives with it, and an error":            {"/home/me/.pyenv/libexec/pyenv-version-file-read: line 22: /m/.python-version: Permission denied\nINFO loading\n2026-11-30 11:02:11 ERROR model: layer 7 has 3 heads", []string{"it wrote: model: layer 7 has 3 heads"}},
		"a wrapper that lives with it, and a failure":           {"run.sh: line 2: /m/.env: Permission denied\nrun.sh: 3: nice: not found\nloading\ncould not load layer 7", []string{"it wrote: could not load layer 7"}},
		"a wrapper's own failure":                               {"loading the environment\nrun.sh: line 7: vllm: command not found\nbye", []string{"it wrote: run.sh: line 7: vllm: command not found", "whole path"}},
		"a shim's line alone":                                   {"/home/me/.pyenv/libexec/pyenv-version-file-read: line 41: /home/me/.pyenv/version: Permission denied\nServing", []string{"exit code 1; last line: Serving"}},
		"a question on its input":                               {"custom settings were found.\nContinue? [y/N]: Traceback (most recent call last):\n  File \"s.py\", line 2, in <module>\nEOFError: EOF when reading a line", []string{"EOF when reading a line", "--yes"}},
		"a codec of an old locale":                              {"  print(event)\nUnicodeEncodeError: 'ascii' codec can't encode character '\\u2026' in position 92", []string{"UnicodeEncodeError", "C.UTF-8"}},
		"gunicorn's own timeout":                                {"[2021-01-15 16:33:21 +0300] [9120] [CRITICAL] WORKER TIMEOUT (pid:14483)\n[2021-01-15 16:33:22 +0300] [9120] [ERROR] Worker (pid:14483) was sent SIGKILL! Perhaps out of memory?", []string{"WORKER TIMEOUT (pid:14483)", "--timeout 0"}},
		"a port of its own":                                     {"node:events:497\n\nError: listen EADDRINUSE: address already in use :::3000\n  code: 'EADDRINUSE',", []string{"port taken: Error: listen EADDRINUSE: address already in use :::3000", "{port}"}},
		"a level in the middle":                                 {"/x/pyenv: line 22: /m/.python-version: Permission denied\n2026-11-30 11:02:11,123 - model.loader - ERROR - layer 7: three heads\nbye", []string{"ERROR - layer 7: three heads"}},
		"an error by its level alone":                           {"starting\n[2026-11-30 11:02:11] [7] [ERROR] layer 7: three heads\n[2026-11-30 11:02:12] [7] [INFO] shutting down", []string{"it wrote: layer 7: three heads"}},
		"an older system":                                       {"/opt/llama-server: /lib/libc.so.6: version `GLIBC_2.38' not found (required by libggml.so)", []string{"GLIBC_2.38", "a build for this one"}},
		"llama.cpp, an architecture":                            {"llama_model_loader: - type  f32:  121 tensors\nllama_model_load: error loading model: error loading model architecture: unknown model architecture: 'gemma4'\nllama_model_load_from_file_impl: failed to load model\nsrv    operator(): operator(): cleaning up before exit...\nmain: exiting due to model loading error", []string{"unknown model architecture: 'gemma4'", "a newer engine"}},
		"llama.cpp, memory of Vulkan":                           {"ggml_vulkan: Device memory allocation of size 1090519040 failed.\nalloc_tensor_range: failed to allocate Vulkan0 buffer of size 1090519040\nllama_model_load_from_file_impl: failed to load model\nmain: exiting due to model loading error", []string{"Device memory allocation of size 1090519040 failed", "a shorter context"}},
		"llama.cpp, host memory":                                {"ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 137438953472\nllama_init_from_model: failed to initialize the context\nmain: exiting due to model loading error", []string{"failed to allocate buffer of size 137438953472", "a shorter context"}},
		"llama.cpp, an assertion and a trace":                   {"/build/ggml/src/ggml.c:4221: GGML_ASSERT(ggml_nelements(a) == ne0) failed\n[New LWP 132]\n#1  0x00007 in ggml_print_backtrace () from /app/libggml-base.so\n[Inferior 1 (process 1) detached]", []string{"GGML_ASSERT(ggml_nelements(a) == ne0) failed"}},
		"llama.cpp, the driver":                                 {"/build/ggml-cuda.cu:88: CUDA error\nCUDA error: the provided PTX was compiled with an unsupported toolchain.\n  current device: 0, in function x\n  err", []string{"the provided PTX was compiled", "its driver is too old"}},
		"llama.cpp, its newer log":                              {"0.11.250.784 I ops: failed nothing\n0.11.257.171 E graph_reserve: failed to reserve the graph\n0.11.300.000 E main: exiting due to model loading error", []string{"it wrote: graph_reserve: failed to reserve"}},
		"C++":                                                   {"terminate called after throwing an instance of 'std::runtime_error'\n  what():  Invalid chat template: unexpected token 'macro'", []string{"Invalid chat template: unexpected token 'macro'"}},
		"Rust":                                                  {"thread 'main' panicked at src/main.rs:42:10:\ncalled `Result::unwrap()` on an `Err` value: NotFound\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace", []string{"called `Result::unwrap()` on an `Err` value: NotFound"}},
		"Rust, before 1.73":                                     {"thread 'main' panicked at 'no such device', src/main.rs:3:5\nnote: run with `RUST_BACKTRACE=1`", []string{"no such device"}},
		"Rust, a chain of causes":                               {"Error: Could not create backend\n\nCaused by:\n    Could not find weights at /data/model.safetensors", []string{"Could not find weights at /data/model.safetensors"}},
		"TGI, a shard that was killed":                          {"2024-07-11T09:12:51.512032Z ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=0\n2024-07-11T09:12:51.612031Z ERROR text_generation_launcher: Shard 0 failed to start\nError: ShardCannotStart", []string{"was killed"}},
		"JSON in lines":                                         {`{"level":"info","msg":"error budget","ts":1}` + "\n" + `{"level":"error","ts":1699.2,"msg":"model failed","error":"unsupported \"x\" architecture"}`, []string{`unsupported "x" architecture`}},
		"JSON in lines without an error field":                  {`{"timestamp":"2024-07-11T09:12:52Z","level":"ERROR","fields":{"message":"Could not start backend"},"target":"router"}`, []string{"Could not start backend"}},
		"zerolog":                                               {`9:12PM ERR Failed starting model error="could not load model: no such backend"`, []string{"could not load model: no such backend"}},
		"logrus":                                                {`time="2026-03-01T10:00:00Z" level=fatal msg="failed to start" error="no such model"`, []string{"no such model"}},
		"JSON of Python's logging":                              {`{"asctime":"2026-03-01","levelname":"ERROR","message":"No GPU found"}`, []string{"No GPU found"}},
		"Java":                                                  {"Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space\n\tat ai.Server.main(Server.java:3)", []string{"java.lang.OutOfMemoryError: Java heap space"}},
		"llama.cpp goes on without a GPU":                       {"ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\nwarning: no usable GPU found, --gpu-layers option will be ignored\nllama_model_load: error loading model: error loading model architecture: unknown model architecture: 'gemma9'\nmain: exiting due to model loading error", []string{"unknown model architecture: 'gemma9'", "a newer engine"}},
		"llama.cpp without a GPU, and no other cause":           {"ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected\n", []string{"no CUDA-capable device is detected", "nvidia-smi"}},
		"a warning that looks like a cause":                     {"WARNING 10-25 00:26:20 cache.py:19] could not write the compile cache: [Errno 28] No space left on device\nERROR 10-25 00:26:21 [core.py:708] ValueError: unsupported quantization fp3", []string{"ValueError: unsupported quantization fp3"}},
		"a port that another took, at the level of information": {"INFO: port 8000: address already in use, trying 8001\nValueError: unsupported quantization fp3", []string{"ValueError: unsupported quantization fp3"}},
		"a flag unknown to Go":                                  {"flag provided but not defined: -ctx\nUsage of server:\n  -model string\n    \tpath of the model", []string{"bad args in the model file: flag provided but not defined: -ctx"}},
		"a flag unknown to cobra":                               {"Error: unknown flag: --ctx\nUsage:\n  server serve [flags]\n", []string{"bad args in the model file: unknown flag: --ctx"}},
		"a flag unknown to click":                               {"Usage: server [OPTIONS]\nTry 'server --help' for help.\n\nError: No such option: --ctx", []string{"bad args in the model file: No such option: --ctx"}},
		"a flag unknown to clap":                                {"error: unexpected argument '--max-model' found\n\n  tip: a similar argument exists: '--max-model-len'\n\nUsage: server [OPTIONS]", []string{"bad args in the model file: unexpected argument '--max-model' found"}},
		"a value that llama.cpp does not take":                  {"error while handling argument \"--n-gpu-layers\": stoi\n\nusage:\n-ngl,  --gpu-layers N   number of layers\n", []string{"bad args in the model file: error while handling argument \"--n-gpu-layers\": stoi"}},
		"a segmentation fault":                                  {"!!!!!!! Segfault encountered !!!!!!!\n  File \"<unknown>\", line 0, in _PyEval_EvalFrameDefault\n  File \"<unknown>\", line 0, in Py_Main", []string{"a segmentation fault", "another build"}},
		"memory of Metal":                                       {"libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPU)", []string{"out of GPU memory: [METAL]", "a shorter context"}},
		"shared memory":                                         {"RuntimeError: unable to write to file </torch_123_1_0>: No space left on device (28)", []string{"/dev/shm is full, or too small: unable to write to file"}},
		"a gated repository":                                    {"huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: x)\n\nCannot access gated repo for url https://huggingface.co/m/x.\nOSError: You are trying to access a gated repo.", []string{"Cannot access gated repo for url", "name it under files"}},
		"no GPU for vLLM":                                       {"RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`", []string{"Failed to infer device type", "nvidia-smi"}},
		"heads and GPUs":                                        {"  Value error, Total number of attention heads (14) must be divisible by tensor parallel size (4). [type=value_error, input_value=x]", []string{"divisible by tensor parallel size (4).", "another number for gpus"}},
		"an extension for another torch":                        {"ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E", []string{"undefined symbol", "install it anew"}},
		"docker without its GPU toolkit":                        {"docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]]", []string{"could not select device driver", "nvidia-container-toolkit"}},
		"a shell's command that was killed":                     {"/srv/start.sh: line 3:   123 Killed                  vllm serve /m --port 80", []string{"was killed", "out of memory of the host"}},
		"colours":                                               {"\x1b[31mERROR\x1b[0m:    Error loading ASGI app. Could not import module \"main\".", []string{"Error loading ASGI app"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := RootCause(c.log, "exit code 1")
			for _, w := range c.want {
				if !strings.Contains(got, w) {
					t.Errorf("%s\nlacks %s", got, w)
				}
			}
		})
	}
	for _, log := range []string{
		"gguf_init_from_file_ptr: invalid magic characters: '<!DO', expected 'GGUF'\nmain: exiting due to model loading error",
		"llama_model_load: error loading model: tensor 'blk.27' data is not within the file bounds, model is corrupted or incomplete\nmain: exiting due to model loading error",
	} {
		if cause := RootCause(log, "exit code 1"); !BlamesFile(cause) {
			t.Errorf("the file is not read again: %s", cause)
		}
	}
	if got := RootCause("started in the background", "exit code 0"); !strings.Contains(got, "an engine stays in the foreground") {
		t.Error(got)
	}
	traceback := "  File \"/x/e.py\", line 14, in do_GET\n    if failed: return error(404)\n" +
		"  File \"/x/e.py\", line 12, in error\nBrokenPipeError: [Errno 32] Broken pipe\n-----------"
	if got := RootCause("started\n"+traceback, "no answer"); strings.Contains(got, "if failed") || strings.Contains(got, "---") {
		t.Errorf("a line of code: %s", got)
	}
	if got := RootCause("", "ended by signal 4 (illegal instruction)"); !strings.Contains(got, "this machine's processor lacks") {
		t.Error(got)
	}
	if got := ShortOf(RootCause("[12-16 14:27:10] Exit code: -9\nEOFError", "exit code 1")); got != functions.ShortOfHostMemory {
		t.Errorf("a process that was killed: short of %q", got)
	}
}
