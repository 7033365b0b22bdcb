package placement

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/autoscale"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// toyCluster is a small simulated cluster: it performs plans with delays and faults, and check
// verifies it after every step.
type toyCluster struct {
	t    *testing.T
	rnd  *rand.Rand
	w    World
	now  Instant
	next int
	seed uint64

	policy Policy // each seed has its own eviction

	loads map[*Function]*autoscale.Load

	sleeps, rises, priority int
	// used is when the last request that is not of priority low ended at a replica, since that
	// was READY. The planner does not know it.
	used map[string]Instant
	// idleFrom is the reference for invariant 11.
	idleFrom map[string]Instant
}

func (c *toyCluster) fail(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf("seed %d at %v: %s", c.seed, c.now, fmt.Sprintf(format, args...))
}

func (c *toyCluster) replica(id string) (*Function, *Replica) {
	for _, f := range c.w.Functions {
		for i := range f.Replicas {
			if f.Replicas[i].ID == id {
				return f, &f.Replicas[i]
			}
		}
	}
	return nil, nil
}

func (c *toyCluster) drop(f *Function, id string) {
	f.Replicas = slices.DeleteFunc(f.Replicas, func(r Replica) bool { return r.ID == id })
}

func newToyCluster(t *testing.T, seed uint64) *toyCluster {
	y := &toyCluster{t: t, seed: seed, policy: DefaultPolicy, rnd: rand.New(rand.NewPCG(seed, 1)), now: time.Second,
		idleFrom: map[string]Instant{}, used: map[string]Instant{}, loads: map[*Function]*autoscale.Load{}}
	y.policy.Eviction = eviction.Policy(seed % uint64(eviction.NextUse+1))
	for i := range 1 + y.rnd.IntN(3) {
		n := &Node{ID: fmt.Sprint("n", i), Machine: fmt.Sprint("m", i), Seen: y.now, Here: i == 0,
			Memory: functions.Bytes(8+y.rnd.IntN(32)) * gib}
		if y.rnd.IntN(2) == 0 {
			n.CPU, n.Pods = functions.CPU(1000*(1+y.rnd.IntN(8))), 1+y.rnd.IntN(6)
		}
		for g := range y.rnd.IntN(5) {
			n.GPUs = append(n.GPUs, rooms.GPU{Index: g, Memory: functions.Bytes(y.rnd.IntN(3)) * 40 * gib})
		}
		y.w.Nodes = append(y.w.Nodes, n)
	}
	y.w.Teams = map[string]Team{
		"a": {TeamGPUs: functions.TeamGPUs{Guaranteed: 1, Max: 2}},
		"b": {TeamGPUs: functions.TeamGPUs{Guaranteed: 1}},
		"c": {TeamGPUs: functions.TeamGPUs{Max: 1 + y.rnd.IntN(3)}},
	}
	for i := range 2 + y.rnd.IntN(8) {
		f := model(fmt.Sprintf("%c/m%d", "abcd"[y.rnd.IntN(4)], i), y.rnd.IntN(3))
		if f.Resources.GPUs > 0 && y.rnd.IntN(2) == 0 {
			f.Resources.GPUMemory = functions.Bytes(1+y.rnd.IntN(50)) * gib
		}
		f.Resources.Memory = functions.Bytes(y.rnd.IntN(8)) * gib
		f.Resources.CPU, f.Resources.Pods = functions.CPU(500*y.rnd.IntN(5)), y.rnd.IntN(2)
		f.Expect.Tier = map[functions.Tier]time.Duration{functions.TierNVMe: time.Duration(1+y.rnd.IntN(60)) * time.Second}
		f.Scale.Max = 1 + y.rnd.IntN(3)
		f.Scale.Min = y.rnd.IntN(8) / 7
		f.Scale.Target = 1 + y.rnd.IntN(4)
		f.Scale.Idle = functions.Duration(time.Duration(y.rnd.IntN(60)) * time.Second)
		f.Sleeps, f.SleepMemory = y.rnd.IntN(2) == 0, functions.Bytes(y.rnd.IntN(12))*gib
		f.WakeTime, f.ColdStart = time.Duration(y.rnd.IntN(10))*time.Second, time.Duration(y.rnd.IntN(60))*time.Second
		y.w.Functions = append(y.w.Functions, f)
	}
	return y
}

