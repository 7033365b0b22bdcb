package engine

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// row describes one engine in the table of engines.
type row struct {
	program  string   // searched on PATH
	override string   // variable that names the program instead
	health   string   // path that answers 200 once it serves
	notify   bool     // sends sd_notify messages
	env      []string // variables of its own
	key      string   // variable of its API key; "" if it has none
	// keyFile is the text of a file for --config that sets its API key, if no variable
	// does, and keyFileFrom the first version that reads it.
	keyFile     func(key string) string
	keyFileFrom string
	args        func(Request) ([]string, error)
	adapters    []string                  // variables with which it has vLLM's /v1/load_lora_adapter; nil: it has not
	sleep       bool                      // has vLLM's /sleep and /wake_up
	streams     []string                  // flags with which it maps no file; nil: it cannot be started early
	cache       func(dir string) []string // variables that set the folder of its compile caches
	marks       []logMark                 // steps of its start in its log
	python      bool                      // leaves files in TMPDIR, sockets among them
	// defaults returns what is added if the model file does not set it
	defaults func(Request, Host) (args, env []string)
}

func engineRow(e functions.Engine) (row, bool) {
	switch e {
	case functions.EngineEmber:
		return row{
			override: "THAW_ENGINE_EMBER", health: "/health", notify: true, key: "EMBER_API_KEY",
			streams: []string{"--copy"}, adapters: []string{},
			args: func(r Request) ([]string, error) {
				a := []string{"engine", "ember", "--model", r.Path, "--served-model-name", r.Name,
					"--host", "127.0.0.1", "--port", strconv.Itoa(r.Port)}
				if r.Weights != "" {
					a = append(a, "--weights-from", r.Weights)
				}
				return append(a, loraArgs(r.Spec)...), nil
			},
		}, true
	case functions.EngineVLLM:
		return row{
			program: "vllm", override: "THAW_ENGINE_VLLM", health: "/health",
			adapters: []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"}, sleep: true, streams: []string{},
			cache: func(dir string) []string { return []string{"VLLM_CACHE_ROOT=" + dir} },
			env:   []string{"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1"},
			key:   "VLLM_API_KEY",
			args:  vllmArgs, defaults: vllmOnCPU, marks: vllmMarks, python: true,
		}, true
	case functions.EngineSGLang:
		return row{
			program: "sglang", override: "THAW_ENGINE_SGLANG", health: "/health",
			env:    []string{"HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1"},
			python: true,
			// Its key is a flag, which every user of the machine could read.
			keyFile: func(key string) string { return "api-key: " + key + "\n" }, keyFileFrom: "0.5.4",
			args: func(r Request) ([]string, error) {
				a := []string{"serve", "--model-path", r.Path, "--served-model-name", r.Name,
					"--host", "127.0.0.1", "--port", strconv.Itoa(r.Port), "--enable-metrics"}
				if n := max(len(r.GPUs), r.Spec.Resources.GPUs); n > 1 && !hasFlag(r.Spec.Args, "--tp-size", "--tp", "--tensor-parallel-size") {
					a = append(a, "--tp-size", strconv.Itoa(n))
				}
				if s := sglangStaticShare(r); s != "" && !hasFlag(r.Spec.Args, "--mem-fraction-static") {
					a = append(a, "--mem-fraction-static", s)
				}
				return a, nil
			},
		}, true
	case functions.EngineLlamaCpp:
		return row{
			program: "llama-server", override: "THAW_ENGINE_LLAMACPP", health: "/health",
			streams: []string{"--no-mmap"},
			key:     "LLAMA_API_KEY",
			args: func(r Request) ([]string, error) {
				file, err := findGGUF(r.Path, r.Spec.WeightsPattern())
				if err != nil {
					return nil, err
				}
				a := []string{"--model", file, "--alias", r.Name, "--host", "127.0.0.1", "--port", strconv.Itoa(r.Port), "--metrics"}
				if p := findProjector(r.Path, file); p != "" && !hasFlag(r.Spec.Args, projectorFlags...) {
					a = append(a, "--mmproj", p)
				}
				return a, nil
			},
		}, true
	case functions.EngineCommand:
		return row{health: "/health"}, true
	}
	return row{}, false
}

// moduleRow is the row of an engine whose program is a Python interpreter:
// THAW_ENGINE_LLAMACPP may name one with llama-cpp-python and its server. That has no
// metrics and no /health, and requires its key for every path.
func moduleRow(e functions.Engine, program string) (row, bool) {
	if e != functions.EngineLlamaCpp || !strings.HasPrefix(filepath.Base(program), "python") {
		return row{}, false
	}
	base, _ := engineRow(e)
	return row{
		program: base.program, override: base.override, health: "/v1/models", key: "API_KEY",
		env:     []string{"PYTHONUNBUFFERED=1"},
		streams: []string{"--use_mmap", "False"},
		python:  true,
		args: func(r Request) ([]string, error) {
			file, err := findGGUF(r.Path, r.Spec.WeightsPattern())
			if err != nil {
				return nil, err
			}
			return []string{"-m", "llama_cpp.server", "--model", file, "--model_alias", r.Name, "--host", "127.0.0.1", "--port", strconv.Itoa(r.Port)}, nil
		},
	}, true
}
