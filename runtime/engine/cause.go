package engine

import (
	_ "embed" // of vllmFlags
	"regexp"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// maxCause bounds a root cause in bytes.
const maxCause = 500

// knownCauses are failures with a clear cause, in order of precedence. %1 is the first group.
var knownCauses = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`(?i)\n([^\n]*(?:address already in use|couldn't bind (?:HTTP )?server socket)[^\n]*)`), "port taken: %1"},
	{regexp.MustCompile(`(WORKER TIMEOUT \(pid:\d+\))`), "%1"}, // of gunicorn, which kills the worker then
	{regexp.MustCompile(`(?i)((?:CUDA|HIP) out of memory[^\n]*)`), "out of GPU memory: %1"},
	{regexp.MustCompile(`(?i)(CUDA (?:runtime )?error: out of memory|cudaMalloc failed: out of memory)`), "out of GPU memory: %1"},
	{regexp.MustCompile(`(\[METAL\] [^\n]*Insufficient Memory|MPS backend out of memory[^\n]*|UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|OOM when allocating tensor[^\n]*)`), "out of GPU memory: %1"},
	{regexp.MustCompile(`(unable to (?:write to file|open shared memory object) [^\n]*)`), "/dev/shm is full, or too small: %1"},
	{regexp.MustCompile(`(Free memory on device [^\n]*less than desired GPU memory utilization[^\n]*)`), "out of GPU memory: %1"},
	{regexp.MustCompile(`(No available memory for the cache blocks[^\n]*)`), "out of GPU memory: %1"},
	{regexp.MustCompile(`(To serve at least one request with[^\n]*KV cache[^\n]*)`), "too little memory for the KV cache: %1"},
	{regexp.MustCompile(`(Available memory on node \d+ [^\n]*?is less than (?:desired|requested) [^\n]*)`), "out of memory: %1"}, // vLLM without a GPU
	{regexp.MustCompile(`(?i)\n([^\n]*no space left on device[^\n]*)`), "%1"},
	{regexp.MustCompile(`(?i)(CUDA driver version is insufficient[^\n]*)`), "%1"},
	{regexp.MustCompile(`(No CUDA GPUs are available|no CUDA-capable device is detected)`), "%1"},
	{regexp.MustCompile(`custom code[^\n]*must be executed`), "the checkpoint has code of its own (auto_map in its config.json), which does not run unless the model file says so: args: [--trust-remote-code] and files: [\"*.py\"]"},
	{regexp.MustCompile(`(?m)Value error, ([^\n]*?)(?: \[type=value_error[^\n]*)?$`), "%1"}, // of pydantic, below its headline
	{regexp.MustCompile(`error: (argument [^\n]*)`), "bad args in the model file: %1"},
	{regexp.MustCompile(`(?m)((?:unrecognized arguments|invalid choice|expected one argument|the following arguments are required):[^\n]*|error: (?:invalid|unknown) argument: [^\n]*|Could not consume arg: [^\n]*)`), "bad args in the model file: %1"},
	// of Go's flag and cobra, Python's click, Rust's clap, Node's commander, llama.cpp
	{regexp.MustCompile(`(?m)(flag provided but not defined: \S+|unknown (?:shorthand )?flag: [^\n]*|No such option: [^\n]*|(?:unexpected argument|unknown option) '[^\n]*|error while handling argument [^\n]*|the argument has been removed[^\n]*)`), "bad args in the model file: %1"},
	{regexp.MustCompile(`(A module that was compiled using NumPy [^\n]*\n?[^\n]*)`), "%1"},
	{regexp.MustCompile(`Segfault encountered|Fatal Python error: (?:Segmentation fault|Bus error|Aborted)`), "a crash in the engine's native code (a segmentation fault)"},
	{regexp.MustCompile(`(Cannot access gated repo[^\n]*|You are trying to access a gated repo[^\n]*)`), "%1"},
}

