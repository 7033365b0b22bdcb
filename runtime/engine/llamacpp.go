package engine

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// moduleRow is the row of an engine whose program is a Python interpreter:
// THAW_ENGINE_LLAMACPP may name one with llama-cpp-python and its server. That has no
// metrics and no /health, and requires its key for every path.
func moduleRow(e functions.Engine, program string) (row, bool) {
	if e != functions.EngineLlamaCpp || !strings.HasPrefix(filepath.Base(program), "python") {
		return row{}, false
	}
	base, _ := engineRow(e)
	return row{
		program: base.program, override: base.override, health: "/v1/models", key: "API_KEY", metrics: llamaNames,
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
