package orchestrator

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/forecast"
	"github.com/thaw-dev/thaw/platform/orchestrator/events"
	"github.com/thaw-dev/thaw/platform/placement"
)

func TestRecipe(t *testing.T) {
	m := model("x")
	was := hashSpec(m.Spec, "/a")
	scale := m.Spec
	scale.Scale.Max, scale.Queue.Requests, scale.Deadlines.Drain = 9, 9, 9
	if hashSpec(scale, "/a") != was || hashSpec(m.Spec, "/b") != was {
		t.Error("scale, queue, deadlines, or where the file of a remote source lies, restart a replica")
	}
	for what, edit := range map[string]func(*functions.ModelSpec){
		"args":   func(s *functions.ModelSpec) { s.Args = []string{"--x"} },
		"env":    func(s *functions.ModelSpec) { s.Env = map[string]string{"A": "b"} },
		"source": func(s *functions.ModelSpec) { s.Source = "az://a/c/y" },
		"gpus":   func(s *functions.ModelSpec) { s.Resources.GPUs = 2 },
	} {
		s := m.Spec
		edit(&s)
		if hashSpec(s, "/a") == was {
			t.Errorf("%s: the old one would go on", what)
		}
	}
	local := m.Spec
	local.Source = "./x"
	if hashSpec(local, "/a") == hashSpec(local, "/b") {
		t.Error("another folder is another model")
	}
	for source, want := range map[string]bool{"": false, "./x": true, "x": true, "/x": true, "file:///x": true, "az://a/b/c": false, "https://h/c": false} {
		if isLocalFolder(source) != want {
			t.Errorf("isLocal(%q) is %v", source, !want)
		}
	}
}

// TestProgress: the progress of a cold start never decreases; its ETA comes from bytes
// over rate and from history, and there is none if neither is known.
func TestProgress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, 1, model("x", func(s *functions.ModelSpec) { s.Engine = functions.EngineVLLM }))
		defer r.stop()
		s := r.s
		node := newFakeAgent("here", 1)
		status := functions.ReplicaStatus{Team: "default", Model: "x", State: functions.Downloading, TotalBytes: 1000}
		beat := func() functions.Progress {
			hb := functions.Heartbeat{AgentID: "here", GPUs: []functions.GPU{{MemoryTotal: 80 << 30, Health: "ok"}}}
			if status.ID != "" {
				hb.Models = []functions.ReplicaStatus{status}
			}
			s.Heartbeat(hb, node)
			synctest.Wait()
			return r.d.snapshot(fname("x")).Progress
		}
		node.s = s
		node.mute = true
		beat()
		id := r.d.ask(s, fname("x"), 1)
		synctest.Wait()
		status.ID = s.Replicas()[0].ID
		if p := beat(); p.ETA != -1 {
			t.Errorf("before the first byte: %+v", p)
		}
		r.pass(time.Second)
		status.Bytes, status.Phases = 100, []functions.Span{{Phase: functions.PhaseStage, Duration: 1}}
		p := beat()
		// 900 bytes at 100 a second; vLLM takes 29 s to listen, then 1 s of warm-up.
		if p.ETA < 29*time.Second || p.ETA > 31*time.Second || p.Percent != 3 {
			t.Errorf("after a tenth of the bytes: %+v", p)
		}
		r.pass(time.Second)
		status.Bytes, status.Phases = 101, []functions.Span{{Phase: functions.PhaseStage, Duration: 2}} // the rate fell
		if q := beat(); q.Percent < p.Percent || q.ETA < p.ETA {
			t.Errorf("it ran backwards: %+v after %+v", q, p)
		}
		status.Bytes, status.State = 1000, functions.Loading
		status.Phases = []functions.Span{{Phase: functions.PhaseStage, Duration: 2}, {Phase: functions.PhaseSpawn, Start: 2, Duration: 24}}
		if q := beat(); q.ETA < 5*time.Second || q.ETA > 7*time.Second {
			t.Errorf("towards the end: %+v", q)
		}
		status.Phases[1].Duration = 100 // long overdue: an ETA of a second would be wrong
		if q := beat(); q.ETA < 10*time.Second || q.ETA > 12*time.Second {
			t.Errorf("overdue: %+v", q)
		}
		status.State, status.Endpoint = functions.Ready, "http://127.0.0.1:1"
		beat()
		if l, _ := s.ColdStart(id); l.Progress.Percent != 100 || l.Progress.ETA != 0 || l.State != functions.Ready {
			t.Errorf("at the end: %+v", l.Progress)
		}
	})
}

