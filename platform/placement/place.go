package placement

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// rank of a need: who is less is placed first. What is asked for comes before
// leases, and those before minimums. Between teams it is first who asks for what
// it is guaranteed, then who has had less lately and holds less now, so that a
// long queue of one does not put off another; and then who waits longer. It is
// the order in which over takes room away: what is freed for one is not given
// back to whom it was taken from.
type rank struct {
	urgency int
	borrows bool
	use     float64
	since   Instant
	born    uint64
}

func (d *decision) rank(e *entry) rank {
	owed := e.f.Resources.GPUs > 0 && d.claimsNow(e.f)
	return rank{urgency(e.need.since), !owed, d.turnOf(e.f.Name.Team, 0), e.need.since, e.born}
}

func (a rank) before(b rank) bool {
	switch {
	case a.urgency != b.urgency:
		return a.urgency < b.urgency
	case a.borrows != b.borrows:
		return b.borrows
	case a.use != b.use:
		return a.use < b.use
	case a.since != b.since:
		return a.since < b.since
	}
	return a.born < b.born
}

// place gives n room, now or once it is free. It reports whether n got any.
func (d *decision) place(n need) bool {
	f, res, team := n.f, n.f.Resources, n.f.Name.Team
	if d.barred(f) {
		return false
	}
	quota := d.world.Teams[team]
	if d.full(team, res.GPUs) {
		if res.GPUs > quota.Max {
			return d.block(f)
		}
		if !d.possible(f) {
			return d.block(f)
		}
		if !d.reachable(f) || !d.affords(f, quota.Max) {
			if d.dropStale(f) {
				return true
			}
			return d.block(f) // none of its own makes way in vain
		}
		// Its own idle ones make way; nobody else's would help.
		for d.held[team]-d.leaving[team]+d.claimed[team]+res.GPUs > quota.Max {
			v := d.oldestVictim(f, func(v *victim) bool { return v.f.Name.Team == team && v.r.Take.GPUs > 0 && !v.r.asleep() })
			if v == nil {
				return d.block(f)
			}
			d.evict(v, f, wasIdle, res)
		}
		// Its share is freed first; it is placed when that has happened.
		d.claimed[team] += res.GPUs
		d.mix(team)
		return true
	}

	// One that sleeps is preferred where its own GPUs are free; one that is about
	// to is waited for.
	if slices.ContainsFunc(f.Replicas, func(r Replica) bool { return r.Sinking && !r.Stopping && !r.Stale }) {
		return true
	}
	z := d.sleeper(f)
	if z != nil && d.free(z) {
		d.rise(f, z, n.reason)
		return true
	}

	page := d.book.begin(d.now, f.Name, KindPlace, n.reason)
	at, possible := d.choose(f, false, page)
	fits := at >= 0
	if z != nil && (!fits || f.ColdStart <= 0 || f.rises(z)+riseWait < f.ColdStart) {
		if d.freeFor(f, z, false, wasIdle) {
			return true // room is made; it rises when that has happened
		}
	}
	if fits {
		m := &d.rooms[at]
		gpus, _ := m.now.fit(m.node, res)
		m.now.take(m.node, res, gpus)
		m.soon.take(m.node, res, gpus)
		d.held[team] += res.GPUs
		d.do(Action{Kind: Start, Function: f.Name, Node: m.node.ID, GPUs: gpus, Reason: n.reason})
		return true
	}
	if !possible && z == nil {
		return d.block(f)
	}
	// Room that is on its way is waited for; nobody else is evicted for it.
	if at, _ := d.choose(f, true, page); at >= 0 {
		m := &d.rooms[at]
		gpus, _ := m.soon.fit(m.node, res)
		d.reserve(m, f, gpus)
		return true
	}
	if d.makeRoom(f, false, wasIdle) {
		return true
	}
	if d.rivals(f) && (z != nil && d.freeFor(f, z, true, overUsed) || d.makeRoom(f, true, overUsed)) {
		return true
	}
	if d.policy.Turn > 0 && f.Queued > 0 && f.Oldest > 0 {
		d.turn = true
		if f.Oldest+d.policy.Patience > d.now {
			// Who is next among its kin is tried again then.
		} else if z != nil && d.freeFor(f, z, true, hadTurn) || d.makeRoom(f, true, hadTurn) {
			return true
		}
	}
	if d.dropStale(f) {
		return true
	}
	return d.block(f)
}

// possible reports whether f fits some node that is empty.
func (d *decision) possible(f *Function) bool {
	for i := range d.rooms {
		if m := &d.rooms[i]; m.node.admits(f) && m.node.stores(f) && m.could(f.Resources) {
			return true
		}
	}
	return false
}

// affords reports whether f's team would keep within its maximum with f, if its
// own idle ones left.
func (d *decision) affords(f *Function, most int) bool {
	team := f.Name.Team
	over := d.held[team] - d.leaving[team] + d.claimed[team] + f.Resources.GPUs - most
	for i := range d.rooms {
		list := d.rooms[i].idle
		for j := range list {
			if over <= 0 {
				return true
			}
			if v := &list[j]; v.f.Name.Team == team && v.r.Take.GPUs > 0 && !v.r.asleep() && d.may(v, f, 0, wasIdle) {
				over -= v.r.Take.GPUs
			}
		}
	}
	return over <= 0
}

