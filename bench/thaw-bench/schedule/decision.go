package schedule

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
	core "github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// Decisions is the cost of one decision, in seconds.
type Decisions struct {
	Models     int     `json:"models"`
	GPUs       int     `json:"gpus"`
	WakeP50    float64 `json:"wake_p50_seconds"`
	WakeP99    float64 `json:"wake_p99_seconds"`
	WakeMax    float64 `json:"wake_max_seconds"`
	WakeAllocs float64 `json:"wake_allocations"`
	FullP50    float64 `json:"full_p50_seconds"`
	FullP99    float64 `json:"full_p99_seconds"`
	FullMax    float64 `json:"full_max_seconds"`
	FullAllocs float64 `json:"full_allocations"`
}

const gib = functions.Bytes(1 << 30)

// crowdedWorld returns a world in which every GPU is in use: a wake must evict a replica.
func crowdedWorld(models, hosts int) core.World {
	draw := rand.New(rand.NewPCG(1, 1))
	sizes := []functions.Bytes{1, 3, 8, 16, 28, 64}
	w := core.World{Teams: map[string]core.Team{}}
	now := core.Instant(24 * time.Hour)
	type slot struct {
		node *core.Node
		gpu  int
		free functions.Bytes
	}
	var slots []slot
	for i := range hosts {
		n := &core.Node{ID: fmt.Sprintf("node-%03d", i), Seen: now, Memory: 1024 * gib, Cached: map[string]bool{}}
		for g := range 8 {
			n.GPUs = append(n.GPUs, rooms.GPU{Index: g, Memory: 80 * gib})
			slots = append(slots, slot{n, g, 80 * gib})
		}
		w.Nodes = append(w.Nodes, n)
	}
	at := 0
	for i := range models {
		f := &core.Function{
			Name: functions.Name{Team: fmt.Sprintf("team-%d", i%20), Name: fmt.Sprintf("m%05d", i)}, Source: fmt.Sprint("s", i),
			Resources: functions.Resources{GPUs: 1, GPUMemory: sizes[draw.IntN(len(sizes))] * gib, Memory: 4 * gib},
			Scale:     functions.Scale{Max: 4, Target: 8, Idle: functions.Duration(48 * time.Hour)},
			Drain:     30 * time.Second, ColdStart: 20 * time.Second,
		}
		f.LastEnd, f.Uses = now-time.Duration(1+draw.IntN(40000))*time.Second, float64(1+draw.IntN(50))
		f.UsesAt = f.LastEnd
		f.Size = f.Resources.GPUMemory
		for try := at; try < min(at+40, len(slots)); try++ {
			s := &slots[try]
			if s.free < f.Resources.GPUMemory {
				continue
			}
			s.free -= f.Resources.GPUMemory
			s.node.Cached[f.Source] = true
			r := core.Replica{
				ID: fmt.Sprint("r", i), Node: s.node.ID, State: functions.Ready, GPUs: []int{s.gpu},
				Reserved: f.Resources, ReadyAt: f.LastEnd - time.Minute, Spawned: true,
			}
			if draw.IntN(3) == 0 { // busy
				r.InFlight, f.Active, f.Needed, f.LastEnd = 1, 1, 1, now
			}
			f.Replicas = append(f.Replicas, r)
			if s.free < 4*gib && try == at {
				at++
			}
			break
		}
		w.Functions = append(w.Functions, f)
	}
	return w
}

// decisions measures a wake (from a request for a stopped function to the plan that
// starts it) on an incremental planner, and a plan from scratch.
func decisions(ctx context.Context, o Options) (*Decisions, error) {
	hosts := max(1, o.Models/80)
	d := &Decisions{Models: o.Models, GPUs: 8 * hosts}
	w := crowdedWorld(o.Models, hosts)
	now := core.Instant(24 * time.Hour)
	policy := core.DefaultPolicy
	policy.Eviction = eviction.NextUse
	p := policy.Planner()
	for _, n := range w.Nodes {
		p.NodeChanged(n)
	}
	p.Teams(w.Teams)
	var rest []*core.Function
	for _, f := range w.Functions {
		p.FunctionChanged(f)
		if len(f.Replicas) == 0 {
			rest = append(rest, f)
		}
	}
	p.Plan(now)
	if len(rest) == 0 {
		return nil, fmt.Errorf("no function is at rest in a world of %d", o.Models)
	}
	var took []float64
	var allocs uint64
	var before, after runtime.MemStats
	draw := rand.New(rand.NewPCG(2, 2))
	started := 0
	for i := range o.Rounds {
		if i%256 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		f := rest[draw.IntN(len(rest))]
		now += time.Millisecond
		for _, n := range w.Nodes[:1] { // a heartbeat arrived in between
			n.Seen = now
			p.NodeChanged(n)
		}
		counted := i%16 == 0 // reading the allocation counts stops the world
		if counted {
			runtime.ReadMemStats(&before)
		}
		began := time.Now()
		f.Queued, f.Needed, f.Oldest = 1, 1, now
		p.FunctionChanged(f)
		plan := p.Plan(now)
		took = append(took, time.Since(began).Seconds())
		if counted {
			runtime.ReadMemStats(&after)
			allocs += after.Mallocs - before.Mallocs
		}
		if len(plan.Actions) > 0 {
			started++
		}
		// The request is removed again, so that the world stays the same.
		f.Queued, f.Needed, f.Oldest = 0, 0, 0
		p.FunctionChanged(f)
		p.Plan(now)
	}
	if started < o.Rounds/2 {
		return nil, fmt.Errorf("of %d wakes %d led to anything: this world measures nothing", o.Rounds, started)
	}
	d.WakeP50, d.WakeP99, d.WakeMax = report.Quantile(took, 0.5), report.Quantile(took, 0.99), report.Quantile(took, 1)
	d.WakeAllocs = float64(allocs) / float64((o.Rounds+15)/16)
	return d, decideFromEmpty(ctx, d, policy, w, rest, now, max(o.Rounds/40, 5))
}

// decideFromEmpty measures full plans of w; each has one more waiting request.
func decideFromEmpty(ctx context.Context, d *Decisions, policy core.Policy, w core.World, rest []*core.Function, now core.Instant,
	rounds int) error {
	var took []float64
	var allocs uint64
	var before, after runtime.MemStats
	draw := rand.New(rand.NewPCG(2, 3))
	for range rounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f := rest[draw.IntN(len(rest))]
		f.Queued, f.Needed, f.Oldest = 1, 1, now
		runtime.ReadMemStats(&before)
		began := time.Now()
		policy.Decide(w, now)
		took = append(took, time.Since(began).Seconds())
		runtime.ReadMemStats(&after)
		allocs += after.Mallocs - before.Mallocs
		f.Queued, f.Needed, f.Oldest = 0, 0, 0
	}
	d.FullP50, d.FullP99, d.FullMax = report.Quantile(took, 0.5), report.Quantile(took, 0.99), report.Quantile(took, 1)
	d.FullAllocs = float64(allocs) / float64(rounds)
	return nil
}
