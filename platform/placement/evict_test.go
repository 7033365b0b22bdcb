package placement

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
)

// TestWhoLeaves: which of several evictable replicas are evicted, by policy, by the
// cost of the set, and by team guarantees.
func TestWhoLeaves(t *testing.T) {
	const now = 10 * time.Hour
	with := func(edit func(f *Function)) func(*Function) { return edit }
	bytes := func(g functions.Bytes) func(*Function) {
		return with(func(f *Function) { f.Resources.GPUMemory = g * gib })
	}
	last := func(ago time.Duration) func(*Function) { return with(func(f *Function) { f.LastEnd = now - ago }) }
	known := func(uses float64, back time.Duration) func(*Function) {
		return with(func(f *Function) {
			f.Uses, f.UsesAt = uses, now-time.Minute
			f.Expect.Tier = map[functions.Tier]time.Duration{functions.TierNVMe: back}
		})
	}
	scale := with(func(f *Function) { f.Scale.Idle = functions.Duration(100 * time.Hour) })
	retry := func(node string, gpus ...int) func(*Function) {
		return with(func(f *Function) { f.RetryOn, f.RetryGPUs = node, gpus })
	}
	team := func(guaranteed int, used float64) Team {
		return Team{TeamGPUs: functions.TeamGPUs{Guaranteed: guaranteed}, Used: used}
	}
	for _, c := range []struct {
		what  string
		e     eviction.Policy
		gpus  int
		fs    []*Function
		teams map[string]Team
		want  string // actions of the plan
	}{
		{what: "lru: one that was used long ago", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("x", 1, known(9, time.Minute), scale, ready("n", 1, 0, 0), last(time.Hour)),
			model("y", 1, known(1, time.Second), scale, ready("n", 1, 0, 1), last(time.Minute)),
			model("z", 1, waiting(1, now-1))}, want: "stop default/x-0 (evicted)"},
		{what: "lfu: one that is seldom used", e: eviction.LFU, gpus: 2, fs: []*Function{
			model("x", 1, known(9, time.Second), scale, ready("n", 1, 0, 0), last(time.Hour)),
			model("y", 1, known(1, time.Minute), scale, ready("n", 1, 0, 1), last(time.Minute)),
			model("z", 1, waiting(1, now-1))}, want: "stop default/y-0 (evicted)"},
		{what: "gdsf: one that is soon back", e: eviction.GDSF, gpus: 2, fs: []*Function{
			model("x", 1, known(9, time.Second), scale, ready("n", 1, 0, 0), last(time.Minute)),
			model("y", 1, known(2, time.Minute), scale, ready("n", 1, 0, 1), last(time.Hour)),
			model("z", 1, waiting(1, now-1))}, want: "stop default/x-0 (evicted)"},
		{what: "next-use: one that is needed late", e: eviction.NextUse, gpus: 2, fs: []*Function{
			model("x", 1, known(1, time.Minute), scale, ready("n", 1, 0, 0), last(time.Hour), with(func(f *Function) { f.NextUse = now + time.Minute })),
			model("y", 1, known(1, time.Minute), scale, ready("n", 1, 0, 1), last(time.Minute), with(func(f *Function) { f.NextUse = now + 6*time.Hour })),
			model("z", 1, waiting(1, now-1))}, want: "stop default/y-0 (evicted)"},
		{what: "not one that has a request, wherever that is", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("x", 1, known(1, time.Minute), scale, ready("n", 1, 0, 0), last(time.Hour), with(func(f *Function) { f.Active = 1 })),
			model("y", 1, known(1, time.Minute), scale, ready("n", 1, 0, 1), last(time.Minute)),
			model("z", 1, waiting(1, now-1))}, want: "stop default/y-0 (evicted)"},
		{what: "of two replicas one, if one has the request", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("x", 1, known(1, time.Minute), scale, ready("n", 1, 0, 0), ready("n", 1, 0, 1), last(time.Hour), with(func(f *Function) { f.Active, f.Scale.Max, f.Desired = 1, 2, 2 })),
			model("z", 1, waiting(1, now-1))}, want: "stop default/x-1 (evicted)"},
		{what: "none, where each has one", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("x", 1, known(1, time.Minute), scale, ready("n", now-time.Second, 0, 0), last(time.Hour), with(func(f *Function) { f.Active = 1 })),
			model("z", 1, waiting(1, now-1))}, want: ""},
		{what: "several small ones for a large one, where they cost less", e: eviction.GDSF, gpus: 2, fs: []*Function{
			model("a", 1, bytes(30), known(1, time.Second), scale, ready("n", 1, 0, 0), last(time.Minute)),
			model("b", 1, bytes(30), known(1, time.Second), scale, ready("n", 1, 0, 0), last(time.Minute)),
			model("c", 1, bytes(70), known(9, time.Minute), scale, ready("n", 1, 0, 1), last(time.Hour)),
			model("z", 1, bytes(60), waiting(1, now-1))}, want: "stop default/a-0 (evicted); stop default/b-0 (evicted)"},
		{what: "the large one, where it costs less than they together", e: eviction.GDSF, gpus: 2, fs: []*Function{
			model("a", 1, bytes(30), known(4, 10*time.Second), scale, ready("n", 1, 0, 0), last(time.Minute)),
			model("b", 1, bytes(30), known(4, 10*time.Second), scale, ready("n", 1, 0, 0), last(time.Minute)),
			model("c", 1, bytes(70), known(7, 10*time.Second), scale, ready("n", 1, 0, 1), last(time.Minute)),
			model("z", 1, bytes(60), waiting(1, now-1))}, want: "stop default/c-0 (evicted)"},
		{what: "those on one GPU, though others elsewhere go first", e: eviction.GDSF, gpus: 2, fs: []*Function{
			model("a", 1, bytes(30), known(3, time.Second), scale, ready("n", 1, 0, 0), last(time.Minute)),
			model("b", 1, bytes(40), known(3, time.Second), scale, ready("n", 1, 0, 0), last(time.Minute)),
			model("c", 1, bytes(30), known(1, time.Second), scale, ready("n", 1, 0, 1), last(time.Minute)),
			model("d", 1, bytes(40), known(50, time.Minute), scale, ready("n", 1, 0, 1), last(time.Minute)),
			model("z", 1, bytes(70), waiting(1, now-1))}, want: "stop default/b-0 (evicted); stop default/a-0 (evicted)"},
		{what: "none that is not in the way", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("a", 1, bytes(10), scale, ready("n", 1, 0, 0), last(3*time.Hour)),
			model("b", 1, bytes(70), scale, ready("n", 1, 1, 0)),
			model("c", 1, bytes(60), scale, ready("n", 1, 0, 1), last(time.Minute)),
			model("z", 1, bytes(60), waiting(1, now-1))}, want: "stop default/c-0 (evicted)"},
		{what: "none that has just become ready", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("x", 1, scale, ready("n", now-time.Second/2, 0, 0), last(time.Second/4)),
			model("z", 1, waiting(1, now-1))}, want: ""},
		{what: "unless who started it is through with it", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("x", 1, scale, ready("n", now-time.Second/2, 0, 0), last(time.Second/4), with(func(f *Function) { f.Released = now - time.Second/8 })),
			model("z", 1, waiting(1, now-1))}, want: "stop default/x-0 (evicted)"},
		{what: "and not by a former start", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("x", 1, scale, ready("n", now-time.Second/2, 0, 0), last(time.Second/4), with(func(f *Function) { f.Released = now - time.Second })),
			model("z", 1, waiting(1, now-1))}, want: ""},
		{what: "one that was missed lately stays", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("x", 1, scale, ready("n", 1, 0, 0), last(time.Hour), with(func(f *Function) { f.MinResidency = now + time.Minute })),
			model("y", 1, scale, ready("n", 1, 0, 1), last(time.Minute)),
			model("z", 1, waiting(1, now-1))}, want: "stop default/y-0 (evicted)"},
		{what: "also where it is alone", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("x", 1, scale, ready("n", 1, 0, 0), last(time.Hour), with(func(f *Function) { f.MinResidency = now + time.Minute })),
			model("z", 1, waiting(1, now-1))}, want: ""},
		{what: "but not from one who has waited for long", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("x", 1, scale, ready("n", 1, 0, 0), last(time.Hour), with(func(f *Function) { f.MinResidency = now + time.Minute })),
			model("z", 1, waiting(1, now-time.Minute))}, want: "stop default/x-0 (evicted)"},
		{what: "one that is busy, for a team that had less", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("h/x", 1, ready("n", now-time.Minute, 3, 0), waiting(1000, now-time.Hour)),
			model("l/z", 1, waiting(1, now-1))}, teams: map[string]Team{"h": team(0, 500), "l": team(0, 20)}, want: "stop h/x-0 (share)"},
		{what: "one that is on its way likewise", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("h/x", 1, starting("n", true, 0), waiting(1000, now-time.Hour)),
			model("l/z", 1, waiting(1, now-1))}, teams: map[string]Team{"h": team(0, 500), "l": team(0, 20)}, want: "stop h/x-0 (share)"},
		{what: "not at once for one that had nearly as much", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("h/x", 1, ready("n", now-time.Minute, 3, 0), waiting(1000, now-time.Hour)),
			model("l/z", 1, waiting(1, now-1))}, teams: map[string]Team{"h": team(0, 500), "l": team(0, 300)}, want: ""},
		{what: "but once it has had its turn", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("h/x", 1, ready("n", now-3*time.Minute, 3, 0), waiting(1000, now-time.Hour)),
			model("l/z", 1, waiting(1, now-1))}, teams: map[string]Team{"h": team(0, 500), "l": team(0, 300)}, want: "stop h/x-0 (share)"},
		{what: "not for one that holds its share", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("h/x", 1, ready("n", now-time.Hour, 3, 0), waiting(1000, now-time.Second)),
			model("l/y", 1, ready("n", now-time.Hour, 3, 1)),
			model("l/z", 1, waiting(1, now-1))}, teams: map[string]Team{"h": team(0, 500), "l": team(0, 20)}, want: ""},
		{what: "nor one of a team that had less, however long a request waits", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("l/z", 1, ready("n", now-time.Hour, 1, 0)),
			model("h/x", 1, waiting(1000, now-time.Hour))}, teams: map[string]Team{"h": team(0, 500), "l": team(0, 20)}, want: ""},
		{what: "what is guaranteed is taken back from a borrower at once", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("b/x", 1, ready("n", now-time.Minute, 3, 0), waiting(5, now-1)),
			model("o/z", 1, waiting(1, now-1))}, teams: map[string]Team{"b": team(0, 20), "o": team(1, 500)}, want: "stop b/x-0 (share)"},
		{what: "and where more is guaranteed than there is, from who had more", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("b/x", 1, ready("n", now-time.Minute, 3, 0), waiting(5, now-1)),
			model("o/z", 1, waiting(1, now-1))}, teams: map[string]Team{"b": team(1, 20), "o": team(1, 500)}, want: ""},
		{what: "a team that had less is placed first", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("h/x", 1, waiting(1000, now-time.Hour)),
			model("l/z", 1, waiting(1, now-1))}, teams: map[string]Team{"h": team(0, 500), "l": team(0, 20)}, want: "start l/z on n[0] (demand)"},
		{what: "a team whose budget is used up gives back what it holds", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("h/x", 1, ready("n", now-time.Hour, 3, 0), waiting(1000, now-time.Hour)),
			model("l/z", 1, waiting(1, now-1))}, teams: map[string]Team{"h": {OverBudget: now + time.Hour, Verdict: Verdict{Code: CodeBudget}}}, want: "stop h/x-0 (budget); start l/z on n[1] (demand)"},
		{what: "and gets nothing", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("h/x", 1, waiting(1000, now-time.Hour))}, teams: map[string]Team{"h": {OverBudget: now + time.Hour, Verdict: Verdict{Code: CodeBudget}}}, want: "blocked h/x insufficient_quota"},
		{what: "until the next day", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("h/x", 1, waiting(1000, now-time.Hour))}, teams: map[string]Team{"h": {OverBudget: now}}, want: "start h/x on n[0] (demand)"},
		{what: "after a start short of GPU memory, the idle on its GPU", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("x", 1, bytes(10), scale, ready("n", 1, 0, 0), last(time.Hour)),
			model("y", 1, bytes(10), scale, ready("n", 1, 0, 1), last(time.Hour)),
			model("b", 1, bytes(10), scale, ready("n", 1, 1, 0)),
			model("z", 1, bytes(10), waiting(1, now-1), retry("n", 0))}, want: "stop default/x-0 (evicted)"},
		{what: "after one short of host memory, all that are idle", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("x", 1, bytes(10), scale, ready("n", 1, 0, 0), last(time.Hour)),
			model("y", 1, bytes(10), scale, ready("n", 1, 0, 1), last(time.Hour)),
			model("b", 1, bytes(10), scale, ready("n", 1, 1, 0)),
			model("z", 0, waiting(1, now-1), retry("n"))}, want: "stop default/x-0 (evicted); stop default/y-0 (evicted)"},
		{what: "it starts once they are gone", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("x", 1, bytes(10), scale, ready("n", 1, 0, 0), with(func(f *Function) { f.Replicas[0].Stopping = true })),
			model("z", 1, bytes(10), waiting(1, now-1), retry("n", 0))}, want: ""},
		{what: "and does not wait for others", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("x", 1, bytes(10), scale, ready("n", 1, 1, 0), with(func(f *Function) { f.Replicas[0].Stopping, f.Replicas[0].StoppedByUser = true, true })),
			model("y", 1, bytes(10), scale, ready("n", 1, 0, 1), with(func(f *Function) { f.Replicas[0].Stopping = true })),
			model("z", 1, bytes(10), waiting(1, now-1), retry("n", 0))}, want: "start default/z on n[0] (demand)"},
		{what: "nor comes back to a node that is gone", e: eviction.LRU, gpus: 1, fs: []*Function{
			model("z", 1, bytes(10), waiting(1, now-1), retry("m", 0))}, want: "start default/z on n[0] (demand)"},
		{what: "bytes that a team may not keep are not brought", e: eviction.LRU, gpus: 2, fs: []*Function{
			model("x", 1, waiting(1, now-1), with(func(f *Function) { f.Source, f.CachedNodesOnly = "az", "used up" }))}, want: "blocked default/x insufficient_quota"},
	} {
		p := DefaultPolicy
		p.Eviction = c.e
		plan := p.Decide(World{Nodes: []*Node{node("n", c.gpus)}, Functions: c.fs, Teams: c.teams}, now)
		if !strings.HasPrefix(c.want, "blocked") {
			plan.Blocked = nil
		}
		if got := show(plan); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.what, got, c.want)
		}
	}
}

