package engine

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// gpuEnv makes only the chosen GPUs visible.
func gpuEnv(r Request) []string {
	gpus := functions.ConvertAll(r.GPUs, strconv.Itoa)
	return []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + strings.Join(gpus, ",")}
}

// gpuMemoryShare is the share of a GPU's memory that the model needs; "" if unknown.
func gpuMemoryShare(r Request) string {
	want := r.Spec.Resources.GPUMemory
	if len(r.GPUs) == 0 || want <= 0 || r.GPUMemory <= 0 {
		return ""
	}
	return strconv.FormatFloat(min(float64(want)/float64(r.GPUMemory), 0.98), 'f', 3, 64)
}

// Memory of a GPU that SGLang takes beside its weights and its KV cache: CUDA's context with
// the libraries, captured graphs, NCCL's buffers of each of several GPUs, and a share for
// the activations of a pass.
const (
	sglangContext     = 768 << 20
	sglangGraphs      = 768 << 20
	sglangParallel    = 512 << 20
	sglangActivations = 16 // of gpuMemory, one in so many
)

// sglangStaticShare is the value of --mem-fraction-static; "" if unknown. It is a share of
// the memory that is free once SGLang has its context, for weights and KV cache together;
// graphs, activations and other programs on the GPU have the rest.
func sglangStaticShare(r Request) string {
	want, free := r.Spec.Resources.GPUMemory, cmp.Or(r.GPUFree, r.GPUMemory)
	if len(r.GPUs) == 0 || want <= 0 || free <= sglangContext {
		return ""
	}
	own := sglangContext + sglangGraphs + want/sglangActivations
	if len(r.GPUs) > 1 {
		own += sglangParallel
	}
	static := max(want-own, want/2)
	return strconv.FormatFloat(min(float64(static)/float64(free-sglangContext), 0.95), 'f', 3, 64)
}

// hasFlag reports whether any of the flags is among args, as FLAG or FLAG=….
func hasFlag(args []string, flags ...string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return slices.Contains(flags, functions.FlagName(a)) })
}

// flagValue is the value of the last such flag in args, "" for none.
func flagValue(args []string, flag string) (v string) {
	for i, a := range args {
		_, value, joined := strings.Cut(a, "=")
		switch {
		case functions.FlagName(a) != flag:
		case joined:
			v = value
		case i+1 < len(args):
			v = args[i+1]
		}
	}
	return v
}

// FlagNumber is the whole number that the first of the flags with one has in args; 0 if
// none has.
func FlagNumber(args []string, flags ...string) int {
	for _, f := range flags {
		if n, err := strconv.Atoi(flagValue(args, f)); err == nil {
			return n
		}
	}
	return 0
}