var (
	// TypeError: …, torch.OutOfMemoryError: …, pydantic_core._pydantic_core.ValidationError: …
	exception = regexp.MustCompile(`^(?:[A-Za-z_]\w*\.)*((?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Died)|Exception)(?:_\w+)?)(?::\s*(.*))?$`)
	// what loggers write before a message: "(EngineCore pid=7) ERROR 11-21 14:02:11 [core.py:708] ", "[rank0]: ",
	// "[2026-02-22 17:24:34] [7] [ERROR] ", "2026-02-22T17:24:34.1Z ERROR launcher: ", "9:12PM ERR ", "0.11.257.162 E "
	prefix = regexp.MustCompile(`^(?:[EFWI]\d{4} [\d:.]+ +\d+ \S+:\d+\]\s*|\((?:[A-Za-z_]+[^()]*?pid=\d+[^()]*|APIServer[^()]*)\)\s*|\[rank\d+\]:\s*|\[(?:[\d\- :.,]+[^\]]*|[A-Z]+)\]\s*|` +
		`(?:\d{4}-\d\d-\d\d[T ][\d:.,]+Z?|\d{1,2}:\d\d[AP]M|\d+\.\d\d\.\d{3}\.\d{3})\s+|` +
		`(?:ERROR|CRITICAL|WARNING|INFO|DEBUG)\s+\d\d-\d\d \d\d:\d\d:\d\d\s+\[?[^\]\s]*\]\s*|(?:ERROR|ERR|FTL|FATAL|WARN|WRN|INFO|INF|[EWID])\s+)+`)
	mild      = regexp.MustCompile(`(?i)\b(?:WARN(?:ING)?|WRN|INFO?|DEBUG|[WID])\b|^[WI]\d{4} `) // the level of a line that is no failure
	severe    = regexp.MustCompile(`\b(?:ERROR|ERR|CRITICAL|FATAL|FTL|E)\b|^[EF]\d{4} `)         // the level of a failure
	within    = regexp.MustCompile(`^.{0,80}[-|] *(?:ERROR|CRITICAL|FATAL) *[-|]`)               // that level in a line of Python's
	shellLine = regexp.MustCompile(`^\S+: (?:line )?\d+: `)                                      // what a shell writes of a script's line
	errorLine = regexp.MustCompile(`(?i)^(?:[\w.\-/]+: )*(?:error(?: response from daemon)?|fatal error|[\w ]*\bfatal|panic)\s*(?::|=)\s*(.+)$`)
	slogE     = regexp.MustCompile(`(?:level=(?i:ERROR|FATAL)|^\S+ (?:ERR|FTL)) .*?(?:err|error)="?([^"\n]+)"?`)
	jsonError = regexp.MustCompile(`^\{.*"(?:level|levelname|severity)":"(?i:error|fatal|critical)".*"(?:error|err)":"((?:[^"\\]|\\.)+)"|^\{.*"(?:level|levelname|severity)":"(?i:error|fatal|critical)".*"(?:message|msg)":"((?:[^"\\]|\\.)+)"`)
	thrown    = regexp.MustCompile(`^what\(\):\s+(.+)$|panicked at '(.+)', `)        // of C++; of Rust before 1.73
	headline  = regexp.MustCompile(`^thread '.*' .*panicked at [^']*$|^Caused by:$`) // of Rust: the next line has the words
	failing   = regexp.MustCompile(`(?i)\b(?:errors?|\w+Error|\w*Exception|fail(?:ed|ure)?|fatal|unable to|cannot|can't|could not|couldn't|not found|denied|requires|invalid|unsupported|exceeds|ASSERT\w*)\b`)
	// the API server of a vLLM whose core died; it exits with code 0
	coreDied = regexp.MustCompile(`(?i)engine ?core[^\n]*died unexpectedly|EngineDeadError`)
	// consequences, never causes
	consequence = regexp.MustCompile(`(?i)^(?:Engine core initialization failed|EngineCore encountered|Failed core proc|See root cause above|Engine process failed|EngineDeadError|.*issue with background loop|SystemExit|KeyboardInterrupt|CancelledError|ProcessRaisedException|.*destroy_process_group|` +
		`EOFError|BrokenPipeError|ConnectionResetError|ShardCannotStart|creating server: Internal|Ninja build failed|PTXAS error|.*: CUDA error$|Subprocess \S+ failed with stderr)`)
	// a process of the engine that another one, most often the kernel, has killed
	killed = regexp.MustCompile(`(?i)exit ?code[:=]? -9\b|with signal 9\b|SIGKILL|line \d+: +\d+ Killed|(?m:^Killed$)`)
	// a line of a known cause that the engine lives with: llama.cpp goes on without a GPU
	borne = regexp.MustCompile(`^(?:ggml_cuda_init: |\w*(?i:warning|warn|info|debug|notice)\w*\b)`)
	// a file that a shim of pyenv or its like may not read, and lives without
	shim = regexp.MustCompile(`(?m)^\S*/(?:pyenv|rbenv|nodenv|asdf)\S*: line \d+: .*: Permission denied\n?`)
	// a message that does not tell which thing it is about: nothing, or the key of a KeyError
	bare = regexp.MustCompile(`^'?[^' ]*'?$`)
)

// maxFailing is among how many lines at the end of a log the first that speaks of a failure
// is looked for, where nothing marks one.
const maxFailing = 20

// denied are causes that a confined engine may have from its confinement: a file that is
// there and not to be read looks to some programs as if it were not there.
var denied = regexp.MustCompile(`(?i)permission ?(?:error|denied)|operation not permitted|ModuleNotFoundError|Cannot find (?:module|package)|cannot open shared object file|read-only file system|getpwuid`)