// check computes the use of all nodes from the replicas alone, and verifies it.
func (c *toyCluster) check() {
	teams := map[string]int{}
	for _, n := range c.w.Nodes {
		var memory functions.Bytes
		var cpu functions.CPU
		pods := 0
		users, whole, bytes := map[int]int{}, map[int]int{}, map[int]functions.Bytes{}
		for _, f := range c.w.Functions {
			for _, r := range f.Replicas {
				if r.Node != n.ID {
					continue
				}
				memory += r.Reserved.Memory
				cpu += r.Reserved.CPU
				pods += r.Reserved.Pods
				if r.State == functions.Sleeping || r.GoingToSleep || r.WakingUp {
					memory += r.SleepMemory
				}
				if len(r.GPUs) != r.Reserved.GPUs {
					c.fail("%s holds %v and asked for %d", r.ID, r.GPUs, r.Reserved.GPUs)
				}
				if r.Asleep() {
					continue
				}
				for _, g := range r.GPUs {
					users[g]++
					bytes[g] += r.Reserved.GPUMemory
					if r.Reserved.GPUMemory == 0 || n.GPUs[g].Whole || n.GPUs[g].Memory == 0 {
						whole[g]++
					}
				}
			}
		}
		if memory > n.Memory {
			c.fail("%s: %v of %v host memory promised", n.ID, memory, n.Memory)
		}
		if n.CPU > 0 && cpu > n.CPU || n.Pods > 0 && pods > n.Pods {
			c.fail("%s: %s of %s processors promised, and %d of %d pods", n.ID, cpu, n.CPU, pods, n.Pods)
		}
		for g, u := range users {
			if whole[g] > 0 && u > 1 || n.GPUs[g].Memory > 0 && bytes[g] > n.GPUs[g].Memory {
				c.fail("%s gpu %d oversubscribed: %d users, %d whole, %v of %v", n.ID, g, u, whole[g], bytes[g], n.GPUs[g].Memory)
			}
		}
	}
	for _, f := range c.w.Functions {
		sleepers := 0
		for _, r := range f.Replicas {
			if !r.Asleep() {
				teams[f.Name.Team] += r.Reserved.GPUs
			} else if !r.Stopping {
				sleepers++
			}
		}
		if sleepers > 1 {
			c.fail("%d replicas of %s sleep", sleepers, f.Name)
		}
	}
	for team, held := range teams {
		if q := c.w.Teams[team].Max; q > 0 && held > q {
			c.fail("team %s holds %d of %d GPUs", team, held, q)
		}
	}
}

