package explain

import (
	"fmt"

	"github.com/thaw-dev/thaw/functions"
)

// Largest is the most that one node has of each resource, among the nodes that a model
// may come to as far as the resources before it say.
type Largest struct {
	Read  bool            // a node can read the model's source
	Admit bool            // one of these meets its requirements
	Store functions.Bytes // of the stores of these
	Stage bool            // one of these may have its checkpoint

	GPUs        int // of a node: of any kind, healthy, and large enough
	HealthyGPUs int
	FittingGPUs int
	GPUMemory   functions.Bytes // of a healthy GPU
	Memory      functions.Bytes // of the hosts with enough GPUs
	CPU         functions.CPU   // of those of them with enough memory
}

// TooSmall says what no node has enough of for a model with these resources, a
// checkpoint of this size, and these requirements on nodes.
func (l *Largest) TooSmall(res functions.Resources, size functions.Bytes, requires string) string {
	switch {
	case !l.Read:
		return "its source is a folder of a machine that no agent runs on"
	case !l.Admit && requires == "":
		return "every node keeps out pods that do not say that they bear with its taints"
	case !l.Admit:
		return "no node meets what its pods ask of one: " + requires
	case !l.Stage:
		return fmt.Sprintf("its checkpoint has %s, and the largest store takes %s", size.Human(), l.Store.Human())
	case l.FittingGPUs >= res.GPUs && l.Memory >= res.Memory && l.CPU < res.CPU:
		return fmt.Sprintf("it needs %s on one node, and the largest that it fits otherwise has %s", res.CPU.Human(), l.CPU.Human())
	case l.FittingGPUs >= res.GPUs && l.Memory >= res.Memory:
		return "no node that it fits takes one more pod"
	case l.FittingGPUs >= res.GPUs && res.GPUs > 0:
		return fmt.Sprintf("it needs %s of host memory beside its GPUs, and the largest node with so many has %s", res.Memory.Human(),
			l.Memory.Human())
	case l.FittingGPUs >= res.GPUs:
		return fmt.Sprintf("it needs %s of host memory on one node, and the largest has %s", res.Memory.Human(), l.Memory.Human())
	case l.GPUs == 0:
		return fmt.Sprintf("it needs %s, and no node has one", functions.GPUCount(res.GPUs))
	case l.FittingGPUs == 0 && l.HealthyGPUs > 0:
		return fmt.Sprintf("it needs %s, and the largest GPU has %s", res.GPUsText(), l.GPUMemory.Human())
	case l.HealthyGPUs < l.GPUs:
		return fmt.Sprintf("it needs %s on one node, and the largest has %d that are healthy", res.GPUsText(), l.FittingGPUs)
	}
	return fmt.Sprintf("it needs %s on one node, and the largest has %d", res.GPUsText(), l.FittingGPUs)
}

// MissingGPUs says that the GPUs of res are in use.
func MissingGPUs(res functions.Resources) string {
	return res.GPUsText() + " on one node, and nothing that holds them"
}

// MissingMemory says that the host memory of res is in use.
func MissingMemory(res functions.Resources) string {
	return res.Memory.Human() + " of host memory, and nothing that holds it"
}
