package engine

import "regexp"

// escapes are the sequences that colour a terminal's text.
var escapes = regexp.MustCompile(`\x1b\[[\d;?]*[A-Za-z]`)

// What helps against too little GPU memory: the share that thaw gives the engine comes from the model file.
const (
	needLess = "a shorter context, fewer requests at once, a quantised variant or more GPUs need less; " +
		"`thaw init SOURCE` works out what the model needs"
	shareAdvice = "resources.gpuMemory in the model file sets that share of the GPU, unless its args name the flag " +
		"(--gpu-memory-utilization of vllm, --mem-fraction-static of sglang)"
)

// advices are what helps against causes whose own words do not tell.
var advices = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`(?i)memory\b.*(?:gpu[ _]memory[ _]utiliz|--mem-fraction-static)`), shareAdvice + "; " + needLess},
	{regexp.MustCompile(`^out of GPU memory|too little memory for the KV cache|ErrorOutOfDeviceMemory|allocate (?:\w+ )?buffer|memory allocation .*failed`), needLess},
	{regexp.MustCompile(`(?i)no kernel image|HIP error: invalid device function|not supported in this architecture|unsupported gpu arch|option 'gpu-name'|unsupported toolchain|compute capability below`), "this build of the engine does not know the GPU, or its driver is too old: install the build that is made for them"},
	{regexp.MustCompile(`is not supported \(known: |quantized weights are not supported|has neither model\.safetensors nor`), "engine: vllm or another engine may read it; ember reads Llama and Qwen2 in model.safetensors or its shards"},
	{regexp.MustCompile(`[^_]config\.json: no such file|(?:not appear to have a file named|No such file or directory: '[^']*)[ /]config\.json`), "copy config.json and the tokenizer beside the weights, or name the folder that has them as the source"},
	{regexp.MustCompile(`tokenizer\.json: no such file`), "copy the model's tokenizer.json beside its config.json"},
	{regexp.MustCompile(`(?i)unknown model architecture|recognize this architecture|architectures? .*not supported|unsupported (?:model|architecture)|untagged enum|unknown pre-tokenizer|missing tensor|wrong number of tensors`), "where the model is newer than the engine, a newer engine takes it"},
	{regexp.MustCompile(`(?:lib[\w.+-]+\.so[\w.]*|shared libraries): .*cannot open shared object`), "install the library, or name its folder as LD_LIBRARY_PATH in env"},
	{regexp.MustCompile(`GLIBC\w*_[\d.]+' not found`), "the engine is built for a newer system than this: install a build for this one"},
	{regexp.MustCompile(`Too many open files`), "raise the limit of open files of thaw's process (ulimit -n, LimitNOFILE)"},
	{regexp.MustCompile(`/dev/shm|(?i:nccl) ?(?:system)?error`), "engines on several GPUs want a large /dev/shm, which containers do not have by themselves; NCCL_DEBUG: INFO in env logs the reason"},
	{regexp.MustCompile(`(?i)connect to 'https://huggingface|host='huggingface|host=\\'huggingface|gated repo|LocalEntryNotFound|outgoing traffic has been disabled|offline mode is enabled|OfflineModeIsEnabled`), "the engine looks for a file that was not staged, and may not download: name it under files, or give args the path of a folder; HF_HUB_OFFLINE: \"0\" in env lets it download"},
	{regexp.MustCompile(`(?i)no NVIDIA driver|NVIDIA driver on your system is too old|NVMLError|infer device type|No CUDA GPUs|no CUDA-capable device|driver version is insufficient|version mismatch|CUDA unknown error`), "nvidia-smi has to work here; after an update of the driver the machine wants a restart"},
	{regexp.MustCompile(`could not select device driver`), "install nvidia-container-toolkit, and set it up for the container's runtime"},
	{regexp.MustCompile(`undefined symbol|_OpNamespace|No module named 'vllm\._C'`), "parts of the engine are of versions that do not fit each other: install it anew, in an environment of its own"},
	{regexp.MustCompile(`^exit code 0;`), "an engine stays in the foreground: without an option or a wrapper that returns while it runs in the background"},
	{regexp.MustCompile(`must be divisible by tensor parallel size|divisible by .*tp_size`), "another number for gpus, by which both divide without rest"},
	{regexp.MustCompile(`ended by signal 4\b|signal 4,|Illegal instruction`), "its build needs instructions that this machine's processor lacks: install one made for it"},
	{regexp.MustCompile(`ended by signal 7\b|signal 7,|Bus error`), "most often /dev/shm is full, or a file of weights is damaged or was changed while in use"},
	{regexp.MustCompile(`ended by signal 11\b|signal 11,|segmentation fault`), "another build of the engine or of the GPU's driver may help; `thaw logs NAME` has its last words"},
	{regexp.MustCompile(`(?i)Failed to find C compiler|find nvcc|ninja: |No such file or directory: '(?:nvcc|ninja|gcc)'`), "the engine compiles at its start: install gcc, ninja and CUDA's nvcc beside it"},
}

// advise adds to a cause what helps against it, where that is known.
func advise(cause string) string {
	for _, a := range advices {
		if a.pattern.MatchString(cause) {
			return cause + " (" + a.text + ")"
		}
	}
	return cause
}
