package placement

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/explain"
)

// rank orders pending starts; lower ranks are placed first. Demand comes before
// leases, leases before minimums, minimums before prewarms, and requests of priority low
// come last. Between teams, claims within a
// guarantee come first, then the team that used less lately and holds less now, so
// that one long queue does not delay other teams; then the longer wait. overShare
// evicts in the same order, so freed room does not return to its previous holder.
type rank struct {
	urgency int
	borrows bool
	use     float64
	since   Instant
	born    uint64
}

func (t *teamCounts) rank(e *functionEntry) rank {
	owed := e.f.Resources.GPUs > 0 && t.computeClaim(e.f)
	return rank{urgencyOf(e.need), !owed, t.shareOf(e.f.Name.Team, 0), e.need.since, e.born}
}

func (r rank) before(b rank) bool {
	switch {
	case r.urgency != b.urgency:
		return r.urgency < b.urgency
	case r.borrows != b.borrows:
		return b.borrows
	case r.use != b.use:
		return r.use < b.use
	case r.since != b.since:
		return r.since < b.since
	}
	return r.born < b.born
}

// place finds room for n, free now or being freed. It reports whether it found any.
func (a *attempt) place(n need) bool {
	f, res, team := n.f, n.f.Resources, n.f.Name.Team
	if a.refusedByBudget(f) {
		return false
	}
	if a.counts.atMaximum(team, res.GPUs) {
		return a.placeWithinMaximum(f)
	}
	if f.RetryOn != "" && a.placeRetry(f, n.reason) {
		return true
	}
	// Waking a sleeper is preferred if its own GPUs are free. A replica that is
	// falling asleep is woken once it sleeps.
	if slices.ContainsFunc(f.Replicas, func(r Replica) bool { return r.GoingToSleep && !r.Stopping && !r.Stale }) {
		return true
	}
	z := a.sleeper(f)
	if z != nil && a.sleeperFits(z) {
		a.wakeReplica(f, z, n.reason)
		return true
	}

	record := a.log.Begin(a.plan.now, f.Name, explain.Place, n.reason)
	at, possible := a.choose(f, false, record)
	fits := at >= 0
	if z != nil && (!fits || f.ColdStart <= 0 || f.wakeTime(z)+wakeWait < f.ColdStart) {
		if a.freeFor(f, z, false, reasonIdle) {
			return true // it wakes up when its GPUs are free
		}
	}
	if fits {
		a.startOn(&a.world.rooms[at], f, n.reason)
		return true
	}
	if !possible && z == nil {
		return a.refuse(f)
	}
	// Wait for room that is about to be free rather than evict more.
	if at, _ := a.choose(f, true, record); at >= 0 {
		m := &a.world.rooms[at]
		gpus, _ := m.soon.Choose(res)
		a.reserve(m, f, gpus)
		return true
	}
	if a.makeRoom(f, false, reasonIdle) {
		return true
	}
	if a.low {
		return a.dropStale(f) || a.refuse(f)
	}
	if a.counts.hasRivals(f) && (z != nil && a.freeFor(f, z, true, reasonTeamShare) || a.makeRoom(f, true, reasonTeamShare)) {
		return true
	}
	if a.policy.TimeSlice > 0 && f.waits() {
		a.timeSlice = true
		if f.Oldest+a.policy.Patience > a.plan.now {
			// A later plan tries the class again.
		} else if z != nil && a.freeFor(f, z, true, reasonTimeSlice) || a.makeRoom(f, true, reasonTimeSlice) {
			return true
		}
	}
	return a.dropStale(f) || a.refuse(f)
}

// placeWithinMaximum evicts idle replicas of f's own team, which holds its maximum. A
// later plan places f once they have stopped. It reports whether enough are evicted.
func (a *attempt) placeWithinMaximum(f *Function) bool {
	res, team := f.Resources, f.Name.Team
	most := a.counts.teams[team].Max
	if res.GPUs > most || !a.world.fitsAnyEmpty(f) {
		return a.refuse(f)
	}
	if !a.fitsAfterEvictions(f) || !a.fitsMaximum(f, most) {
		return a.dropStale(f) || a.refuse(f) // evictions would not make enough room
	}
	// Evicting another team's replicas would not help.
	for a.counts.staying(team)+res.GPUs > most {
		v := a.oldestVictim(f, func(v *victim) bool { return v.f.Name.Team == team && v.r.Reserved.GPUs > 0 && !v.r.Asleep() })
		if v == nil {
			return a.refuse(f)
		}
		a.evict(v, f, reasonIdle, res)
	}
	// A later plan places f, when the team's GPUs are free.
	a.counts.claimed[team] += res.GPUs
	a.mixPromise(team)
	return true
}

