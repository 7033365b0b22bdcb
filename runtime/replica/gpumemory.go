package replica

import (
	"fmt"

	"github.com/thaw-dev/thaw/functions"
)

// gpuMemory is the memory of a replica's GPUs: what its model needs, what is free and who
// holds the rest.
type gpuMemory struct {
	indices []int
	size    functions.Bytes                                 // of each of them; 0 unknown
	needed  functions.Bytes                                 // of each of them
	free    func(index int) (free functions.Bytes, ok bool) // Options.FreeGPU
	holders func(index int) string                          // Options.GPUHolders
}

// missing describes a GPU with less free memory than the model needs; "" if
// there is none or it is not known.
func (g *gpuMemory) missing() string {
	want := g.needed
	if g.free == nil {
		return ""
	}
	if g.size > 0 {
		want = min(want, g.size/100*98) // the driver keeps some: no GPU has all of its memory free
	}
	for _, i := range g.indices {
		if free, ok := g.free(i); ok && free < want {
			return fmt.Sprintf("GPU %d has %s free, the model needs %s", i, free.Human(), want.Human())
		}
	}
	return ""
}

// leastFree is the free memory of the GPU that has the least; 0 if unknown.
func (g *gpuMemory) leastFree() (least functions.Bytes) {
	if g.free == nil {
		return 0
	}
	for _, i := range g.indices {
		free, ok := g.free(i)
		if !ok {
			return 0
		}
		if least == 0 || free < least {
			least = free
		}
	}
	return least
}

// causeGPUMemory begins the failure of a start or wake that waited for GPU memory.
const causeGPUMemory = "insufficient_gpu_memory"

// insufficient is the failure of a start or wake that waited for GPU memory. It
// names the processes that are not thaw's and hold it.
func (g *gpuMemory) insufficient(problem string) string {
	return g.addHolders(causeGPUMemory + ": " + problem)
}

// addHolders adds to a text the processes that are not thaw's and hold memory of the GPUs.
func (g *gpuMemory) addHolders(text string) string {
	if g.holders == nil {
		return text
	}
	for _, i := range g.indices {
		if holders := g.holders(i); holders != "" {
			text += fmt.Sprintf("; of GPU %d %s", i, holders)
		}
	}
	return text
}
