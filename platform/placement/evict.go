package placement

import (
	"cmp"
	"math"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
	"github.com/thaw-dev/thaw/platform/placement/explain"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
	"github.com/thaw-dev/thaw/platform/placement/victims"
)

// victimsOf lists f's evictable replicas: idle and sleeping ones, and separately busy and
// starting ones, which are evicted only for long waiters or for teams below their
// share. It is called when f has changed and at the times it passes to dueAt, so it
// depends only on f, its nodes and the time; mayEvict checks the promises of the plan.
func (d *decision) victimsOf(f *Function, idle, busy []victim) ([]victim, []victim) {
	if len(f.Replicas) == 0 || f.Gone {
		return idle, busy
	}
	if f.Lease > d.plan.now {
		d.plan.dueAt(f.Lease)
		return idle, busy
	}
	spare, yields := f.ready()-f.Scale.Min, d.yielding(f)
	somewhere := f.unattributed()
	for i := range f.Replicas {
		r := &f.Replicas[i]
		at, ok := d.world.index[r.Node]
		if !ok || r.Stopping || r.Cancelled || r.GoingToSleep || r.WakingUp || r.State.Over() {
			continue
		}
		v := victim{f: f, r: r, room: at, lastUse: max(f.LastEnd, r.ReadyAt)}
		switch {
		case r.asleep(): // it holds host memory and is never in use
			if f.Queued == 0 || f.OnlyLow() {
				d.weighVictim(&v)
				idle = append(idle, v)
			}
		case r.State != functions.Ready:
			if f.onlyForeseen(d.plan.now) { // a prewarm: no request waits for it yet
				d.plan.dueAt(f.Prewarm)
				d.weighVictim(&v)
				idle = append(idle, v)
			} else if i >= yields && !r.Stale {
				d.lowUseOf(r).order(&v)
				idle = append(idle, v)
			} else if f.Scale.Min == 0 && !r.Stale {
				v.lastUse = math.MaxInt64 / 2 // evicted last: its load would be lost
				busy = append(busy, v)
			}
		case spare <= 0:
		case r.InFlight > 0 || f.Queued > 0 || somewhere > 0:
			if r.InFlight == 0 {
				somewhere--
			}
			if i >= yields {
				d.lowUseOf(r).order(&v)
				idle = append(idle, v)
				spare--
				continue
			}
			v.lastUse = r.ReadyAt
			v.key = v.lastUse.Seconds()
			if end := r.ReadyAt + d.policy.TimeSlice; end > d.plan.now || d.policy.TimeSlice <= 0 {
				d.plan.dueAt(end)
			} else {
				v.sliceOver = true
			}
			busy = append(busy, v)
			spare--
		case r.ReadyAt+d.policy.Residency > d.plan.now && f.Released < r.ReadyAt:
			d.plan.dueAt(r.ReadyAt + d.policy.Residency)
			v.residing = true
			busy = append(busy, v)
		case f.MinResidency > d.plan.now && !f.neverUsed(r):
			d.plan.dueAt(f.MinResidency)
			v.key, v.sliceOver = v.lastUse.Seconds(), true
			busy = append(busy, v)
			spare--
		default:
			d.weighVictim(&v)
			if d.idleAfterLow(f, r) {
				lowIdle.order(&v)
			}
			idle = append(idle, v)
			spare--
		}
	}
	return idle, busy
}

// weighVictim sets v's place in the eviction order.
func (d *decision) weighVictim(v *victim) {
	k := v.f.keepValue(v.r)
	v.bytes = k.Bytes
	score, until := d.policy.Eviction.Score(k, d.plan.now)
	d.plan.dueAt(until)
	v.key = score
}

func (f *Function) keepValue(r *Replica) eviction.Kept {
	k := eviction.Kept{Used: max(f.LastEnd, r.ReadyAt), Uses: f.Uses, UsesAt: f.UsesAt, Next: f.NextUse}
	if r.asleep() {
		k.Bytes, k.WayBack = r.Reserved.Memory+r.SleepMemory, f.coldStartTime()
		return k
	}
	k.Bytes, k.WayBack = freedBytes(r.Reserved), f.coldStartTime()
	if f.Sleeps && f.WakeTime > 0 && f.sleepers() == 0 {
		k.WayBack = min(k.WayBack, f.WakeTime)
	}
	return k
}