// startOn starts f on m, which must have free room for it.
func (a *attempt) startOn(m *nodeRoom, f *Function, reason string) {
	gpus, _ := m.now.Choose(f.Resources)
	m.now.Take(f.Resources, gpus)
	m.soon.Take(f.Resources, gpus)
	a.counts.held[f.Name.Team] += f.Resources.GPUs
	a.addAction(Action{Kind: Start, Function: f.Name, Node: m.node.ID, GPUs: gpus, Reason: reason})
}

// fitsAnyEmpty reports whether f would fit some node if the node were empty.
func (w *world) fitsAnyEmpty(f *Function) bool {
	for i := range w.rooms {
		if m := &w.rooms[i]; m.node.admits(f) && m.node.storeFits(f) && m.fitsEmpty(f.Resources) {
			return true
		}
	}
	return false
}

// fitsMaximum reports whether f fits its team's maximum once the team's idle replicas
// are evicted.
func (a *attempt) fitsMaximum(f *Function, most int) bool {
	team := f.Name.Team
	over := a.counts.staying(team) + f.Resources.GPUs - most
	for i := range a.world.rooms {
		list := a.world.rooms[i].idle
		for j := range list {
			if over <= 0 {
				return true
			}
			if v := &list[j]; v.f.Name.Team == team && v.r.Reserved.GPUs > 0 && !v.r.Asleep() && a.mayEvict(v, f, 0, reasonIdle) {
				over -= v.r.Reserved.GPUs
			}
		}
	}
	return over <= 0
}

// fitsAfterEvictions reports whether f fits some node once all that may be evicted is.
func (a *attempt) fitsAfterEvictions(f *Function) bool {
	z := a.sleeper(f)
	late := a.policy.TimeSlice > 0 && f.waits() && f.Oldest+a.policy.Patience <= a.plan.now
	for at := range a.world.rooms {
		m := &a.world.rooms[at]
		here := z != nil && z.Node == m.node.ID
		if !here && (!a.eligible(m, f) || !m.fitsEmpty(f.Resources)) {
			continue
		}
		trial := m.soon.Clone()
		taken := map[string]int{} // GPUs by team: what one team keeps bounds all evictions together
		for _, busy := range [...]bool{false, true} {
			list := m.offers(busy)
			for i := range list {
				v := &list[i]
				team := v.f.Name.Team
				if n := taken[team]; !busy && a.mayEvict(v, f, n, reasonIdle) ||
					busy && (a.mayEvict(v, f, n, reasonTeamShare) || late && a.mayEvict(v, f, n, reasonTimeSlice)) {
					if !v.r.Asleep() {
						taken[team] += v.r.Reserved.GPUs
					}
					res, gpus := v.r.reserves()
					trial.Give(res, gpus)
				}
			}
		}
		if here && trial.FitsOn(z.Reserved, z.GPUs) {
			return true
		}
		if _, ok := trial.Choose(f.Resources); ok && a.eligible(m, f) {
			return true
		}
	}
	return false
}

// choose returns the index of the cheapest node with room for f now, or with soon once
// stopping replicas are gone; -1 for none. possible: f would fit some empty node.
func (a *attempt) choose(f *Function, soon bool, record *explain.Record) (at int, possible bool) {
	at = -1
	least := 0.0
	failed, failedRow := -1, explain.Row{} // the node of FailedOn
	for i := range a.world.rooms {
		m := &a.world.rooms[i]
		if soon && !m.waiting {
			continue
		}
		if !a.eligible(m, f) {
			record.RejectNode(m.node.ID, "its bytes cannot come here, or not now")
			continue
		}
		s := &m.now
		if soon {
			s = &m.soon
		}
		if !s.Fits(f.Resources) {
			if could := !soon && m.fitsEmpty(f.Resources); could {
				possible = true
				record.RejectNode(m.node.ID, "no room")
			} else {
				record.RejectNode(m.node.ID, "too small")
			}
			continue
		}
		possible = true
		x := a.score(m, s, f)
		total := x.total()
		row := explain.Row{Node: m.node.ID, Score: total, Names: &placePartNames, Parts: [4]float64{x.ready, x.packing, x.topology, x.store}, Why: string(x.tier)}
		if m.node.ID == f.FailedOn {
			failed, failedRow = i, row
			continue
		}
		record.Add(row)
		if at < 0 || total < least {
			at, least = i, total
		}
	}
	switch {
	case failed >= 0 && at < 0:
		at = failed
		record.Add(failedRow)
	case failed >= 0:
		record.RejectNode(f.FailedOn, "two starts in a row failed here")
	}
	if at >= 0 {
		record.Choose(a.world.rooms[at].node.ID, "")
	}
	return at, possible
}

