package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// placeAll gives room to those who wait longest first; what one of them has
// been promised, even if it must still be freed, nobody behind it can take.
func (d *decision) placeAll() {
	if len(d.needy) == 0 {
		return
	}
	slices.SortStableFunc(d.needy, func(a, b need) int { return cmp.Compare(a.since, b.since) })
	for _, n := range d.needy {
		d.place(n)
	}
}

// block says that f cannot be placed, unless that is about to change by itself.
func (d *decision) block(f *Function, code, message string, eta time.Duration) {
	if d.young || d.avoided {
		return
	}
	if d.blocked == nil {
		d.blocked = map[functions.Name]Verdict{}
	}
	d.blocked[f.Name] = Verdict{Code: code, Message: message, ETA: eta}
}

func (d *decision) place(n need) {
	f, res, team := n.f, n.f.Resources, n.f.Name.Team
	quota := d.world.Teams[team]
	if quota.Max > 0 && res.GPUs > 0 && d.held[team]+res.GPUs > quota.Max {
		if res.GPUs > quota.Max {
			d.block(f, CodeQuota, fmt.Sprintf("%s needs %d GPUs and team %s may hold %d", f.Name, res.GPUs, team, quota.Max), -1)
			return
		}
		// Its own idle ones make way; nobody else's would help.
		for d.held[team]-d.leaving[team]+d.claimed[team]+res.GPUs > quota.Max {
			v := d.oldestVictim(f, func(v *victim) bool { return v.f.Name.Team == team && v.r.Take.GPUs > 0 && !v.r.asleep() })
			if v == nil {
				if d.dropStale(f) {
					continue
				}
				d.block(f, CodeQuota, fmt.Sprintf("team %s holds %d of %d GPUs, all of them in use", team, d.held[team], quota.Max), -1)
				return
			}
			d.evict(v, f, "evicted", res.Memory)
		}
		// Its share is freed first; it is placed when that has happened.
		d.claimed[team] += res.GPUs
		return
	}

	// One that sleeps is preferred where its own GPUs are free; one that is about
	// to is waited for.
	if slices.ContainsFunc(f.Replicas, func(r Replica) bool { return r.Sinking && !r.Stopping && !r.Stale }) {
		return
	}
	z := d.sleeper(f)
	if z != nil && d.free(z) {
		d.rise(f, z, n.reason)
		return
	}

	fits, roomier := false, -1
	var best []int
	var possible bool
	for i := range d.rooms {
		m := &d.rooms[i]
		if !d.eligible(m, f) {
			continue
		}
		possible = possible || m.could(res)
		if gpus, ok := m.now.fit(m.node, res); ok && (!fits || d.better(i, roomier, f)) {
			fits, roomier, best = true, i, gpus
		}
	}
	if z != nil && (!fits || f.ColdStart <= 0 || f.Rise+riseWait < f.ColdStart) {
		if d.freeFor(f, z, false, "evicted") {
			return // room is made; it rises when that has happened
		}
	}
	if fits {
		m := &d.rooms[roomier]
		m.now.take(m.node, res, best)
		m.soon.take(m.node, res, best)
		d.held[team] += res.GPUs
		d.do(Action{Kind: Start, Function: f.Name, Node: m.node.ID, GPUs: best, Reason: n.reason})
		return
	}
	if !possible && z == nil {
		d.block(f, CodeCapacity, d.never(f), -1)
		return
	}
	// Room that is on its way is waited for; nobody else is evicted for it.
	for i := range d.rooms {
		m := &d.rooms[i]
		if !m.waiting || !d.eligible(m, f) {
			continue
		}
		if gpus, ok := m.soon.fit(m.node, res); ok {
			d.reserve(m, f, gpus)
			return
		}
	}
	if d.makeRoom(f, false, "evicted") {
		return
	}
	if d.policy.Turn > 0 && f.Queued > 0 && f.Oldest > 0 {
		if due := f.Oldest + d.policy.Patience; due > d.now {
			d.at(due)
		} else if z != nil && d.freeFor(f, z, true, "turn") || d.makeRoom(f, true, "turn") {
			return
		}
	}
	if d.dropStale(f) {
		return
	}
	what := "memory"
	if res.GPUs > 0 {
		what = "GPU"
	}
	d.block(f, CodeCapacity, fmt.Sprintf("no %s is free for %s and nothing that holds one is idle", what, f.Name), -1)
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
	d.hold(f, r)
	d.do(Action{Kind: Rise, Function: f.Name, Node: r.Node, Replica: r.ID, GPUs: r.GPUs, Reason: reason})
}