// wakeTime is the time that waking r takes to READY; 0 unknown.
func (f *Function) wakeTime(r *Replica) time.Duration {
	if r.Deep {
		return f.DeepWakeTime
	}
	return f.WakeTime
}

// sleepsDeep reports whether a replica of f is worth keeping without its weights:
// waking it is faster than a cold start, or not measured.
func (f *Function) sleepsDeep() bool {
	return f.DeepWakeTime <= 0 || f.ColdStart <= 0 || f.DeepWakeTime < f.ColdStart*9/10
}

// sleepMemoryFits reports whether sleepers on m may hold more bytes within the node's
// budget for sleep.
func (d *decision) sleepMemoryFits(m *nodeRoom, more functions.Bytes) bool {
	if m.node.Sleep <= 0 {
		return true
	}
	for f := range d.aliveFunctions() {
		for i := range f.Replicas {
			if r := &f.Replicas[i]; r.Node == m.node.ID && (r.State == functions.Sleeping || r.GoingToSleep) && !r.Stopping && !d.plan.hasAction(r) {
				more += r.SleepMemory
			}
		}
	}
	return more+m.slept <= m.node.Sleep
}

// wholeGPU is the memory that a GPU reserved whole counts for.
const wholeGPU functions.Bytes = 80 << 30

// freedBytes is the memory that evicting res frees: GPU memory if it uses GPUs, else
// host memory.
func freedBytes(res functions.Resources) functions.Bytes {
	if res.GPUs == 0 {
		return max(res.Memory, 1<<20)
	}
	if res.GPUMemory == 0 {
		return wholeGPU * functions.Bytes(res.GPUs)
	}
	return res.GPUMemory * functions.Bytes(res.GPUs)
}

// coldStartTime is the time of a start from a store to READY, measured or derived
// from the size.
func (f *Function) coldStartTime() time.Duration {
	return f.Expect.Cold(f.ColdStart, cmp.Or(f.Size, f.Resources.GPUMemory*functions.Bytes(f.Resources.GPUs)))
}

// compareVictims orders victims, the first to evict first. Equal ones stay in the
// order of their functions.
func compareVictims(a, b victim) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.lastUse, b.lastUse))
}

// evictionCost is the cost of evicting v; costs of several victims add up. LRU defines
// no cost, so its cost is the freed memory over the idle time.
func (d *decision) evictionCost(v *victim) float64 {
	if v.low != notLow {
		return eviction.GiB(freedBytes(v.r.Reserved)) * v.low.cost()
	}
	if v.bytes == 0 || d.policy.Eviction == eviction.LRU {
		return eviction.GiB(freedBytes(v.r.Reserved)) / (1 + max(d.plan.now-v.lastUse, 0).Seconds())
	}
	return eviction.GiB(v.bytes) * v.key
}

const (
	reasonIdle      = "evicted"    // the replica was idle
	reasonTimeSlice = "time_slice" // its time slice is over, and a request has waited for Patience
	reasonTeamShare = "share"      // its team used more than its share, and the waiting team less
)

// mayEvict reports whether v may be evicted for f for this reason, after replicas with
// taken GPUs of its team were chosen.
func (d *decision) mayEvict(v *victim, f *Function, taken int, reason string) bool {
	return d.mayLeave(v, f, reason) && d.counts.teamsAllow(v, f, taken, reason)
}

// mayLeave is the part of mayEvict that depends on the replica.
func (d *decision) mayLeave(v *victim, f *Function, reason string) bool {
	if v.f == f || v.residing || d.plan.isLeaving(v) {
		return false
	}
	if d.attempt != nil && d.attempt.low && v.low != lowIdle && v.low != lowOver {
		return false
	}
	return (reason != reasonPrewarm || d.worthLess(v, f)) && (reason != reasonTimeSlice || v.sliceOver)
}

