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
// supported version has: until --help was read (Manual) args are not validated.
func NameFlag(e functions.Engine, cause string) string {
	_, rest, ok := strings.Cut(cause, "unrecognized arguments: ")
	if !ok || e != functions.EngineVLLM {
		return cause
	}
	flags := strings.Fields(vllmFlags)
	for arg := range strings.FieldsSeq(rest) {
		name, ok := flagName(arg)
		if !ok {
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