func (c *toyCluster) act(p Plan) {
	held := map[string]int{}
	for _, f := range c.w.Functions {
		for _, r := range f.Replicas {
			if !r.Stopping && !r.Cancelled && !r.GoingToSleep && !r.Asleep() {
				held[f.Name.Team] += r.Reserved.GPUs
			}
		}
	}
	for _, a := range p.Actions {
		switch a.Kind {
		case Start:
			var f *Function
			for _, g := range c.w.Functions {
				if g.Name == a.Function {
					f = g
				}
			}
			if a.Reason == "prewarm" && (f.Prewarm <= c.now || f.Queued > 0) {
				c.fail("%s is started ahead of nothing", f.Name)
			}
			live, readyN := 0, 0
			for _, r := range f.Replicas {
				if r.GoingToSleep && !r.Stopping {
					c.fail("%s is started while %s falls asleep", f.Name, r.ID)
				}
				if !r.Stopping && !r.Cancelled && !r.Stale && !r.Asleep() {
					live++
					if r.State == functions.Ready {
						readyN++
					}
				}
			}
			if readyN == 0 && live > 0 {
				c.fail("second start of %s at rest", f.Name)
			}
			if live >= max(f.Scale.Max, f.Scale.Min) {
				c.fail("%s above its max", f.Name)
			}
			if f.RetryAt > c.now {
				c.fail("%s started %v before its back-off is over", f.Name, f.RetryAt-c.now)
			}
			c.next++
			held[f.Name.Team] += f.Resources.GPUs
			f.Replicas = append(f.Replicas,
				Replica{ID: fmt.Sprint("r", c.next), Node: a.Node, State: functions.Downloading, GPUs: a.GPUs, Reserved: f.Resources})
		case Stop:
			f, r := c.replica(a.Replica)
			if r == nil || r.Stopping {
				c.fail("stop of %s that is none", a.Replica)
			}
			if r.InFlight > 0 && a.Reason != "removed" && a.Reason != "changed" && a.Reason != "gpu_unhealthy" && a.Reason != "time_slice" &&
				a.Reason != "share" && a.Reason != "priority" {
				c.fail("busy %s stopped: %s", a.Replica, a.Reason)
			}
			c.yields(a, f, r)
			if a.Reason == "idle" && c.now-max(f.LastEnd, r.ReadyAt, r.SleptAt) < f.Scale.Idle.Std() {
				c.fail("%s stopped before its idle time", a.Replica)
			}
			if a.Reason == "unused" && (f.Prewarm > c.now || r.ReadyAt <= f.LastEnd) {
				c.fail("%s stopped as unused: %+v", a.Replica, r)
			}
			if a.Reason == "pressure" && !r.Asleep() {
				c.fail("%s ended for memory while awake", a.Replica)
			}
			if a.Reason == "time_slice" && (c.now-r.ReadyAt < DefaultPolicy.TimeSlice || a.Drain < time.Minute) {
				c.fail("%s stopped before its turn was over", a.Replica)
			}
			if !r.Asleep() {
				c.evicted(a, f, r, held)
			}
			r.Stopping = true
		case Sleep:
			f, r := c.replica(a.Replica)
			if r == nil || r.Stopping || r.GoingToSleep || r.State != functions.Ready || !f.Sleeps || r.Stale {
				c.fail("%s cannot sleep: %+v", a.Replica, r)
			}
			if r.InFlight > 0 && a.Reason != "time_slice" && a.Reason != "share" && a.Reason != "priority" {
				c.fail("busy %s sent to sleep: %s", a.Replica, a.Reason)
			}
			c.yields(a, f, r)
			if a.Reason == "idle" && c.now-max(f.LastEnd, r.ReadyAt) < f.Scale.Idle.Std() {
				c.fail("%s sent to sleep before its idle time", a.Replica)
			}
			c.evicted(a, f, r, held)
			r.GoingToSleep, r.Deep, r.SleepMemory = true, a.Level == 2, f.SleepMemory
			if r.Deep {
				r.SleepMemory = 0
			}
			c.sleeps++
		case WakeUp:
			f, r := c.replica(a.Replica)
			if r == nil || r.Stopping || !r.Asleep() {
				c.fail("%s cannot rise: %+v", a.Replica, r)
			}
			serves := slices.ContainsFunc(f.Replicas, func(x Replica) bool { return x.State == functions.Ready && !x.Stopping && !x.GoingToSleep })
			for _, x := range f.Replicas {
				if !serves && x.ID != r.ID && !x.Stopping && !x.Cancelled && !x.Stale && x.State != functions.Ready && !x.Asleep() {
					c.fail("%s rises while %s starts", a.Replica, x.ID)
				}
			}
			r.WakingUp = true
			held[f.Name.Team] += r.Reserved.GPUs
			c.rises++
		case CancelStart:
			f, r := c.replica(a.Replica)
			if r.Spawned || f.Queued > 0 && len(f.Replicas) == 1 {
				c.fail("%s called off too late or while requests wait", a.Replica)
			}
			held[f.Name.Team] -= r.Reserved.GPUs
			r.Cancelled = true
		case MarkNodeLost:
			for _, f := range c.w.Functions {
				f.Replicas = slices.DeleteFunc(f.Replicas, func(r Replica) bool {
					if r.Node == a.Node && !r.Stopping && !r.Cancelled && !r.GoingToSleep && !r.Asleep() {
						held[f.Name.Team] -= r.Reserved.GPUs
					}
					return r.Node == a.Node
				})
			}
			c.w.Nodes = slices.DeleteFunc(c.w.Nodes, func(n *Node) bool { return n.ID == a.Node })
		}
	}
}