// TestServedBeforeSwitching: within a team, a model serves its waiting requests before
// another gets its GPU, but no longer than its time slice once a request has waited.
func TestServedBeforeSwitching(t *testing.T) {
	const load, unload = 20 * time.Second, 2 * time.Second
	c := newContest(t, load, unload)
	x, y := c.add("a/x", 4, 5*time.Second), c.add("a/y", 4, 5*time.Second)
	x.arrive(c.now, 60) // 75 s of work
	for len(x.waits) == 0 {
		c.step()
	}
	y.arrive(c.now, 1)
	for len(y.waits) == 0 {
		c.step()
	}
	if x.served != 60 {
		t.Errorf("%d of 60 were served before the switch", x.served)
	}
	// With an endless queue it keeps the GPU for its time slice only.
	x.endless = true
	x.arrive(c.now, 1000)
	for len(x.ends) == 0 {
		c.step()
	}
	began, from := c.now, x.served
	for range 600 {
		c.step()
	}
	y.arrive(c.now, 1)
	for len(y.waits) == 1 {
		c.step()
	}
	if held := c.now - began; held < DefaultPolicy.TimeSlice || held > DefaultPolicy.TimeSlice+x.service+load+unload+3*contestStep {
		t.Errorf("it kept the GPU for %v", held)
	}
	if n := x.served - from; n < int(DefaultPolicy.TimeSlice/x.service)*x.Scale.Target {
		t.Errorf("%d were served in its turn", n)
	}
}

