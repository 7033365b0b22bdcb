package engine

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// Programs finds the programs of engines.
type Programs struct {
	// Thaw is the path of the thaw binary, which is ember.
	Thaw string
	// Look finds a program by name or checks a path; nil is exec.LookPath.
	Look func(string) (string, error)
	// Environ is what engines inherit from, and where THAW_ENGINE_… are read;
	// nil is os.Environ.
	Environ func() []string
	// Host tells of the machine; nil is ThisHost.
	Host func() Host
	// Manual, if not nil, checks args against what the installed engine takes.
	Manual *Manual
}

// Request is one engine to prepare.
type Request struct {
	Spec functions.ModelSpec
	Name string // the model name it serves
	Path string // the checkpoint's folder or file; may be empty for command
	Dir  string // folder of the model file, for relative programs of command
	Port int    // see FreePort
	GPUs []int  // indices the scheduler chose
	// GPUMemory is the size of each such GPU, where known; with it the model's
	// gpuMemory becomes the share an engine is told to take.
	GPUMemory functions.Bytes
	// Streamed: the files at Path are still arriving and reads wait for their
	// bytes. The engine must have read all it wants when it is READY.
	Streamed bool
	// Weights is a server of the files of weights, which the folder lacks: unix:
	// and the path of a socket. Ember alone can ask; "" for none.
	Weights string
	// Cache is a folder for the engine's compile caches; "" is its own choice.
	Cache string
	// Scratch is a folder of this one process, for what it leaves behind.
	Scratch string
	// Notify is the address of the NOTIFY_SOCKET; empty for none.
	Notify string
	// Key is what the engine is to want from whoever asks it, see NewKey; ""
	// for none. It goes into the environment, never onto the command line.
	Key string

	lacks func(flag string) bool // the installed engine is known not to take it
}

// Command is an engine ready to be started and asked.
type Command struct {
	Engine functions.Engine
	Name   string
	Argv   []string
	Env    []string
	Dir    string // working directory; empty is the caller's choice
	Port   int
	URL    string // http://127.0.0.1:PORT
	Health string // path
	Notify bool   // it speaks sd_notify
	Key    string // it wants, "" where it can want none
	// Scratch is the folder it expects to have, "" for none.
	Scratch string
}

// row is what is particular about one engine.
type row struct {
	program  string   // looked for on PATH
	override string   // variable that names the program instead
	health   string   // path that answers 200 once it serves
	notify   bool     // speaks sd_notify
	env      []string // it wants
	reserved []string // flags that are thaw's
	key      string   // variable that makes it want a key; "" where only its command line could
	args     func(Request) ([]string, error)
	metrics  metricNames
	adapters bool                      // speaks vLLM's /v1/load_lora_adapter
	sleep    bool                      // speaks vLLM's /sleep and /wake_up
	streams  []string                  // flags with which it keeps no file mapped; nil: it cannot be started early
	cache    func(dir string) []string // environment that puts its compile caches there
	marks    []logMark                 // of its start, in its log
	help     []string                  // arguments that list its flags, as argparse does; nil: they are not checked
	python   bool                      // leaves files in TMPDIR, sockets among them
	// defaults are given where the model file leaves them open
	defaults func(Request, Host) (args, env []string)
}

var vllmNames = metricNames{
	running:  []string{"vllm:num_requests_running"},
	waiting:  []string{"vllm:num_requests_waiting"},
	tokens:   []string{"vllm:generation_tokens_total", "vllm:prompt_tokens_total"},
	kv:       []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
	hits:     []string{"vllm:prefix_cache_hits_total"},
	queries:  []string{"vllm:prefix_cache_queries_total"},
	firsts:   []string{"vllm:time_to_first_token_seconds_count"},
	finished: []string{"vllm:request_success_total"},
}

