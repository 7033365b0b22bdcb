package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/explain"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// refuse sets the verdict: why f cannot be placed, and when it may be READY. It
// returns false, the result of place.
//
// The reason comes from resources held, not from this plan's promises, so it does not
// depend on the order of placing. There is no verdict if the situation changes soon by
// itself: a node is avoided for a moment, or a replica is within its residency.
func (a *attempt) refuse(f *Function) bool {
	team, res := f.Name.Team, f.Resources
	quota := a.counts.teams[team]
	if quota.Max > 0 && res.GPUs > quota.Max {
		a.verdict = Verdict{Code: CodeQuota, ETA: -1,
			Message: fmt.Sprintf("it needs %s and team %s may hold %d", functions.GPUCount(res.GPUs), team, quota.Max)}
		return false
	}
	over := quota.Max > 0 && res.GPUs > 0 && a.counts.count[team].held+res.GPUs > quota.Max
	possible, soon := false, false
	for i := range a.world.rooms {
		m := &a.world.rooms[i]
		if !m.node.admits(f) || !m.node.storeFits(f) || !m.fitsEmpty(res) {
			continue
		}
		possible = true
		if m.node.AvoidUntil > a.plan.now && m.node.AvoidUntil != math.MaxInt64 {
			a.plan.dueAt(m.node.AvoidUntil)
			soon = true
		}
		for j := range m.busy {
			v := &m.busy[j]
			soon = soon || v.residing && (!over || v.f.Name.Team == team)
		}
	}
	switch {
	case !possible && f.CachedNodesOnly != "":
		a.verdict = Verdict{Code: CodeBudget, Message: f.CachedNodesOnly, ETA: -1}
	case !possible:
		a.verdict = Verdict{Code: CodeCapacity, Message: a.world.tooSmallText(f), ETA: -1}
	case a.low:
		return a.refuseLow(f)
	case soon:
	case over:
		a.verdict = Verdict{Code: CodeQuota,
			Message: fmt.Sprintf("team %s may hold %s, and those it holds are in use", team, functions.GPUCount(quota.Max)),
			ETA:     a.estimateWait(f, true)}
	default:
		a.verdict = Verdict{Code: CodeCapacity, Message: "it needs " + a.world.missingText(f) + " is idle", ETA: a.estimateWait(f, false)}
	}
	return false
}

// missingText names the first missing resource on the node with the fewest missing
// ones, among nodes that f would fit if they were empty.
func (w *world) missingText(f *Function) string {
	res, fewest := f.Resources, math.MaxInt
	var first func() string
	for i := range w.rooms {
		m := &w.rooms[i]
		if !m.node.admits(f) || !m.node.storeFits(f) || !m.fitsEmpty(res) {
			continue
		}
		n, some := 0, (func() string)(nil)
		for _, x := range [...]struct {
			short bool
			what  func() string
		}{
			{m.held.LackingGPUs(res) > 0, func() string { return explain.MissingGPUs(res) }},
			{res.Memory > 0 && m.held.Memory < res.Memory, func() string { return explain.MissingMemory(res) }},
			{res.CPU > 0 && m.held.CPU < res.CPU, func() string { return res.CPU.Human() + " of a node, and nothing that holds them" }},
			{res.Pods > 0 && m.held.Pods < res.Pods, func() string { return "a node that takes one more pod, and nothing on those it fits" }},
		} {
			if x.short {
				if n++; n == 1 {
					some = x.what
				}
			}
		}
		if n > 0 && n < fewest {
			first, fewest = some, n
		}
	}
	switch { // only this plan's promises are in the way
	case first != nil:
		return first()
	case res.GPUs > 0:
		return explain.MissingGPUs(res)
	}
	return explain.MissingMemory(res)
}

// tooSmallText names the resource that no node has enough of for f.
func (w *world) tooSmallText(f *Function) string {
	if len(w.rooms) == 0 {
		return "no agent is connected"
	}
	var l explain.Largest
	for i := range w.rooms {
		n := w.rooms[i].node
		if !n.canRead(f) {
			continue
		}
		l.Read = true
		if !n.admits(f) {
			continue
		}
		l.Admit = true
		l.Store = max(l.Store, n.Store.Bytes)
		if !n.storeFits(f) {
			continue
		}
		l.Stage = true
		fit, well := 0, 0
		for _, g := range n.GPUs {
			if !g.Unhealthy {
				well++
				l.GPUMemory = max(l.GPUMemory, g.Memory)
				if g.Memory == 0 || g.Memory >= f.Resources.GPUMemory {
					fit++
				}
			}
		}
		l.FittingGPUs, l.HealthyGPUs, l.GPUs = max(l.FittingGPUs, fit), max(l.HealthyGPUs, well), max(l.GPUs, len(n.GPUs))
		if fit >= f.Resources.GPUs {
			l.Memory = max(l.Memory, n.Memory)
			if h := n.host(); f.Resources.Memory <= h.Memory {
				l.CPU = max(l.CPU, h.CPU)
			}
		}
	}
	return l.TooSmall(f.Resources, f.Size, f.Requires)
}