// reachable reports whether f would find room if everything left that may.
func (d *decision) reachable(f *Function) bool {
	z := d.sleeper(f)
	late := d.policy.Turn > 0 && f.Queued > 0 && f.Oldest > 0 && f.Oldest+d.policy.Patience <= d.now
	for at := range d.rooms {
		m := &d.rooms[at]
		here := z != nil && z.Node == m.node.ID
		if !here && (!d.eligible(m, f) || !m.could(f.Resources)) {
			continue
		}
		trial := free{host: m.soon.host, gpus: slices.Clone(m.soon.gpus)}
		for _, busy := range [...]bool{false, true} {
			list := m.offers(busy)
			for i := range list {
				v := &list[i]
				if !busy && d.may(v, f, 0, wasIdle) || busy && (d.may(v, f, 0, overUsed) || late && d.may(v, f, 0, hadTurn)) {
					res, gpus := v.r.takes()
					trial.give(m.node, res, gpus)
				}
			}
		}
		if here && trial.holds(m.node, z.Take, z.GPUs) {
			return true
		}
		if _, ok := trial.fit(m.node, f.Resources); ok && d.eligible(m, f) {
			return true
		}
	}
	return false
}

// choose finds the node for f at the least cost, of those that have room now, or
// with soon of those that will once who is leaving is gone; -1 for none. possible
// is whether f fits some node that is empty.
func (d *decision) choose(f *Function, soon bool, page *page) (at int, possible bool) {
	at = -1
	least := 0.0
	for i := range d.rooms {
		m := &d.rooms[i]
		if soon && !m.waiting {
			continue
		}
		if !d.eligible(m, f) {
			page.unfit(m.node.ID, "its bytes cannot come here, or not now")
			continue
		}
		s := &m.now
		if soon {
			s = &m.soon
		}
		if !s.fits(m.node, f.Resources) {
			if could := !soon && m.could(f.Resources); could {
				possible = true
				page.unfit(m.node.ID, "no room")
			} else {
				page.unfit(m.node.ID, "too small")
			}
			continue
		}
		possible = true
		x := d.score(m, s, f)
		total := x.total()
		page.add(line{node: m.node.ID, score: total, names: &placeParts, parts: [4]float64{x.ready, x.packing, x.topology, x.store}, why: string(x.tier)})
		if at < 0 || total < least {
			at, least = i, total
		}
	}
	if at >= 0 {
		page.choose(d.rooms[at].node.ID)
	}
	return at, possible
}

// riseWait is what freeing the GPUs of a sleeper is taken to cost.
const riseWait = 5 * time.Second

// sleeper is the replica of f that fell asleep last and may rise, nil for none.
func (d *decision) sleeper(f *Function) (best *Replica) {
	for i := range f.Replicas {
		r := &f.Replicas[i]
		at, ok := d.index[r.Node]
		if !ok || !r.asleep() || r.Stopping || r.Stale || d.told(r) || d.rooms[at].node.Avoid > d.now || d.sick(r) {
			continue
		}
		if best == nil || r.SleptAt > best.SleptAt {
			best = r
		}
	}
	return best
}

// free reports whether the GPUs that r had are free for it now.
func (d *decision) free(r *Replica) bool {
	m := &d.rooms[d.index[r.Node]]
	return m.now.holds(m.node, r.Take, r.GPUs)
}

// rise wakes r.
func (d *decision) rise(f *Function, r *Replica, reason string) {
	d.book.begin(d.now, f.Name, KindPlace, "it sleeps there").choose(r.ID)
	d.hold(f, r)
	d.do(Action{Kind: Rise, Function: f.Name, Node: r.Node, Replica: r.ID, GPUs: r.GPUs, Reason: reason})
}

// hold keeps the GPUs of a sleeper for it.
func (d *decision) hold(f *Function, r *Replica) {
	m := &d.rooms[d.index[r.Node]]
	res := r.Take.OnGPUs()
	m.now.take(m.node, res, r.GPUs)
	m.soon.take(m.node, res, r.GPUs)
	d.mix(r.ID)
	d.reserved = true
	d.held[f.Name.Team] += res.GPUs
}

// freeFor has victims leave that are on the GPUs of a sleeper. It reports
// whether these GPUs will be free.
func (d *decision) freeFor(f *Function, r *Replica, busy bool, reason string) bool {
	m := &d.rooms[d.index[r.Node]]
	if m.waiting && m.soon.holds(m.node, r.Take, r.GPUs) {
		d.hold(f, r)
		d.pledged[f.Name.Team] += r.Take.GPUs
		return true
	}
	trial := free{host: m.soon.host, gpus: slices.Clone(m.soon.gpus)}
	taken := map[string]int{}
	var gone []int
	list := m.offers(busy)
	for i := range list {
		v := &list[i]
		if trial.holds(m.node, r.Take, r.GPUs) {
			break
		}
		if !d.may(v, f, taken[v.f.Name.Team], reason) || !slices.ContainsFunc(v.r.GPUs, func(g int) bool { return slices.Contains(r.GPUs, g) }) {
			continue
		}
		res, gpus := v.r.takes()
		trial.give(m.node, res, gpus)
		taken[v.f.Name.Team] += res.GPUs
		gone = append(gone, i)
	}
	if !trial.holds(m.node, r.Take, r.GPUs) {
		return false
	}
	for _, i := range gone {
		d.evict(&list[i], f, reason, functions.Resources{})
	}
	d.hold(f, r)
	d.pledged[f.Name.Team] += r.Take.GPUs
	return true
}

// dropStale lets the old recipe of f go where the new one finds no room beside it.
func (d *decision) dropStale(f *Function) bool {
	any := false
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := d.index[r.Node]; ok && r.Stale && !r.Stopping && !d.told(r) {
			d.stop(f, r, "changed")
			any = true
		}
	}
	return any
}

func (d *decision) eligible(m *room, f *Function) bool {
	if m.node.Avoid > d.now {
		d.at(m.node.Avoid)
		return false
	}
	return m.node.admits(f) && m.node.stores(f)
}
