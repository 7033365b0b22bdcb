package placement

import (
	"cmp"
	"math"
	"slices"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// updateNodes finds nodes whose lease has ended, and rebuilds the rooms if the set of
// nodes or their GPUs changed. It watches only the node whose lease ends first: the
// other leases can only have been extended.
func (p *Planner) updateNodes() {
	lease := p.policy.Lease
	if !p.firstValid || len(p.lost) > 0 || p.first != nil && (p.first.Seen+lease != p.firstDue || p.firstDue <= p.now) {
		p.firstValid, p.first, p.firstDue = true, nil, math.MaxInt64
		for id, n := range p.nodes {
			_, known := p.index[id]
			lost := !n.Here && n.Seen+lease <= p.now
			p.stale = p.stale || lost == known
			if end := n.Seen + lease; !n.Here && !lost && end < p.firstDue {
				p.first, p.firstDue = n, end
			}
		}
	}
	if p.first != nil {
		p.dueAt(p.firstDue)
	}
	p.updateSmallestStore()
	if p.stale {
		p.rebuild()
	}
	for _, n := range p.lost {
		p.addAction(Action{Kind: MarkNodeLost, Node: n.ID, Reason: "silent"})
	}
}

// updateSmallestStore finds the smallest store of a node. A function with a larger
// checkpoint is a class of its own: its eligible nodes depend on its size and on which
// nodes hold it.
func (p *Planner) updateSmallestStore() {
	if p.smallestStoreValid {
		return
	}
	p.smallestStoreValid = true
	least := functions.Bytes(math.MaxInt64)
	for _, n := range p.nodes {
		if n.Store.Bytes > 0 {
			least = min(least, n.Store.Bytes)
		}
	}
	if least == p.smallestStore {
		return
	}
	p.smallestStore = least
	for _, e := range p.living {
		if e.class != nil && e.f.Size > 0 && !e.dirty {
			e.dirty = true
			p.touched = append(p.touched, e)
		}
	}
}

// rebuild makes the rooms from the nodes, and marks every function that holds
// resources as changed.
func (p *Planner) rebuild() {
	p.stale = false
	p.helpCount++
	nodes := make([]*Node, 0, len(p.nodes))
	p.lost = p.lost[:0]
	gpus := 0
	for _, n := range p.nodes {
		if !n.Here && n.Seen+p.policy.Lease <= p.now {
			p.lost = append(p.lost, n)
			continue
		}
		nodes = append(nodes, n)
		gpus += len(n.GPUs)
	}
	slices.SortFunc(nodes, compareNodes)
	slices.SortFunc(p.lost, compareNodes)
	clear(p.index)
	clear(p.count)
	clear(p.held)
	clear(p.leaving)
	p.rooms = make([]nodeRoom, 0, len(nodes))
	p.slots, p.worldSlots = make([]rooms.Slot, 2*gpus), make([]rooms.Slot, 2*gpus)
	p.worldRooms = make([]rooms.Room, 0, 2*len(nodes))
	at := 0
	for _, n := range nodes {
		k := len(n.GPUs)
		own := slices.Clone(n.GPUs)
		room := func(s []rooms.Slot, from int) rooms.Room { return rooms.New(n.host(), own, s[from:from+k:from+k]) }
		p.index[n.ID] = len(p.rooms)
		p.rooms = append(p.rooms, nodeRoom{node: n, here: n.Here, host: n.host(), gpus: own, now: room(p.slots, at), soon: room(p.slots, at+k)})
		p.worldRooms = append(p.worldRooms, room(p.worldSlots, at), room(p.worldSlots, at+k))
		p.rooms[len(p.rooms)-1].held = &p.worldRooms[len(p.worldRooms)-2]
		at += 2 * k
	}
	for _, e := range p.functions { // collectLooks sorts touched
		if len(e.reservations) > 0 || e.alive || len(e.offers) > 0 {
			e.reservations, e.offers = e.reservations[:0], e.offers[:0]
			if !e.dirty {
				e.dirty = true
				p.touched = append(p.touched, e)
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
func (p *Planner) updateReservations(e *functionEntry) {
	was := e.reservations
	now := p.spareReservations[:0]
	for i := range e.f.Replicas {
		r := &e.f.Replicas[i]
		h := reservation{node: r.Node, team: e.f.Name.Team}
		if !r.asleep() {
			h.gpus.held = r.Reserved.GPUs
			if _, ok := p.index[r.Node]; !ok || r.Stopping || r.Cancelled || r.GoingToSleep {
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
		p.spareReservations = now
		return
	}
	p.releaseReservations(e)
	for i := range now {
		p.applyReservation(&now[i], 1)
	}
	e.reservations, p.spareReservations = now, was[:0]
}

func (r reservation) equal(o reservation) bool {
	return r.node == o.node && r.team == o.team && r.now == o.now && r.soon == o.soon && r.waiting == o.waiting && r.gpus == o.gpus &&
		slices.Equal(r.nowGPUs, o.nowGPUs) && slices.Equal(r.soonGPUs, o.soonGPUs)
}

// releaseReservations removes e's reservations.
func (p *Planner) releaseReservations(e *functionEntry) {
	for i := range e.reservations {
		p.applyReservation(&e.reservations[i], -1)
	}
	e.reservations = e.reservations[:0]
}

// applyReservation applies h to its node and team, or with sign -1 removes it.
func (p *Planner) applyReservation(h *reservation, sign int) {
	p.helpCount++ // room or a share of a team's maximum may have become free
	counts := p.count[h.team]
	counts.held += sign * h.gpus.held
	counts.leaving += sign * h.gpus.leaving
	p.count[h.team] = counts
	p.held[h.team], p.leaving[h.team] = counts.held, counts.leaving
	at, ok := p.index[h.node]
	if !ok || p.stale {
		return
	}
	m := &p.rooms[at]
	m.now.Move(h.now, h.nowGPUs, sign)
	m.soon.Move(h.soon, h.soonGPUs, sign)
	p.worldRooms[2*at].Move(h.now, h.nowGPUs, sign)
	p.worldRooms[2*at+1].Move(h.soon, h.soonGPUs, sign)
	m.leaving += sign * h.waiting
	m.waiting = m.leaving > 0
}

// relieveHostMemory stops sleepers, the longest asleep first, on nodes whose host
// resources are overcommitted: a budget shrank, replicas were added, or sleep takes
// more memory than expected.
func (p *Planner) relieveHostMemory() {
	for i := range p.rooms {
		m := &p.rooms[i]
		for m.soon.Overcommitted() {
			var in *functionEntry
			var r *Replica
			for _, e := range p.living {
				for j := range e.f.Replicas {
					if s := &e.f.Replicas[j]; s.Node == m.node.ID && s.asleep() && !s.Stopping && !p.hasAction(s) && (r == nil || s.SleptAt < r.SleptAt) {
						in, r = e, s
					}
				}
			}
			if r == nil {
				break
			}
			p.stopReplica(in.f, r, "pressure")
			// Its function is evaluated with this action, in this plan and the next.
			p.reopen(in)
			if !in.look {
				in.look = true
				at, _ := slices.BinarySearchFunc(p.looking, in, func(a, b *functionEntry) int { return cmp.Compare(a.born, b.born) })
				p.looking = slices.Insert(p.looking, at, in)
			}
		}
	}
}

// undoPromises reverts the plan's promises: rooms and team counts reflect the world
// again.
func (p *Planner) undoPromises() {
	if len(p.actions) == 0 && !p.placed {
		return
	}
	p.placed = false
	copy(p.slots, p.worldSlots)
	for i := range p.rooms {
		m := &p.rooms[i]
		m.now.Host, m.soon.Host = p.worldRooms[2*i].Host, p.worldRooms[2*i+1].Host
		m.waiting = m.leaving > 0
	}
	back := func(team string) {
		counts := p.count[team]
		p.held[team], p.leaving[team] = counts.held, counts.leaving
	}
	for i := range p.actions {
		back(p.actions[i].Function.Team)
	}
	for _, c := range p.classList {
		back(c.team)
	}
	clear(p.pledged)
	clear(p.claimed)
}
