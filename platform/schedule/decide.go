package schedule

import (
	"iter"
	"math"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// Decide looks at the world at now and says what to do. The same world and the
// same time give the same plan.
func (p Policy) Decide(w World, now Instant) Plan {
	d := decision{policy: p, world: w, now: now, next: math.MaxInt64}
	d.nodes()
	d.occupy()
	d.pressure()
	for _, f := range w.Functions {
		if f.resting(now) {
			continue
		}
		d.function(f)
	}
	d.placeAll()
	plan := Plan{Actions: d.actions, Blocked: d.blocked}
	if d.next != math.MaxInt64 {
		plan.Next = d.next
	}
	return plan
}

// Decide with the default policy.
func Decide(w World, now Instant) Plan { return DefaultPolicy.Decide(w, now) }

// resting functions are most of them: they must cost next to nothing.
func (f *Function) resting(now Instant) bool {
	return len(f.Replicas) == 0 && f.Queued == 0 && f.Active == 0 && (f.Scale.Min == 0 || f.Gone) && f.Lease <= now
}

type decision struct {
	policy Policy
	world  World
	now    Instant
	next   Instant

	rooms   []room
	index   map[string]int // node id to room; lost nodes are absent
	held    map[string]int // GPUs a team holds now, stopping ones included
	leaving map[string]int // of those, on their way out
	pledged map[string]int // of those, room that must still be freed: nobody holds it yet
	claimed map[string]int // shares of a team's maximum that wait for one of its own to leave
	needy   []need
	offered bool // the rooms list what may make way
	actions []Action
	blocked map[functions.Name]Verdict
	young   bool // something that may be evicted soon has not stayed its residency
	avoided bool // a node is left alone for a moment
}

type need struct {
	f      *Function
	reason string
	since  Instant // of its oldest waiter; later is less urgent
}

type victim struct {
	f    *Function
	r    *Replica
	room int
	used Instant // last use
}

// alive functions have replicas, or somebody wants some.
func (d *decision) alive() iter.Seq[*Function] {
	return func(yield func(*Function) bool) {
		for _, f := range d.world.Functions {
			if !f.resting(d.now) && !yield(f) {
				return
			}
		}
	}
}

// collect has the rooms list what may make way.
func (d *decision) collect() {
	if d.offered {
		return
	}
	d.offered = true
	var idle, busy []victim
	for f := range d.alive() {
		idle, busy = d.offer(f, idle[:0], busy[:0])
		for _, v := range idle {
			m := &d.rooms[v.room]
			m.idle = append(m.idle, v)
		}
		for _, v := range busy {
			m := &d.rooms[v.room]
			m.busy = append(m.busy, v)
		}
	}
	for i := range d.rooms {
		slices.SortStableFunc(d.rooms[i].idle, sooner)
		slices.SortStableFunc(d.rooms[i].busy, sooner)
	}
}

func (d *decision) at(t Instant) {
	if t > d.now && t < d.next {
		d.next = t
	}
}

func (d *decision) do(a Action) { d.actions = append(d.actions, a) }

// takes is what r holds of its node now.
func (r *Replica) takes() (functions.Resources, []int) {
	res, gpus := r.Take, r.GPUs
	if r.Sinking || r.Rising || r.State == functions.Sleeping {
		res.Memory += r.Held
	}
	if r.asleep() {
		res.GPUs, res.GPUMemory, gpus = 0, 0, nil
	}
	return res, gpus
}

// pressure ends sleepers of nodes that have promised more host memory than they
// have: a budget has shrunk, or sleep takes more than was thought.
func (d *decision) pressure() {
	for i := range d.rooms {
		m := &d.rooms[i]
		for m.soon.memory < 0 {
			var f *Function
			var r *Replica
			for _, g := range d.world.Functions {
				for j := range g.Replicas {
					if s := &g.Replicas[j]; s.Node == m.node.ID && s.asleep() && !s.Stopping && !d.told(s) && (r == nil || s.SleptAt < r.SleptAt) {
						f, r = g, s
					}
				}
			}
			if r == nil {
				break
			}
			d.stop(f, r, "pressure")
		}
	}
}

// told reports whether this plan has already said what becomes of r.
func (d *decision) told(r *Replica) bool {
	for i := range d.actions {
		if a := &d.actions[i]; (a.Kind == Stop || a.Kind == Sleep || a.Kind == Rise) && a.Replica == r.ID {
			return true
		}
	}
	return false
}

func (d *decision) sick(r *Replica) bool {
	if len(r.GPUs) == 0 {
		return false
	}
	n := d.rooms[d.index[r.Node]].node
	for _, g := range n.GPUs {
		if g.Sick && slices.Contains(r.GPUs, g.Index) {
			return true
		}
	}
	return false
}

func (d *decision) stop(f *Function, r *Replica, reason string) {
	d.do(Action{Kind: Stop, Function: f.Name, Node: r.Node, Replica: r.ID, Drain: f.Drain, Reason: reason})
	d.leaves(f, r)
}

// leaves notes that r's room will be free, but is not yet.
func (d *decision) leaves(f *Function, r *Replica) {
	res, gpus := r.takes()
	if !r.Sinking {
		d.leaving[f.Name.Team] += res.GPUs
	}
	if at, ok := d.index[r.Node]; ok {
		m := &d.rooms[at]
		if r.Sinking { // its GPUs are as good as free already
			res, gpus = functions.Resources{Memory: res.Memory}, nil
		}
		m.soon.give(m.node, res, gpus)
		m.waiting = true
	}
}
