package orchestrator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Tests of stale or wrong updates, and of the damage that they must not cause.

func all(*functions.ReplicaStatus) bool  { return true }
func none(*functions.ReplicaStatus) bool { return false }

// several returns a play with two READY replicas, of two functions, on each node.
func several(t *testing.T, nodes int) *play {
	var ms []*functions.Model
	for i := range 2 * nodes {
		ms = append(ms, model(fmt.Sprint("m", i), func(s *functions.ModelSpec) {
			s.Scale.Idle = functions.Duration(10 * time.Minute)
		}))
	}
	p := newPlay(t, 1, ms...)
	for i := range nodes {
		p.agent(fmt.Sprint("n", i), 2)
	}
	for i := range 2 * nodes {
		p.path.ask(fmt.Sprint("m", i), 1)
	}
	p.pass(10 * time.Second)
	if n := p.serving(); n != 2*nodes {
		t.Fatalf("%d replicas of %d", n, 2*nodes)
	}
	return p
}

func (p *play) serving() (n int) {
	for _, r := range p.s.Replicas() {
		if r.State == functions.Ready {
			n++
		}
	}
	return n
}

func (p *play) commands(what string) (n int) {
	for _, l := range p.log {
		if strings.Contains(l, what) {
			n++
		}
	}
	return n
}

func TestHeartbeatsMissed(t *testing.T) {
	p := several(t, 3)
	h := p.agents[0]
	mine := h.loads
	var there []string
	for _, r := range p.s.Replicas() {
		if r.Node == h.id {
			there = append(there, r.ID)
		}
	}
	if len(there) == 0 {
		t.Fatal("the agent has no replica")
	}
	h.mute, h.refuse = true, errVanished
	// A cut request picks another replica: the snapshots must not list the lost ones.
	p.path.onCut = func(agent string) {
		for _, l := range p.path.list {
			for _, r := range l.pic.Replicas {
				if slices.Contains(there, r.ID) {
					t.Errorf("requests to %s are cut while %s still lists replica %s there", agent, l.name, r.ID)
				}
			}
		}
	}
	p.pass(5 * time.Second)
	if p.events("node_lost") != 0 {
		t.Fatal("lost before its lease is over")
	}
	for _, m := range mine {
		p.path.done(m)
	}
	p.pass(3 * time.Second)
	if p.events("node_lost") != 1 || !slices.Contains(p.path.cuts, "http://n0:1") {
		t.Fatalf("not lost, or not cut: %v", p.path.cuts)
	}
	p.want("it left the routes", p.states(mine[0]), "[]")
	// With demand it is started elsewhere, although the lost replica still runs.
	for _, name := range []string{"m1", "m2", "m3", "m4", "m5"} {
		p.path.done(name)
	}
	p.path.ask(mine[0], 1)
	p.pass(10 * time.Second)
	if s := p.states(mine[0]); !strings.Contains(s, "READY@n") || strings.Contains(s, "n0") {
		t.Fatal(s)
	}
	p.path.onCut = nil
	// The node returns with its replicas: they are adopted, and one of the two stops.
	h.mute, h.refuse = false, nil
	before := p.commands(" load ")
	p.pass(3 * time.Second)
	if n := strings.Count(p.states(mine[0]), "READY"); n != 2 {
		t.Fatalf("not adopted: %s", p.states(mine[0]))
	}
	p.pass(2 * time.Minute)
	if n := strings.Count(p.states(mine[0]), "READY"); n != 1 {
		t.Fatalf("for ever double: %s", p.states(mine[0]))
	}
	if n := p.commands(" load "); n != before {
		t.Errorf("%d loads for nothing: %s", n-before, strings.Join(p.log, "\n"))
	}
}

func TestAgentBackWithOthers(t *testing.T) {
	p := several(t, 2)
	h := p.agents[0]
	kept, lost := h.loads[0], h.loads[1]
	lostID := h.reps[1].ID
	h.restart(func(r *functions.ReplicaStatus) bool { return r.Model == kept })
	// It runs a replica that this process did not start, and one of an unknown model.
	for _, m := range []string{"m3", "unlisted"} {
		h.run(&functions.ReplicaStatus{ID: m + "-old", Team: "default", Model: m}, functions.Ready)
	}
	p.pass(100 * time.Millisecond)
	p.want("kept", p.states(kept), "[READY@n0]")
	if !strings.Contains(p.states("m3"), "n0") {
		t.Errorf("not adopted: %s", p.states("m3"))
	}
	for _, r := range p.s.Replicas() {
		if r.ID == lostID || strings.HasPrefix(r.ID, "unlisted") {
			t.Errorf("%s is listed", r.ID)
		}
	}
	p.path.ask(lost, 1)
	p.pass(20 * time.Second)
	if !slices.Contains(h.ends, "unlisted unknown") {
		t.Errorf("the replica of no model runs on: %v", h.ends)
	}
	if n := strings.Count(p.states(lost), "READY"); n != 1 {
		t.Errorf("what was lost: %s", p.states(lost))
	}
}

