package placement

import (
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
)

// TestStartAhead: a prewarm gets only room that no demand needs.
func TestStartAhead(t *testing.T) {
	const now = time.Hour
	soon := func(f *Function) { f.Prewarm, f.NextUse = now+10*time.Minute, now+2*time.Minute }
	next := func(at Instant) func(*Function) {
		return func(f *Function) { f.NextUse, f.LastEnd = at, now-time.Minute }
	}
	loading := func(f *Function) {
		f.Replicas = append(f.Replicas, Replica{ID: "x-0", Node: "n", State: functions.Loading, GPUs: []int{0}, Reserved: f.Resources, Spawned: true})
	}
	p := DefaultPolicy
	p.Eviction = eviction.NextUse
	lru := DefaultPolicy
	for _, c := range []struct {
		what   string
		policy Policy
		gpus   int
		fs     []*Function
		want   string // actions of the plan, trimmed
		not    string
	}{
		{"free room", p, 1, []*Function{model("x", 1, soon)}, "start default/x on n[0]", ""},
		{"its time is over", p, 1, []*Function{model("x", 1, func(f *Function) { f.Prewarm = now })}, "", "start"},
		{"room for waiting requests only", p, 1, []*Function{model("x", 1, soon), model("y", 1, waiting(1, now-time.Second))}, "start default/y on n[0]", "default/x"},
		{"blocked demand", p, 2, []*Function{model("x", 1, soon), model("b", 1, ready("n", now-time.Minute, 1, 0)), model("y", 2, waiting(1, now-time.Second))}, "", "default/x"},
		{"over one that is needed later", p, 1, []*Function{model("x", 1, soon), model("y", 1, ready("n", now-time.Minute, 0, 0), next(now+5*time.Hour))}, "stop default/y-0", "start"},
		{"not over one that is needed sooner", p, 1, []*Function{model("x", 1, soon), model("y", 1, ready("n", now-time.Minute, 0, 0), next(now+30*time.Second))}, "", "default/"},
		{"by lru not over one that was used", lru, 1, []*Function{model("x", 1, soon), model("y", 1, ready("n", now-time.Minute, 0, 0), next(now+5*time.Hour))}, "", "default/"},
		{"not over one in use", p, 1, []*Function{model("x", 1, soon), model("y", 1, ready("n", now-time.Hour/2, 1, 0), next(now+5*time.Hour))}, "", "default/x"},
		{"a waiting function takes the place of a prewarm that is starting", p, 1, []*Function{model("x", 1, soon, loading), model("y", 1, waiting(1, now-time.Second))}, "stop x-0", ""},
		{"a pause after a failure holds", p, 1, []*Function{model("x", 1, soon, func(f *Function) { f.RetryAt = now + time.Minute })}, "", "start"},
		{"held until its time is over", p, 1, []*Function{model("x", 1, ready("n", now-30*time.Minute, 0, 0), soon)}, "", "default/x"},
		{"unused it ends with its time", p, 1, []*Function{model("x", 1, ready("n", now-time.Minute, 0, 0), func(f *Function) { f.Prewarm = now })}, "stop default/x-0", ""},
		{"used it stays its idle time", p, 1, []*Function{model("x", 1, ready("n", now-3*time.Minute, 0, 0), func(f *Function) { f.Prewarm, f.LastEnd = now, now-time.Minute })}, "", "stop"},
	} {
		n := node("n", c.gpus)
		plan := c.policy.Decide(World{Nodes: []*Node{n}, Functions: c.fs}, now)
		got := show(plan)
		if c.want != "" && !strings.Contains(got, c.want) || c.not != "" && strings.Contains(got, c.not) {
			t.Errorf("%s: %q, want %q and not %q", c.what, got, c.want, c.not)
		}
		if len(plan.Blocked) > 0 {
			for name := range plan.Blocked {
				if name.Name == "x" {
					t.Errorf("%s: x has no waiters, and it has a verdict", c.what)
				}
			}
		}
	}
}

// TestLearnedIdle: a learned keep-alive applies under KeepAlive Learned, up to its
// bound.
func TestLearnedIdle(t *testing.T) {
	for _, c := range []struct {
		keep        KeepAlive
		learned     time.Duration
		idle, lasts time.Duration
	}{
		{Fixed, time.Minute, 5 * time.Minute, 5 * time.Minute},
		{Learned, time.Minute, 5 * time.Minute, time.Minute},
		{Learned, 20 * time.Minute, 5 * time.Minute, 20 * time.Minute},
		{Learned, 9 * time.Hour, 5 * time.Minute, 30 * time.Minute},
		{Learned, 0, 5 * time.Minute, 5 * time.Minute},
		{Learned, time.Minute, 0, 0}, // an idle time of 0 disables the learned one
	} {
		f := model("x", 1, func(f *Function) { f.Scale.Idle, f.KeepFor = functions.Duration(c.idle), c.learned })
		p := DefaultPolicy
		p.KeepAlive = c.keep
		if got := p.idle(f); got != c.lasts {
			t.Errorf("%+v: idle for %v", c, got)
		}
	}
}

func TestIdleEnd(t *testing.T) {
	const minute = Instant(time.Minute)
	now := 100 * minute
	for name, c := range map[string]struct {
		set     func(*Function)
		readyAt Instant
		want    Instant
	}{
		"since the last request":        {func(f *Function) { f.LastEnd = now - minute }, now - 9*minute, now + 4*minute},
		"since READY":                   {func(f *Function) { f.LastEnd = now - 9*minute }, now - minute, now + 4*minute},
		"after a lease":                 {func(f *Function) { f.Lease = now + minute }, now, now + 6*minute},
		"unused ahead of demand":        {func(f *Function) { f.Prewarm = now + minute }, now, now + minute},
		"used, started ahead of demand": {func(f *Function) { f.Prewarm, f.LastEnd = now+minute, now }, now - minute, now + 5*minute},
		"with a request":                {func(f *Function) { f.Active = 1 }, now, 0},
		"with a waiting request":        {func(f *Function) { f.Queued = 1 }, now, 0},
		"with a minimum":                {func(f *Function) { f.Scale.Min = 1 }, now, 0},
		"not READY":                     {func(*Function) {}, 0, 0},
	} {
		f := model("x", 1, func(f *Function) { f.Scale.Idle = functions.Duration(5 * time.Minute) }, c.set)
		if got := DefaultPolicy.IdleEnd(f, c.readyAt); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
