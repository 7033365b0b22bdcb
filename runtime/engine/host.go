package engine

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/runtime/hostinfo"
)

// Host describes the machine of an engine without a GPU.
type Host struct {
	Available functions.Bytes // free memory; 0 unknown
	Nodes     int             // NUMA nodes; 0 unknown
	BF16      bool            // the CPU has bfloat16 instructions
}

// ThisHost reads it from /proc and /sys; where there is none, nothing is known.
func ThisHost() (h Host) {
	if m, err := hostinfo.ReadMemory(); err == nil {
		h.Available = functions.Bytes(m.Available)
	}
	if nodes, err := filepath.Glob("/sys/devices/system/node/node[0-9]*"); err == nil {
		h.Nodes = len(nodes)
	}
	for _, f := range processorFlags() {
		h.BF16 = h.BF16 || f == "avx512_bf16" || f == "amx_bf16" || f == "bf16"
	}
	return h
}

// processorFlags lists the features of the first core, as all are alike; none if unknown.
func processorFlags() []string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if name, v, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "flags" || strings.TrimSpace(name) == "Features" {
			return strings.Fields(v)
		}
	}
	return nil
}