// TestAgentSuddenlyEmpty: the loss of all replicas of a node is rechecked; the loss of
// one is applied at once.
func TestAgentSuddenlyEmpty(t *testing.T) {
	p := several(t, 2)
	h := p.agents[0]
	loads := p.commands(" load ")
	h.bent = func(hb *functions.Heartbeat) { hb.Models = nil }
	h.push()
	p.pass(500 * time.Millisecond)
	h.push()
	p.pass(500 * time.Millisecond)
	if n := p.serving(); n != 4 || p.events("node_suspicious") != 1 {
		t.Fatalf("%d serve, %d second looks", n, p.events("node_suspicious"))
	}
	h.bent = nil
	p.pass(4 * time.Second)
	if n := p.serving(); n != 4 || p.commands(" load ") != loads || p.commands("unload") != 0 {
		t.Fatalf("a glitch was acted on: %d serve, %d loads, %d unloads", n, p.commands(" load ")-loads, p.commands("unload"))
	}
	h.restart(none) // and now the replicas are really gone
	p.pass(5 * time.Second)
	if n := p.serving(); n >= 4 || p.commands(" load ") == loads {
		t.Fatalf("%d serve, although two have gone", n)
	}
}

func TestGPUsSuddenlyGone(t *testing.T) {
	p := several(t, 2)
	h := p.agents[0]
	for what, bent := range map[string]func(*functions.Heartbeat){
		"no GPU": func(hb *functions.Heartbeat) { hb.GPUs = nil },
		"all are sick": func(hb *functions.Heartbeat) {
			for i := range hb.GPUs {
				hb.GPUs[i].Health = "Xid 79"
			}
		},
	} {
		h.bent = bent
		h.push()
		p.pass(time.Second)
		h.bent = nil
		p.pass(5 * time.Second)
		if p.serving() != 4 || p.commands("unload") != 0 {
			t.Fatalf("%s for a second: %d serve, %d unloads", what, p.serving(), p.commands("unload"))
		}
	}
	h.bent = func(hb *functions.Heartbeat) { hb.GPUs[0].Health = "Xid 79" } // one broken GPU is applied at once
	h.push()
	p.pass(100 * time.Millisecond)
	if p.events("stop") != 1 {
		t.Fatalf("%d stopped of one on a sick GPU", p.events("stop"))
	}
	h.bent = func(hb *functions.Heartbeat) {
		for i := range hb.GPUs {
			hb.GPUs[i].Health = "Xid 79"
		}
	}
	p.pass(8 * time.Second)
	if p.events("stop") != 2 {
		t.Fatalf("%d stopped of two", p.events("stop"))
	}
}

// TestAllSilent: if most agents fall silent at once, more likely this server receives
// nothing, so no node is lost yet.
func TestAllSilent(t *testing.T) {
	p := several(t, 4)
	for _, h := range p.agents {
		h.mute = true
	}
	p.pass(9 * time.Second)
	if p.events("node_lost") != 0 || p.serving() != 8 || p.events("nodes_suspicious") == 0 {
		t.Fatalf("%d lost, %d serve", p.events("node_lost"), p.serving())
	}
	for _, h := range p.agents {
		h.mute = false
	}
	p.pass(3 * time.Second)
	if p.serving() != 8 || p.commands(" load ") != 8 || p.commands("unload") != 0 {
		t.Fatalf("%d serve", p.serving())
	}
	for _, h := range p.agents[1:] {
		h.mute = true
	}
	p.pass(15 * time.Second)
	if p.events("node_lost") != 3 {
		t.Fatalf("%d lost of three that stay silent", p.events("node_lost"))
	}
}