// yields checks an eviction on account of priorities: low requests get only what such
// requests have finished with, and others only what low requests hold.
func (c *toyCluster) yields(a Action, f *Function, r *Replica) {
	i := slices.IndexFunc(c.w.Functions, func(g *Function) bool { return g.Name.String() == a.For })
	low := i >= 0 && c.w.Functions[i].OnlyLow() && c.w.Functions[i].Scale.Min == 0
	if low && a.Reason != "priority" && !(r.Asleep() && f.OnlyLow()) {
		c.fail("%s makes room for low requests: %s", a.Replica, a.Reason)
	}
	if a.Reason != "priority" {
		return
	}
	c.priority++
	busy := r.State != functions.Ready || r.InFlight > 0 || f.Queued > 0
	idle := f.Scale.Idle.Std()
	if f.KeepFor > 0 && c.policy.KeepAlive == Learned {
		idle = f.KeepFor
	}
	switch {
	case !busy && f.Active == 0 && (f.LowSince == 0 || c.used[r.ID] > 0 && c.now < c.used[r.ID]+idle):
		c.fail("%s was in use by others: %v, %v", a.Replica, c.used[r.ID], f.LastEnd)
	case busy && f.LowActive+f.LowQueued == 0:
		c.fail("%s is in use by others", a.Replica)
	case busy && low && (r.State != functions.Ready || c.now < r.ReadyAt+c.policy.LowSlice):
		c.fail("%s leaves for other low requests before its time", a.Replica)
	case a.For == "":
		c.fail("%s leaves for nothing", a.Replica)
	}
}

// evicted checks that no guarantee is broken for a borrower.
func (c *toyCluster) evicted(a Action, f *Function, r *Replica, held map[string]int) {
	if !r.GoingToSleep {
		held[f.Name.Team] -= r.Reserved.GPUs
	}
	if a.For == "" || r.Reserved.GPUs == 0 {
		return
	}
	by, _ := functions.ParseName(a.For, "")
	need := 0
	for _, g := range c.w.Functions {
		if g.Name == by {
			need = g.Resources.GPUs
		}
	}
	if by.Team != f.Name.Team && held[f.Name.Team] < c.w.Teams[f.Name.Team].Guaranteed && held[by.Team]+need > c.w.Teams[by.Team].Guaranteed {
		c.fail("guarantee of %s broken for borrower %s", f.Name.Team, by)
	}
}

