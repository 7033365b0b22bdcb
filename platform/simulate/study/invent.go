package study

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

// InventedSizes are the checkpoint sizes of invented models, drawn uniformly.
var InventedSizes = []functions.Bytes{1 << 30, 3 << 30, 8 << 30, 16 << 30, 28 << 30, 64 << 30}

// Invent creates a model for each name. The name and the seed determine the checkpoint's
// size. The model takes as much GPU memory, on several GPUs if the fleet's largest GPU
// is too small. sizes are the checkpoints' sizes.
func Invent(names []functions.Name, on *fleet.Fleet, seed uint64) (models []*functions.Model, sizes map[functions.Name]functions.Bytes) {
	largest := functions.Bytes(0)
	for i := range on.Nodes {
		if n := &on.Nodes[i]; n.GPUs > 0 {
			largest = max(largest, n.GPUMemory)
		}
	}
	sizes = make(map[functions.Name]functions.Bytes, len(names))
	for _, n := range names {
		m := functions.NewModel()
		m.Metadata.Name, m.Metadata.Namespace = n.Name, n.Team
		m.Spec.Engine = functions.EngineVLLM
		m.Spec.Source = "https://example.invalid/" + n.Team + "/" + n.Name
		size := drawSize(n, seed)
		gpus := 1
		for size > largest*functions.Bytes(gpus) && gpus < 64 {
			gpus *= 2
		}
		m.Spec.Resources = functions.Resources{GPUs: gpus, GPUMemory: size / functions.Bytes(gpus), Memory: 4 << 30}
		m.Spec.Scale.Max, m.Spec.Scale.Target = 8, 32
		models, sizes[n] = append(models, m), size
	}
	return models, sizes
}

func drawSize(n functions.Name, seed uint64) functions.Bytes {
	h := fnv.New64a()
	h.Write([]byte(n.String() + " " + strconv.FormatUint(seed, 10)))
	x := h.Sum64() // FNV's low bits are weak: fold the high ones in
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	return InventedSizes[x>>32%uint64(len(InventedSizes))]
}

// Names returns the functions of a trace, or n made-up names if it has none.
func Names(t *trace.Trace, n int) (out []functions.Name) {
	out = functions.ConvertAll(t.Uses, func(u trace.Use) functions.Name { return u.Name.WithoutAdapter() })
	if len(out) == 0 {
		width := len(strconv.Itoa(n))
		for i := range n {
			out = append(out, functions.Name{Team: functions.DefaultTeam, Name: fmt.Sprintf("m%0*d", width, i+1)})
		}
	}
	seen := map[functions.Name]bool{}
	return slices.DeleteFunc(out, func(n functions.Name) bool {
		twice := seen[n]
		seen[n] = true
		return twice
	})
}