// TestTwoServers: once the agents obey a newer server, the older one sends no
// commands, reports it, and fails its waiters.
func TestTwoServers(t *testing.T) {
	p := several(t, 3)
	old := p.s
	p.boot(2)
	p.pass(3 * time.Second)
	if p.serving() != 6 || old.Superseded() {
		t.Fatalf("%d adopted", p.serving())
	}
	p.path.done("m0")
	p.s.Stop(fname("m0")) // one agent obeys the new server
	p.pass(5 * time.Second)
	began := len(p.log)
	turn := func() {
		old.Turn(context.Background())
		p.pass(50 * time.Millisecond)
	}
	old.Wake(fname("m0")) // no agent has reported the newer epoch to the old server
	turn()
	turn()
	if loads := len(p.log) - began; loads > 1 {
		t.Fatalf("%d commands of a superseded server", loads)
	}
	if old.Superseded() {
		t.Fatal("superseded by one agent of three: it may have moved here from elsewhere")
	}
	for _, h := range p.agents {
		hb := h.document()
		hb.Epoch = 2
		old.Heartbeat(hb, h)
	}
	turn()
	if !old.Superseded() {
		t.Fatal("it does not know")
	}
	p.path.queueOf(fname("m5")).failed = ""
	began = len(p.log)
	for i := range 6 {
		old.Stop(fname(fmt.Sprint("m", i)))
	}
	turn()
	old.Wake(fname("m0"))
	for range 20 {
		turn()
		p.pass(time.Second)
	}
	for _, l := range p.log[began:] {
		t.Errorf("commanded: %s", l)
	}
	if f, _ := old.Function(fname("m0")); f.Failure == nil || !strings.Contains(f.Failure.Reason, "taken over") {
		t.Errorf("the waiters got %+v", f.Failure)
	}
	superseded := 0
	for _, e := range old.Events(0) {
		if e.Kind == "superseded" && e.Node == "" {
			superseded++
		}
	}
	if superseded != 1 {
		t.Errorf("%d events", superseded)
	}
}

// TestClockJumps: clock jumps forward and back, and a suspended process.
func TestClockJumps(t *testing.T) {
	p := several(t, 2)
	for i := range 4 {
		p.path.done(fmt.Sprint("m", i))
	}
	p.s.WakeFor(fname("m0"), time.Minute)
	p.pass(time.Second)
	for what, jump := range map[string]time.Duration{"forth": 26 * time.Hour, "back": -25 * time.Hour, "a little back": -time.Second} {
		p.leap(jump)
		p.pass(5 * time.Second)
		if p.serving() != 4 || p.events("node_lost") != 0 || p.commands("unload") != 0 {
			t.Fatalf("%s: %d serve, %d lost", what, p.serving(), p.events("node_lost"))
		}
	}
	// Time continues as before: the idle time is ten minutes, not a day.
	p.pass(9 * time.Minute)
	if p.serving() != 4 {
		t.Fatalf("%d serve, before their idle time is over", p.serving())
	}
	p.pass(3 * time.Minute)
	if p.serving() != 0 {
		t.Fatalf("%d serve, after their idle time is over", p.serving())
	}
	p.path.ask("m0", 1)
	p.pass(10 * time.Second)
	p.want("asked for after all that", p.states("m0"), "[READY@n0]")
}

// leap moves the clock by d without running anything in between.
func (p *play) leap(d time.Duration) {
	p.at, p.began = p.at.Add(d), p.began.Add(d)
	for i := range p.heap {
		p.heap[i].at = p.heap[i].at.Add(d)
	}
}

// TestCatalogueSuddenlyEmpty: a catalogue that lost most of its functions is read
// again before any replica is stopped.
func TestCatalogueSuddenlyEmpty(t *testing.T) {
	p := several(t, 2)
	was := p.catalog.models
	p.catalog.models = nil
	p.s.Changed()
	p.pass(1500 * time.Millisecond)
	p.catalog.models = was
	p.s.Changed()
	p.pass(5 * time.Second)
	if p.serving() != 4 || p.commands("unload") != 0 {
		t.Fatalf("%d serve", p.serving())
	}
	p.catalog.models = was[:1]
	p.s.Changed()
	for i := range 4 {
		p.path.done(fmt.Sprint("m", i))
	}
	p.pass(5 * time.Second)
	if p.serving() != 1 || p.events("removed") != 3 {
		t.Fatalf("%d serve", p.serving())
	}
}

