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
	here    bool // of the node, as it was last seen
	memory  functions.Bytes
	gpus    []GPU
	leaving int // replicas that are on their way out, in the world
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
	d.mix(m.node.ID)
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