// teamsAllow is the part of mayEvict that depends on the teams and, of the replica, on
// ownerKind. What it refuses it also refuses with more taken.
func (t *teamCounts) teamsAllow(v *victim, f *Function, taken int, reason string) bool {
	owner, asker := v.f.Name.Team, f.Name.Team
	switch reason {
	case reasonTimeSlice:
		if owner != asker && v.busy() && t.belowShare(owner, asker, v.r.Reserved.GPUs > 0) {
			return false
		}
	case reasonTeamShare:
		if !t.overShare(v, f, taken) {
			return false
		}
	}
	if owner == asker || v.r.Reserved.GPUs == 0 || v.r.asleep() {
		return true
	}
	if t.claimsGuarantee(f) {
		return true // f's team claims its guarantee, so the owner's is no obstacle
	}
	return t.keeps(owner)-taken-v.r.Reserved.GPUs >= t.teams[owner].Guaranteed
}

// busy reports whether v is in use or starting.
func (v *victim) busy() bool {
	return !v.r.asleep() && (v.r.State != functions.Ready || v.r.InFlight > 0 || v.f.Queued > 0)
}

func (a *attempt) oldestVictim(f *Function, ok func(*victim) bool) (first *victim) {
	for i := range a.world.rooms {
		list := a.world.rooms[i].idle
		for j := range list {
			v := &list[j]
			if first != nil && compareVictims(*v, *first) >= 0 {
				break
			}
			if ok(v) && a.mayEvict(v, f, 0, reasonIdle) {
				first = v
			}
		}
	}
	return first
}

// evict evicts v for f: v goes to sleep if the host memory of needs stays free, else it
// stops.
func (a *attempt) evict(v *victim, f *Function, reason string, needs functions.Resources) {
	v.evictedInPlan = a.plan.number
	drain := v.f.Drain
	switch {
	case !v.busy():
		reason = reasonIdle
	case v.r.State != functions.Ready:
		drain = 0 // a starting replica has no requests in flight
	default:
		drain = a.policy.TimeSliceDrain
	}
	if v.low != notLow {
		reason = reasonPriority
	}
	if v.r.Reserved.GPUs > 0 && v.r.State == functions.Ready {
		// v must not keep host memory asleep that f needs.
		m := &a.world.rooms[v.room]
		m.soon.Host.Move(needs, 1)
		slept := a.sleepReplica(v.f, v.r, drain, reason, f.Name.String())
		m.soon.Host.Move(needs, -1)
		if slept {
			return
		}
	}
	a.addAction(Action{Kind: Stop, Function: v.f.Name, Node: v.r.Node, Replica: v.r.ID, Drain: drain, Reason: reason, For: f.Name.String()})
	a.noteLeaving(v.f, v.r)
}

// makeRoom evicts idle replicas, or with busy the busy ones, for f on the node where
// that costs least. It reports whether f then has room.
func (a *attempt) makeRoom(f *Function, busy bool, reason string) bool {
	room, gone, least := -1, []int(nil), math.Inf(1)
	x, candidates := &a.search, &a.candidates
	candidates.begin(a.decision, f, reason)
	record := a.log.Begin(a.plan.now, f.Name, explain.Evict, reason)
	if reason == reasonTeamShare && !a.anyOwnerOverShare(f) {
		return false
	}
	for at := range a.world.rooms {
		m := &a.world.rooms[at]
		list := m.offers(busy)
		if len(list) == 0 || !a.eligible(m, f) || !m.fitsEmpty(f.Resources) || !m.mayFit(f.Resources, busy) {
			continue
		}
		if !candidates.makesRoom(list, &m.soon) {
			continue
		}
		x.Begin(candidates.victims(), candidates, &m.soon, f.Resources)
		if x.AtLeast >= least {
			continue
		}
		if set, loss := x.Best(least); set != nil {
			room, gone, least = at, append(gone[:0], set...), loss
			v := &list[set[0]]
			record.Add(a.victimRow(m, v, loss, ""))
			record.Choose(v.r.ID, "")
		}
	}
	if room < 0 {
		return false
	}
	m := &a.world.rooms[room]
	list := m.offers(busy)
	for j, i := range gone {
		if j > 0 {
			record.Add(a.victimRow(m, &list[i], a.evictionCost(&list[i]), "leaves with it"))
		}
		a.evict(&list[i], f, reason, f.Resources)
	}
	gpus, _ := m.soon.Choose(f.Resources)
	a.reserve(m, f, gpus)
	return true
}

