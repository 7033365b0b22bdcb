package functions

import "fmt"

// Unmet says why no node could hold a replica with these resources even if it were empty; ""
// where one could. GPUs that ail now, and memory that other programs hold now, count as there.
func (r Resources) Unmet(nodes []Node) string {
	var gpuMemory, memory Bytes
	gpus, large := 0, 0 // most on one node, and most that are large enough
	for i := range nodes {
		n := &nodes[i]
		fit := 0
		for _, g := range n.GPUs {
			gpuMemory = max(gpuMemory, g.MemoryTotal)
			if g.MemoryTotal == 0 || g.MemoryTotal >= r.GPUMemory {
				fit++
			}
		}
		gpus, large = max(gpus, len(n.GPUs)), max(large, fit)
		if fit < r.GPUs {
			continue
		}
		if n.Memory.Total == 0 || n.Memory.Total >= r.Memory {
			return ""
		}
		memory = max(memory, n.Memory.Total)
	}
	switch {
	case len(nodes) == 0:
		return ""
	case large >= r.GPUs:
		return fmt.Sprintf("it needs %s of host memory on one node, and the largest that it fits otherwise has %s", r.Memory.Human(),
			memory.Human())
	case gpus == 0:
		return fmt.Sprintf("it needs %s, and no node has one", GPUCount(r.GPUs))
	case large == 0:
		return fmt.Sprintf("it needs %s, and the largest GPU has %s", r.GPUsText(), gpuMemory.Human())
	}
	return fmt.Sprintf("it needs %s on one node, and the largest has %d", r.GPUsText(), large)
}

// GPUCount formats a number of GPUs.
func GPUCount(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

// GPUsText formats the GPUs of r, as in "2 GPUs with 80 GiB each".
func (r Resources) GPUsText() string {
	switch {
	case r.GPUMemory == 0:
		return GPUCount(r.GPUs)
	case r.GPUs == 1:
		return "a GPU with " + r.GPUMemory.Human()
	}
	return GPUCount(r.GPUs) + " with " + r.GPUMemory.Human() + " each"
}
