package orchestrator

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

func of(team string, m *functions.Model) *functions.Model {
	m.Metadata.Namespace = team
	return m
}

// request adds a waiting request for a function of a team.
func (p *playPath) request(team, name string) {
	l := p.queueOf(functions.Name{Team: team, Name: name})
	if l.queued == 0 {
		l.since = p.p.at
	}
	l.queued, l.changed = l.queued+1, true
	if p.release(l); len(l.pic.Replicas) == 0 {
		p.p.s.Wake(l.name)
	}
}

func (p *playPath) finish(team, name string) {
	l := p.queueOf(functions.Name{Team: team, Name: name})
	for i := range l.active {
		for l.active[i] > 0 {
			p.end(l, i)
		}
	}
}

func file(team string, edit func(*functions.TeamSpec)) *functions.Team {
	t := &functions.Team{Metadata: functions.Metadata{Name: team}}
	edit(&t.Spec)
	return t
}

// TestTeamAccounts: holdings are charged to the second, evictions are counted for both
// teams, and a start soon after an eviction is thrash.
func TestTeamAccounts(t *testing.T) {
	p := newPlay(t, 1, of("red", model("x")), of("red", model("z")), of("blue", model("y")))
	p.agent("n", 1)
	p.pass(7 * time.Second)
	p.path.request("red", "x")
	from := p.at
	p.pass(time.Minute)
	red := p.s.TeamUse("red")
	if span := p.at.Sub(from).Seconds(); red.GPUs != 1 || math.Abs(red.Total-span) > 1.5 || math.Abs(red.Today-span) > 1.5 ||
		red.RecentGPUs <= 0 || red.RecentGPUs > 0.11 {
		t.Errorf("after %v s: %+v", span, red)
	}
	if blue := p.s.TeamUse("blue"); blue.GPUs != 0 || blue.Total != 0 {
		t.Errorf("blue held nothing: %+v", blue)
	}
	// red's idle replica is evicted for blue's.
	p.path.finish("red", "x")
	p.pass(5 * time.Second)
	p.path.request("blue", "y")
	p.pass(20 * time.Second)
	red, blue := p.s.TeamUse("red"), p.s.TeamUse("blue")
	if red.EvictionsSuffered != 1 || red.EvictionsInflicted != 0 || blue.EvictionsInflicted != 1 || blue.EvictionsSuffered != 0 ||
		red.GPUs != 0 || blue.GPUs != 1 {
		t.Errorf("red %+v\nblue %+v", red, blue)
	}
	if p.events("evicted_too_early") != 0 {
		t.Error("thrash before any function came back")
	}
	// It is started again at once: that is thrash, and it is protected for a while.
	p.path.finish("blue", "y")
	p.pass(3 * time.Second)
	p.path.request("red", "x")
	p.pass(10 * time.Second)
	if red = p.s.TeamUse("red"); red.Thrash != 1 || p.events("evicted_too_early") != 1 {
		t.Errorf("red %+v, %d events", red, p.events("evicted_too_early"))
	}
	f := p.s.loop.functions[functions.Name{Team: "red", Name: "x"}]
	if f.MinResidency <= p.s.loop.lastTurn {
		t.Errorf("it is not left alone: until %v at %v", f.MinResidency, p.s.loop.lastTurn)
	}
	p.path.finish("red", "x")
	p.pass(2 * time.Second)
	if f.MinResidency = p.s.loop.lastTurn + 20*time.Second; f.MinResidency > 0 {
		p.s.loop.enqueue(f)
	}
	p.path.request("red", "z")
	p.pass(10 * time.Second)
	if len(f.replicas) != 1 || f.replicas[0].Stopping {
		t.Error("it was evicted in its stay")
	}
	p.pass(30 * time.Second)
	if z := p.s.loop.functions[functions.Name{Team: "red", Name: "z"}]; len(f.replicas) != 0 || len(z.replicas) != 1 {
		t.Error("its stay never ends")
	}
}