// TestSuspendedServer: a suspended server does not count silence during the suspension;
// nodes that stay silent afterwards are lost.
func TestSuspendedServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d, c := newFakePath(), &fakeCatalog{models: []*functions.Model{model("x")}}
		s := New(Options{Epoch: 1, Path: d, Catalog: c})
		h := newFakeAgent("a", 1)
		s.Changed()
		s.Heartbeat(functions.Heartbeat{AgentID: "a", URL: "http://a:1"}, h)
		s.Turn(context.Background())
		time.Sleep(time.Hour) // no turns
		s.Turn(context.Background())
		if len(s.Nodes()) != 1 || len(d.cut) != 0 {
			t.Fatal("its agents were lost by its own sleep")
		}
		for range 10 {
			time.Sleep(time.Second)
			s.Turn(context.Background())
		}
		if len(s.Nodes()) != 0 {
			t.Fatal("a silent agent is not lost")
		}
		if len(d.cut) != 1 || d.cut[0] != "http://a:1" {
			t.Errorf("what is in flight through it was not cut: %v", d.cut)
		}
		s.commands.running.Wait()
	})
}

// TestBoundedLogs: cold starts and events are bounded.
func TestBoundedLogs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := New(Options{})
		for i := range 5000 {
			s.loop.event("x", functions.Name{}, fmt.Sprint(i), "", "", "")
			s.loop.coldStarts.add(&coldStart{Owner: &functionState{}, Timeline: functions.Timeline{ID: fmt.Sprint("cs", i)}, Over: true})
		}
		es := s.Events(0)
		if len(es) != events.Keep || es[len(es)-1].Seq != 5000 || len(s.Events(4990)) != 10 || len(s.Events(9999)) != 0 {
			t.Errorf("%d events", len(es))
		}
		if n := len(s.ColdStarts(0)); n != keptColdStarts || len(s.ColdStarts(3)) != 3 {
			t.Errorf("%d cold starts", n)
		}
		if _, ok := s.ColdStart("cs4999"); !ok || s.ColdStarts(1)[0].ID != "cs4999" {
			t.Error("the newest is not there")
		}
		if _, ok := s.ColdStart("cs0"); ok {
			t.Error("the oldest is there")
		}
	})
}

// TestMemoryOfWarmParents: memory of permanent fork servers is not available to
// replicas; memory of evictable ones is.
func TestMemoryOfWarmParents(t *testing.T) {
	hb := functions.Heartbeat{
		Memory: functions.Capacity{Total: 100, Used: 70},
		Warm:   []functions.WarmParent{{Memory: 30, Reserved: true}, {Memory: 40}},
	}
	n := &nodeState{Node: &placement.Node{}}
	n.setFrom(heartbeat{message: hb}, 0)
	if n.Memory != 70 {
		t.Errorf("%d for replicas, want 70", n.Memory)
	}
	hb.Warm[0].Memory = 101
	if n.setFrom(heartbeat{message: hb}, 0); n.Memory != 0 {
		t.Errorf("%d for replicas, want 0", n.Memory)
	}
}