// hold keeps the GPUs of a sleeper for it.
func (d *decision) hold(f *Function, r *Replica) {
	m := &d.rooms[d.index[r.Node]]
	res := functions.Resources{GPUs: r.Take.GPUs, GPUMemory: r.Take.GPUMemory}
	m.now.take(m.node, res, r.GPUs)
	m.soon.take(m.node, res, r.GPUs)
	d.held[f.Name.Team] += res.GPUs
}

// freeFor has victims leave that are on the GPUs of a sleeper. It reports
// whether these GPUs will be free.
func (d *decision) freeFor(f *Function, r *Replica, busy bool, reason string) bool {
	d.collect()
	m := &d.rooms[d.index[r.Node]]
	if m.waiting && m.soon.holds(m.node, r.Take, r.GPUs) {
		d.hold(f, r)
		d.pledged[f.Name.Team] += r.Take.GPUs
		return true
	}
	trial := free{memory: m.soon.memory, gpus: slices.Clone(m.soon.gpus)}
	taken := map[string]int{}
	var gone []int
	list := m.offers(busy)
	for i := range list {
		v := &list[i]
		if trial.holds(m.node, r.Take, r.GPUs) {
			break
		}
		if !d.may(v, f, taken[v.f.Name.Team]) || !slices.ContainsFunc(v.r.GPUs, func(g int) bool { return slices.Contains(r.GPUs, g) }) {
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
		d.evict(&list[i], f, reason, 0)
	}
	d.hold(f, r)
	d.pledged[f.Name.Team] += r.Take.GPUs
	return true
}

// dropStale lets the old recipe of f go where the new one finds no room beside it.
func (d *decision) dropStale(f *Function) bool {
	any := false
	for i := range f.Replicas {
		if r := &f.Replicas[i]; r.Stale && !r.Stopping && !d.told(r) {
			d.stop(f, r, "changed")
			any = true
		}
	}
	return any
}

func (d *decision) eligible(m *room, f *Function) bool {
	if m.node.Avoid > d.now {
		d.at(m.node.Avoid)
		d.avoided = true
		return false
	}
	return f.Machine == "" || m.node.reads(f)
}

// reads reports whether a source that lies on a machine can be had here: in
// place, or from who lends it.
func (n *Node) reads(f *Function) bool { return f.Machine == n.Machine || n.Borrows }

// has reports whether the bytes of a source are here.
func (n *Node) has(f *Function) bool {
	return n.Cached[f.Source] || f.Machine != "" && f.Machine == n.Machine
}

// better prefers the node that has the bytes, then the fuller one (whole nodes
// stay free for what is large), then the first.
func (d *decision) better(a, b int, f *Function) bool {
	x, y := &d.rooms[a], &d.rooms[b]
	if cx, cy := x.node.has(f), y.node.has(f); cx != cy {
		return cx
	}
	if f.Resources.GPUs > 0 {
		if fx, fy := x.now.unused(), y.now.unused(); fx != fy {
			return fx < fy
		}
	} else if x.now.memory != y.now.memory {
		return x.now.memory > y.now.memory // host memory is spread, not packed
	}
	return false
}

func (d *decision) never(f *Function) string {
	if len(d.rooms) == 0 {
		return "no agent is connected"
	}
	res := f.Resources
	if f.Machine != "" {
		local := false
		for i := range d.rooms {
			local = local || d.rooms[i].node.reads(f)
		}
		if !local {
			return fmt.Sprintf("the source of %s is a folder of a machine that no agent runs on", f.Name)
		}
	}
	if res.GPUs > 0 {
		return fmt.Sprintf("no node has %d healthy GPUs with %s each for %s", res.GPUs, res.GPUMemory.Human(), f.Name)
	}
	return fmt.Sprintf("no node has %s of memory for %s", res.Memory.Human(), f.Name)
}
