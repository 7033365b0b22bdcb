package placement

import (
	"fmt"
	"math"

	"github.com/thaw-dev/thaw/functions"
)

// SetResources sets what the model file of f asks for. What f's replicas were measured to
// hold is kept if its engine is started as before.
func (f *Function) SetResources(asked functions.Resources, sameEngine bool) {
	if !sameEngine || asked.GPUMemory == 0 {
		f.Measured = 0
	}
	f.Resources = asked
	f.Resources.GPUMemory = max(asked.GPUMemory, f.Measured)
}

// RecordGPUMemory records the memory that a replica of f on n holds of a GPU. If that is
// clearly more than f reserves (a tenth: measurements differ), the next starts reserve it,
// but no more than the node's smallest GPU has, so that f still fits. A model that holds
// less reserves what it asks for: its engine may take that later. It reports whether f
// reserves more now.
func (f *Function) RecordGPUMemory(held functions.Bytes, n *Node) bool {
	smallest := functions.Bytes(math.MaxInt64)
	for _, g := range n.GPUs {
		if g.Memory > 0 {
			smallest = min(smallest, g.Memory)
		}
	}
	held = min(held, smallest)
	if f.Resources.GPUMemory == 0 || held <= f.Resources.GPUMemory/10*11 {
		return false
	}
	f.Measured, f.Resources.GPUMemory = held, held
	return true
}

// FootprintText says that f reserves more than its model file asks for.
func (f *Function) FootprintText(asked functions.Bytes) string {
	return fmt.Sprintf("it holds %s of a GPU, and its model file asks for %s: its next starts reserve what it holds", f.Measured.Human(),
		asked.Human())
}