// anyOwnerOverShare reports whether any team may lose some busy replica to f by its share: one
// with at most one GPU, whose time slice is over, is the first that it loses.
func (d *decision) anyOwnerOverShare(f *Function) bool {
	for team := range d.owners {
		owner := Function{Name: functions.Name{Team: team}}
		for gpus := range 2 {
			r := Replica{State: functions.Ready, InFlight: 1, Reserved: functions.Resources{GPUs: gpus}}
			if d.counts.teamsAllow(&victim{f: &owner, r: &r, sliceOver: true}, f, 0, reasonTeamShare) {
				return true
			}
		}
	}
	return false
}

// victimRow is the record of an eviction candidate: cost of its set, freed memory,
// idle time and time to READY if started again.
func (d *decision) victimRow(m *nodeRoom, v *victim, loss float64, why string) explain.Row {
	k := v.f.keepValue(v.r)
	return explain.Row{
		Node: m.node.ID, Replica: v.r.ID, Function: v.f.Name, Score: loss, Names: &evictPartNames, Why: why,
		Parts: [4]float64{loss, eviction.GiB(k.Bytes), max(d.plan.now-v.lastUse, 0).Seconds(), k.WayBack.Seconds()},
	}
}

// evictionList is the victims of one node that may be evicted for f.
type evictionList struct {
	d      *decision
	list   []victim
	f      *Function
	reason string
	number uint64 // of the call of makeRoom

	// Of each victim: whether it may be evicted without others of its team.
	alone []bool

	// Buffers.
	out   []victims.Victim
	trial rooms.Room
}

func (l *evictionList) begin(d *decision, f *Function, reason string) {
	l.d, l.f, l.reason = d, f, reason
	l.number++
}

// makesRoom takes the victims of a node, and reports whether those that may be evicted make
// room for f if all of them are.
func (l *evictionList) makesRoom(list []victim, room *rooms.Room) bool {
	l.list, l.alone = list, l.alone[:0]
	l.trial.Set(room)
	any := false
	for i := range list {
		may := l.mayEvictAlone(&list[i])
		l.alone = append(l.alone, may)
		if may {
			any = true
			l.trial.Give(list[i].r.reserves())
		}
	}
	return any && l.trial.Fits(l.f.Resources)
}

// owner is a team that has functions. Its verdicts are those of teamsAllow in one call of
// makeRoom, of victims alone: thousands of replicas have few owners.
type owner struct {
	functions int
	number    uint64 // of the call that the verdicts are of
	verdicts  [ownerKinds]bool
	known     [ownerKinds]bool
}

// ownerKinds is the number of kinds of victims whose verdicts are kept.
const ownerKinds = 8 << 3

// ownerKind is what teamsAllow reads of v but for its owner; ownerKinds or more for one whose
// verdict is not kept.
func (v *victim) ownerKind() int {
	kind := v.r.Reserved.GPUs
	for _, x := range [...]bool{v.r.asleep(), v.busy(), v.sliceOver} {
		if kind *= 2; x {
			kind++
		}
	}
	return kind
}

func (l *evictionList) victims() []victims.Victim {
	l.out = l.out[:0]
	for i := range l.list {
		v := &l.list[i]
		x := victims.Victim{Cost: l.d.evictionCost(v)}
		if n := v.r.Reserved.GPUs; n > 0 && !v.r.asleep() {
			x.GPUs = n
		}
		l.out = append(l.out, x)
	}
	return l.out
}

func (l *evictionList) Team(i int) string { return l.list[i].f.Name.Team }

func (l *evictionList) Frees(i int) (functions.Resources, []int) { return l.list[i].r.reserves() }

func (l *evictionList) MayEvict(i, taken int) bool {
	return l.alone[i] && (taken == 0 || l.d.counts.teamsAllow(&l.list[i], l.f, taken, l.reason))
}

func (l *evictionList) mayEvictAlone(v *victim) bool {
	if !l.d.mayLeave(v, l.f, l.reason) {
		return false
	}
	o, kind := v.owner, v.ownerKind()
	if kind >= ownerKinds {
		return l.d.counts.teamsAllow(v, l.f, 0, l.reason)
	}
	if o.number != l.number {
		o.number, o.known = l.number, [ownerKinds]bool{}
	}
	if !o.known[kind] {
		o.known[kind], o.verdicts[kind] = true, l.d.counts.teamsAllow(v, l.f, 0, l.reason)
	}
	return o.verdicts[kind]
}
