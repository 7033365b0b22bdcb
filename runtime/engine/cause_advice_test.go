package engine

import (
	"strings"
	"testing"
)

// TestAdviceForms: failures of starts from public reports, whose words alone do not tell what helps
// in the terms of a model file.
func TestAdviceForms(t *testing.T) {
	const trace = "Traceback (most recent call last):\n  File \"/x/vllm/engine.py\", line 5, in f\n    raise E()\n"
	for name, c := range map[string]struct {
		log, how string // how "": exit code 1
		want     []string
	}{
		"more GPUs than given":              {trace + "ValueError: World size (4) is larger than the number of available GPUs (2) in this node.", "", []string{"World size (4)", "resources.gpus"}},
		"a placement group":                 {trace + "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.", "", []string{"placement group", "--tensor-parallel-size"}},
		"a context that is too long":        {trace + "ValueError: User-specified max_model_len (200000) is greater than the derived max_model_len (32768).", "", []string{"(200000)", "a lower --max-model-len in args"}},
		"a template that is not there":      {trace + "ValueError: The supplied chat template (t.jinja) looks like a file path, but doesn't exist!", "", []string{"(t.jinja)", "files: ["}},
		"a quantisation":                    {trace + "ValueError: The quantization method awq is not supported for the current GPU. Minimum capability: 75. Current capability: 70.", "", []string{"awq", "another GPU"}},
		"a layer and GPUs":                  {trace + "ValueError: Weight input_size_per_partition = 10944 is not divisible by min_thread_k = 128.", "", []string{"10944", "another number for gpus"}},
		"NVSwitch":                          {trace + "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized", "", []string{"Error 802", "nvidia-fabricmanager"}},
		"ROCm":                              {trace + "RuntimeError: No HIP GPUs are available", "", []string{"No HIP GPUs", "render and video"}},
		"PyTorch for processors":            {trace + "AssertionError: Torch not compiled with CUDA enabled", "", []string{"Torch not compiled", "install the one for the GPU"}},
		"a package":                         {trace + "ImportError: Please install bitsandbytes>=0.46.1 by running `pip install bitsandbytes`", "", []string{"bitsandbytes>=0.46.1", "looks for its packages"}},
		"a package of Node":                 {"  throw err;\n\nError: Cannot find module 'express'\nRequire stack:\n- /srv/a.js\n\nNode.js v18.17.0", "", []string{"Cannot find module 'express'", "looks for its packages"}},
		"a file beside the weights":         {trace + "OSError: /x/m does not appear to have a file named preprocessor_config.json. Checkout 'x'.", "", []string{"preprocessor_config.json", "beside its weights", "under files"}},
		"a folder that is not there":        {trace + "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'namespace/repo_name': '/data/x'.", "", []string{"'/data/x'", "{model}"}},
		"an address":                        {"ERROR:    [Errno 99] error while attempting to bind on address ('::1', 8000, 0, 0): cannot assign requested address\nINFO:     Waiting for application shutdown.", "", []string{"('::1', 8000, 0, 0)", "127.0.0.1 at {port}"}},
		"a flag of fire":                    {"ERROR: Could not consume arg: --port\nUsage: server.py <command>", "", []string{"bad args in the model file: Could not consume arg: --port"}},
		"a flag of an older llama.cpp":      {"error: unknown argument: --n-gpu-layer\nusage: llama-server [options]\n\n-h, --help  print usage", "", []string{"bad args in the model file: error: unknown argument: --n-gpu-layer"}},
		"docker's socket":                   {"docker: permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock.\nSee 'docker run --help'.", "exit code 126", []string{"permission denied while", "the group docker"}},
		"docker's port":                     {"docker: Error response from daemon: Bind for 0.0.0.0:8000 failed: port is already allocated.", "exit code 125", []string{"0.0.0.0:8000", "{port}:PORT"}},
		"docker's name":                     {"docker: Error response from daemon: Conflict. The container name \"/vllm\" is already in use by container \"3f2a\".", "exit code 125", []string{`"/vllm"`, "without --name"}},
		"a program in a script":             {"/srv/start.sh: line 2: vllm: command not found", "exit code 127", []string{"vllm: command not found", "whole path"}},
		"a program in a command of bash":    {"/usr/bin/bash: line 1: exec: my-server: not found", "exit code 127", []string{"my-server: not found", "whole path"}},
		"a program in a command of sh":      {"/bin/sh: 1: vllm: not found", "exit code 127", []string{"vllm: not found", "whole path"}},
		"line ends of Windows":              {"env: 'python3\\r': No such file or directory", "exit code 127", []string{"python3", "dos2unix"}},
		"another processor":                 {"/srv/start.sh: line 1: /opt/llama-server: cannot execute binary file: Exec format error", "exit code 126", []string{"Exec format error", "another kind of processor"}},
		"NumPy":                             {"A module that was compiled using NumPy 1.x cannot be run in\nNumPy 2.0.1 as it may crash.\n" + trace + "AttributeError: _ARRAY_API not found", "", []string{"cannot be run in NumPy 2.0.1", "of versions that do not fit"}},
		"a newer Transformers":              {trace + "KeyError: 'qwen4'\n\nDuring handling of the above exception, another exception occurred:\n\n" + trace + "ValueError: The checkpoint has model type `qwen4` but Transformers does not recognize this architecture.", "", []string{"ValueError: The checkpoint", "a newer engine"}},
		"a variant":                         {"Error: Could not create backend\n\nCaused by:\n    unknown variant `qwen4`, expected one of `bert`", "", []string{"`qwen4`", "a newer engine"}},
		"a proxy before the engine's own":   {"[10:29:28] Initialization failed. warmup error: Traceback (most recent call last):\nAssertionError: res=<Response [403]>, res.text='<html>'", "", []string{"<Response [403]>", "NO_PROXY"}},
		"processes that are forked":         {"RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method", "", []string{"re-initialize CUDA", "VLLM_WORKER_MULTIPROC_METHOD"}},
		"Gloo":                              {"RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error", "", []string{"connectFullMesh", "GLOO_SOCKET_IFNAME"}},
		"a shell's command, without a line": {"loading\nKilled", "exit code 137", []string{"was killed", "resources.memory"}},
		"an older vLLM's KV cache":          {trace + "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (13360). Try increasing `gpu_memory_utilization`.", "", []string{"(131072)", "resources.gpuMemory"}},
		"a device that is not there":        {trace + "RuntimeError: CUDA error: invalid device ordinal", "", []string{"ordinal", "resources.gpus"}},
		"a GPU that another has":            {trace + "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable", "", []string{"busy", "-c DEFAULT"}},
		"a broken GPU":                      {trace + "RuntimeError: CUDA error: uncorrectable ECC error encountered", "", []string{"ECC", "Xid"}},
		"an adapter's rank":                 {trace + "ValueError: LoRA rank 64 is greater than max_lora_rank 16.", "", []string{"rank 64", "rank under adapters"}},
		"a type of numbers":                 {trace + "ValueError: torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]", "", []string{"torch.float16", "--dtype in args"}},
		"a shard under another name":        {"llama_model_load: error loading model: invalid split file name: /x/m.gguf\nllama_model_load_from_file_impl: failed to load model\nmain: exiting due to model loading error", "", []string{"/x/m.gguf", "keep the names"}},
		"a setting that wants another":      {"llama_init_from_model: V cache quantization requires flash_attn\nsrv    load_model: failed to load model", "", []string{"V cache quantization requires flash_attn"}},
		"no weights":                        {trace + "RuntimeError: Cannot find any model weights with `/x/m`", "", []string{"`/x/m`", "thaw init SOURCE"}},
		"a flag of click, in a frame":       {"╭─ Error ───╮\n│ No such option: --modell │\n╰───────────╯", "exit code 2", []string{"bad args in the model file: No such option: --modell"}},
		"a type of model":                   {trace + "ValueError: Model type qwen4 not supported.", "", []string{"qwen4", "a newer engine"}},
		"killed":                            {"loading weights 40%", "ended by signal 9 (killed)", []string{"loading weights 40%", "resources.memory"}},
		"aborted":                           {"free(): invalid pointer", "ended by signal 6 (aborted)", []string{"free(): invalid pointer", "another build"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.how == "" {
				c.how = "exit code 1"
			}
			got := NameConfinement(RootCause(c.log, c.how))
			for _, w := range c.want {
				if !strings.Contains(got, w) {
					t.Errorf("%s\nlacks %s", got, w)
				}
			}
			if confined := strings.Contains(got, "runs confined"); confined != (name == "a package of Node") {
				t.Errorf("it blames the confinement: %v: %s", confined, got)
			}
		})
	}
}
