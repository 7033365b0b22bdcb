package placement

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// world is the nodes with their rooms.
type world struct {
	nodes map[string]*Node
	rooms []nodeRoom
	index map[string]int // node id to room; lost nodes are absent
	lost  []*Node
	stale bool // rooms must be rebuilt from nodes

	first      *Node // whose lease ends first
	firstDue   Instant
	firstValid bool

	smallestStore      functions.Bytes
	smallestStoreValid bool

	held      []rooms.Room // per room, now and soon without the promises of this plan
	slots     []rooms.Slot // backing array of the rooms' GPUs
	heldSlots []rooms.Slot // backing array of held
}

// changed notes that n is new or has changed.
func (w *world) changed(n *Node) {
	old := w.nodes[n.ID]
	w.nodes[n.ID] = n
	w.firstValid, w.smallestStoreValid = false, false
	at, ok := w.index[n.ID]
	if !ok || old != n || w.stale {
		w.stale = true
		return
	}
	m := &w.rooms[at]
	if m.here != n.Here || !slices.Equal(m.gpus, n.GPUs) {
		w.stale = true
		return
	}
	if is := n.host(); is != m.host {
		for _, s := range []*rooms.Room{&m.now, &m.soon, &w.held[2*at], &w.held[2*at+1]} {
			s.Resize(is, m.host)
		}
		m.host = is
	}
}

func (w *world) drop(id string) {
	if _, ok := w.nodes[id]; ok {
		delete(w.nodes, id)
		w.stale, w.firstValid, w.smallestStoreValid = true, false, false
	}
}

// findLost finds nodes whose lease has ended: they make the rooms stale. It watches only
// the node whose lease ends first: the other leases can only have been extended. It
// returns when the next lease ends, 0 for never.
func (w *world) findLost(lease time.Duration, now Instant) Instant {
	if !w.firstValid || len(w.lost) > 0 || w.first != nil && (w.first.Seen+lease != w.firstDue || w.firstDue <= now) {
		w.firstValid, w.first, w.firstDue = true, nil, math.MaxInt64
		for id, n := range w.nodes {
			_, known := w.index[id]
			lost := !n.Here && n.Seen+lease <= now
			w.stale = w.stale || lost == known
			if end := n.Seen + lease; !n.Here && !lost && end < w.firstDue {
				w.first, w.firstDue = n, end
			}
		}
	}
	if w.first == nil {
		return 0
	}
	return w.firstDue
}

// findSmallestStore finds the smallest store of a node, and reports whether it has
// changed.
func (w *world) findSmallestStore() bool {
	if w.smallestStoreValid {
		return false
	}
	w.smallestStoreValid = true
	least := functions.Bytes(math.MaxInt64)
	for _, n := range w.nodes {
		if n.Store.Bytes > 0 {
			least = min(least, n.Store.Bytes)
		}
	}
	was := w.smallestStore
	w.smallestStore = least
	return least != was
}

// rebuild makes empty rooms from the nodes whose lease has not ended.
func (w *world) rebuild(lease time.Duration, now Instant) {
	w.stale = false
	nodes := make([]*Node, 0, len(w.nodes))
	w.lost = w.lost[:0]
	gpus := 0
	for _, n := range w.nodes {
		if !n.Here && n.Seen+lease <= now {
			w.lost = append(w.lost, n)
			continue
		}
		nodes = append(nodes, n)
		gpus += len(n.GPUs)
	}
	slices.SortFunc(nodes, compareNodes)
	slices.SortFunc(w.lost, compareNodes)
	clear(w.index)
	w.rooms = make([]nodeRoom, 0, len(nodes))
	w.slots, w.heldSlots = make([]rooms.Slot, 2*gpus), make([]rooms.Slot, 2*gpus)
	w.held = make([]rooms.Room, 0, 2*len(nodes))
	at := 0
	for _, n := range nodes {
		k, own := len(n.GPUs), slices.Clone(n.GPUs)
		room := func(s []rooms.Slot, from int) rooms.Room {
			return rooms.New(n.host(), own, s[from:from+k:from+k])
		}
		w.index[n.ID] = len(w.rooms)
		w.held = append(w.held, room(w.heldSlots, at), room(w.heldSlots, at+k))
		w.rooms = append(w.rooms, nodeRoom{
			node: n, here: n.Here, host: n.host(), gpus: own,
			now: room(w.slots, at), soon: room(w.slots, at+k), held: &w.held[len(w.held)-2],
		})
		at += 2 * k
	}
}

