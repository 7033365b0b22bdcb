package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// block says why f cannot be placed, and when it may be READY. It returns false,
// for place to return.
//
// Why is judged by what is held, not by what this plan has promised so far: what
// is said of a function then does not depend on whose turn came before. Nothing
// is said where it is about to change by itself: a node is left alone for a
// moment, or one that could make way has not stayed its residency.
func (d *decision) block(f *Function) bool {
	team, res := f.Name.Team, f.Resources
	quota := d.world.Teams[team]
	if quota.Max > 0 && res.GPUs > quota.Max {
		d.verdict = Verdict{Code: CodeQuota, Message: fmt.Sprintf("it needs %s and team %s may hold %d", gpus(res.GPUs), team, quota.Max), ETA: -1}
		return false
	}
	over := quota.Max > 0 && res.GPUs > 0 && d.count[team].held+res.GPUs > quota.Max
	possible, soon := false, false
	for i := range d.rooms {
		m := &d.rooms[i]
		if !m.node.admits(f) || !m.node.stores(f) || !m.could(res) {
			continue
		}
		possible = true
		if m.node.Avoid > d.now && m.node.Avoid != math.MaxInt64 {
			d.at(m.node.Avoid)
			soon = true
		}
		for j := range m.busy {
			v := &m.busy[j]
			soon = soon || v.young && (!over || v.f.Name.Team == team)
		}
	}
	switch {
	case !possible && f.Fence != "":
		d.verdict = Verdict{Code: CodeBudget, Message: f.Fence, ETA: -1}
	case !possible:
		d.verdict = Verdict{Code: CodeCapacity, Message: d.short(f), ETA: -1}
	case soon:
	case over:
		d.verdict = Verdict{Code: CodeQuota, Message: fmt.Sprintf("team %s may hold %s, and those it holds are in use", team, gpus(quota.Max)), ETA: d.wait(f, true)}
	default:
		d.verdict = Verdict{Code: CodeCapacity, Message: "it needs " + d.lacks(f) + " is idle", ETA: d.wait(f, false)}
	}
	return false
}

// lacks is what is missing for f where the fewest things are, of a node that it
// would fit if the node were empty, and who might have it.
func (d *decision) lacks(f *Function) (what string) {
	res, fewest := f.Resources, math.MaxInt
	for i := range d.rooms {
		m := &d.rooms[i]
		if !m.node.admits(f) || !m.node.stores(f) || !m.could(res) {
			continue
		}
		some, n := "", 0
		for _, x := range [...]struct {
			short bool
			what  func() string
		}{
			{!(&free{host: m.node.host(), gpus: m.held.gpus}).fits(m.node, res), func() string { return onGPUs(res) }},
			{res.Memory > 0 && m.held.memory < res.Memory, func() string { return ofMemory(res) }},
			{res.CPU > 0 && m.held.cpu < res.CPU, func() string { return res.CPU.Human() + " of a node, and nothing that holds them" }},
			{res.Pods > 0 && m.held.pods < res.Pods, func() string { return "a node that takes one more pod, and nothing on those it fits" }},
		} {
			switch {
			case x.short && n == 0:
				some, n = x.what(), 1
			case x.short:
				n++
			}
		}
		if n > 0 && n < fewest {
			what, fewest = some, n
		}
	}
	switch { // what is missing is missing in this plan only
	case what != "":
		return what
	case res.GPUs > 0:
		return onGPUs(res)
	}
	return ofMemory(res)
}

func onGPUs(res functions.Resources) string {
	return each(res) + " on one node, and nothing that holds them"
}

func ofMemory(res functions.Resources) string {
	return res.Memory.Human() + " of host memory, and nothing that holds it"
}

// short says what no node has enough of for f.
func (d *decision) short(f *Function) string {
	if len(d.rooms) == 0 {
		return "no agent is connected"
	}
	res := f.Resources
	reads, admits, stores := false, false, false
	var store, memory, gpuMemory functions.Bytes
	var cpu functions.CPU
	most, healthy, any := 0, 0, 0 // GPUs on one node: large enough, healthy, at all
	for i := range d.rooms {
		n := d.rooms[i].node
		if !n.reads(f) {
			continue
		}
		reads = true
		if !n.admits(f) {
			continue
		}
		admits = true
		store = max(store, n.Store.Bytes)
		if !n.stores(f) {
			continue
		}
		stores = true
		fit, well := 0, 0
		for _, g := range n.GPUs {
			if !g.Sick {
				well++
				gpuMemory = max(gpuMemory, g.Memory)
				if g.Memory == 0 || g.Memory >= res.GPUMemory {
					fit++
				}
			}
		}
		most, healthy, any = max(most, fit), max(healthy, well), max(any, len(n.GPUs))
		if fit >= res.GPUs {
			memory = max(memory, n.Memory)
			if h := n.host(); res.Memory <= h.memory {
				cpu = max(cpu, h.cpu)
			}
		}
	}
	switch {
	case !reads:
		return "its source is a folder of a machine that no agent runs on"
	case !admits && f.Requires == "":
		return "every node keeps out pods that do not say that they bear with its taints"
	case !admits:
		return "no node meets what its pods ask of one: " + f.Requires
	case !stores:
		return fmt.Sprintf("its checkpoint has %s, and the largest store takes %s", f.Size.Human(), store.Human())
	case most >= res.GPUs && memory >= res.Memory && cpu < res.CPU:
		return fmt.Sprintf("it needs %s on one node, and the largest that it fits otherwise has %s", res.CPU.Human(), cpu.Human())
	case most >= res.GPUs && memory >= res.Memory:
		return "no node that it fits takes one more pod"
	case most >= res.GPUs && res.GPUs > 0:
		return fmt.Sprintf("it needs %s of host memory beside its GPUs, and the largest node with so many has %s", res.Memory.Human(), memory.Human())
	case most >= res.GPUs:
		return fmt.Sprintf("it needs %s of host memory on one node, and the largest has %s", res.Memory.Human(), memory.Human())
	case any == 0:
		return fmt.Sprintf("it needs %s, and no node has one", gpus(res.GPUs))
	case most == 0 && healthy > 0:
		return fmt.Sprintf("it needs %s, and the largest GPU has %s", each(res), gpuMemory.Human())
	case healthy < any:
		return fmt.Sprintf("it needs %s on one node, and the largest has %d that are healthy", each(res), most)
	}
	return fmt.Sprintf("it needs %s on one node, and the largest has %d", each(res), most)
}