// TestGPUBudget: a team that used up its GPU-seconds of the day loses its GPUs, its
// requests get that verdict and other teams' do not, and the next day it has GPUs again.
func TestGPUBudget(t *testing.T) {
	p := newPlay(t, 1, of("red", model("x")), of("blue", model("y")))
	p.catalog.teams = []*functions.Team{file("red", func(s *functions.TeamSpec) { s.Limits.GPUSecondsPerDay = 60 })}
	p.s.Changed()
	p.agent("n", 2)
	p.pass(7 * time.Second)
	p.path.request("red", "x")
	p.path.request("blue", "y")
	p.pass(40 * time.Second)
	if u := p.s.TeamUse("red"); u.GPUs != 1 || u.OverBudget || u.Left == nil || *u.Left > 22 || *u.Left < 18 {
		t.Fatalf("before: %+v", u)
	}
	p.path.finish("red", "x")
	p.path.request("red", "x")
	p.pass(35 * time.Second)
	p.path.finish("red", "x")
	p.pass(10 * time.Second)
	u := p.s.TeamUse("red")
	if u.GPUs != 0 || !u.OverBudget || u.Today < 60 || u.Today > 60+35 {
		t.Fatalf("after: %+v", u)
	}
	p.path.request("red", "x")
	p.pass(5 * time.Second)
	pic := p.path.queueOf(functions.Name{Team: "red", Name: "x"}).pic
	if pic.Blocked == nil || pic.Blocked.Code != snapshot.BudgetSpent || !strings.Contains(pic.Blocked.Message, "60 GPU-seconds") ||
		len(pic.Replicas) != 0 {
		t.Fatalf("blocked: %+v", pic.Blocked)
	}
	if pic := p.path.queueOf(functions.Name{Team: "blue", Name: "y"}).pic; pic.Blocked != nil || len(pic.Replicas) != 1 {
		t.Fatalf("blue: %+v", pic.Blocked)
	}
	// A larger budget applies at once.
	p.catalog.teams[0].Spec.Limits.GPUSecondsPerDay = 1000
	p.s.Changed()
	p.pass(20 * time.Second)
	if u := p.s.TeamUse("red"); u.GPUs != 1 || u.OverBudget {
		t.Fatalf("with more: %+v", u)
	}
	p.catalog.teams[0].Spec.Limits.GPUSecondsPerDay = 60
	p.s.Changed()
	p.path.finish("red", "x")
	p.pass(20 * time.Second)
	if u := p.s.TeamUse("red"); u.GPUs != 0 || !u.OverBudget {
		t.Fatalf("with less again: %+v", u)
	}
	// The next day begins.
	p.path.request("red", "x")
	day := u.Resets.Sub(p.at)
	if day <= 0 || day > 24*time.Hour {
		t.Fatalf("resets in %v", day)
	}
	p.pass(day + 30*time.Second)
	if u := p.s.TeamUse("red"); u.GPUs != 1 || u.OverBudget || u.Today > 40 || u.Total < 60 {
		t.Fatalf("the next day: %+v", u)
	}
}

// TestClockSetBack: a clock that is set back by a day, and forward again, grants no
// second budget of the day.
func TestClockSetBack(t *testing.T) {
	p := newPlay(t, 1, of("red", model("x")))
	p.catalog.teams = []*functions.Team{file("red", func(s *functions.TeamSpec) { s.Limits.GPUSecondsPerDay = 60 })}
	p.s.Changed()
	p.agent("n", 1)
	p.pass(7 * time.Second)
	p.path.request("red", "x")
	p.pass(75 * time.Second)
	p.path.finish("red", "x")
	p.pass(10 * time.Second)
	p.path.request("red", "x")
	spent := p.s.TeamUse("red")
	if spent.GPUs != 0 || !spent.OverBudget {
		t.Fatalf("the budget is not used up: %+v", spent)
	}
	for _, back := range []time.Duration{25 * time.Hour, 0} {
		p.setBack = back
		p.pass(20 * time.Second)
		if u := p.s.TeamUse("red"); u.GPUs != 0 || !u.OverBudget || u.Today < spent.Today {
			t.Errorf("set back by %v: %+v, was %+v", back, u, spent)
		}
	}
}

