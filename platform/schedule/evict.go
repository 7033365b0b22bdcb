package schedule

import (
	"cmp"
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// collect lists what may be evicted, and what has had its turn.
func (d *decision) collect() {
	if d.victims != nil {
		return
	}
	d.victims = []victim{}
	for _, f := range d.world.Functions {
		if len(f.Replicas) == 0 || f.Gone || f.Lease > d.now {
			continue
		}
		ready := 0
		for i := range f.Replicas {
			r := &f.Replicas[i]
			if r.State == functions.Ready && !r.Stopping && !r.Sinking {
				ready++
			}
			// A sleeper has host memory to give, and is never in use.
			if at, ok := d.index[r.Node]; ok && r.asleep() && !r.Stopping && f.Queued == 0 && !d.told(r) {
				d.victims = append(d.victims, victim{f: f, r: r, room: at, used: max(f.LastEnd, r.ReadyAt)})
			}
		}
		spare := ready - f.Scale.Min
		for i := range f.Replicas {
			r := &f.Replicas[i]
			at, ok := d.index[r.Node]
			if !ok || r.State != functions.Ready || r.Stopping || r.Sinking || spare <= 0 || d.told(r) {
				continue
			}
			v := victim{f: f, r: r, room: at, used: max(f.LastEnd, r.ReadyAt)}
			if r.InFlight > 0 || f.Queued > 0 {
				if end := r.ReadyAt + d.policy.Turn; end > d.now {
					d.at(end)
					continue
				}
				v.used = r.ReadyAt
				d.busy = append(d.busy, v)
				spare--
				continue
			}
			if stay := r.ReadyAt + d.policy.Residency; stay > d.now {
				d.at(stay)
				d.young = true
				continue
			}
			d.victims = append(d.victims, v)
			spare--
		}
	}
	byUse := func(a, b victim) int { return cmp.Compare(a.used, b.used) }
	slices.SortStableFunc(d.victims, byUse)
	slices.SortStableFunc(d.busy, byUse)
}

// may reports whether v may make way for f, when taken GPUs of its team have
// been chosen already.
func (d *decision) may(v *victim, f *Function, taken int) bool {
	if v.gone || v.f == f || v.r.asleep() && d.told(v.r) {
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

func (d *decision) oldestVictim(f *Function, ok func(*victim) bool) *victim {
	d.collect()
	for i := range d.victims {
		if v := &d.victims[i]; ok(v) && d.may(v, f, 0) {
			return v
		}
	}
	return nil
}

// evict has v leave for f: to sleep where only its GPUs are wanted and f, which
// has not been given its room yet, still finds the host memory it needs.
func (d *decision) evict(v *victim, f *Function, reason string, memory functions.Bytes) {
	v.gone = true
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

// makeRoom takes from one node what f needs: from the node where the most
// recently used of those who go is the longest unused.
func (d *decision) makeRoom(f *Function, victims []victim, reason string) bool {
	if len(victims) == 0 {
		return false
	}
	type choice struct {
		room int
		gone []int
		last Instant
	}
	var best *choice
	byRoom := map[int][]int{}
	for i := range victims {
		if !victims[i].gone {
			byRoom[victims[i].room] = append(byRoom[victims[i].room], i)
		}
	}
	for at := range d.rooms {
		list := byRoom[at]
		m := &d.rooms[at]
		if len(list) == 0 || !d.eligible(m, f) || !m.could(f.Resources) {
			continue
		}
		if best != nil && victims[list[0]].used > best.last {
			continue
		}
		trial := free{memory: m.soon.memory, gpus: slices.Clone(m.soon.gpus)}
		taken := map[string]int{}
		var gone []int
		fitted := false
		for _, i := range list {
			v := &victims[i]
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
			v := &victims[i]
			res, gpus := v.r.takes()
			trial.take(m.node, res, gpus)
			if _, ok := trial.fit(m.node, f.Resources); ok && j < len(gone)-1 {
				continue
			}
			trial.give(m.node, res, gpus)
			kept = append(kept, i)
		}
		c := &choice{room: at, gone: kept}
		for _, i := range kept {
			c.last = max(c.last, victims[i].used)
		}
		if best == nil || c.last < best.last || c.last == best.last && len(c.gone) < len(best.gone) {
			best = c
		}
	}
	if best == nil {
		return false
	}
	for _, i := range best.gone {
		d.evict(&victims[i], f, reason, f.Resources.Memory)
	}
	m := &d.rooms[best.room]
	gpus, _ := m.soon.fit(m.node, f.Resources)
	d.reserve(m, f, gpus)
	return true
}