var sglangNames = metricNames{
	running: []string{"sglang:num_running_reqs"},
	waiting: []string{"sglang:num_queue_reqs"},
	// The first two count whole requests, the third counts as tokens come.
	tokens: []string{"sglang:generation_tokens_total", "sglang:prompt_tokens_total", "sglang:realtime_tokens_total"},
	kv:     []string{"sglang:token_usage"},
	rate:   []string{"sglang:cache_hit_rate"},
}

var llamaNames = metricNames{
	running: []string{"llamacpp:requests_processing"},
	waiting: []string{"llamacpp:requests_deferred"},
	// Tokens are counted when a request is over; calls of decode as they happen.
	tokens: []string{"llamacpp:n_decode_total", "llamacpp:tokens_predicted_total", "llamacpp:prompt_tokens_total"},
	kv:     []string{"llamacpp:kv_cache_usage_ratio"},
}

func engineRow(e functions.Engine) (row, bool) {
	switch e {
	case functions.EngineEmber:
		return row{
			override: "THAW_ENGINE_EMBER", health: "/health", notify: true, metrics: vllmNames, key: "EMBER_API_KEY",
			streams:  []string{"--copy"},
			reserved: []string{"--model", "--served-model-name", "--host", "--port"},
			args: func(r Request) ([]string, error) {
				a := []string{"engine", "ember", "--model", r.Path, "--served-model-name", r.Name,
					"--host", "127.0.0.1", "--port", strconv.Itoa(r.Port)}
				if r.Weights != "" {
					a = append(a, "--weights-from", r.Weights)
				}
				return a, nil
			},
		}, true
	case functions.EngineVLLM:
		return row{
			program: "vllm", override: "THAW_ENGINE_VLLM", health: "/health", metrics: vllmNames,
			adapters: true, sleep: true, streams: []string{},
			cache:    func(dir string) []string { return []string{"VLLM_CACHE_ROOT=" + dir} },
			env:      []string{"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1"},
			reserved: []string{"--model", "--served-model-name", "--host", "--port", "--uds", "--api-key"},
			key:      "VLLM_API_KEY",
			args:     vllmArgs, defaults: vllmOnCPU, marks: vllmMarks, python: true,
			help: []string{"serve", "--help=all"},
		}, true
	case functions.EngineSGLang:
		return row{
			program: "sglang", override: "THAW_ENGINE_SGLANG", health: "/health", metrics: sglangNames,
			env:      []string{"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1"},
			reserved: []string{"--model-path", "--model", "--served-model-name", "--host", "--port"}, python: true,
			args: func(r Request) ([]string, error) {
				a := []string{"serve", "--model-path", r.Path, "--served-model-name", r.Name,
					"--host", "127.0.0.1", "--port", strconv.Itoa(r.Port), "--enable-metrics"}
				if n := max(len(r.GPUs), r.Spec.Resources.GPUs); n > 1 && !hasFlag(r.Spec.Args, "--tp-size", "--tp", "--tensor-parallel-size") {
					a = append(a, "--tp-size", strconv.Itoa(n))
				}
				if s := gpuMemoryShare(r); s != "" && !hasFlag(r.Spec.Args, "--mem-fraction-static") {
					a = append(a, "--mem-fraction-static", s)
				}
				return a, nil
			},
		}, true
	case functions.EngineLlamaCpp:
		return row{
			program: "llama-server", override: "THAW_ENGINE_LLAMACPP", health: "/health", metrics: llamaNames,
			streams:  []string{"--no-mmap"},
			reserved: []string{"--model", "-m", "--alias", "-a", "--host", "--port", "--hf-repo", "-hf", "-hfr", "--model-url", "-mu", "--api-key", "--api-key-file"},
			key:      "LLAMA_API_KEY",
			args: func(r Request) ([]string, error) {
				file, err := findGGUF(r.Path)
				if err != nil {
					return nil, err
				}
				return []string{"--model", file, "--alias", r.Name, "--host", "127.0.0.1", "--port", strconv.Itoa(r.Port), "--metrics"}, nil
			},
		}, true
	case functions.EngineCommand:
		return row{health: "/health", metrics: vllmNames.or(sglangNames).or(llamaNames)}, true
	}
	return row{}, false
}

