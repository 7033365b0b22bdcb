package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

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
	victims []victim // idle ones, least recently used first
	busy    []victim // those that have had their turn, longest first
	actions []Action
	blocked map[functions.Name]Verdict
	young   bool // something that may be evicted soon has not stayed its residency
	avoided bool // a node is left alone for a moment
}

// room is a node with what is free on it now, and what will be once everything
// that has been told to stop is gone.
type room struct {
	node    *Node
	now     free
	soon    free
	waiting bool // something is stopping here
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
	gone bool
}

func (d *decision) at(t Instant) {
	if t > d.now && t < d.next {
		d.next = t
	}
}

func (d *decision) do(a Action) { d.actions = append(d.actions, a) }

func (d *decision) nodes() {
	d.index = make(map[string]int, len(d.world.Nodes))
	d.rooms = make([]room, 0, len(d.world.Nodes))
	for _, n := range d.world.Nodes {
		if !n.Here {
			if end := n.Seen + d.policy.Lease; end <= d.now {
				d.do(Action{Kind: Lose, Node: n.ID, Reason: "silent"})
				continue
			} else {
				d.at(end)
			}
		}
		gpus := make([]slot, 2*len(n.GPUs))
		for i, g := range n.GPUs {
			gpus[i].left = g.Memory
			gpus[len(n.GPUs)+i].left = g.Memory
		}
		k := len(n.GPUs)
		d.index[n.ID] = len(d.rooms)
		d.rooms = append(d.rooms, room{node: n,
			now:  free{memory: n.Memory, gpus: gpus[:k:k]},
			soon: free{memory: n.Memory, gpus: gpus[k:]}})
	}
}

// occupy takes the room of everything that runs or is on its way.
func (d *decision) occupy() {
	d.held, d.leaving, d.pledged, d.claimed = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, f := range d.world.Functions {
		for i := range f.Replicas {
			r := &f.Replicas[i]
			if !r.asleep() {
				d.held[f.Name.Team] += r.Take.GPUs
				if r.Stopping || r.CalledOff || r.Sinking {
					d.leaving[f.Name.Team] += r.Take.GPUs
				}
			}
			at, ok := d.index[r.Node]
			if !ok {
				continue
			}
			m := &d.rooms[at]
			res, gpus := r.takes()
			m.now.take(m.node, res, gpus)
			switch {
			case r.Stopping || r.CalledOff:
				m.waiting = true
			case r.Sinking:
				m.waiting = true
				m.soon.take(m.node, functions.Resources{Memory: res.Memory}, nil)
			default:
				m.soon.take(m.node, res, gpus)
			}
		}
	}
}

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

// Want is how many replicas a function should have.
func (f *Function) Want(now Instant) int {
	if f.Gone {
		return 0
	}
	target := float64(max(f.Scale.Target, 1))
	want := 0
	if n := f.Active + f.Queued; n > 0 {
		want = max(1, int(math.Ceil(f.Average/target)))
		if f.Queued > 0 { // a queue is the panic: the average is too slow to see it
			want = max(want, int(math.Ceil(float64(n)/target)))
		}
	}
	if f.Lease > now {
		want = max(want, 1)
	}
	return min(max(want, f.Scale.Min), max(f.Scale.Max, f.Scale.Min))
}