func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

// each is "4 GPUs with 80 GiB each".
func each(res functions.Resources) string {
	switch {
	case res.GPUMemory == 0:
		return gpus(res.GPUs)
	case res.GPUs == 1:
		return "a GPU with " + res.GPUMemory.Human()
	}
	return fmt.Sprintf("%d GPUs with %s each", res.GPUs, res.GPUMemory.Human())
}

// etaFor is how long a reckoned wait is told again before it is reckoned anew.
const etaFor = time.Second

// crowd are functions that wait for the same room.
type crowd struct {
	machine   string
	requires  string
	team      string // where their own team's maximum is in the way
	resources functions.Resources
	claims    bool
}

// reckoned is when there may be room, as it was worked out at some time.
type reckoned struct {
	at, when Instant // 0 is unknown
}

// wait is how long until there may be room for f, -1 where that is unknown: when
// one that makes way for it may, on the node where enough of them do soonest.
// Who must make way before is not weighed against who else waits.
func (d *decision) wait(f *Function, over bool) time.Duration {
	who := crowd{machine: f.Machine, requires: f.Requires, resources: f.Resources, claims: d.claims(f)}
	if over {
		who.team = f.Name.Team
	}
	r := d.waits[who]
	if r.at == 0 || d.now-r.at >= etaFor || r.when != 0 && r.when <= d.now {
		if len(d.waits) > 1000 {
			clear(d.waits)
		}
		r = reckoned{at: d.now, when: d.roomAt(f, over)}
		d.waits[who] = r
	}
	if r.when == 0 {
		return -1
	}
	return max(r.when-d.now, 0)
}

// exit is when a victim may be gone.
type exit struct {
	at Instant
	v  *victim
}

// roomAt is the moment at which there may be room for f; 0 is unknown.
func (d *decision) roomAt(f *Function, over bool) (when Instant) {
	var exits []exit
	for i := range d.rooms {
		m := &d.rooms[i]
		if !m.node.admits(f) || !m.node.stores(f) || !m.could(f.Resources) {
			continue
		}
		exits = exits[:0]
		for j := range m.busy {
			v := &m.busy[j]
			if over && v.f.Name.Team != f.Name.Team || !over && !d.spares(v, f) {
				continue
			}
			if at := d.exits(v, f); at != 0 && (when == 0 || at < when) {
				exits = append(exits, exit{at, v})
			}
		}
		slices.SortFunc(exits, func(a, b exit) int { return cmp.Compare(a.at, b.at) })
		if over {
			if len(exits) > 0 {
				when = exits[0].at // a share is free wherever it becomes so
			}
			continue
		}
		d.trial.host = m.soon.host
		d.trial.gpus = append(d.trial.gpus[:0], m.soon.gpus...)
		for _, x := range exits {
			res, gpus := x.v.r.takes()
			d.trial.give(m.node, res, gpus)
			if d.trial.fits(m.node, f.Resources) {
				when = x.at
				break
			}
		}
	}
	return when
}

// spares reports whether v's team may lose it to f's.
func (d *decision) spares(v *victim, f *Function) bool {
	owner := v.f.Name.Team
	if v.f == f || owner == f.Name.Team || v.r.Take.GPUs == 0 || d.claims(f) {
		return v.f != f
	}
	return d.held[owner]-d.leaving[owner]-v.r.Take.GPUs >= d.world.Teams[owner].Guaranteed
}

// exits is when v may be gone for f: when its residency or its stay ends, or when
// it has had its turn, f has waited for Patience, and what is in flight has had
// its drain. 0 is unknown.
func (d *decision) exits(v *victim, f *Function) Instant {
	switch {
	case v.young:
		return v.r.ReadyAt + d.policy.Residency
	case !v.busy():
		return max(v.f.Stay, d.now)
	case d.policy.Turn <= 0:
		return 0
	}
	since := v.r.ReadyAt
	if v.r.State != functions.Ready {
		since = d.now + v.f.cold() // it is on its way, and gets its turn first
	}
	at := max(since+d.policy.Turn, d.now)
	if f.Oldest > 0 {
		at = max(at, f.Oldest+d.policy.Patience)
	}
	return at + min(v.f.Drain, d.policy.TurnDrain)
}