func (c *toyCluster) live() {
	if c.rnd.IntN(4) == 0 { // the use of teams changes
		teams := map[string]Team{}
		for _, name := range []string{"a", "b", "c", "d"} {
			t := c.w.Teams[name]
			t.Used = max(0, t.Used*0.9+float64(c.rnd.IntN(40)))
			t.Hosted = max(0, t.Hosted*0.9+float64(c.rnd.IntN(20)))
			teams[name] = t
		}
		c.w.Teams = teams
	}
	for _, n := range c.w.Nodes {
		if c.rnd.IntN(40) > 0 {
			n.Seen = c.now
		}
	}
	for _, f := range c.w.Functions {
		readyN := 0
		for i := len(f.Replicas) - 1; i >= 0; i-- {
			r := &f.Replicas[i]
			switch {
			case r.Stopping && r.InFlight == 0 && c.rnd.IntN(2) == 0, r.Cancelled && !r.Spawned && c.rnd.IntN(2) == 0:
				c.drop(f, r.ID)
				continue
			case r.State == functions.Downloading && c.rnd.IntN(3) == 0 && !r.Cancelled:
				r.Spawned, r.State = true, functions.Loading
			case r.State == functions.Loading && c.rnd.IntN(3) == 0:
				r.State, r.ReadyAt, r.WakingUp, r.SleepMemory = functions.Ready, c.now, false, 0
			case r.GoingToSleep && r.InFlight == 0 && c.rnd.IntN(2) == 0:
				r.State, r.GoingToSleep, r.ReadyAt, r.SleptAt = functions.Sleeping, false, 0, c.now
				delete(c.used, r.ID)
			case r.WakingUp && r.State == functions.Sleeping && c.rnd.IntN(2) == 0:
				r.State = functions.Loading
			case c.rnd.IntN(60) == 0: // it dies
				f.Active -= r.InFlight
				f.LowActive = min(f.LowActive, f.Active)
				f.RetryAt = c.now + time.Second<<c.rnd.IntN(4)
				c.drop(f, r.ID)
				continue
			}
			if r.InFlight > 0 && c.rnd.IntN(3) == 0 {
				r.InFlight--
				f.Active--
				if f.LowActive > f.Active || f.LowActive > 0 && c.rnd.IntN(2) == 0 {
					f.LowActive--
					f.LowSince = cmp.Or(f.LowSince, f.LastEnd, 1)
				} else {
					f.LowSince, c.used[r.ID] = 0, c.now
				}
				f.LastEnd = c.now
			}
			if r.State == functions.Ready && !r.Stopping && !r.GoingToSleep {
				readyN++
				for f.Queued > 0 && r.InFlight < f.Scale.Target {
					r.InFlight++
					f.Active++
					f.Queued--
					if f.LowQueued > f.Queued {
						f.LowQueued--
						f.LowActive++
					}
				}
			}
		}
		if c.rnd.IntN(10) == 0 {
			n := c.rnd.IntN(5)
			f.Queued += n
			if c.rnd.IntN(3) == 0 {
				f.LowQueued += n
			}
			f.Uses, f.UsesAt, f.NextUse = f.Uses*math.Exp(-float64(c.now-f.UsesAt)/float64(eviction.UsesDecay))+1, c.now,
				c.now+time.Duration(c.rnd.IntN(200))*time.Second
		}
		if c.rnd.IntN(60) == 0 {
			f.Prewarm = c.now + time.Duration(c.rnd.IntN(60))*time.Second
		}
		if c.rnd.IntN(40) == 0 {
			f.KeepFor = time.Duration(c.rnd.IntN(120)) * time.Second
		}
		if c.rnd.IntN(40) == 0 {
			f.MinResidency = c.now + time.Duration(c.rnd.IntN(60))*time.Second
		}
		if c.rnd.IntN(20) == 0 {
			f.Queued, f.LowQueued = 0, 0 // all waiters leave
		}
		if f.Queued == 0 {
			f.Oldest = 0
		} else if f.Oldest == 0 {
			f.Oldest = c.now
		}
		l := c.loads[f]
		if l == nil {
			l = autoscale.NewLoad(DefaultPolicy.Autoscale)
			c.loads[f] = l
		}
		l.Observe(c.now, f.Active+f.Queued)
		f.Needed, f.Desired = l.Scale(c.now, f.ready(), f.Scale.Target)
	}
}