// function scales one function: what it has too many of is stopped here, what
// it lacks is noted for placeAll.
func (d *decision) function(f *Function) {
	want := f.Want(d.now)
	d.at(f.Lease)
	var ready, starting, stale, freshReady int
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := d.index[r.Node]; !ok || r.Stopping || r.State.Over() {
			continue
		}
		switch {
		case f.Gone:
			d.stop(f, r, "removed")
		case d.sick(r):
			d.stop(f, r, "gpu_unhealthy")
		case r.Stale:
			stale++
		case r.Sinking, r.asleep():
		case r.State == functions.Ready:
			ready++
			freshReady++
		case r.CalledOff:
		default:
			starting++
		}
	}
	if f.Gone {
		return
	}
	if stale > 0 {
		// The old recipe serves until the new one can, unless nobody asks.
		for i := range f.Replicas {
			r := &f.Replicas[i]
			if r.Stale && !r.Stopping && (freshReady > 0 || want == 0 && r.InFlight == 0 || r.State != functions.Ready) {
				d.stop(f, r, "changed")
			}
		}
	}
	d.shrink(f, want, ready, starting)
	d.unloadSleepers(f, want)

	live := ready + starting
	if live >= want {
		return
	}
	if f.RetryAt > d.now {
		d.at(f.RetryAt)
		return
	}
	if ready == 0 && starting > 0 {
		return // zero to one has one start at a time
	}
	n := want - live
	if ready == 0 {
		n = 1
	}
	reason, since := "min", Instant(math.MaxInt64)
	switch {
	case f.Queued > 0 && f.Oldest > 0:
		reason, since = "demand", f.Oldest
	case f.Queued > 0 || f.Active > 0:
		reason, since = "demand", d.now
	case f.Lease > d.now:
		reason, since = "lease", math.MaxInt64-1
	}
	for range n {
		d.needy = append(d.needy, need{f: f, reason: reason, since: since})
	}
}

// unloadSleepers ends those that have slept for longer than the function's idle
// time, and all but one where nobody wants any: one is enough to rise.
func (d *decision) unloadSleepers(f *Function, want int) {
	idle, kept := f.Scale.Idle.Std(), 0
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := d.index[r.Node]; !ok || !r.asleep() || r.Stopping || d.told(r) || want > 0 {
			continue
		}
		due := max(f.LastEnd, r.SleptAt, min(f.Lease, d.now)) + idle
		switch {
		case kept > 0:
			d.stop(f, r, "surplus")
		case due > d.now:
			kept++
			d.at(due)
		default:
			d.stop(f, r, "idle")
		}
	}
}

// sleep sends r to sleep if its engine can and its node has the host memory for
// it; false where it cannot.
func (d *decision) sleep(f *Function, r *Replica, drain time.Duration, reason, whom string) bool {
	at, ok := d.index[r.Node]
	if !ok || !f.Sleeps || f.Gone || r.Stale || f.Scale.Idle <= 0 || min(d.rooms[at].now.memory, d.rooms[at].soon.memory) < f.Asleep {
		return false
	}
	if slices.ContainsFunc(d.actions, func(a Action) bool { return a.Kind == Sleep && a.Function == f.Name }) || f.sleepers() > 0 {
		return false // one of a function is enough
	}
	d.do(Action{Kind: Sleep, Function: f.Name, Node: r.Node, Replica: r.ID, Drain: drain, Reason: reason, For: whom})
	d.leaving[f.Name.Team] += r.Take.GPUs
	m := &d.rooms[at]
	m.soon.give(m.node, functions.Resources{GPUs: r.Take.GPUs, GPUMemory: r.Take.GPUMemory}, r.GPUs)
	m.soon.memory -= f.Asleep
	m.now.memory -= f.Asleep
	m.waiting = true
	return true
}

// shrink stops what is idle or too many, and calls off starts that nobody
// waits for.
func (d *decision) shrink(f *Function, want, ready, starting int) {
	for i := len(f.Replicas) - 1; i >= 0 && ready+starting > want && starting > 0; i-- {
		r := &f.Replicas[i]
		if r.ReadyAt == 0 && !r.Spawned && !r.Stopping && !r.CalledOff && !r.Stale && !r.State.Over() && r.State != functions.Ready {
			d.do(Action{Kind: CallOff, Function: f.Name, Node: r.Node, Replica: r.ID, Reason: "called_off"})
			d.leaves(f, r)
			starting--
		}
	}
	if ready == 0 {
		return
	}
	idle := f.Scale.Idle.Std()
	keep := max(want, 1, int(math.Ceil(f.Average/float64(max(f.Scale.Target, 1)))))
	for ready > want {
		r := d.leastUsed(f)
		if r == nil {
			return
		}
		due := max(f.LastEnd, r.ReadyAt, min(f.Lease, d.now)) + idle
		reason := "idle"
		if ready > keep {
			if s := r.ReadyAt + d.policy.Surplus; s < due {
				due, reason = s, "surplus"
			}
		}
		if due > d.now {
			d.at(due)
			return
		}
		if want > 0 && reason == "idle" {
			return // the last of an active function stay while the average says so
		}
		// The first step down the ladder is sleep.
		if reason != "idle" || ready > 1 || !d.sleep(f, r, f.Drain, reason, "") {
			d.stop(f, r, reason)
		}
		ready--
	}
}