// Prepare turns a model into a command line. The error is one line for the
// person who wrote the model file.
func (p Programs) Prepare(r Request) (Command, error) {
	row, ok := engineRow(r.Spec.Engine)
	if !ok {
		return Command{}, fmt.Errorf("unknown engine %q", r.Spec.Engine)
	}
	environ := os.Environ
	if p.Environ != nil {
		environ = p.Environ
	}
	have := environ()
	c := Command{
		Engine: r.Spec.Engine, Name: r.Name, Port: r.Port, Health: row.health, Notify: row.notify,
		URL: "http://127.0.0.1:" + strconv.Itoa(r.Port),
	}
	fill := func(s string) string { return s }
	var wants []string // variables of its defaults
	if r.Spec.Engine == functions.EngineCommand {
		if err := checkCommand(r); err != nil {
			return Command{}, err
		}
		f := strings.NewReplacer("{port}", strconv.Itoa(r.Port), "{model}", r.Path, "{name}", r.Name)
		fill = f.Replace
		for _, a := range r.Spec.Args {
			c.Argv = append(c.Argv, fill(a))
		}
		program := c.Argv[0]
		if strings.ContainsRune(program, '/') && !filepath.IsAbs(program) && r.Dir != "" {
			program = filepath.Join(r.Dir, program)
		}
		path, err := p.look(program)
		if err != nil {
			return Command{}, fmt.Errorf("engine command: program %q not found: %s", r.Spec.Args[0], lookPathError(err))
		}
		c.Argv[0] = path
		if r.Spec.Health != "" {
			c.Health = r.Spec.Health
		}
		c.Dir = r.Dir
	} else {
		if r.Path == "" {
			return Command{}, fmt.Errorf("engine %s: the model has no source", r.Spec.Engine)
		}
		if f := firstFlag(r.Spec.Args, row.reserved); f != "" {
			return Command{}, fmt.Errorf("args: %s is set by thaw and cannot be given", f)
		}
		program, err := p.program(r.Spec.Engine, row, have)
		if err != nil {
			return Command{}, err
		}
		if alt, ok := moduleRow(r.Spec.Engine, program); ok {
			row, c.Health = alt, alt.health
		}
		if err := checkInterpreter(r.Spec.Engine, program); err != nil {
			return Command{}, err
		}
		if p.Manual != nil {
			if err := p.Manual.Check(r.Spec.Engine, program, r.Spec.Args); err != nil {
				return Command{}, err
			}
		}
		r.lacks = func(flag string) bool { return p.Manual.lacks(r.Spec.Engine, program, flag) }
		args, err := row.args(r)
		if err != nil {
			return Command{}, err
		}
		if row.defaults != nil {
			host := ThisHost
			if p.Host != nil {
				host = p.Host
			}
			more, vars := row.defaults(r, host())
			args, wants = append(args, more...), append(wants, vars...)
		}
		if r.Streamed {
			if row.streams == nil {
				return Command{}, fmt.Errorf("engine %s: it cannot be started on a checkpoint that is still arriving", r.Spec.Engine)
			}
			args = append(args, row.streams...)
		}
		c.Argv = append(append([]string{program}, args...), r.Spec.Args...)
	}
	env := Environ(have)
	env = append(env, row.env...)
	env = append(env, wants...)
	if r.Scratch != "" && row.python {
		env, c.Scratch = append(env, scratchEnv(have, r.Scratch)...), r.Scratch
	}
	if r.Cache != "" && row.cache != nil {
		env = append(env, row.cache(r.Cache)...)
	}
	env = append(env, gpuEnv(r)...)
	if row.sleep && hasFlag(r.Spec.Args, "--enable-sleep-mode") {
		env = append(env, devMode)
	}
	if len(r.Spec.Adapters) > 0 && row.adapters {
		env = append(env, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
	}
	if row.notify && r.Notify != "" {
		env = append(env, "NOTIFY_SOCKET="+r.Notify)
	}
	for _, k := range slices.Sorted(keys(r.Spec.Env)) {
		env = append(env, k+"="+fill(r.Spec.Env[k]))
	}
	if row.key != "" && r.Key != "" {
		env, c.Key = append(env, row.key+"="+r.Key), r.Key // after the model's own: who asks must know it
	}
	c.Env = lastWins(env)
	return c, nil
}

// NewKey is a key nobody can guess. Each replica has one of its own: engines
// listen on loopback, where everybody on the machine may knock.
func NewKey() string { return "sk-" + rand.Text() }

// devMode opens vLLM's control endpoints, /sleep and /wake_up among them. They
// are loopback's, and outside of the activator's allow-list.
const devMode = "VLLM_SERVER_DEV_MODE=1"

// Sleeps reports whether a model's engine can be sent to sleep: a vLLM with
// --enable-sleep-mode, or in its developers' mode (where a CPU speaks the
// protocol without moving any weights).
func Sleeps(spec functions.ModelSpec) bool {
	row, _ := engineRow(spec.Engine)
	return row.sleep && (hasFlag(spec.Args, "--enable-sleep-mode") || spec.Env["VLLM_SERVER_DEV_MODE"] == "1")
}

// Streams reports whether an engine can be started on a checkpoint that is
// still arriving: it reads its files once and depends on none when it serves.
func Streams(e functions.Engine) bool { r, _ := engineRow(e); return r.streams != nil }

// scratchEnv has a Python engine leave sockets and files in a folder of its own.
// What torch compiles stays where it is for all.
func scratchEnv(have []string, dir string) []string {
	env := []string{"TMPDIR=" + dir, "VLLM_RPC_BASE_PATH=" + dir}
	if lookupEnv(have, "TORCHINDUCTOR_CACHE_DIR") == "" {
		env = append(env, "TORCHINDUCTOR_CACHE_DIR="+filepath.Join(os.TempDir(), "torchinductor_"+strconv.Itoa(os.Getuid())))
	}
	return env
}

// Adopted is the command of an engine that runs already, for asking it; its key
// is the caller's to fill in.
func Adopted(spec functions.ModelSpec, name string, port int) Command {
	row, _ := engineRow(spec.Engine)
	c := Command{Engine: spec.Engine, Name: name, Port: port, Health: row.health, URL: "http://127.0.0.1:" + strconv.Itoa(port)}
	if spec.Engine == functions.EngineCommand && spec.Health != "" {
		c.Health = spec.Health
	}
	return c
}

// Notifies reports whether an engine speaks sd_notify.
func Notifies(e functions.Engine) bool { r, _ := engineRow(e); return r.notify }

func checkCommand(r Request) error {
	if len(r.Spec.Args) == 0 {
		return errors.New("engine command: args is empty; it is the whole argv, with {port}, {model} and {name} filled in")
	}
	port, model := false, false
	look := func(s string) {
		port = port || strings.Contains(s, "{port}")
		model = model || strings.Contains(s, "{model}")
	}
	for _, a := range r.Spec.Args {
		look(a)
	}
	for _, v := range r.Spec.Env {
		look(v)
	}
	switch {
	case !port:
		return errors.New("engine command: neither args nor env say {port}, so it would not listen where it is asked")
	case model && r.Path == "":
		return errors.New("engine command: {model} is used, but the model has no source")
	}
	return nil
}

func (p Programs) program(e functions.Engine, row row, environ []string) (string, error) {
	if v := lookupEnv(environ, row.override); v != "" {
		path, err := p.look(v)
		if err != nil {
			return "", fmt.Errorf("engine %s: %s=%s: %s", e, row.override, v, lookPathError(err))
		}
		return path, nil
	}
	if e == functions.EngineEmber {
		if p.Thaw == "" {
			return "", errors.New("engine ember: the path of the thaw program is not known; set THAW_ENGINE_EMBER")
		}
		return p.Thaw, nil
	}
	path, err := p.look(row.program)
	if err != nil {
		return "", fmt.Errorf("engine %s: program %q not found on PATH; install it or set %s to its path", e, row.program, row.override)
	}
	return path, nil
}

// checkInterpreter is an error for a script whose interpreter is gone: the kernel
// would say that the script itself is not there. So it is with a virtual
// environment that was moved.
func checkInterpreter(e functions.Engine, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return nil // starting it will tell
	}
	defer f.Close()
	head := make([]byte, 256)
	n, _ := f.Read(head)
	line, _, _ := strings.Cut(string(head[:n]), "\n")
	line, script := strings.CutPrefix(line, "#!")
	words := strings.Fields(line)
	if !script || len(words) == 0 || !filepath.IsAbs(words[0]) {
		return nil
	}
	if _, err := os.Stat(words[0]); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("engine %s: %s wants the interpreter %s, which is not there; was its environment moved?", e, path, words[0])
	}
	return nil
}

