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
		"sglang, a child's traceback":          {"[2025-08-08 09:09:09 TP0] Scheduler hit an exception: Traceback (most recent call last):\n    raise RuntimeError(f\"NCCL error: {error_str}\")\nRuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n\n[2025-08-08 09:09:09] Received sigquit from a child process. It usually means the child failed.", []string{"RuntimeError: NCCL error: unhandled system error", "/dev/shm"}},
		"sglang, a scheduler that was killed":  {"[12-16 14:27:08] Rank 0 scheduler is dead. Please check if there are relevant logs.\n[12-16 14:27:10] Exit code: -9\nTraceback (most recent call last):\nEOFError", []string{"was killed", "out of memory of the host"}},
		"an older vLLM below Ray":              {"(RayWorkerWrapper pid=5486) ERROR 05-06 08:55:19 worker_base.py:145] Traceback (most recent call last):\n(RayWorkerWrapper pid=5486) ERROR 05-06 08:55:19 worker_base.py:145]     return executor(*args)\n(RayWorkerWrapper pid=5486) ERROR 05-06 08:55:19 worker_base.py:145] ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. for example: --dtype=half.", []string{"ValueError: Bfloat16", "--dtype=half"}},
		"torch's rank before each line":        {"[rank0]:     return forward_call(*args)\n[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error\n[rank0]: Last error:\n[rank0]: Error while creating shared memory segment /dev/shm/nccl-dAwSNd (size 9637888)", []string{"DistBackendError: NCCL error in", "/dev/shm"}},
		"a GPU that the build does not know":   {"(EngineCore_0 pid=227) ERROR 08-19 12:27:37 [core.py:700] RuntimeError: CUDA error: no kernel image is available for execution on the device\n(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.", []string{"no kernel image", "install the build"}},
		"kernels that do not compile":          {"FAILED: [code=1] sampling.cuda.o \nnvcc fatal   : Unsupported gpu architecture 'compute_120a'\nninja: build stopped: subcommand failed.\nRuntimeError: Ninja build failed. Ninja output:", []string{"Unsupported gpu architecture 'compute_120a'", "install the build"}},
		"an exception without words":           {"ERROR 11-21 14:02:11 [core.py:708]     assert param.shape == loaded.shape\nERROR 11-21 14:02:11 [core.py:708]            ^^^^^^^^^\nERROR 11-21 14:02:11 [core.py:708] AssertionError\nRuntimeError: Engine core initialization failed.", []string{"AssertionError, at: assert param.shape == loaded.shape"}},
		"an exception with a key alone":        {"    param = params_dict[name]\n            ~~~~~~~~~~~^^^^^^\nKeyError: 'layers.0.w13_weight'", []string{"KeyError: 'layers.0.w13_weight', at: param = params_dict[name]"}},
		"an exception of several lines":        {"ValueError: Couldn't instantiate the backend tokenizer from one of: \n(1) a file, \n(2) a slow tokenizer instance to convert or \n(3) a class.\nYou need to have sentencepiece or tiktoken installed", []string{"one of: (1) a file,", "You need to have sentencepiece"}},
		"the plain Exception":                  {"Traceback (most recent call last):\nException: data did not match any variant of untagged enum ModelWrapper at line 757479 column 3", []string{"Exception: data did not match", "a newer engine"}},
		"a file that was not staged":           {"OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.", []string{"couldn't connect", "name it under files", "HF_HUB_OFFLINE"}},
		"a library":                            {"/opt/llama-server: error while loading shared libraries: libcublas.so.12: cannot open shared object file: No such file or directory", []string{"exit code 1; it wrote: /opt/llama-server", "libcublas.so.12", "LD_LIBRARY_PATH"}},
		"an older system":                      {"/opt/llama-server: /lib/libc.so.6: version `GLIBC_2.38' not found (required by libggml.so)", []string{"GLIBC_2.38", "a build for this one"}},
		"llama.cpp, an architecture":           {"llama_model_loader: - type  f32:  121 tensors\nllama_model_load: error loading model: error loading model architecture: unknown model architecture: 'gemma4'\nllama_model_load_from_file_impl: failed to load model\nsrv    operator(): operator(): cleaning up before exit...\nmain: exiting due to model loading error", []string{"unknown model architecture: 'gemma4'", "a newer engine"}},
		"llama.cpp, memory of Vulkan":          {"ggml_vulkan: Device memory allocation of size 1090519040 failed.\nalloc_tensor_range: failed to allocate Vulkan0 buffer of size 1090519040\nllama_model_load_from_file_impl: failed to load model\nmain: exiting due to model loading error", []string{"Device memory allocation of size 1090519040 failed", "a shorter context"}},
		"llama.cpp, host memory":               {"ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 137438953472\nllama_init_from_model: failed to initialize the context\nmain: exiting due to model loading error", []string{"failed to allocate buffer of size 137438953472", "a shorter context"}},
		"llama.cpp, an assertion and a trace":  {"/build/ggml/src/ggml.c:4221: GGML_ASSERT(ggml_nelements(a) == ne0) failed\n[New LWP 132]\n#1  0x00007 in ggml_print_backtrace () from /app/libggml-base.so\n[Inferior 1 (process 1) detached]", []string{"GGML_ASSERT(ggml_nelements(a) == ne0) failed"}},
		"llama.cpp, the driver":                {"/build/ggml-cuda.cu:88: CUDA error\nCUDA error: the provided PTX was compiled with an unsupported toolchain.\n  current device: 0, in function x\n  err", []string{"the provided PTX was compiled", "its driver is too old"}},
		"llama.cpp, its newer log":             {"0.11.250.784 I ops: failed nothing\n0.11.257.171 E graph_reserve: failed to reserve the graph\n0.11.300.000 E main: exiting due to model loading error", []string{"it wrote: graph_reserve: failed to reserve"}},
		"C++":                                  {"terminate called after throwing an instance of 'std::runtime_error'\n  what():  Invalid chat template: unexpected token 'macro'", []string{"Invalid chat template: unexpected token 'macro'"}},
		"Rust":                                 {"thread 'main' panicked at src/main.rs:42:10:\ncalled `Result::unwrap()` on an `Err` value: NotFound\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace", []string{"called `Result::unwrap()` on an `Err` value: NotFound"}},
		"Rust, before 1.73":                    {"thread 'main' panicked at 'no such device', src/main.rs:3:5\nnote: run with `RUST_BACKTRACE=1`", []string{"no such device"}},
		"Rust, a chain of causes":              {"Error: Could not create backend\n\nCaused by:\n    Could not find weights at /data/model.safetensors", []string{"Could not find weights at /data/model.safetensors"}},
		"TGI, a shard that was killed":         {"2024-07-11T09:12:51.512032Z ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=0\n2024-07-11T09:12:51.612031Z ERROR text_generation_launcher: Shard 0 failed to start\nError: ShardCannotStart", []string{"was killed"}},
		"JSON in lines":                        {`{"level":"info","msg":"error budget","ts":1}` + "\n" + `{"level":"error","ts":1699.2,"msg":"model failed","error":"unsupported \"x\" architecture"}`, []string{`unsupported "x" architecture`}},
		"JSON in lines without an error field": {`{"timestamp":"2024-07-11T09:12:52Z","level":"ERROR","fields":{"message":"Could not start backend"},"target":"router"}`, []string{"Could not start backend"}},
		"zerolog":                              {`9:12PM ERR Failed starting model error="could not load model: no such backend"`, []string{"could not load model: no such backend"}},
		"logrus":                               {`time="2026-03-01T10:00:00Z" level=fatal msg="failed to start" error="no such model"`, []string{"no such model"}},
		"JSON of Python's logging":             {`{"asctime":"2026-03-01","levelname":"ERROR","message":"No GPU found"}`, []string{"No GPU found"}},
		"Java":                                 {"Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space\n\tat ai.Server.main(Server.java:3)", []string{"java.lang.OutOfMemoryError: Java heap space"}},
		"colours":                              {"\x1b[31mERROR\x1b[0m:    Error loading ASGI app. Could not import module \"main\".", []string{"Error loading ASGI app"}},
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
	if got := ShortOf(RootCause("[12-16 14:27:10] Exit code: -9\nEOFError", "exit code 1")); got != functions.ShortOfHostMemory {
		t.Errorf("a process that was killed: short of %q", got)
	}
}