// sleepers is how many replicas of f sleep, or are about to.
func (f *Function) sleepers() (n int) {
	for i := range f.Replicas {
		if r := &f.Replicas[i]; (r.asleep() || r.Sinking) && !r.Stopping {
			n++
		}
	}
	return n
}

// leastUsed is the READY replica of f that has been so for longest and has
// nothing in flight, nil if none.
func (d *decision) leastUsed(f *Function) *Replica {
	var best *Replica
	for i := range f.Replicas {
		r := &f.Replicas[i]
		if _, ok := d.index[r.Node]; !ok || r.State != functions.Ready || r.InFlight > 0 || r.Stopping || r.Sinking || r.Stale || d.told(r) {
			continue
		}
		if best == nil || r.ReadyAt < best.ReadyAt {
			best = r
		}
	}
	return best
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
		if d.collect(); d.freeFor(f, z, d.victims, "evicted") {
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
	d.collect()
	if d.makeRoom(f, d.victims, "evicted") {
		return
	}
	if d.policy.Turn > 0 && f.Queued > 0 && f.Oldest > 0 {
		if due := f.Oldest + d.policy.Patience; due > d.now {
			d.at(due)
		} else if z != nil && d.freeFor(f, z, d.busy, "turn") || d.makeRoom(f, d.busy, "turn") {
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
func (d *decision) freeFor(f *Function, r *Replica, victims []victim, reason string) bool {
	m := &d.rooms[d.index[r.Node]]
	if m.waiting && m.soon.holds(m.node, r.Take, r.GPUs) {
		d.hold(f, r)
		d.pledged[f.Name.Team] += r.Take.GPUs
		return true
	}
	trial := free{memory: m.soon.memory, gpus: slices.Clone(m.soon.gpus)}
	taken := map[string]int{}
	var gone []int
	for i := range victims {
		v := &victims[i]
		if trial.holds(m.node, r.Take, r.GPUs) {
			break
		}
		if v.r.Node != r.Node || !d.may(v, f, taken[v.f.Name.Team]) || !slices.ContainsFunc(v.r.GPUs, func(g int) bool { return slices.Contains(r.GPUs, g) }) {
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
		d.evict(&victims[i], f, reason, 0)
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

func (d *decision) reserve(m *room, f *Function, gpus []int) {
	m.now.take(m.node, f.Resources, gpus)
	m.soon.take(m.node, f.Resources, gpus)
	d.held[f.Name.Team] += f.Resources.GPUs
	d.pledged[f.Name.Team] += f.Resources.GPUs
}

func (d *decision) eligible(m *room, f *Function) bool {
	if m.node.Avoid > d.now {
		d.at(m.node.Avoid)
		d.avoided = true
		return false
	}
	return f.Machine == "" || f.Machine == m.node.Machine
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

// better prefers the node that has the bytes, then the fuller one (whole nodes
// stay free for what is large), then the first.
func (d *decision) better(a, b int, f *Function) bool {
	x, y := &d.rooms[a], &d.rooms[b]
	if cx, cy := x.node.Cached[f.Source], y.node.Cached[f.Source]; cx != cy {
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

func (s *free) unused() int {
	n := 0
	for i := range s.gpus {
		if s.gpus[i].users == 0 {
			n++
		}
	}
	return n
}

func (d *decision) never(f *Function) string {
	if len(d.rooms) == 0 {
		return "no agent is connected"
	}
	res := f.Resources
	if f.Machine != "" {
		local := false
		for i := range d.rooms {
			local = local || d.rooms[i].node.Machine == f.Machine
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