func (p Programs) look(name string) (string, error) {
	if p.Look != nil {
		return p.Look(name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// FreePort is a loopback port nobody listens on now. Somebody else may take it
// before the engine does: then it exits with PortTaken, and one tries again.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("no free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// findGGUF is the file llama.cpp is given: the file itself, or the first (shard)
// of a folder.
func findGGUF(path string) (string, error) {
	if strings.HasSuffix(strings.ToLower(path), ".gguf") {
		return path, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", fmt.Errorf("engine llamacpp: %w", err)
	}
	for _, e := range entries { // sorted by name
		n := strings.ToLower(e.Name())
		if strings.HasSuffix(n, ".gguf") && !strings.HasPrefix(n, "mmproj") {
			return filepath.Join(path, e.Name()), nil
		}
	}
	return "", fmt.Errorf("engine llamacpp: no .gguf file in %s", path)
}

// gpuEnv shows an engine the GPUs the scheduler chose and no others.
func gpuEnv(r Request) []string {
	list := make([]string, len(r.GPUs))
	for i, g := range r.GPUs {
		list[i] = strconv.Itoa(g)
	}
	return []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + strings.Join(list, ",")}
}

// gpuMemoryShare of a GPU's memory the model asks for, as vLLM wants it; "" unknown.
func gpuMemoryShare(r Request) string {
	want := r.Spec.Resources.GPUMemory
	if len(r.GPUs) == 0 || want <= 0 || r.GPUMemory <= 0 {
		return ""
	}
	return strconv.FormatFloat(min(float64(want)/float64(r.GPUMemory), 0.98), 'f', 3, 64)
}

// hasFlag reports whether any of the flags is among args, as FLAG or FLAG=….
func hasFlag(args []string, flags ...string) bool { return firstFlag(args, flags) != "" }

// flagValue is the value of the last of such a flag among args, "" for none.
func flagValue(args []string, flag string) (v string) {
	for i, a := range args {
		name, value, joined := strings.Cut(a, "=")
		if strings.HasPrefix(name, "--") {
			name = strings.ReplaceAll(name, "_", "-")
		}
		switch {
		case name != flag:
		case joined:
			v = value
		case i+1 < len(args):
			v = args[i+1]
		}
	}
	return v
}

func firstFlag(args, flags []string) string {
	for _, a := range args {
		name, _, _ := strings.Cut(a, "=")
		// argparse takes --served_model_name for --served-model-name
		if strings.HasPrefix(name, "--") {
			name = strings.ReplaceAll(name, "_", "-")
		}
		if slices.Contains(flags, name) {
			return name
		}
	}
	return ""
}

func lookPathError(err error) string {
	var ee *exec.Error
	if errors.As(err, &ee) {
		err = ee.Err
	}
	return err.Error()
}
