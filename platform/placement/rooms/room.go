package rooms

import (
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// GPU is one GPU of a node. Memory 0 is unknown: such a GPU is reserved whole.
type GPU struct {
	Index     int
	Memory    functions.Bytes
	Unhealthy bool // nothing is placed on it, and its replicas are moved
	Group     int  // GPUs of one group have the fastest links to each other (NVLink, one socket)
	Whole     bool // each replica gets it whole, as from Kubernetes, though its memory is known
}

// whole reports whether replicas do not share the GPU by their memory.
func (g *GPU) whole() bool { return g.Whole || g.Memory == 0 }

// holds reports whether the empty GPU has so much memory, or its memory is unknown.
func (g *GPU) holds(memory functions.Bytes) bool { return g.Memory == 0 || g.Memory >= memory }

// Host is the unreserved part of a node's resources other than GPUs.
type Host struct {
	Memory functions.Bytes
	CPU    functions.CPU
	Pods   int
}

// Move subtracts res from h, or adds it with sign -1.
func (h *Host) Move(res functions.Resources, sign int) {
	h.Memory -= functions.Bytes(sign) * res.Memory
	h.CPU -= functions.CPU(sign) * res.CPU
	h.Pods -= sign * res.Pods
}

// Covers reports whether h suffices for res. A need of 0 is covered even if h is
// overcommitted.
func (h *Host) Covers(res functions.Resources) bool {
	return (res.Memory <= 0 || h.Memory >= res.Memory) && (res.CPU <= 0 || h.CPU >= res.CPU) && (res.Pods <= 0 || h.Pods >= res.Pods)
}

// Overcommitted reports whether more of h is reserved than exists.
func (h *Host) Overcommitted() bool { return h.Memory < 0 || h.CPU < 0 || h.Pods < 0 }

// Resize adjusts h to the change of a node's total resources from was to is.
func (h *Host) Resize(is, was Host) {
	h.Memory += is.Memory - was.Memory
	h.CPU += is.CPU - was.CPU
	h.Pods += is.Pods - was.Pods
}

// Slot is the unreserved part of one GPU: how many replicas use it, how many of them
// reserve it whole, and the bytes left.
type Slot struct {
	users, whole int
	left         functions.Bytes
}

// Room is the unreserved part of a node.
type Room struct {
	Host
	gpus  []GPU
	slots []Slot // of each GPU
}

// New returns the room of an empty node. slots backs it: one for each GPU.
func New(host Host, gpus []GPU, slots []Slot) Room {
	for i := range gpus {
		slots[i] = Slot{left: gpus[i].Memory}
	}
	return Room{Host: host, gpus: gpus, slots: slots}
}

func (r *Room) GPUs() []GPU { return r.gpus }

// Clone returns a copy that shares no state with r.
func (r *Room) Clone() Room { return Room{Host: r.Host, gpus: r.gpus, slots: slices.Clone(r.slots)} }

// Set makes r a copy of o in the memory that r has.
func (r *Room) Set(o *Room) {
	r.Host, r.gpus, r.slots = o.Host, o.gpus, append(r.slots[:0], o.slots...)
}

// Clear makes r a room with nothing in it, in the memory that r has.
func (r *Room) Clear(gpus []GPU) {
	r.Host, r.gpus, r.slots = Host{}, gpus, append(r.slots[:0], make([]Slot, len(gpus))...)
}

// Take subtracts what a replica reserves, on GPUs by their index in the node's numbering.
func (r *Room) Take(res functions.Resources, gpus []int) { r.Move(res, gpus, 1) }

// Give adds what a replica reserved.
func (r *Room) Give(res functions.Resources, gpus []int) { r.Move(res, gpus, -1) }

// Move is Take, or Give with sign -1.
func (r *Room) Move(res functions.Resources, gpus []int, sign int) {
	r.Host.Move(res, sign)
	for _, index := range gpus {
		for i := range r.gpus {
			if r.gpus[i].Index != index {
				continue
			}
			g := &r.slots[i]
			g.users += sign
			if res.GPUMemory == 0 || r.gpus[i].whole() {
				g.whole += sign
			}
			g.left -= functions.Bytes(sign) * res.GPUMemory
		}
	}
}

// FitsGPU reports whether GPU i has so much memory left; 0 asks for the whole GPU.
func (r *Room) FitsGPU(i int, memory functions.Bytes) bool {
	return r.gpus[i].fits(&r.slots[i], memory)
}

func (g *GPU) fits(slot *Slot, memory functions.Bytes) bool {
	switch {
	case g.Unhealthy || slot.whole > 0:
		return false
	case memory == 0 || g.whole():
		return slot.users <= 0 && g.holds(memory)
	}
	return slot.left >= memory
}

func (r *Room) LackingGPUs(res functions.Resources) int {
	left := res.GPUs
	for i := range r.gpus {
		if left <= 0 {
			break
		}
		if r.FitsGPU(i, res.GPUMemory) {
			left--
		}
	}
	return left
}

// Fits reports whether res fits, without choosing GPUs.
func (r *Room) Fits(res functions.Resources) bool { return r.Covers(res) && r.LackingGPUs(res) == 0 }

// MayFitWith reports whether res fits r together with more of the same node. The two may
// overlap: false is certain.
func (r *Room) MayFitWith(more *Room, res functions.Resources) bool {
	host := Host{r.Memory + more.Memory, r.CPU + more.CPU, r.Pods + more.Pods}
	if !host.Covers(res) {
		return false
	}
	left := res.GPUs
	for i := 0; i < len(r.gpus) && left > 0; i++ {
		a, b := &r.slots[i], &more.slots[i]
		if r.gpus[i].fits(&Slot{a.users + b.users, a.whole + b.whole, a.left + b.left}, res.GPUMemory) {
			left--
		}
	}
	return left <= 0
}

// FitsEmpty reports whether res fits an empty node.
func FitsEmpty(host *Host, gpus []GPU, res functions.Resources) bool {
	if !host.Covers(res) {
		return false
	}
	left := res.GPUs
	for i := 0; i < len(gpus) && left > 0; i++ {
		if !gpus[i].Unhealthy && gpus[i].holds(res.GPUMemory) {
			left--
		}
	}
	return left <= 0
}

// maxGPUs is how many GPUs of a node are considered; each part of a GPU counts as one.
const maxGPUs = 64

// Choice is the result of Pick: the chosen GPUs and what stays free.
type Choice struct {
	gpus       [maxGPUs]uint8 // indices into the node's GPUs
	n          int
	Groups     int  // number of groups the chosen GPUs are of
	Unused     int  // healthy GPUs that stay unused
	Healthy    int  // healthy GPUs of the node
	Whole      bool // no GPU of the node was in use
	WholeGroup bool // they open a group that was not in use
}

// Pick chooses GPUs for res, which must fit. All are of one group if one has
// enough: the group with the fewest to spare, so that whole groups stay free; else of
// the largest groups, so that they are few. Within a group, shared GPUs are filled
// best fit first, so that whole ones stay free.
func (r *Room) Pick(res functions.Resources) (p Choice) {
	p.Whole = true
	for i := range r.gpus {
		if r.gpus[i].Unhealthy {
			continue
		}
		p.Healthy++
		if r.slots[i].users == 0 {
			p.Unused++
		} else {
			p.Whole = false
		}
	}
	var taken [maxGPUs]bool
	for p.n < min(res.GPUs, len(p.gpus)) {
		// The group that supplies all missing GPUs with the fewest spare, else the most.
		group, gives, opens, spare, used := 0, 0, 0, 0, true
		left := res.GPUs - p.n
		for i := range r.gpus {
			g := r.gpus[i].Group
			if r.groupSeen(i) || i >= len(taken) {
				continue
			}
			have, shared, idle, busy := 0, 0, 0, false
			for j := i; j < len(r.gpus) && j < len(taken); j++ {
				if r.gpus[j].Group != g || r.gpus[j].Unhealthy {
					continue
				}
				if r.slots[j].users == 0 {
					idle++
				} else {
					busy = true
				}
				if !taken[j] && r.FitsGPU(j, res.GPUMemory) {
					have++
					if r.slots[j].users > 0 {
						shared++
					}
				}
			}
			open, better := max(0, min(left, have)-shared), false // unused GPUs that this choice opens
			switch {
			case have == 0:
			case gives == 0:
				better = true
			case (have >= left) != (gives >= left):
				better = have >= left
			case have < left:
				better = have > gives
			default:
				better = open < opens || open == opens && idle < spare
			}
			if better {
				group, gives, opens, spare, used = g, have, open, idle, busy
			}
		}
		if gives == 0 {
			return p
		}
		p.Groups++
		if !used && gives > left {
			p.WholeGroup = true
		}
		for range min(left, gives) {
			at := -1
			for i := range min(len(r.gpus), len(taken)) {
				if r.gpus[i].Group == group && !taken[i] && r.FitsGPU(i, res.GPUMemory) && (at < 0 || r.slots[i].left < r.slots[at].left) {
					at = i
				}
			}
			taken[at] = true
			if r.slots[at].users == 0 {
				p.Unused--
			}
			p.gpus[p.n] = uint8(at)
			p.n++
		}
	}
	return p
}

// groupSeen reports whether a GPU before i is of its group.
func (r *Room) groupSeen(i int) bool {
	for j := range i {
		if r.gpus[j].Group == r.gpus[i].Group {
			return true
		}
	}
	return false
}

// Choose returns GPUs for res; nil and true if res needs none.
func (r *Room) Choose(res functions.Resources) ([]int, bool) {
	if !r.Fits(res) {
		return nil, false
	}
	if res.GPUs == 0 {
		return nil, true
	}
	p := r.Pick(res)
	if p.n < res.GPUs {
		return nil, false
	}
	out := make([]int, res.GPUs)
	for i := range out {
		out[i] = r.gpus[p.gpus[i]].Index
	}
	slices.Sort(out)
	return out, true
}

// FitsOn reports whether exactly these GPUs have room for res.
func (r *Room) FitsOn(res functions.Resources, gpus []int) bool {
	for _, index := range gpus {
		found := false
		for i := range r.gpus {
			if r.gpus[i].Index != index || r.gpus[i].Unhealthy {
				continue
			}
			g := &r.slots[i]
			if res.GPUMemory == 0 || r.gpus[i].whole() {
				found = g.users == 0 && r.gpus[i].holds(res.GPUMemory)
			} else {
				found = g.whole == 0 && g.left >= res.GPUMemory
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// Packing is the room of several nodes, in which replicas are placed one after the other.
type Packing []Room

// Place takes what a replica reserves on the first node that has room for it; false where
// none has.
func (p Packing) Place(res functions.Resources) bool {
	for i := range p {
		if gpus, ok := p[i].Choose(res); ok {
			p[i].Take(res, gpus)
			return true
		}
	}
	return false
}