// TestLateAndTwice: late or repeated heartbeats and results change nothing, whether of
// this process of the agent or of an earlier one.
func TestLateAndTwice(t *testing.T) {
	p := several(t, 2)
	h := p.agents[0]
	old := h.sent[len(h.sent)-1]
	for i := range 4 {
		p.path.done(fmt.Sprint("m", i))
	}
	name := h.loads[0]
	p.s.Stop(fname(name))
	p.pass(5 * time.Second)
	p.want("stopped", p.states(name), "[]")
	adopted := p.events("adopted")
	for range 3 {
		p.s.Heartbeat(old, h) // it lists a replica that has ended
		p.pass(100 * time.Millisecond)
	}
	p.want("a late heartbeat adds nothing", p.states(name), "[]")
	h.restart(all)
	p.pass(100 * time.Millisecond)
	last := h.sent[len(h.sent)-1]
	old.Seq += 1000 // the earlier process had higher sequence numbers
	p.s.Heartbeat(old, h)
	p.pass(100 * time.Millisecond)
	p.s.Heartbeat(last, h)
	p.pass(100 * time.Millisecond)
	p.want("nor does one of a life before", p.states(name), "[]")
	if p.events("adopted") != adopted {
		t.Error("adopted what has ended")
	}
	// Results: a load answered late or twice, with an error.
	p.path.ask(name, 1)
	p.pass(10 * time.Second)
	p.want("asked for", p.states(name), "[READY@n0]")
	id := ""
	for _, r := range p.s.Replicas() {
		if r.Function == fname(name).String() {
			id = r.ID
		}
	}
	for range 2 {
		p.s.inbox.put(func(u *updates) { u.loaded.Put(id, commandResult{"n0", p.at, errVanished}) })
		p.pass(time.Second)
	}
	p.want("its heartbeat knows better", p.states(name), "[READY@n0]")
}

// TestNothingNew: the list of an unchanged heartbeat is skipped, and actions that
// wait for the next heartbeat still happen.
func TestNothingNew(t *testing.T) {
	p := several(t, 2)
	h := p.agents[0]
	h.bent = func(hb *functions.Heartbeat) { hb.Change = 7 }
	p.pass(5 * time.Second)
	n := p.s.loop.nodes["n0"]
	beats := n.heartbeats
	p.pass(20 * time.Second)
	if n.heartbeats != beats || p.s.Nodes()[0].Lost {
		t.Errorf("%d looked through of ten that are alike", n.heartbeats-beats)
	}
	// After a change on the server's side the next heartbeat is not skipped.
	name := h.loads[0]
	p.path.done(name)
	p.path.done(h.loads[1])
	h.bent = func(hb *functions.Heartbeat) { hb.Change = 8 }
	p.s.Stop(fname(name))
	p.pass(5 * time.Second)
	p.want("stopped", p.states(name), "[]")
	h.forget(h.reps[0].ID)
	h.bent = func(hb *functions.Heartbeat) { hb.Change = 9 }
	p.pass(3 * time.Second)
	if len(n.replicas) != 0 {
		t.Errorf("%d replicas on a node that has none", len(n.replicas))
	}
}

// TestForeignGPUMemory: GPU memory that others hold is reported when the node joins, and
// is not free for models until they end.
func TestForeignGPUMemory(t *testing.T) {
	m := model("m")
	m.Spec.Resources.GPUs, m.Spec.Resources.GPUMemory = 1, 40<<30
	p := newPlay(t, 1, m)
	held := functions.Bytes(60 << 30)
	h := p.agent("n", 1)
	h.bent = func(hb *functions.Heartbeat) {
		if hb.GPUs[0].Foreign = held; held > 0 {
			hb.GPUs[0].Holders = "process 4711 (python3) holds 60 GiB"
		}
	}
	h.push() // in place of the first
	p.pass(8 * time.Second)
	told := slices.ContainsFunc(p.s.Events(0), func(e functions.Event) bool {
		return e.Kind == "node_joined" && e.Message == "memory of GPUs is not free for models: of GPU 0 process 4711 (python3) holds 60 GiB"
	})
	if !told {
		t.Errorf("not reported: %+v", p.s.Events(0))
	}
	p.path.ask("m", 1)
	p.pass(10 * time.Second)
	p.want("with 20 GiB free", p.states("m"), "[]")
	held = 0
	p.pass(10 * time.Second)
	p.want("once they ended", p.states("m"), "[READY@n]")
}

// TestEngineCounts: the requests that wait in an engine and the hit rate of its prefix
// cache are those of its last heartbeat, and the data path is told them.
func TestEngineCounts(t *testing.T) {
	p := newPlay(t, 1, model("m"))
	h := p.agent("n", 1)
	p.pass(8 * time.Second)
	p.path.ask("m", 1)
	p.pass(10 * time.Second)
	for i, rate := range []float64{0.5, 0.25} {
		h.reps[0].QueueLength, h.reps[0].KVCacheHitRate = 3+i, rate
		p.pass(3 * time.Second)
		if r := p.s.Replicas()[0]; r.QueueLength != 3+i || r.KVCacheHitRate != rate {
			t.Errorf("%+v", r)
		}
		if r := p.path.queueOf(fname("m")).pic.Replicas[0]; r.EngineQueue != 3+i || r.HitRate != rate {
			t.Errorf("published: %+v", r)
		}
	}
}