// NameConfinement adds to a cause that a confined engine may have from its confinement how
// that is lifted.
func NameConfinement(cause string) string {
	if !denied.MatchString(cause) || strings.Contains(cause, "attempting to bind") || strings.Contains(cause, "Docker") {
		return cause
	}
	return cause + " (the engine runs confined: it reads its model, its program and the paths that args and env name, " +
		"and writes to its HOME and TMPDIR; name the path there, write there, or start thaw with --confine off)"
}

// RootCause returns one line on why an engine ended, from the end of its log, and what
// helps where that is known; how, the kind of its exit, is used if the log has no cause.
func RootCause(tail, how string) string {
	tail = keyForm.ReplaceAllString(shim.ReplaceAllString(escapes.ReplaceAllString(tail, ""), ""), "$1…")
	kept := withoutBorne(tail)
	if cause := knownCause(kept); cause != "" {
		return advise(cause)
	}
	f := readFailures(tail)
	if f.raised == "" && f.reported == "" && CoreDied(tail) {
		return clipLine("its EngineCore died unexpectedly; " + how)
	}
	if f.raised == "" && killed.MatchString(tail) {
		return "a process of the engine was killed: most often out of memory of the host (resources.memory)"
	}
	for _, cause := range []string{clipLine(f.raised), clipLine(f.reported)} {
		if cause != "" {
			return advise(cause)
		}
	}
	switch known, first := knownCause(tail), readFailures(kept).first; {
	case known != "" && first == "":
		return advise(known)
	case first != "":
		return advise(clipLine(how + "; it wrote: " + first))
	case f.first != "":
		return advise(clipLine(how + "; it wrote: " + f.first))
	case f.last != "":
		return advise(clipLine(how + "; last line: " + f.last))
	}
	return advise(clipLine(how + "; it wrote nothing"))
}

// keyForm is a replica's key or a token of Hugging Face: engines print their arguments, and clients read causes.
var keyForm = regexp.MustCompile(`\b(sk-|hf_)[A-Za-z0-9_-]{16,}`)

// knownCause is the first of knownCauses that a log has; "" if it has none.
func knownCause(tail string) string {
	for _, k := range knownCauses {
		m := k.pattern.FindStringSubmatch("\n" + tail)
		if m == nil {
			continue
		}
		text := k.text
		if len(m) > 1 {
			text = strings.ReplaceAll(text, "%1", strings.Trim(m[1], " \t│"))
		}
		if cause := clipLine(text); cause != "" { // a headline alone is not a cause
			return cause
		}
	}
	return ""
}

// withoutBorne is a log without the lines of warnings and of what the engine lives with.
func withoutBorne(tail string) string {
	var kept strings.Builder
	for line := range strings.Lines(tail) {
		plain := strings.TrimLeft(line, " \t")
		if start := prefix.FindString(plain); mild.MatchString(start) || borne.MatchString(strings.TrimPrefix(plain, start)) {
			continue
		}
		kept.WriteString(line)
	}
	return kept.String()
}

// failures are the lines of a log that may be a cause.
type failures struct {
	raised   string // the first exception that is not a consequence: those "during handling of the above" repeat it
	reported string // the last error that is marked as one
	first    string // the first of the heaviest lines near the end that speak of a failure
	last     string // the last line
}

func readFailures(tail string) (f failures) {
	lines := strings.Split(strings.TrimSpace(tail), "\n")
	// The line of code above an exception; whether the next line is a panic's message; whether what was
	// raised was handled, so that the next exception tells more than a key.
	code, follows, during, weight := "", false, false, 0 // weight is that of f.first
	for i, line := range lines {
		line = strings.TrimSpace(line)
		start := prefix.FindString(line)
		line = strings.TrimSpace(strings.TrimPrefix(line, start))
		if strings.Trim(line, "~^-=* ") == "" {
			continue
		}
		switch m, marked := exception.FindStringSubmatch(line), errorMark(line); {
		case m != nil:
			isFirst := f.raised == "" || during && strings.HasPrefix(f.raised, "KeyError: ")
			if isFirst && !consequence.MatchString(m[1]) && !consequence.MatchString(m[2]) {
				f.raised = raisedText(m[1], m[2], code, lines[i+1:])
			}
		case follows:
			f.reported = line
		case marked != "":
			if !consequence.MatchString(marked) {
				f.reported = marked
			}
		case i >= len(lines)-maxFailing && !strings.HasPrefix(code, `File "`) && !mild.MatchString(start) && !consequence.MatchString(line):
			if w := weighLine(start, line); w > weight {
				f.first, weight = line, w
			}
		}
		follows, during = headline.MatchString(line), during || strings.HasPrefix(line, "During handling of the above")
		code, f.last = line, line
	}
	return f
}