// apply applies a reservation to its node, or with sign -1 removes it.
func (w *world) apply(r *reservation, sign int) {
	at, ok := w.index[r.node]
	if !ok || w.stale {
		return
	}
	m := &w.rooms[at]
	m.now.Move(r.now, r.nowGPUs, sign)
	m.soon.Move(r.soon, r.soonGPUs, sign)
	w.held[2*at].Move(r.now, r.nowGPUs, sign)
	w.held[2*at+1].Move(r.soon, r.soonGPUs, sign)
	m.leaving += sign * r.waiting
	m.waiting = m.leaving > 0
}

// undo reverts this plan's promises.
func (w *world) undo() {
	copy(w.slots, w.heldSlots)
	for i := range w.rooms {
		m := &w.rooms[i]
		m.now.Host, m.soon.Host = w.held[2*i].Host, w.held[2*i+1].Host
		m.waiting, m.slept = m.leaving > 0, 0
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

// updateNodes brings the rooms up to date. Functions that a change affects are evaluated:
// those that hold resources if rooms are rebuilt; and if the smallest store changes, those
// that lack replicas, because a function with a larger checkpoint than that is a class of
// its own: its eligible nodes depend on its size and on which nodes hold it.
func (p *Planner) updateNodes() {
	p.decision.plan.dueAt(p.decision.world.findLost(p.decision.policy.Lease, p.decision.plan.now))
	if p.decision.world.findSmallestStore() {
		for _, e := range p.decision.living {
			if e.class != nil && e.f.Size > 0 {
				p.touch(e)
			}
		}
	}
	if p.decision.world.stale {
		p.decision.world.rebuild(p.decision.policy.Lease, p.decision.plan.now)
		p.decision.counts.reset()
		p.decision.helpCount++
		for _, e := range p.functions { // collectLooks sorts touched
			if len(e.reservations) > 0 || e.alive || len(e.offers) > 0 {
				e.reservations, e.offers = e.reservations[:0], e.offers[:0]
				p.touch(e)
			}
		}
	}
	for _, n := range p.decision.world.lost {
		p.decision.addAction(Action{Kind: MarkNodeLost, Node: n.ID, Reason: "silent"})
	}
}

// updateReservations reserves the resources of all replicas of e.
func (d *decision) updateReservations(e *functionEntry) {
	was := e.reservations
	now := d.spareReservations[:0]
	for i := range e.f.Replicas {
		r := &e.f.Replicas[i]
		h := reservation{node: r.Node, team: e.f.Name.Team}
		if !r.asleep() {
			h.gpus.held = r.Reserved.GPUs
			if _, ok := d.world.index[r.Node]; !ok || r.Stopping || r.Cancelled || r.GoingToSleep {
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
		d.spareReservations = now
		return
	}
	d.releaseReservations(e)
	for i := range now {
		d.applyReservation(&now[i], 1)
	}
	e.reservations, d.spareReservations = now, was[:0]
}

func (r reservation) equal(o reservation) bool {
	return r.node == o.node && r.team == o.team && r.now == o.now && r.soon == o.soon && r.waiting == o.waiting && r.gpus == o.gpus &&
		slices.Equal(r.nowGPUs, o.nowGPUs) && slices.Equal(r.soonGPUs, o.soonGPUs)
}

func (d *decision) releaseReservations(e *functionEntry) {
	for i := range e.reservations {
		d.applyReservation(&e.reservations[i], -1)
	}
	e.reservations = e.reservations[:0]
}

// applyReservation applies r to its node and team, or with sign -1 removes it.
func (d *decision) applyReservation(r *reservation, sign int) {
	d.helpCount++ // room or a share of a team's maximum may have become free
	d.counts.add(r.team, r.gpus, sign)
	d.world.apply(r, sign)
}

// relieveHostMemory stops sleepers, the longest asleep first, on nodes whose host
// resources are overcommitted: a budget shrank, replicas were added, or sleep takes
// more memory than expected.
func (p *Planner) relieveHostMemory() {
	for i := range p.decision.world.rooms {
		m := &p.decision.world.rooms[i]
		for m.soon.Overcommitted() {
			var in *functionEntry
			var r *Replica
			for _, e := range p.decision.living {
				for j := range e.f.Replicas {
					if s := &e.f.Replicas[j]; s.Node == m.node.ID && s.asleep() && !s.Stopping && !p.decision.plan.hasAction(s) &&
						(r == nil || s.SleptAt < r.SleptAt) {
						in, r = e, s
					}
				}
			}
			if r == nil {
				break
			}
			p.decision.stopReplica(in.f, r, "pressure")
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
func (q *pendingQueue) undoPromises() {
	if len(q.plan.actions) == 0 && !q.plan.tried {
		return
	}
	q.world.undo()
	for i := range q.plan.actions {
		q.counts.restore(q.plan.actions[i].Function.Team)
	}
	for _, c := range q.classList {
		q.counts.restore(c.team)
	}
	clear(q.counts.pledged)
	clear(q.counts.claimed)
}
