package forkserver

import (
	"slices"
	"strings"
)

// Families of variables that are read by C code when a library is loaded or an
// interpreter starts, where Python does not see it.
var nativePrefixes = []string{"LD_", "GLIBC_", "MALLOC_", "PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "TCMALLOC_", "ATEN_", "TORCH_", "PYTORCH_"}

// Variables that imports look at and that may differ all the same: what was
// read is read again, or the parent's row sees to it.
var rereadVariables = []string{
	"CUDA_VISIBLE_DEVICES",    // asked for to count GPUs; CUDA itself reads it when it is initialised
	"HOSTNAME",                // of a container; each has its own
	"VLLM_SERVER_DEV_MODE",    // a default of the command line, set right in the fork
	"THAW_SUPERVISED",         // the keeper's mark, each process has its own
	"TORCHINDUCTOR_CACHE_DIR", // read again at each compilation
	"TMPDIR", "TEMP", "TMP",   // what was made of them is forgotten in the fork
}

// Variables that are one engine's own: no parent gets them.
var privateVariables = []string{"CUDA_VISIBLE_DEVICES", "HOSTNAME", "NOTIFY_SOCKET", "VLLM_API_KEY", "VLLM_PORT", "VLLM_CACHE_ROOT", "TMPDIR", "VLLM_RPC_BASE_PATH"}

// ParentEnviron is the environment of a parent of engines with this one: less what is
// an engine's own. What is secret is the caller's to leave out before.
func ParentEnviron(env []string) []string {
	var out []string
	for _, kv := range env {
		k, _, ok := strings.Cut(kv, "=")
		if !ok || slices.Contains(privateVariables, k) {
			continue
		}
		out = append(out, kv)
	}
	return out
}

// DifferingVariable names the first variable for which an engine has another value than
// the parent had when something read it; "" when the engine can be forked.
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
	var names []string
	for _, name := range f.Reads {
		if differs(name) {
			names = append(names, name)
		}
	}
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