// weighLine orders the lines of a log that may speak of a failure: a wrapper's shell that cannot do a thing
// mostly goes on, and what has the level of an error needs no words for it.
func weighLine(level, line string) int {
	switch {
	case severe.MatchString(level), within.MatchString(line):
		return 3
	case !failing.MatchString(line):
		return 0
	case shellLine.MatchString(line):
		return 1
	}
	return 2
}

// errorMark returns the message of a line that a program or logger marks as an error.
func errorMark(line string) string {
	for _, form := range []*regexp.Regexp{thrown, jsonError, errorLine, slogE} {
		if m := form.FindStringSubmatch(line); m != nil {
			return strings.ReplaceAll(strings.Join(m[1:], ""), `\"`, `"`)
		}
	}
	return ""
}

// raisedText is an exception with its message: the lines after it where the message ends in
// a colon, and the line of code where the message alone means nothing.
func raisedText(name, message, code string, after []string) string {
	for i := 0; i < min(4, len(after)) && strings.HasSuffix(name+message, ":") || i > 0 && i < min(4, len(after)); i++ {
		message += " " + strings.TrimSpace(after[i])
	}
	switch {
	case bare.MatchString(message) && code != "":
		return strings.TrimSuffix(name+": "+message, ": ") + ", at: " + code
	case message != "":
		return name + ": " + message
	}
	return name
}

// CoreDied reports whether the log is of a vLLM whose EngineCore died; its API server
// exits some seconds later with code 0.
func CoreDied(tail string) bool { return coreDied.MatchString(tail) }

// PortTaken reports whether a root cause is a port in use.
func PortTaken(cause string) bool { return strings.HasPrefix(cause, "port taken") }

// blamesFile matches root causes that a damaged file of weights leads to, also those that
// have other reasons.
var blamesFile = regexp.MustCompile(`(?i)^SafetensorError|MetadataIncompleteBuffer|InvalidHeader|HeaderTooLarge|deserializing header|Input/output error|\[Errno 5\]|Bus error|UnpicklingError|JSONDecodeError|gguf\w*:|invalid magic|\.(?:safetensors|gguf|json): |failed to (?:read|load) (?:model|tensor|header|weights)|corrupt|damaged|digest`)

// BlamesFile reports whether a root cause may be a damaged file of weights: reading the
// checkpoint again tells.
func BlamesFile(cause string) bool { return blamesFile.MatchString(cause) }

// hostMemory matches root causes of a start that found too little host memory.
var hostMemory = regexp.MustCompile(`(?i)out of memory|\bMemoryError\b|cannot allocate memory|std::bad_alloc`)

// gpuMemory matches root causes of a start that found too little GPU memory.
var gpuMemory = regexp.MustCompile(`(?i)out of GPU memory|(?:CUDA|HIP)[^;]*out of memory|cudaMalloc failed|insufficient_gpu_memory`)

// ShortOf returns the memory that the root cause of a failed start is for want of.
func ShortOf(cause string) functions.Shortage {
	switch {
	case gpuMemory.MatchString(cause):
		return functions.ShortOfGPUMemory
	case hostMemory.MatchString(cause):
		return functions.ShortOfHostMemory
	}
	return ""
}

// vllmFlags are the flags of `vllm serve` of the supported version, without their --no- forms.
//
//go:embed vllm-flags.txt
var vllmFlags string

// NameFlag adds to the cause of an engine that does not take a flag the nearest one that the
// supported version has.
func NameFlag(e functions.Engine, cause string) string {
	_, rest, ok := strings.Cut(cause, "unrecognized arguments: ")
	if !ok || e != functions.EngineVLLM {
		return cause
	}
	flags := strings.Fields(vllmFlags)
	for arg := range strings.FieldsSeq(rest) {
		// Without a path into a JSON argument (--compilation-config.mode=0).
		name, _, _ := strings.Cut(functions.FlagName(arg), ".")
		if len(name) < 3 || !strings.HasPrefix(name, "--") {
			continue
		}
		negated := strings.HasPrefix(name, "--no-")
		if negated {
			name = "--" + strings.TrimPrefix(name, "--no-")
		}
		nearest := nearestFlag(name, flags)
		if nearest == "" || nearest == name {
			continue
		}
		if negated {
			nearest = "--no-" + strings.TrimPrefix(nearest, "--")
		}
		return cause + " (did you mean " + nearest + "?)"
	}
	return cause
}

// nearestFlag is the flag with the most similar name; "" if none is similar.
func nearestFlag(name string, flags []string) (best string) {
	if near := functions.Nearest(name, flags, 1); len(near) > 0 {
		return near[0]
	}
	// Words left out or added: --memory-utilization for --gpu-memory-utilization.
	for _, f := range flags {
		if n := strings.TrimPrefix(name, "--"); len(n) >= 6 && strings.Contains(f, n) && (best == "" || len(f) < len(best)) {
			best = f
		}
	}
	return best
}
