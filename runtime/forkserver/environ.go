package forkserver

import (
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// nativePrefixes are the prefixes of variables that C code reads when a library is loaded
// or an interpreter starts, unseen by Python.
var nativePrefixes = []string{"LD_", "GLIBC_", "MALLOC_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "TCMALLOC_", "ATEN_", "TORCH_", "PYTORCH_"}

// rereadVariables are variables that imports read and that may differ: they are read again
// later, or the parent's import list handles them.
var rereadVariables = []string{
	"CUDA_VISIBLE_DEVICES",           // read to count GPUs; CUDA itself reads it when it is initialised
	"HOSTNAME",                       // of a container; each has its own
	"VLLM_SERVER_DEV_MODE",           // a default of the command line, set right in the fork
	"THAW_SUPERVISED",                // the keeper's mark, each process has its own
	"TORCHINDUCTOR_CACHE_DIR",        // read again at each compilation
	"TRITON_HOME", "CUDA_CACHE_PATH", // read when something is compiled
	"TMPDIR", "TEMP", "TMP", // what was made of them is forgotten in the fork
	"USER", "LOGNAME", // read again by each getpass.getuser; confined engines have them set
}

// privateVariables are particular to one engine: no parent gets them.
var privateVariables = []string{"CUDA_VISIBLE_DEVICES", "HOSTNAME", "NOTIFY_SOCKET", "VLLM_API_KEY", "VLLM_PORT", "VLLM_CACHE_ROOT", "TMPDIR", "VLLM_RPC_BASE_PATH"}

// ParentEnviron is the environment of a parent of engines with this one: without the
// private variables. The caller has removed secrets before.
func ParentEnviron(env []string) []string {
	return functions.Filter(env, func(kv string) bool {
		k, _, ok := strings.Cut(kv, "=")
		return ok && !slices.Contains(privateVariables, k)
	})
}

// IdentityOf returns the part of a parent's environment that distinguishes it from other
// parents: without the variables that may differ between it and its engines.
func IdentityOf(environ []string) []string {
	return functions.Filter(environ, func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return !slices.Contains(rereadVariables, k)
	})
}

// DifferingVariable names the first variable that an engine has another value of than its
// parent had when something read it; "" if the engine can be forked.
func (f Facts) DifferingVariable(env []string) string {
	engine := make(map[string]string, len(env))
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok {
			engine[k] = v
		}
	}
	differs := func(name string) bool {
		if slices.Contains(rereadVariables, name) {
			return false
		}
		a, ok1 := f.Env[name]
		b, ok2 := engine[name]
		return ok1 != ok2 || a != b
	}
	names := functions.Filter(f.Reads, differs)
	for _, both := range []map[string]string{f.Env, engine} {
		for name := range both {
			if slices.ContainsFunc(nativePrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) && differs(name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}