// TestInvariants runs random worlds and checks invariants 3, 4, 5 and 11 of the
// design after every step.
func TestInvariants(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 30
	}
	starts, sleeps, rises, priority := 0, 0, 0, 0
	for seed := range seeds {
		y := newToyCluster(t, seed)
		for range 200 {
			y.now += time.Duration(y.rnd.IntN(4000)) * time.Millisecond
			y.live()
			p := y.policy.Decide(y.w, y.now)
			y.act(p)
			y.check()
			// Planning repeatedly without changes reaches a plan without actions.
			rounds := 0
			for ; len(p.Actions) > 0; rounds++ {
				if rounds > 20 {
					y.fail("not settled: %s", show(p))
				}
				p = y.policy.Decide(y.w, y.now)
				y.act(p)
				y.check()
			}
		}
		starts, sleeps, rises, priority = starts+y.next, sleeps+y.sleeps, rises+y.rises, priority+y.priority
	}
	if sleeps < int(seeds) || rises < int(seeds)/2 {
		t.Errorf("%d sleeps and %d rises in %d worlds: the ladder is not tested", sleeps, rises, seeds)
	}
	if priority < int(seeds)/2 {
		t.Errorf("%d replicas in %d worlds make room by their priority: that is not tested", priority, seeds)
	}
	if starts < int(seeds)*10 {
		t.Errorf("only %d starts in %d worlds: the worlds test nothing", starts, seeds)
	}
}

// TestNoStarvation: with one GPU and ten functions with one waiter each, every waiter
// is served.
func TestNoStarvation(t *testing.T) {
	y := &toyCluster{t: t, rnd: rand.New(rand.NewPCG(1, 1)), now: time.Second}
	y.w.Nodes = []*Node{node("n", 1)}
	for i := range 10 {
		y.w.Functions = append(y.w.Functions, model(fmt.Sprint("m", i), 1, waiting(1, Instant(1000-i))))
	}
	served := map[string]int{}
	for range 200 {
		y.now += 600 * time.Millisecond
		y.act(y.policy.Decide(y.w, y.now))
		y.check()
		for _, f := range y.w.Functions {
			for i := len(f.Replicas) - 1; i >= 0; i-- {
				r := &f.Replicas[i]
				switch {
				case r.Stopping:
					y.drop(f, r.ID)
				case r.State == functions.Downloading:
					r.State, r.ReadyAt, r.Spawned = functions.Ready, y.now, true
					served[f.Name.String()]++
					f.Queued, f.Oldest, f.LastEnd = 0, 0, y.now
				}
			}
			if f.Queued == 0 && served[f.Name.String()] < 3 && len(f.Replicas) == 0 {
				f.Queued, f.Oldest = 1, y.now
			}
		}
	}
	for n, s := range served {
		if s != 3 {
			t.Errorf("%s served %d times", n, s)
		}
	}
	if len(served) != 10 {
		t.Errorf("%d of 10 served", len(served))
	}
}

func large(models, nodes int) World {
	w := World{Teams: map[string]Team{"a": {TeamGPUs: functions.TeamGPUs{Guaranteed: nodes}}}}
	for i := range nodes {
		w.Nodes = append(w.Nodes, node(fmt.Sprint("n", i), 8))
	}
	for i := range models {
		f := model(fmt.Sprintf("%c/m%d", "abcd"[i%4], i), 1)
		if i < nodes*8 {
			ready(fmt.Sprint("n", i/8), Instant(i+1), i%2, i%8)(f)
			f.Replicas[0].Reserved.GPUs = 1
		}
		w.Functions = append(w.Functions, f)
	}
	return w
}

func BenchmarkDecide(b *testing.B) {
	for _, s := range []struct{ models, nodes int }{{1000, 13}, {10000, 125}} {
		b.Run(fmt.Sprintf("models=%d/gpus=%d/wake", s.models, s.nodes*8), func(b *testing.B) {
			w := large(s.models, s.nodes)
			w.Functions[s.models-1].Queued, w.Functions[s.models-1].Oldest = 1, time.Second
			var p Plan
			b.ReportAllocs()
			for b.Loop() {
				p = DefaultPolicy.Decide(w, 100*time.Second)
			}
			if len(p.Actions) != 1 || p.Actions[0].Kind != Stop {
				b.Fatal(show(p))
			}
		})
	}
}