// estimateTTL is how long an estimated wait is reused.
const estimateTTL = time.Second

// waitKey identifies functions that wait for the same room.
type waitKey struct {
	machine   string
	requires  string
	team      string // set if their own team's maximum blocks them
	resources functions.Resources
	claims    bool
}

// roomEstimate is an estimated moment of free room, and when it was made.
type roomEstimate struct {
	at, when Instant // when 0: unknown
}

type roomEstimates struct {
	known map[waitKey]roomEstimate
	trial rooms.Room // reused
}

// estimateWait is the estimated time until f has room, -1 if unknown: on the node
// where enough busy replicas may be gone soonest. It ignores competing functions.
func (d *decision) estimateWait(f *Function, over bool) time.Duration {
	who := waitKey{machine: f.host(), requires: f.Requires, resources: f.Resources, claims: d.counts.claimsGuarantee(f)}
	if over {
		who.team = f.Name.Team
	}
	r := d.estimates.known[who]
	if r.at == 0 || d.plan.now-r.at >= estimateTTL || r.when != 0 && r.when <= d.plan.now {
		if len(d.estimates.known) > 1000 {
			clear(d.estimates.known)
		}
		r = roomEstimate{at: d.plan.now, when: d.estimateRoom(f, over)}
		d.estimates.known[who] = r
	}
	if r.when == 0 {
		return -1
	}
	return max(r.when-d.plan.now, 0)
}

// departure is when a victim may be gone.
type departure struct {
	at Instant
	v  *victim
}

// estimateRoom is the estimated moment at which f has room; 0 is unknown.
func (d *decision) estimateRoom(f *Function, over bool) (when Instant) {
	var exits []departure
	for i := range d.world.rooms {
		m := &d.world.rooms[i]
		if !m.node.admits(f) || !m.node.storeFits(f) || !m.fitsEmpty(f.Resources) {
			continue
		}
		exits = exits[:0]
		for j := range m.busy {
			v := &m.busy[j]
			if over && v.f.Name.Team != f.Name.Team || !over && !d.counts.mayGive(v, f) {
				continue
			}
			if at := d.departureOf(v, f); at != 0 && (when == 0 || at < when) {
				exits = append(exits, departure{at, v})
			}
		}
		slices.SortFunc(exits, func(a, b departure) int { return cmp.Compare(a.at, b.at) })
		if over {
			if len(exits) > 0 {
				when = exits[0].at // any replica of the team frees part of its maximum, on any node
			}
			continue
		}
		d.estimates.trial.Set(&m.soon)
		for _, x := range exits {
			res, gpus := x.v.r.reserves()
			d.estimates.trial.Give(res, gpus)
			if d.estimates.trial.Fits(f.Resources) {
				when = x.at
				break
			}
		}
	}
	return when
}

func (t *teamCounts) mayGive(v *victim, f *Function) bool {
	owner := v.f.Name.Team
	if v.f == f || owner == f.Name.Team || v.r.Reserved.GPUs == 0 || t.claimsGuarantee(f) {
		return v.f != f
	}
	return t.held[owner]-t.leaving[owner]-v.r.Reserved.GPUs >= t.teams[owner].Guaranteed
}

// departureOf is the moment at which v may be gone for f: the end of its residency, or
// when its time slice is over, f has waited for Patience, and its requests in flight
// have drained. 0 is unknown.
func (d *decision) departureOf(v *victim, f *Function) Instant {
	switch {
	case v.residing:
		return v.r.ReadyAt + d.policy.Residency
	case !v.busy():
		return max(v.f.MinResidency, d.plan.now)
	case d.policy.TimeSlice <= 0:
		return 0
	}
	since := v.r.ReadyAt
	if v.r.State != functions.Ready {
		since = d.plan.now + v.f.coldStartTime() // it is starting, and its time slice begins when it is READY
	}
	at := max(since+d.policy.TimeSlice, d.plan.now)
	if f.Oldest > 0 {
		at = max(at, f.Oldest+d.policy.Patience)
	}
	return at + min(v.f.Drain, d.policy.TimeSliceDrain)
}
