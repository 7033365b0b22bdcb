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
	{regexp.MustCompile(`(?i)(?:memory|cache)\b.*(?:gpu[ _]memory[ _]utiliz|--mem-fraction-static)`), shareAdvice + "; " + needLess},
	{regexp.MustCompile(`^out of GPU memory|too little memory for the KV cache|ErrorOutOfDeviceMemory|allocate (?:\w+ )?buffer|memory allocation .*failed`), needLess},
	{regexp.MustCompile(`(?i)no kernel image|HIP error: invalid device function|not supported in this architecture|unsupported gpu arch|option 'gpu-name'|unsupported toolchain|compute capability below|compute cap \d+ is not compatible`), "this build of the engine does not know the GPU, or its driver is too old: install the build that is made for them"},
	{regexp.MustCompile(`is not supported \(known: |quantized weights are not supported|has neither model\.safetensors nor`), "engine: vllm or another engine may read it; ember reads Llama and Qwen2 in model.safetensors or its shards"},
	{regexp.MustCompile(`[^_]config\.json: no such file|(?:not appear to have a file named|No such file or directory: '[^']*)[ /]config\.json`), "copy config.json and the tokenizer beside the weights, or name the folder that has them as the source"},
	{regexp.MustCompile(`^checkpoint: `), "where the file is at fault, mend it or copy it again; where ember lacks support, engine: vllm or another may have it"}, // ember's
	{regexp.MustCompile(`(?i)unknown model architecture|recognize this architecture|architectures? .*not supported|unsupported (?:model|architecture)|untagged enum|unknown pre-tokenizer|missing tensor|wrong number of tensors|unknown variant|no module or parameter named|rope_scaling|Tokenizer class \S+ does not exist|has wrong shape|Model type \S+ not supported`), "where the model is newer than the engine, a newer engine takes it"},
	{regexp.MustCompile(`(?:lib[\w.+-]+\.so[\w.]*|shared libraries): .*cannot open shared object`), "install the library, or name its folder as LD_LIBRARY_PATH in env"},
	{regexp.MustCompile(`GLIBC\w*_[\d.]+' not found`), "the engine is built for a newer system than this: install a build for this one"},
	{regexp.MustCompile(`Too many open files`), "raise the limit of open files of thaw's process (ulimit -n, LimitNOFILE)"},
	{regexp.MustCompile(`/dev/shm|(?i:nccl) ?(?:system)?error`), "engines on several GPUs want a large /dev/shm, which containers do not have by themselves; NCCL_DEBUG: INFO in env logs the reason"},
	{regexp.MustCompile(`(?i)connect to 'https://huggingface|host='huggingface|host=\\'huggingface|gated repo|LocalEntryNotFound|outgoing traffic has been disabled|offline mode is enabled|OfflineModeIsEnabled`), "the engine looks for a file that was not staged, and may not download: name it under files, or give args the path of a folder; HF_HUB_OFFLINE: \"0\" in env lets it download"},
	{regexp.MustCompile(`(?i)no NVIDIA driver|NVIDIA driver on your system is too old|NVMLError|infer device type|No CUDA GPUs|no CUDA-capable device|driver version is insufficient|version mismatch|CUDA unknown error`), "nvidia-smi has to work here; after an update of the driver the machine wants a restart"},
	{regexp.MustCompile(`could not select device driver`), "install nvidia-container-toolkit, and set it up for the container's runtime"},
	{regexp.MustCompile(`undefined symbol|_OpNamespace|No module named 'vllm\._C'|cannot import name|operator \S+ does not exist|compiled using NumPy`), "parts of the engine are of versions that do not fit each other: install it anew, in an environment of its own"},
	{regexp.MustCompile(`^exit code 0;`), "an engine stays in the foreground: without an option or a wrapper that returns while it runs in the background"},
	{regexp.MustCompile(`must be divisible by tensor parallel size|divisible by (?:.*tp_size|min_thread)`), "another number for gpus, by which both divide without rest"},
	{regexp.MustCompile(`ended by signal 4\b|signal 4,|Illegal instruction`), "its build needs instructions that this machine's processor lacks: install one made for it"},
	{regexp.MustCompile(`ended by signal 7\b|signal 7,|Bus error`), "most often /dev/shm is full, or a file of weights is damaged or was changed while in use"},
	{regexp.MustCompile(`ended by signal (?:6|11)\b|signal (?:6|11),|segmentation fault`), "another build of the engine or of the GPU's driver may help; `thaw logs NAME` has its last words"},
	{regexp.MustCompile(`World size \(\d+\) is larger|required GPUs exceeds|does not allocate any GPUs|invalid device ordinal`), "resources.gpus is the number of GPUs that the engine is given; flags of args such as --tensor-parallel-size may not ask for more"},
	{regexp.MustCompile(`greater than the derived max_model_len`), "a lower --max-model-len in args, at most what the model is made for"},
	{regexp.MustCompile(`chat template .*doesn't exist`), "name the template in args by its whole path; one that lies in the source is staged with files: [\"*.jinja\"], at {model}/NAME"},
	{regexp.MustCompile(`not supported for the current GPU`), "another GPU, or the model in another quantisation"},
	{regexp.MustCompile(`system not yet initialized`), "GPUs behind NVSwitch want the service nvidia-fabricmanager, in the version of the driver"},
	{regexp.MustCompile(`No HIP GPUs are available`), "rocm-smi has to work here for thaw's user, who needs the groups render and video"},
	{regexp.MustCompile(`not compiled with CUDA`), "the engine's PyTorch is a build for processors alone: install the one for the GPU"},
	{regexp.MustCompile(`No module named|Please install|Cannot find (?:module|package)`), "install it where the engine's program looks for its packages: in the Python or Node that args or PATH name"},
	{regexp.MustCompile(`not appear to have a file named|Can't load (?:tokenizer|image processor|processor|feature extractor)|Unrecognized model in`), "copy the missing file of the original model into the source, beside its weights; what is there and not staged is named under files"},
	{regexp.MustCompile(`Repo id must be|Invalid repository ID or local directory`), "a path among args does not exist: {model} there is the folder of the staged model"},
	{regexp.MustCompile(`attempting to bind|assign requested address|EADDRNOTAVAIL|listen EACCES|port is already allocated`), "an engine listens on 127.0.0.1 at {port}, which args pass to it; of a container -p 127.0.0.1:{port}:PORT"},
	{regexp.MustCompile(`:11434\b`), "OLLAMA_HOST: 127.0.0.1:{port} in env"},
	{regexp.MustCompile(`(?i)no space left on device`), "df -h tells which disk is full; what thaw and its engines keep lies below the data folder"},
	{regexp.MustCompile(`can't start new thread|pthread_create failed|Resource temporarily unavailable`), "the limit of processes and threads is reached: TasksMax of the service, --pids-limit of a container, ulimit -u"},
	{regexp.MustCompile(`(?i)can(?:'t|not) allocate memory|std::bad_alloc|\bMemoryError\b`), "the host has too little free memory; resources.memory in the model file reserves it"},
	{regexp.MustCompile(`mmap failed`), "--no-mmap in args, where the file system of the weights has no memory maps"},
	{regexp.MustCompile(`not a TTY`), "docker run without -t and -i: an engine has no terminal"},
	{regexp.MustCompile(`conda init`), "conda run --no-capture-output -n NAME PROGRAM, or the whole path of the environment's program, in args"},
	{regexp.MustCompile(`pull access denied|manifest unknown|manifest for .* not found`), "docker pull IMAGE as thaw's user tells whether name, tag or docker login is at fault"},
	{regexp.MustCompile(`gaierror|Name or service not known`), "a host's name is not known here: 127.0.0.1 in args and env"},
	{regexp.MustCompile(`unsupported operand type\(s\) for \|`), "the engine wants a newer Python than the one that runs it"},
	{regexp.MustCompile(`Illegal option -o pipefail`), "bash in place of sh in args"},
	{regexp.MustCompile(`^port taken`), "an engine listens at {port}, a free one, which args or env pass to it; a port of its own may be another program's"},
	{regexp.MustCompile(`WORKER TIMEOUT`), "gunicorn ends a worker that is busy for longer than its timeout of 30 s: --timeout 0 in args"},
	{regexp.MustCompile(`EOF when reading a line`), "the program asks a question, and an engine has no input: args give the answer by a flag of the program, such as --yes"},
	{regexp.MustCompile(`'(?:ascii|latin-1)' codec can't|locale\.Error`), "LANG: C.UTF-8 and PYTHONIOENCODING: utf-8 in env"},
	{regexp.MustCompile(`container name .* already in use`), "docker run --rm, without --name: several replicas may run, and one that ended is started again"},
	{regexp.MustCompile(`permission denied .*[Dd]ocker`), "thaw's user needs the group docker"},
	{regexp.MustCompile(`command not found|Failed to spawn|exec \S+ failed: No such file|(?:exec|line \d+|\d+): \S+: not found|CommandNotFoundError`), "name the program by its whole path, that of its own environment (venv, conda), or set PATH in env"},
	{regexp.MustCompile(`(?:bash|sh|python\d?)\\r`), "the script has the line ends of Windows: dos2unix FILE"},
	{regexp.MustCompile(`[Ee]xec format error`), "the program is built for another kind of processor or system, or is a script without #! in its first line: begin args with what runs it, such as sh or python3"},
	{regexp.MustCompile(`res=<Response \[\d+\]>`), "the engine's own request to 127.0.0.1 went through a proxy: NO_PROXY: 127.0.0.1 in env"},
	{regexp.MustCompile(`use the 'spawn' start method`), "VLLM_WORKER_MULTIPROC_METHOD: spawn in env"},
	{regexp.MustCompile(`(?i)\bgloo\b`), "GLOO_SOCKET_IFNAME in env names the network interface: lo on one machine"},
	{regexp.MustCompile(`busy or unavailable`), "another process has the GPU for itself: nvidia-smi shows it, and -c DEFAULT lets several use it"},
	{regexp.MustCompile(`uncorrectable ECC|unspecified launch failure|illegal memory access|fallen off the bus`), "the GPU or a kernel of the engine is at fault: dmesg has the driver's Xid; another version of the engine, or a restart of the machine, may help"},
	{regexp.MustCompile(`greater than max_lora_rank`), "rank under adapters in the model file, or --max-lora-rank in its args"},
	{regexp.MustCompile(`Supported dtypes`), "--dtype in args names one of them"},
	{regexp.MustCompile(`invalid split`), "the shards of a model keep the names that it was cut into, all in one folder"},
	{regexp.MustCompile(`Cannot find any model weights|No such file or directory: '[^']*(?:safetensors|\.bin)`), "the source lacks weights that this engine reads: `thaw init SOURCE` lists what is there"},
	{regexp.MustCompile(`ended by signal 9\b`), "most often the host is out of memory: resources.memory, and the kernel's log (dmesg)"},
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
