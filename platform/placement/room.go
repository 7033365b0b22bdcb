package placement

import (
	"math"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// nodeRoom is a node with its resources that are free now, and those that will be once
// its stopping replicas are gone.
type nodeRoom struct {
	node    *Node
	here    bool // Node.Here when the room was built
	host    hostRoom
	gpus    []GPU
	leaving int // replicas that are stopping or falling asleep, without this plan's actions
	now     freeRoom
	soon    freeRoom
	held    *freeRoom // free now, without this plan's promises
	waiting bool      // replicas are stopping or falling asleep here

	idle, busy []victim // evictable replicas in eviction order; sleepers are among the idle
}

func (r *nodeRoom) offers(busy bool) []victim {
	if busy {
		return r.busy
	}
	return r.idle
}

// freeRoom is the unreserved part of a node.
type freeRoom struct {
	hostRoom
	gpus []gpuSlot
}

// hostRoom is the unreserved part of a node's resources other than GPUs.
type hostRoom struct {
	memory functions.Bytes
	cpu    functions.CPU
	pods   int
}

// host is the host room of n; resources that n does not report are unlimited.
func (n *Node) host() hostRoom {
	h := hostRoom{n.Memory, n.CPU, n.Pods}
	if h.cpu == 0 {
		h.cpu = math.MaxInt64 / 4
	}
	if h.pods == 0 {
		h.pods = math.MaxInt32
	}
	return h
}

// move subtracts res from h, or adds it with sign -1.
func (h *hostRoom) move(res functions.Resources, sign int) {
	h.memory -= functions.Bytes(sign) * res.Memory
	h.cpu -= functions.CPU(sign) * res.CPU
	h.pods -= sign * res.Pods
}

// covers reports whether h suffices for res. A need of 0 is covered even if h is
// overcommitted.
func (h *hostRoom) covers(res functions.Resources) bool {
	return (res.Memory <= 0 || h.memory >= res.Memory) && (res.CPU <= 0 || h.cpu >= res.CPU) && (res.Pods <= 0 || h.pods >= res.Pods)
}

// overcommitted reports whether more of h is reserved than exists.
func (h *hostRoom) overcommitted() bool { return h.memory < 0 || h.cpu < 0 || h.pods < 0 }

// resize adjusts h to the change of a node's total resources from was to is.
func (h *hostRoom) resize(is, was hostRoom) {
	h.memory += is.memory - was.memory
	h.cpu += is.cpu - was.cpu
	h.pods += is.pods - was.pods
}

// gpuSlot is one GPU: how many replicas use it, and the bytes left. whole counts the
// replicas that reserve the whole GPU.
type gpuSlot struct {
	users, whole int
	left         functions.Bytes
}

func (r *freeRoom) take(n *Node, res functions.Resources, gpus []int) { r.move(n, res, gpus, 1) }
func (r *freeRoom) give(n *Node, res functions.Resources, gpus []int) { r.move(n, res, gpus, -1) }

func (r *freeRoom) move(n *Node, res functions.Resources, gpus []int, sign int) {
	r.hostRoom.move(res, sign)
	for _, index := range gpus {
		for i := range n.GPUs {
			if n.GPUs[i].Index != index {
				continue
			}
			g := &r.gpus[i]
			g.users += sign
			if res.GPUMemory == 0 || n.GPUs[i].whole() {
				g.whole += sign
			}
			g.left -= functions.Bytes(sign) * res.GPUMemory
		}
	}
}

// maxGPUs is how many GPUs of a node are considered; each part of a GPU counts as one.
const maxGPUs = 64

// gpuChoice is the result of pickGPUs: the chosen GPUs and what stays free.
type gpuChoice struct {
	gpus       [maxGPUs]uint8 // indices into Node.GPUs
	n          int
	groups     int  // number of groups the chosen GPUs are of
	unused     int  // healthy GPUs that stay unused
	healthy    int  // healthy GPUs of the node
	whole      bool // no GPU of the node was in use
	wholeGroup bool // they open a group that was not in use
}

// gpuFits reports whether GPU i has room for res.
func (r *freeRoom) gpuFits(n *Node, i int, res functions.Resources) bool {
	g := &r.gpus[i]
	switch {
	case n.GPUs[i].Unhealthy || g.whole > 0:
		return false
	case res.GPUMemory == 0 || n.GPUs[i].whole():
		return g.users == 0 && n.GPUs[i].holds(res.GPUMemory)
	}
	return g.left >= res.GPUMemory
}

// pickGPUs chooses GPUs for res, which must fit. All are of one group if one has
// enough: the group with the fewest to spare, so that whole groups stay free; else of
// the largest groups, so that they are few. Within a group, shared GPUs are filled
// best fit first, so that whole ones stay free.
func (r *freeRoom) pickGPUs(n *Node, res functions.Resources) (p gpuChoice) {
	p.whole = true
	for i := range n.GPUs {
		if n.GPUs[i].Unhealthy {
			continue
		}
		p.healthy++
		if r.gpus[i].users == 0 {
			p.unused++
		} else {
			p.whole = false
		}
	}
	var taken [maxGPUs]bool
	for p.n < min(res.GPUs, len(p.gpus)) {
		// The group that supplies all missing GPUs with the fewest spare, else the most.
		group, gives, opens, spare, used := 0, 0, 0, 0, true
		left := res.GPUs - p.n
		for i := range n.GPUs {
			g := n.GPUs[i].Group
			if r.groupSeen(n, i) || i >= len(taken) {
				continue
			}
			have, shared, idle, busy := 0, 0, 0, false
			for j := i; j < len(n.GPUs) && j < len(taken); j++ {
				if n.GPUs[j].Group != g || n.GPUs[j].Unhealthy {
					continue
				}
				if r.gpus[j].users == 0 {
					idle++
				} else {
					busy = true
				}
				if !taken[j] && r.gpuFits(n, j, res) {
					have++
					if r.gpus[j].users > 0 {
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
		p.groups++
		if !used && gives > left {
			p.wholeGroup = true
		}
		for range min(left, gives) {
			at := -1
			for i := range n.GPUs {
				if i < len(taken) && n.GPUs[i].Group == group && !taken[i] && r.gpuFits(n, i, res) && (at < 0 || r.gpus[i].left < r.gpus[at].left) {
					at = i
				}
			}
			taken[at] = true
			if r.gpus[at].users == 0 {
				p.unused--
			}
			p.gpus[p.n] = uint8(at)
			p.n++
		}
	}
	return p
}

// groupSeen reports whether a GPU before i is of its group.
func (r *freeRoom) groupSeen(n *Node, i int) bool {
	for j := range i {
		if n.GPUs[j].Group == n.GPUs[i].Group {
			return true
		}
	}
	return false
}

// choose returns GPUs for res; nil and true if res needs none.
func (r *freeRoom) choose(n *Node, res functions.Resources) ([]int, bool) {
	if !r.fits(n, res) {
		return nil, false
	}
	if res.GPUs == 0 {
		return nil, true
	}
	p := r.pickGPUs(n, res)
	if p.n < res.GPUs {
		return nil, false
	}
	out := make([]int, res.GPUs)
	for i := range out {
		out[i] = n.GPUs[p.gpus[i]].Index
	}
	slices.Sort(out)
	return out, true
}

// fitsOn reports whether exactly these GPUs have room for res.
func (r *freeRoom) fitsOn(n *Node, res functions.Resources, gpus []int) bool {
	for _, index := range gpus {
		found := false
		for i := range n.GPUs {
			if n.GPUs[i].Index != index || n.GPUs[i].Unhealthy {
				continue
			}
			g := &r.gpus[i]
			if res.GPUMemory == 0 || n.GPUs[i].whole() {
				found = g.users == 0 && n.GPUs[i].holds(res.GPUMemory)
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

func (d *decision) reserve(m *nodeRoom, f *Function, gpus []int) {
	d.mixPromise(m.node.ID)
	d.reserved = true
	m.now.take(m.node, f.Resources, gpus)
	m.soon.take(m.node, f.Resources, gpus)
	d.held[f.Name.Team] += f.Resources.GPUs
	d.pledged[f.Name.Team] += f.Resources.GPUs
}

// fitsEmpty reports whether res fits an empty node.
func (r *nodeRoom) fitsEmpty(res functions.Resources) bool {
	if empty := r.node.host(); !empty.covers(res) {
		return false
	}
	n := 0
	for _, g := range r.node.GPUs {
		if !g.Unhealthy && g.holds(res.GPUMemory) {
			n++
		}
	}
	return n >= res.GPUs
}