// TestFairTeams: in the whole loop, a team with a thousand waiting requests delays
// another team by at most one service time and one switch.
func TestFairTeams(t *testing.T) {
	p := newPlay(t, 1, of("heavy", model("x")), of("light", model("y")))
	p.agent("n", 1)
	p.pass(7 * time.Second)
	const service, load = 6 * time.Second, 5 * time.Second // of the site
	p.path.span = func() time.Duration { return service }
	heavy, light := p.path.queueOf(functions.Name{Team: "heavy", Name: "x"}), p.path.queueOf(functions.Name{Team: "light", Name: "y"})
	heavy.queued, heavy.since = 100000, p.at
	p.path.request("heavy", "x")
	for i, after := range []time.Duration{20 * time.Second, 3 * time.Minute, 90 * time.Second, 10 * time.Second, 31 * time.Second} {
		p.pass(after)
		p.path.request("light", "y")
		from := p.at
		for light.queued > 0 && p.at.Sub(from) < 5*time.Minute {
			p.pass(100 * time.Millisecond)
		}
		if wait := p.at.Sub(from); wait > service+load+2*time.Second {
			t.Errorf("the %d. time the light team waited %v: one service is %v, one load %v", i+1, wait, service, load)
		}
		p.pass(service)
	}
	p.pass(time.Minute)
	if len(heavy.pic.Replicas) != 1 {
		t.Error("the heavy team does not get the GPU back")
	}
	if u := p.s.TeamUse("heavy"); u.EvictionsSuffered == 0 || u.EvictionsInflicted == 0 {
		t.Errorf("%+v", u)
	}
}

// TestStoreShare: the checkpoints of a team stay within its share of the stores; one
// beyond it is not staged, and its waiters get the verdict.
func TestStoreShare(t *testing.T) {
	p := newPlay(t, 1, of("red", model("x")), of("red", model("y")), of("blue", model("z")))
	red := file("red", func(s *functions.TeamSpec) { s.Limits.StoreBytes = 10 << 30 })
	p.catalog.teams = []*functions.Team{red}
	p.s.Changed()
	p.agent("n0", 2).bent = func(hb *functions.Heartbeat) {
		hb.Cached = []functions.CachedModel{{Source: "az://a/c/x", Digest: "sha256:1", Tier: functions.TierNVMe, Bytes: 8 << 30}, {Source: "az://a/c/z", Digest: "sha256:2", Tier: functions.TierNVMe, Bytes: 80 << 30}}
	}
	here := true
	p.agent("n1", 1).bent = func(hb *functions.Heartbeat) {
		for i := range hb.Models {
			hb.Models[i].TotalBytes = 4 << 30
		}
		if here {
			hb.Cached = []functions.CachedModel{{Source: "az://a/c/y", Digest: "sha256:3", Tier: functions.TierNVMe, Bytes: 4 << 30}}
		}
	}
	p.pass(9 * time.Second)
	y := functions.Name{Team: "red", Name: "y"}
	p.path.request("red", "y")
	p.pass(10 * time.Second)
	if reps := p.s.loop.functions[y].replicas; len(reps) != 1 || reps[0].Node != "n1" {
		t.Fatalf("where its bytes are it runs: %v", reps)
	}
	p.path.finish("red", "y")
	p.s.Stop(y)
	here = false
	p.pass(20 * time.Second)
	p.path.request("red", "y")
	p.path.request("blue", "z")
	p.pass(10 * time.Second)
	pic := p.path.queueOf(y).pic
	if pic.Blocked == nil || pic.Blocked.Code != snapshot.BudgetSpent || !strings.Contains(pic.Blocked.Message, "team red may keep") ||
		len(p.s.loop.functions[y].replicas) != 0 {
		t.Fatalf("blocked: %+v, %d replicas", pic.Blocked, len(p.s.loop.functions[y].replicas))
	}
	if z := p.path.queueOf(functions.Name{Team: "blue", Name: "z"}).pic; len(z.Replicas) != 1 {
		t.Fatalf("blue has no share to keep to: %+v", z.Blocked)
	}
	red.Spec.Limits.StoreBytes = 12 << 30
	p.s.Changed()
	p.pass(10 * time.Second)
	if pic := p.path.queueOf(y).pic; pic.Blocked != nil || len(pic.Replicas) != 1 {
		t.Fatalf("with a larger share: %+v", pic.Blocked)
	}
}