// wakeWait is the assumed time to free the GPUs of a sleeper.
const wakeWait = 5 * time.Second

// sleeper is the replica of f that fell asleep last and may wake up, nil for none.
func (a *attempt) sleeper(f *Function) (best *Replica) {
	for i := range f.Replicas {
		r := &f.Replicas[i]
		at, ok := a.world.index[r.Node]
		if !ok || !r.Asleep() || r.Stopping || r.Stale || a.plan.hasAction(r) || a.world.rooms[at].node.AvoidUntil > a.plan.now ||
			a.world.onUnhealthyGPU(r) {
			continue
		}
		if best == nil || r.SleptAt > best.SleptAt {
			best = r
		}
	}
	return best
}

// sleeperFits reports whether the GPUs of sleeper r are free now.
func (a *attempt) sleeperFits(r *Replica) bool {
	m := &a.world.rooms[a.world.index[r.Node]]
	return m.now.FitsOn(r.Reserved, r.GPUs)
}

// wakeReplica reserves the GPUs of sleeper r and wakes it.
func (a *attempt) wakeReplica(f *Function, r *Replica, reason string) {
	a.log.Begin(a.plan.now, f.Name, explain.Place, "it sleeps there").Choose(r.ID, "")
	a.holdSleeper(f, r)
	a.addAction(Action{Kind: WakeUp, Function: f.Name, Node: r.Node, Replica: r.ID, GPUs: r.GPUs, Reason: reason})
}

// holdSleeper reserves the GPUs of sleeper r for its wake-up.
func (a *attempt) holdSleeper(f *Function, r *Replica) {
	m := &a.world.rooms[a.world.index[r.Node]]
	res := r.Reserved.OnGPUs()
	m.now.Take(res, r.GPUs)
	m.soon.Take(res, r.GPUs)
	a.mixPromise(r.ID)
	a.reserved = true
	a.counts.held[f.Name.Team] += res.GPUs
}

// freeFor evicts replicas from the GPUs of a sleeper. It reports whether these GPUs
// will be free.
func (a *attempt) freeFor(f *Function, r *Replica, busy bool, reason string) bool {
	m := &a.world.rooms[a.world.index[r.Node]]
	if m.waiting && m.soon.FitsOn(r.Reserved, r.GPUs) {
		a.holdSleeper(f, r)
		a.counts.pledged[f.Name.Team] += r.Reserved.GPUs
		return true
	}
	trial := m.soon.Clone()
	taken := map[string]int{}
	var gone []int
	list := m.offers(busy)
	for i := range list {
		v := &list[i]
		if trial.FitsOn(r.Reserved, r.GPUs) {
			break
		}
		if !a.mayEvict(v, f, taken[v.f.Name.Team], reason) ||
			!slices.ContainsFunc(v.r.GPUs, func(g int) bool { return slices.Contains(r.GPUs, g) }) {
			continue
		}
		res, gpus := v.r.reserves()
		trial.Give(res, gpus)
		taken[v.f.Name.Team] += res.GPUs
		gone = append(gone, i)
	}
	if !trial.FitsOn(r.Reserved, r.GPUs) {
		return false
	}
	for _, i := range gone {
		a.evict(&list[i], f, reason, functions.Resources{})
	}
	a.holdSleeper(f, r)
	a.counts.pledged[f.Name.Team] += r.Reserved.GPUs
	return true
}

// dropStale stops replicas made from an older recipe of f, to make room for the new one.
// It reports whether it stopped any.
func (a *attempt) dropStale(f *Function) bool {
	any := false
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := a.world.index[r.Node]; ok && r.Stale && !r.Stopping && !a.plan.hasAction(r) {
			a.stopReplica(f, r, "changed")
			any = true
		}
	}
	return any
}

func (d *decision) eligible(m *nodeRoom, f *Function) bool {
	if m.node.AvoidUntil > d.plan.now {
		d.plan.dueAt(m.node.AvoidUntil)
		return false
	}
	return m.node.admits(f) && m.node.storeFits(f)
}
