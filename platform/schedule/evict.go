package schedule

import (
	"cmp"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// offer says what of f may make way: idle replicas and sleepers, and busy ones
// that have had their turn. It is asked when f is new or changed, and when a
// moment it named with d.at has come; so it looks at f, its nodes and the time,
// and at nothing that the plan has promised or told so far (that is for may).
func (d *decision) offer(f *Function, idle, busy []victim) ([]victim, []victim) {
	if len(f.Replicas) == 0 || f.Gone {
		return idle, busy
	}
	if f.Lease > d.now {
		d.at(f.Lease)
		return idle, busy
	}
	ready := 0
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if r.State == functions.Ready && !r.Stopping && !r.Sinking {
			ready++
		}
		// A sleeper has host memory to give, and is never in use.
		if at, ok := d.index[r.Node]; ok && r.asleep() && !r.Stopping && f.Queued == 0 {
			idle = append(idle, victim{f: f, r: r, room: at, used: max(f.LastEnd, r.ReadyAt)})
		}
	}
	spare := ready - f.Scale.Min
	for i := range f.Replicas {
		r := &f.Replicas[i]
		at, ok := d.index[r.Node]
		if !ok || r.State != functions.Ready || r.Stopping || r.Sinking || spare <= 0 {
			continue
		}
		v := victim{f: f, r: r, room: at, used: max(f.LastEnd, r.ReadyAt)}
		if r.InFlight > 0 || f.Queued > 0 {
			if end := r.ReadyAt + d.policy.Turn; end > d.now {
				d.at(end)
				continue
			}
			v.used = r.ReadyAt
			busy = append(busy, v)
			spare--
			continue
		}
		if stay := r.ReadyAt + d.policy.Residency; stay > d.now {
			d.at(stay)
			d.young = true
			continue
		}
		idle = append(idle, v)
		spare--
	}
	return idle, busy
}

// sooner orders victims: who goes first. Those that are alike stay in the order
// of their functions.
func sooner(a, b victim) int { return cmp.Compare(a.used, b.used) }

// may reports whether v may make way for f, when taken GPUs of its team have
// been chosen already.
func (d *decision) may(v *victim, f *Function, taken int) bool {
	if v.f == f || d.told(v.r) {
		return false
	}
	owner, borrower := v.f.Name.Team, f.Name.Team
	if owner == borrower || v.r.Take.GPUs == 0 || v.r.asleep() {
		return true
	}
	if d.held[borrower]-d.leaving[borrower]+d.claimed[borrower]+f.Resources.GPUs <= d.world.Teams[borrower].Guaranteed {
		return true // it claims what it is owed
	}
	return d.held[owner]-d.leaving[owner]-d.pledged[owner]-taken-v.r.Take.GPUs >= d.world.Teams[owner].Guaranteed
}

func (d *decision) oldestVictim(f *Function, ok func(*victim) bool) (first *victim) {
	d.collect()
	for i := range d.rooms {
		list := d.rooms[i].idle
		for j := range list {
			v := &list[j]
			if first != nil && sooner(*v, *first) >= 0 {
				break
			}
			if ok(v) && d.may(v, f, 0) {
				first = v
			}
		}
	}
	return first
}

// evict has v leave for f: to sleep where only its GPUs are wanted and f, which
// has not been given its room yet, still finds the host memory it needs.
func (d *decision) evict(v *victim, f *Function, reason string, memory functions.Bytes) {
	drain := v.f.Drain
	if reason == "turn" {
		drain = d.policy.TurnDrain
	}
	if v.r.Take.GPUs > 0 && !v.r.asleep() {
		if m := &d.rooms[v.room]; m.soon.memory-v.f.Asleep >= memory && d.sleep(v.f, v.r, drain, reason, f.Name.String()) {
			return
		}
	}
	d.do(Action{Kind: Stop, Function: v.f.Name, Node: v.r.Node, Replica: v.r.ID, Drain: drain, Reason: reason, For: f.Name.String()})
	d.leaves(v.f, v.r)
}

// makeRoom takes from one node what f needs, of the idle or of the busy there:
// from the node where the most recently used of those who go is the longest
// unused.
func (d *decision) makeRoom(f *Function, busy bool, reason string) bool {
	d.collect()
	type choice struct {
		room int
		gone []int
		last victim
	}
	var best *choice
	for at := range d.rooms {
		m := &d.rooms[at]
		list := m.offers(busy)
		if len(list) == 0 || !d.eligible(m, f) || !m.could(f.Resources) {
			continue
		}
		if best != nil && sooner(list[0], best.last) > 0 {
			continue
		}
		trial := free{memory: m.soon.memory, gpus: slices.Clone(m.soon.gpus)}
		taken := map[string]int{}
		var gone []int
		fitted := false
		for i := range list {
			v := &list[i]
			if !d.may(v, f, taken[v.f.Name.Team]) {
				continue
			}
			res, gpus := v.r.takes()
			trial.give(m.node, res, gpus)
			taken[v.f.Name.Team] += res.GPUs
			gone = append(gone, i)
			if _, fitted = trial.fit(m.node, f.Resources); fitted {
				break
			}
		}
		if !fitted {
			continue
		}
		// Those that turned out not to be in the way stay.
		kept := gone[:0]
		for j, i := range gone {
			v := &list[i]
			res, gpus := v.r.takes()
			trial.take(m.node, res, gpus)
			if _, ok := trial.fit(m.node, f.Resources); ok && j < len(gone)-1 {
				continue
			}
			trial.give(m.node, res, gpus)
			kept = append(kept, i)
		}
		c := &choice{room: at, gone: kept, last: list[kept[len(kept)-1]]}
		if best == nil || sooner(c.last, best.last) < 0 || sooner(c.last, best.last) == 0 && len(c.gone) < len(best.gone) {
			best = c
		}
	}
	if best == nil {
		return false
	}
	m := &d.rooms[best.room]
	list := m.offers(busy)
	for _, i := range best.gone {
		d.evict(&list[i], f, reason, f.Resources.Memory)
	}
	gpus, _ := m.soon.fit(m.node, f.Resources)
	d.reserve(m, f, gpus)
	return true
}
