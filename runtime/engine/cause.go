package engine

import (
	"regexp"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// maxCause bounds a root cause in bytes.
const maxCause = 300

// knownCauses are failures with a clear cause, in order of precedence. %1 is the first group.
var knownCauses = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`(?i)(?:\[Errno (?:98|48)\].*|error while attempting to bind on address.*|bind: |\n[^\n]*)address already in use`), "port taken: address already in use"},
	{regexp.MustCompile(`(?i)couldn't bind (?:HTTP )?server socket`), "port taken: address already in use"},
	{regexp.MustCompile(`(?i)((?:CUDA|HIP) out of memory[^\n]*)`), "out of GPU memory: %1"},
	{regexp.MustCompile(`(?i)(CUDA error: out of memory|cudaMalloc failed: out of memory)`), "out of GPU memory: %1"},
	{regexp.MustCompile(`(Free memory on device [^\n]*less than desired GPU memory utilization[^\n]*)`), "out of GPU memory: %1"},
	{regexp.MustCompile(`(No available memory for the cache blocks[^\n]*)`), "out of GPU memory: %1"},
	{regexp.MustCompile(`(To serve at least one request with[^\n]*KV cache[^\n]*)`), "too little memory for the KV cache: %1"},
	{regexp.MustCompile(`(Available memory on node \d+ [^\n]*?is less than (?:desired|requested) [^\n]*)`), "out of memory: %1"}, // vLLM without a GPU
	{regexp.MustCompile(`(?i)(no space left on device)`), "%1"},
	{regexp.MustCompile(`(?i)(CUDA driver version is insufficient[^\n]*)`), "%1"},
	{regexp.MustCompile(`(No CUDA GPUs are available|no CUDA-capable device is detected)`), "%1"},
	{regexp.MustCompile(`custom code[^\n]*must be executed`), "the checkpoint has code of its own (auto_map in its config.json), which does not run unless the model file says so: args: [--trust-remote-code] and files: [\"*.py\"]"},
	{regexp.MustCompile(`(?m)Value error, ([^\n]*?)(?: \[type=value_error[^\n]*)?$`), "%1"}, // of pydantic, below its headline
	{regexp.MustCompile(`error: (argument [^\n]*)`), "bad args: %1"},
	{regexp.MustCompile(`(?m)((?:unrecognized arguments|invalid choice|expected one argument|the following arguments are required):[^\n]*|error: invalid argument: [^\n]*)`), "bad args: %1"},
}

var (
	// TypeError: …, torch.OutOfMemoryError: …, pydantic_core._pydantic_core.ValidationError: …
	exception = regexp.MustCompile(`^(?:[A-Za-z_][\w]*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Died))(?::\s*(.*))?$`)
	// the prefix of a logger: "(EngineCore pid=7) ERROR 11-21 14:02:11 [core.py:708] ", "[2026-02-22 17:24:34] "
	prefix    = regexp.MustCompile(`^(?:\((?:[A-Za-z_]+[^()]*?pid=\d+[^()]*|APIServer[^()]*)\)\s*)?(?:(?:ERROR|CRITICAL|WARNING|INFO|DEBUG)\s+\d\d-\d\d \d\d:\d\d:\d\d\s+\[[^\]]*\]\s*)?(?:\[[\d\- :.,]+[^\]]*\]\s*)?`)
	errorLine = regexp.MustCompile(`(?i)^(?:[\w.\-/]+: )*(?:error|fatal error|fatal|panic)(?::|=)\s*(.+)$`)
	slogE     = regexp.MustCompile(`level=(?:ERROR|FATAL) .*?(?:err|error)="?([^"\n]+)"?`)
	// the API server of a vLLM whose core died; it exits with code 0
	coreDied = regexp.MustCompile(`(?i)engine ?core[^\n]*died unexpectedly|EngineDeadError`)
	// consequences, never causes
	consequence = regexp.MustCompile(`(?i)^(?:Engine core initialization failed|EngineCore encountered|Failed core proc|See root cause above|Engine process failed|EngineDeadError|.*issue with background loop|SystemExit|KeyboardInterrupt|CancelledError|ProcessRaisedException|.*destroy_process_group)`)
)

// denied are causes that a confined engine may have from its confinement: a file that is
// there and not to be read looks to some programs as if it were not there.
var denied = regexp.MustCompile(`(?i)permission ?(?:error|denied)|operation not permitted|ModuleNotFoundError|Cannot find (?:module|package)|cannot open shared object file|read-only file system|getpwuid`)

// NameConfinement adds to a cause that a confined engine may have from its confinement how
// that is lifted.
func NameConfinement(cause string) string {
	if !denied.MatchString(cause) {
		return cause
	}
	return cause + " (the engine runs confined: it reads its model, its program and the paths that args and env name; name the path there, " +
		"or start thaw with --confine off)"
}

// RootCause returns one line on why an engine ended, from the end of its log; how, the
// kind of its exit, is used if the log has no cause.
func RootCause(tail, how string) string {
	for _, k := range knownCauses {
		m := k.pattern.FindStringSubmatch("\n" + tail)
		if m == nil {
			continue
		}
		text := k.text
		if len(m) > 1 {
			text = strings.ReplaceAll(text, "%1", strings.TrimSpace(m[1]))
		}
		if cause := clipLine(text); cause != "" { // a headline alone is not a cause
			return cause
		}
	}
	var raised, reported, last string
	for line := range strings.SplitSeq(tail, "\n") {
		line = strings.TrimSpace(strings.TrimRight(line, "\r"))
		line = strings.TrimSpace(strings.TrimPrefix(line, prefix.FindString(line)))
		if line == "" {
			continue
		}
		if m := exception.FindStringSubmatch(line); m != nil {
			// The first exception that is not a consequence is the root;
			// those "during handling of the above" repeat it.
			text := m[1]
			if m[2] != "" {
				text += ": " + m[2]
			}
			if raised == "" && !consequence.MatchString(m[1]) && !consequence.MatchString(m[2]) {
				raised = text
			}
		} else if m := errorLine.FindStringSubmatch(line); m != nil {
			if !consequence.MatchString(m[1]) {
				reported = m[1]
			}
		} else if m := slogE.FindStringSubmatch(line); m != nil {
			reported = m[1]
		}
		last = line
	}
	if raised == "" && reported == "" && CoreDied(tail) {
		return clipLine("its EngineCore died unexpectedly; " + how)
	}
	for _, cause := range []string{clipLine(raised), clipLine(reported)} {
		if cause != "" {
			return cause
		}
	}
	if last != "" {
		return clipLine(how + "; last line: " + last)
	}
	return clipLine(how + "; it wrote nothing")
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