// TestPlaceThatTakesTime: the scheduling time of a pod is part of one place phase, and
// of the forecast.
func TestPlaceThatTakesTime(t *testing.T) {
	at := time.Unix(1e9, 0)
	s := New(Options{Now: func() time.Time { return at }})
	began := s.loop.now()
	f := &functionState{model: &functions.Model{}}
	f.starts.Add(forecast.StartSample{Node: "n", Tier: functions.TierNVMe, Total: 3 * time.Second, Start: 3 * time.Second,
		Phases: map[functions.Phase]time.Duration{
			functions.PhasePlace: 2 * time.Second, functions.PhaseStage: 0, functions.PhaseSpawn: 500 * time.Millisecond, functions.PhaseLoad: 500 * time.Millisecond, functions.PhaseWarmup: 0,
		}})
	r := &replicaState{Replica: placement.Replica{ID: "r", Node: "n"}, function: f}
	c := &coldStart{Owner: f, Wanted: began, Decided: began, Placed: began + time.Millisecond, Target: r}
	r.status = functions.ReplicaStatus{State: functions.Downloading, Percent: -1, Phases: []functions.Span{{Phase: functions.PhasePlace, Duration: 0.5}}}
	at = at.Add(500 * time.Millisecond)
	p := c.At(s.loop.now())
	if len(p.Phases) != 2 || p.Phases[1].Phase != functions.PhasePlace || p.Phases[1].Duration != 0.5 {
		t.Errorf("%+v", p.Phases)
	}
	if p.Progress.ETA != 2500*time.Millisecond {
		t.Errorf("ETA %v", p.Progress.ETA)
	}
	r.status.Phases = []functions.Span{{Phase: functions.PhasePlace, Duration: 1}, {Phase: functions.PhaseStage, Start: 1}, {Phase: functions.PhaseSpawn, Start: 1}}
	r.status.State = functions.Loading
	if p := c.At(s.loop.now()); len(p.Phases) != 4 || p.Phases[1].Duration != 1 || p.Progress.ETA != time.Second {
		t.Errorf("%+v, ETA %v", p.Phases, p.Progress.ETA)
	}
}

// TestETACountsDown: the ETA falls while a phase runs that its node reports only at its end,
// and a start that is overdue is not said to end at once.
func TestETACountsDown(t *testing.T) {
	at := time.Unix(1e9, 0)
	s := New(Options{Now: func() time.Time { return at }})
	f := &functionState{model: &functions.Model{}}
	f.starts.Add(forecast.StartSample{Node: "n", Tier: functions.TierNVMe, Total: 14 * time.Second, Start: 14 * time.Second,
		Phases: map[functions.Phase]time.Duration{
			functions.PhaseStage: time.Second, functions.PhaseSpawn: 10 * time.Second, functions.PhaseLoad: 3 * time.Second, functions.PhaseWarmup: time.Second,
		}})
	r := &replicaState{Replica: placement.Replica{ID: "r", Node: "n"}, function: f}
	r.status = functions.ReplicaStatus{State: functions.Loading, Percent: -1}
	c := &coldStart{Owner: f, Wanted: s.loop.now(), Decided: s.loop.now(), Placed: s.loop.now(), Target: r}
	spawned := functions.Span{Phase: functions.PhaseSpawn, Duration: 10}
	for _, x := range []struct {
		after  float64
		phases []functions.Span
		want   float64
	}{
		{0, nil, 14}, {4, nil, 10}, {9, nil, 5}, {10, []functions.Span{spawned}, 5}, {12, []functions.Span{spawned}, 3},
		{13, []functions.Span{spawned, {Phase: functions.PhaseLoad, Start: 10, Duration: 3}}, 1.3}, {40, []functions.Span{spawned}, 3},
	} {
		at = time.Unix(1e9, 0).Add(time.Duration(x.after * float64(time.Second)))
		r.status.Phases = x.phases
		if got := c.At(s.loop.now()).Progress.ETA.Seconds(); got < x.want-0.01 || got > x.want+0.01 {
			t.Errorf("after %v s with %v: %v s, want %v", x.after, x.phases, got, x.want)
		}
	}
}
