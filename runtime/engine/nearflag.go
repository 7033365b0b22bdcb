package engine

import (
	_ "embed" // of vllmFlags
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

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
