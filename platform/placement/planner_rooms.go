package placement

import (
	"cmp"
	"math"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// updateNodes finds nodes whose lease has ended, and rebuilds the rooms if the set of
// nodes or their GPUs changed. It watches only the node whose lease ends first: the
// other leases can only have been extended.
func (c *Planner) updateNodes() {
	lease := c.policy.Lease
	if !c.scanned || len(c.lost) > 0 || c.first != nil && (c.first.Seen+lease != c.firstDue || c.firstDue <= c.now) {
		c.scanned, c.first, c.firstDue = true, nil, math.MaxInt64
		for id, n := range c.nodes {
			_, known := c.index[id]
			lost := !n.Here && n.Seen+lease <= c.now
			c.stale = c.stale || lost == known
			if end := n.Seen + lease; !n.Here && !lost && end < c.firstDue {
				c.first, c.firstDue = n, end
			}
		}
	}
	if c.first != nil {
		c.dueAt(c.firstDue)
	}
	c.updateSmallestStore()
	if c.stale {
		c.rebuild()
	}
	for _, n := range c.lost {
		c.addAction(Action{Kind: MarkNodeLost, Node: n.ID, Reason: "silent"})
	}
}

// updateSmallestStore finds the smallest store of a node. A function with a larger
// checkpoint is a class of its own: its eligible nodes depend on its size and on which
// nodes hold it.
func (c *Planner) updateSmallestStore() {
	if c.stored {
		return
	}
	c.stored = true
	least := functions.Bytes(math.MaxInt64)
	for _, n := range c.nodes {
		if n.Store.Bytes > 0 {
			least = min(least, n.Store.Bytes)
		}
	}
	if least == c.store {
		return
	}
	c.store = least
	for _, e := range c.living {
		if e.class != nil && e.f.Size > 0 && !e.dirty {
			e.dirty = true
			c.touched = append(c.touched, e)
		}
	}
}

// rebuild makes the rooms from the nodes, and marks every function that holds
// resources as changed.
func (c *Planner) rebuild() {
	c.stale = false
	c.helpCount++
	nodes := make([]*Node, 0, len(c.nodes))
	c.lost = c.lost[:0]
	gpus := 0
	for _, n := range c.nodes {
		if !n.Here && n.Seen+c.policy.Lease <= c.now {
			c.lost = append(c.lost, n)
			continue
		}
		nodes = append(nodes, n)
		gpus += len(n.GPUs)
	}
	slices.SortFunc(nodes, compareNodes)
	slices.SortFunc(c.lost, compareNodes)
	clear(c.index)
	clear(c.count)
	clear(c.held)
	clear(c.leaving)
	c.rooms = make([]nodeRoom, 0, len(nodes))
	c.slots, c.worldSlots = make([]gpuSlot, 2*gpus), make([]gpuSlot, 2*gpus)
	c.worldRooms = make([]freeRoom, 0, 2*len(nodes))
	at := 0
	for _, n := range nodes {
		k := len(n.GPUs)
		for i, g := range n.GPUs {
			for _, s := range [][]gpuSlot{c.slots, c.worldSlots} {
				s[at+i].left, s[at+k+i].left = g.Memory, g.Memory
			}
		}
		cut := func(s []gpuSlot, from int) freeRoom {
			return freeRoom{hostRoom: n.host(), gpus: s[from : from+k : from+k]}
		}
		c.index[n.ID] = len(c.rooms)
		c.rooms = append(c.rooms, nodeRoom{node: n, here: n.Here, host: n.host(), gpus: slices.Clone(n.GPUs), now: cut(c.slots, at), soon: cut(c.slots, at+k)})
		c.worldRooms = append(c.worldRooms, cut(c.worldSlots, at), cut(c.worldSlots, at+k))
		c.rooms[len(c.rooms)-1].held = &c.worldRooms[len(c.worldRooms)-2]
		at += 2 * k
	}
	for _, e := range c.functions { // collectLooks sorts touched
		if len(e.reservations) > 0 || e.alive || len(e.offers) > 0 {
			e.reservations, e.offers = e.reservations[:0], e.offers[:0]
			if !e.dirty {
				e.dirty = true
				c.touched = append(c.touched, e)
			}
		}
	}
}

// compareNodes orders nodes: the agent in this process first, then by id.
func compareNodes(a, b *Node) int {
	if a.Here != b.Here {
		if a.Here {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.ID, b.ID)
}

// updateReservations reserves the resources of all replicas of e.
func (c *Planner) updateReservations(e *functionEntry) {
	was := e.reservations
	now := c.spareReservations[:0]
	for i := range e.f.Replicas {
		r := &e.f.Replicas[i]
		h := reservation{node: r.Node, team: e.f.Name.Team}
		if !r.asleep() {
			h.gpus.held = r.Reserved.GPUs
			if _, ok := c.index[r.Node]; !ok || r.Stopping || r.Cancelled || r.GoingToSleep {
				h.gpus.leaving = r.Reserved.GPUs // a replica on a lost node counts as leaving
			}
		}
		h.now, h.nowGPUs = r.reserves()
		switch {
		case r.Stopping || r.Cancelled:
			h.waiting = 1
		case r.GoingToSleep:
			h.waiting = 1
			h.soon = h.now.OffGPUs()
		default:
			h.soon, h.soonGPUs = h.now, h.nowGPUs
		}
		now = append(now, h)
	}
	if slices.EqualFunc(was, now, reservation.equal) {
		c.spareReservations = now
		return
	}
	c.releaseReservations(e)
	for i := range now {
		c.applyReservation(&now[i], 1)
	}
	e.reservations, c.spareReservations = now, was[:0]
}

func (h reservation) equal(o reservation) bool {
	return h.node == o.node && h.team == o.team && h.now == o.now && h.soon == o.soon && h.waiting == o.waiting && h.gpus == o.gpus &&
		slices.Equal(h.nowGPUs, o.nowGPUs) && slices.Equal(h.soonGPUs, o.soonGPUs)
}

// releaseReservations removes e's reservations.
func (c *Planner) releaseReservations(e *functionEntry) {
	for i := range e.reservations {
		c.applyReservation(&e.reservations[i], -1)
	}
	e.reservations = e.reservations[:0]
}

// applyReservation applies h to its node and team, or with sign -1 removes it.
func (c *Planner) applyReservation(h *reservation, sign int) {
	c.helpCount++ // room or a share of a team's maximum may have become free
	p := c.count[h.team]
	p.held += sign * h.gpus.held
	p.leaving += sign * h.gpus.leaving
	c.count[h.team] = p
	c.held[h.team], c.leaving[h.team] = p.held, p.leaving
	at, ok := c.index[h.node]
	if !ok || c.stale {
		return
	}
	m := &c.rooms[at]
	m.now.move(m.node, h.now, h.nowGPUs, sign)
	m.soon.move(m.node, h.soon, h.soonGPUs, sign)
	c.worldRooms[2*at].move(m.node, h.now, h.nowGPUs, sign)
	c.worldRooms[2*at+1].move(m.node, h.soon, h.soonGPUs, sign)
	m.leaving += sign * h.waiting
	m.waiting = m.leaving > 0
}

// relieveHostMemory stops sleepers, the longest asleep first, on nodes whose host
// resources are overcommitted: a budget shrank, replicas were added, or sleep takes
// more memory than expected.
func (c *Planner) relieveHostMemory() {
	for i := range c.rooms {
		m := &c.rooms[i]
		for m.soon.overcommitted() {
			var in *functionEntry
			var r *Replica
			for _, e := range c.living {
				for j := range e.f.Replicas {
					if s := &e.f.Replicas[j]; s.Node == m.node.ID && s.asleep() && !s.Stopping && !c.hasAction(s) && (r == nil || s.SleptAt < r.SleptAt) {
						in, r = e, s
					}
				}
			}
			if r == nil {
				break
			}
			c.stopReplica(in.f, r, "pressure")
			// Its function is evaluated with this action, in this plan and the next.
			c.reopen(in)
			if !in.look {
				in.look = true
				at, _ := slices.BinarySearchFunc(c.looking, in, func(a, b *functionEntry) int { return cmp.Compare(a.born, b.born) })
				c.looking = slices.Insert(c.looking, at, in)
			}
		}
	}
}

// undoPromises reverts the plan's promises: rooms and team counts reflect the world
// again.
func (c *Planner) undoPromises() {
	if len(c.actions) == 0 && !c.placed {
		return
	}
	c.placed = false
	copy(c.slots, c.worldSlots)
	for i := range c.rooms {
		m := &c.rooms[i]
		m.now.hostRoom, m.soon.hostRoom = c.worldRooms[2*i].hostRoom, c.worldRooms[2*i+1].hostRoom
		m.waiting = m.leaving > 0
	}
	back := func(team string) {
		p := c.count[team]
		c.held[team], c.leaving[team] = p.held, p.leaving
	}
	for i := range c.actions {
		back(c.actions[i].Function.Team)
	}
	for _, k := range c.classList {
		back(k.team)
	}
	clear(c.pledged)
	clear(c.claimed)
}
