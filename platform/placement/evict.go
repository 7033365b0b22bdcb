package placement

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
	"github.com/thaw-dev/thaw/platform/placement/explain"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
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
		case r.ReadyAt+d.policy.Residency > d.plan.now:
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

// keepValue returns the input of the eviction policy for r.
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
	for i := range d.plan.actions {
		if a := &d.plan.actions[i]; a.Kind == Sleep && a.Node == m.node.ID && a.Level == 1 {
			if f := d.functionOf(a.Function); f != nil {
				more += f.SleepMemory
			}
		}
	}
	return more <= m.node.Sleep
}

// functionOf finds a function that has replicas.
func (d *decision) functionOf(name functions.Name) *Function {
	for f := range d.aliveFunctions() {
		if f.Name == name {
			return f
		}
	}
	return nil
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
	if t := f.Expect.Tier[functions.TierNVMe]; t > 0 {
		return t
	}
	if f.ColdStart > 0 {
		return f.ColdStart
	}
	for _, tier := range []functions.Tier{functions.TierDRAM, functions.TierRemote} {
		if t := f.Expect.Tier[tier]; t > 0 {
			return t
		}
	}
	size := f.Size
	if size == 0 {
		size = f.Resources.GPUMemory * functions.Bytes(f.Resources.GPUs)
	}
	return 8*time.Second + time.Duration(float64(size)/(2<<30)*float64(time.Second))
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

// Reasons for an eviction.
const (
	reasonIdle      = "evicted"    // the replica was idle
	reasonTimeSlice = "time_slice" // its time slice is over, and a request has waited for Patience
	reasonTeamShare = "share"      // its team used more than its share, and the waiting team less
)

// mayEvict reports whether v may be evicted for f for this reason, after replicas with
// taken GPUs of its team were chosen.
func (d *decision) mayEvict(v *victim, f *Function, taken int, reason string) bool {
	if v.f == f || v.residing || d.plan.isLeaving(v) {
		return false
	}
	if d.attempt != nil && d.attempt.low && v.low != lowIdle && v.low != lowOver {
		return false
	}
	owner, asker := v.f.Name.Team, f.Name.Team
	switch reason {
	case reasonPrewarm:
		if !d.worthLess(v, f) {
			return false
		}
	case reasonTimeSlice:
		if !v.sliceOver || owner != asker && v.busy() && d.counts.belowShare(owner, asker, v.r.Reserved.GPUs > 0) {
			return false
		}
	case reasonTeamShare:
		if !d.counts.overShare(v, f, taken) {
			return false
		}
	}
	if owner == asker || v.r.Reserved.GPUs == 0 || v.r.asleep() {
		return true
	}
	if d.counts.claimsGuarantee(f) {
		return true // f's team claims its guarantee, so the owner's is no obstacle
	}
	return d.counts.keeps(owner)-taken-v.r.Reserved.GPUs >= d.counts.teams[owner].Guaranteed
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
	var x victimSearch
	record := a.log.Begin(a.plan.now, f.Name, explain.Evict, reason)
	for at := range a.world.rooms {
		m := &a.world.rooms[at]
		list := m.offers(busy)
		if len(list) == 0 || !a.eligible(m, f) || !m.fitsEmpty(f.Resources) {
			continue
		}
		x.begin(a.decision, m, list, f, reason)
		if x.cheapest >= least {
			continue
		}
		if set, loss := x.best(least); set != nil {
			room, gone, least = at, append(gone[:0], set...), loss
			v := &list[set[0]]
			record.Add(a.victimRow(m, v, loss, ""))
			record.Choose(v.r.ID)
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

// victimRow is the record of an eviction candidate: cost of its set, freed memory,
// idle time and time to READY if started again.
func (d *decision) victimRow(m *nodeRoom, v *victim, loss float64, why string) explain.Row {
	k := v.f.keepValue(v.r)
	return explain.Row{
		Node: m.node.ID, Replica: v.r.ID, Function: v.f.Name, Score: loss, Names: &evictPartNames, Why: why,
		Parts: [4]float64{loss, eviction.GiB(k.Bytes), max(d.plan.now-v.lastUse, 0).Seconds(), k.WayBack.Seconds()},
	}
}

// victimSearch finds the set of victims on one node whose eviction makes room for f at
// the least cost.
type victimSearch struct {
	d        *decision
	m        *nodeRoom
	list     []victim
	f        *Function
	reason   string
	loss     []float64
	cheapest float64 // no set of victims costs less

	trial    rooms.Room
	set, out []int
	per      []gpuVictims
	marks    []bool
}

// gpuVictims is the set of victims whose eviction frees one GPU.
type gpuVictims struct {
	set  []int
	loss float64
}

func (s *victimSearch) begin(d *decision, m *nodeRoom, list []victim, f *Function, reason string) {
	s.d, s.m, s.list, s.f, s.reason = d, m, list, f, reason
	s.loss, s.cheapest = s.loss[:0], math.Inf(1)
	perGPU := math.Inf(1)
	for i := range list {
		l := d.evictionCost(&list[i])
		s.loss = append(s.loss, l)
		s.cheapest = min(s.cheapest, l)
		if n := list[i].r.Reserved.GPUs; n > 0 && !list[i].r.asleep() {
			perGPU = min(perGPU, l/float64(n))
		}
	}
	// Each missing GPU must be freed, and none costs less than perGPU.
	if missing := m.soon.LackingGPUs(f.Resources); missing > 0 {
		s.cheapest = max(s.cheapest, float64(missing)*perGPU)
	}
}

func (s *victimSearch) reset() {
	s.trial.Set(&s.m.soon)
	s.set = s.set[:0]
}

// add puts victim i into the set, if it may be evicted.
func (s *victimSearch) add(i int) bool {
	v := &s.list[i]
	res, gpus := v.r.reserves()
	taken := 0
	for _, j := range s.set {
		if w := &s.list[j]; w.f.Name.Team == v.f.Name.Team && !w.r.asleep() {
			taken += w.r.Reserved.GPUs
		}
	}
	if !s.d.mayEvict(v, s.f, taken, s.reason) {
		return false
	}
	s.trial.Give(res, gpus)
	s.set = append(s.set, i)
	return true
}

func (s *victimSearch) fits() bool { return s.trial.Fits(s.f.Resources) }

// best returns the cheapest set of victims, nil if none costs less than bound. It
// tries three kinds of sets: victims in eviction order until there is room, less the
// unnecessary ones; each victim alone; and all victims on the cheapest GPUs, which
// lets one large function replace several small ones.
func (s *victimSearch) best(bound float64) ([]int, float64) {
	least := bound
	keep := func() {
		if loss := s.total(); loss < least {
			least = loss
			s.out = append(s.out[:0], s.set...)
		}
	}
	s.out = s.out[:0]
	s.reset()
	stays := false
	for i := range s.list {
		if !s.add(i) {
			stays = true
		} else if s.fits() {
			s.prune()
			keep()
			break
		}
	}
	// All victims together do not make room. A victim may have been refused because an
	// unnecessary one of its team already brings the team down to its guarantee.
	if !s.fits() && (!stays || len(s.set) == 0) {
		return nil, 0
	}
	if len(s.list) > 1 {
		for i := range s.list {
			if s.loss[i] >= least {
				continue
			}
			if s.reset(); s.add(i) && s.fits() {
				keep()
			}
		}
	}
	if s.f.Resources.GPUs > 0 && len(s.out) > 1 {
		s.byGPU()
		if s.fits() {
			s.prune()
			keep()
		}
	}
	if len(s.out) == 0 {
		return nil, 0
	}
	return s.out, least
}

func (s *victimSearch) total() (loss float64) {
	for _, i := range s.set {
		loss += s.loss[i]
	}
	return loss
}

// prune drops victims whose eviction is not necessary, the most expensive first.
func (s *victimSearch) prune() {
	slices.SortFunc(s.set, func(a, b int) int { return cmp.Or(cmp.Compare(s.loss[b], s.loss[a]), cmp.Compare(a, b)) })
	kept := s.set[:0]
	for _, i := range s.set {
		res, gpus := s.list[i].r.reserves()
		if s.trial.Take(res, gpus); s.fits() {
			continue
		}
		s.trial.Give(res, gpus)
		kept = append(kept, i)
	}
	s.set = kept
	slices.Sort(s.set)
}

// byGPU selects the victims on the GPUs that are cheapest to free.
func (s *victimSearch) byGPU() {
	s.per = s.per[:0]
	one := s.f.Resources
	one.GPUs = 1
	one = one.OnGPUs()
	for g := range s.m.node.GPUs {
		gpu := &s.m.node.GPUs[g]
		s.reset()
		ok := s.trial.FitsGPU(g, one)
		for i := 0; i < len(s.list) && !ok; i++ {
			if slices.Contains(s.list[i].r.GPUs, gpu.Index) && !s.list[i].r.asleep() && s.add(i) {
				ok = s.trial.FitsGPU(g, one)
			}
		}
		if ok {
			s.per = append(s.per, gpuVictims{slices.Clone(s.set), s.total()})
		}
	}
	slices.SortStableFunc(s.per, func(a, b gpuVictims) int { return cmp.Compare(a.loss, b.loss) })
	s.reset()
	s.marks = append(s.marks[:0], make([]bool, len(s.list))...)
	for _, p := range s.per[:min(len(s.per), s.f.Resources.GPUs)] {
		for _, i := range p.set {
			if !s.marks[i] {
				s.marks[i] = true
				s.add(i)
			}
		}
	}
	// Host memory, processors or pods may still be short.
	for i := 0; i < len(s.list) && !s.fits(); i++ {
		if !s.marks[i] {
			s.marks[i] = true
			s.add(i)
		}
	}
}