// TestTeamsAllow: what the teams' shares and guarantees forbid they also forbid after more of the
// owner's GPUs were taken. The search for victims relies on it.
func TestTeamsAllow(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	forbidden := 0
	for range 20_000 {
		d := &decision{counts: newTeamCounts(), policy: DefaultPolicy}
		d.plan.now = time.Hour
		d.counts.teams = map[string]Team{}
		for _, team := range []string{"a", "b"} {
			d.counts.teams[team] = Team{TeamGPUs: functions.TeamGPUs{Guaranteed: rnd.IntN(4)},
				Used: float64(rnd.IntN(900)), Hosted: float64(rnd.IntN(900))}
			d.counts.held[team], d.counts.leaving[team] = 2+rnd.IntN(6), rnd.IntN(2)
			d.counts.pledged[team], d.counts.claimed[team] = rnd.IntN(2), rnd.IntN(2)
		}
		f := &Function{Name: functions.Name{Team: "a", Name: "f"}, Queued: rnd.IntN(2), Resources: functions.Resources{GPUs: rnd.IntN(3)}}
		r := &Replica{State: functions.Ready, InFlight: rnd.IntN(2), Reserved: functions.Resources{GPUs: rnd.IntN(3)}}
		v := &victim{f: &Function{Name: functions.Name{Team: []string{"a", "b"}[rnd.IntN(2)]}}, r: r, sliceOver: rnd.IntN(2) == 0}
		for _, reason := range []string{reasonIdle, reasonTimeSlice, reasonTeamShare, reasonPrewarm} {
			for n, before := 0, true; n < 5; n++ {
				may := d.counts.teamsAllow(v, f, n, reason)
				if may && !before {
					t.Fatalf("%s: allowed with %d GPUs taken, and not with fewer: %+v %+v", reason, n, d.counts, v)
				}
				if before = may; !may {
					forbidden++
				}
			}
			one := *r
			one.Reserved.GPUs = min(1, r.Reserved.GPUs)
			if d.counts.teamsAllow(v, f, 0, reason) && !d.counts.teamsAllow(&victim{f: v.f, r: &one, sliceOver: true}, f, 0, reason) {
				t.Fatalf("%s: allowed for %d GPUs, and not for one: %+v %+v", reason, r.Reserved.GPUs, d.counts, v)
			}
		}
	}
	if forbidden == 0 {
		t.Error("nothing is ever forbidden")
	}
}
