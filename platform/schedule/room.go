package schedule

import (
	"cmp"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// room is a node with what is free on it now, and what will be once everything
// that has been told to stop is gone.
type room struct {
	node    *Node
	now     free
	soon    free
	waiting bool // something is stopping here

	idle, busy []victim // what may make way, who goes first first; sleepers are among the idle
}

func (m *room) offers(busy bool) []victim {
	if busy {
		return m.busy
	}
	return m.idle
}

type free struct {
	memory functions.Bytes
	gpus   []slot
}

// slot is one GPU: how many replicas sit on it, and bytes left. whole counts
// those that were given it whole.
type slot struct {
	users, whole int
	left         functions.Bytes
}

func (d *decision) nodes() {
	d.index = make(map[string]int, len(d.world.Nodes))
	d.rooms = make([]room, 0, len(d.world.Nodes))
	for _, n := range d.world.Nodes {
		if !n.Here {
			if end := n.Seen + d.policy.Lease; end <= d.now {
				d.do(Action{Kind: Lose, Node: n.ID, Reason: "silent"})
				continue
			} else {
				d.at(end)
			}
		}
		gpus := make([]slot, 2*len(n.GPUs))
		for i, g := range n.GPUs {
			gpus[i].left = g.Memory
			gpus[len(n.GPUs)+i].left = g.Memory
		}
		k := len(n.GPUs)
		d.index[n.ID] = len(d.rooms)
		d.rooms = append(d.rooms, room{node: n,
			now:  free{memory: n.Memory, gpus: gpus[:k:k]},
			soon: free{memory: n.Memory, gpus: gpus[k:]}})
	}
}

// occupy takes the room of everything that runs or is on its way.
func (d *decision) occupy() {
	d.held, d.leaving, d.pledged, d.claimed = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, f := range d.world.Functions {
		for i := range f.Replicas {
			r := &f.Replicas[i]
			if !r.asleep() {
				d.held[f.Name.Team] += r.Take.GPUs
				if r.Stopping || r.CalledOff || r.Sinking {
					d.leaving[f.Name.Team] += r.Take.GPUs
				}
			}
			at, ok := d.index[r.Node]
			if !ok {
				continue
			}
			m := &d.rooms[at]
			res, gpus := r.takes()
			m.now.take(m.node, res, gpus)
			switch {
			case r.Stopping || r.CalledOff:
				m.waiting = true
			case r.Sinking:
				m.waiting = true
				m.soon.take(m.node, functions.Resources{Memory: res.Memory}, nil)
			default:
				m.soon.take(m.node, res, gpus)
			}
		}
	}
}

func (s *free) take(n *Node, res functions.Resources, gpus []int) { s.move(n, res, gpus, 1) }
func (s *free) give(n *Node, res functions.Resources, gpus []int) { s.move(n, res, gpus, -1) }

func (s *free) move(n *Node, res functions.Resources, gpus []int, sign int) {
	s.memory -= functions.Bytes(sign) * res.Memory
	for _, index := range gpus {
		for i := range n.GPUs {
			if n.GPUs[i].Index != index {
				continue
			}
			g := &s.gpus[i]
			g.users += sign
			if res.GPUMemory == 0 || n.GPUs[i].Memory == 0 {
				g.whole += sign
			}
			g.left -= functions.Bytes(sign) * res.GPUMemory
		}
	}
}

// fit finds GPUs for res, nil and true where none are needed. Shared GPUs are
// filled best fit first, so that whole ones stay whole.
func (s *free) fit(n *Node, res functions.Resources) ([]int, bool) {
	if res.Memory > 0 && s.memory < res.Memory {
		return nil, false
	}
	if res.GPUs == 0 {
		return nil, true
	}
	at := make([]int, 0, len(n.GPUs))
	for i := range n.GPUs {
		g := &s.gpus[i]
		switch {
		case n.GPUs[i].Sick || g.whole > 0:
		case res.GPUMemory == 0 || n.GPUs[i].Memory == 0:
			if g.users == 0 {
				at = append(at, i)
			}
		case g.left >= res.GPUMemory:
			at = append(at, i)
		}
	}
	if len(at) < res.GPUs {
		return nil, false
	}
	slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(s.gpus[a].left, s.gpus[b].left) })
	out := make([]int, res.GPUs)
	for i := range out {
		out[i] = n.GPUs[at[i]].Index
	}
	slices.Sort(out)
	return out, true
}

// holds reports whether just these GPUs have room for res.
func (s *free) holds(n *Node, res functions.Resources, gpus []int) bool {
	for _, index := range gpus {
		found := false
		for i := range n.GPUs {
			if n.GPUs[i].Index != index || n.GPUs[i].Sick {
				continue
			}
			g := &s.gpus[i]
			if res.GPUMemory == 0 || n.GPUs[i].Memory == 0 {
				found = g.users == 0
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

func (d *decision) reserve(m *room, f *Function, gpus []int) {
	m.now.take(m.node, f.Resources, gpus)
	m.soon.take(m.node, f.Resources, gpus)
	d.held[f.Name.Team] += f.Resources.GPUs
	d.pledged[f.Name.Team] += f.Resources.GPUs
}

// could reports whether res fits an empty node.
func (m *room) could(res functions.Resources) bool {
	if res.Memory > m.node.Memory {
		return false
	}
	n := 0
	for _, g := range m.node.GPUs {
		if !g.Sick && (g.Memory == 0 || g.Memory >= res.GPUMemory) {
			n++
		}
	}
	return n >= res.GPUs
}

func (s *free) unused() int {
	n := 0
	for i := range s.gpus {
		if s.gpus[i].users == 0 {
			n++
		}
	}
	return n
}
