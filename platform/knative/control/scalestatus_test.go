package control

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/knative/autoscale"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// TestWaiting: a waiting revision's message names the evicted Services of its own team until
// they end, and no other team's.
func TestWaiting(t *testing.T) {
	named := func(team, name string) functions.Name { return functions.Name{Team: team, Name: name} }
	to, other := named("a", "qwen-00001"), named("a", "tiny-00002")
	var l pendingEvictions
	l.add("r1", pendingEviction{evicted: named("team-b", "llama-00003"), beneficiary: to, idleFor: 14 * time.Minute})
	l.add("r2", pendingEviction{evicted: named("a", "busy-00001"), beneficiary: to})
	l.add("r3", pendingEviction{evicted: named("a", "gone-00001"), beneficiary: other, idleFor: 40 * time.Second})
	r := &leaderTerm{catalog: &revisionCatalog{revisions: map[functions.Name]*revision{named("team-b", "llama-00003"): {service: "llama"}, named("a", "busy-00001"): {service: "busy"}}}}
	nameFor := func(n functions.Name) string { return r.nameFor("a", n) }
	for _, x := range []struct {
		gpus int
		of   functions.Name
		want string
	}{
		{2, to, "waiting for 2 GPUs; evicting a/busy and a model of another team"},
		{1, other, "waiting for a GPU; evicting a/gone-00001, idle 40 s"},
		{0, other, "waiting for room on a node; evicting a/gone-00001, idle 40 s"},
	} {
		if got := waitMessage(x.gpus, l.of(x.of), nameFor, functions.Explanation{}); got != x.want {
			t.Errorf("%q, want %q", got, x.want)
		}
	}
	if got, ok := l.remove("r2"); !ok || got != to {
		t.Errorf("made way for %v, %v", got, ok)
	}
	if _, ok := l.remove("r2"); ok {
		t.Error("it has ended twice")
	}
	if got := waitMessage(2, l.of(to), nameFor, functions.Explanation{}); got != "waiting for 2 GPUs; evicting a model of another team" {
		t.Errorf("%q", got)
	}
	l.remove("r1")
	if got := l.of(to); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestWaitingWithoutEviction: a revision whose requests wait without an eviction has the
// planner's reason in its status for as long as they wait.
func TestWaitingWithoutEviction(t *testing.T) {
	for _, x := range []struct {
		name  string
		gpus  int           // GPUs that the model needs
		since time.Duration // time since the other model became READY
		began time.Duration // time since the term began
		want  string
	}{
		{"too young to go", 1, 0, 10 * time.Second, "WaitingForGPUs waiting for a GPU: no room (n1)"},
		{"too large for one node, others not heard yet", 2, 0, 0, "WaitingForGPUs waiting for 2 GPUs: too small (n1)"},
		{"too large", 2, time.Hour, 10 * time.Second, "NoCapacity it needs 2 GPUs on one node, and the largest has 1"},
		{"placed at once", 0, 0, 10 * time.Second, "NoTraffic "},
	} {
		t.Run(x.name, func(t *testing.T) {
			now := time.Unix(1e9, 0)
			model := func(name string, gpus int) *revision {
				m := functions.NewModel()
				m.Metadata.Name, m.Metadata.Namespace = name, "a"
				m.Spec.Source, m.Spec.Engine, m.Spec.Resources = "az://a/c/"+name, functions.EngineCommand, functions.Resources{GPUs: gpus}
				return &revision{model: m, service: name}
			}
			other := functions.Name{Team: "a", Name: "other-00001"}
			r := &leaderTerm{cluster: newTestCluster(nil), catalog: &revisionCatalog{revisions: map[functions.Name]*revision{web: model(web.Name, x.gpus), other: model(other.Name, 1)}}}
			r.settled.Store(true)
			var moved []functions.Name
			r.dataPath = newDataPath(nil, r.catalog.serviceOf, func(n functions.Name) { moved = append(moved, n) },
				func() time.Time { return now })
			r.orchestrator = orchestrator.New(orchestrator.Options{
				Epoch: 1, Path: r.dataPath, Catalog: r.catalog, Now: func() time.Time { return now }, OnUpdate: func() {},
				RunCommand: func(time.Duration, func(context.Context)) {},
			})
			r.dataPath.Waker = r.orchestrator
			turn := func() {
				r.orchestrator.Heartbeat(functions.Heartbeat{
					AgentID: "n1", Epoch: 1, GPUs: []functions.GPU{{MemoryTotal: 80 << 30, Health: "ok"}}, Memory: functions.Capacity{Total: 64 << 30},
					Models: []functions.ReplicaStatus{{
						ID: "r1", Team: "a", Model: other.Name, State: functions.Ready, Endpoint: "http://10.0.0.9:8080", GPUs: []int{0},
						Spec: &r.catalog.revisions[other].model.Spec, Since: x.since.Milliseconds(),
					}},
				}, nil)
				r.orchestrator.Turn(t.Context())
			}
			says := func() string {
				s, ok := r.Scale(web.Team, web.Name)
				if !ok {
					t.Fatal("nothing is known")
				}
				if quiet := s.Reason == autoscale.ReasonNoTraffic; quiet != (s.Active == corev1.ConditionFalse) {
					t.Errorf("%+v", s)
				}
				return s.Reason + " " + s.Message
			}
			r.orchestrator.Changed()
			turn()
			for range int(x.began / time.Second) {
				now = now.Add(time.Second)
				turn()
			}
			if got := says(); got != "NoTraffic " {
				t.Errorf("no requests: %q", got)
			}
			moved = nil
			r.dataPath.SetOutsideDemand(web, 0, 1)
			turn()
			if got := says(); got != x.want {
				t.Errorf("%q, want %q", got, x.want)
			}
			if !slices.Contains(moved, web) {
				t.Error("queued requests are not reported")
			}
			moved = nil
			now = now.Add(100 * time.Millisecond)
			r.dataPath.SetOutsideDemand(web, 0, 0)
			turn()
			if got := says(); got != "NoTraffic " {
				t.Errorf("no requests any more: %q", got)
			}
			if !slices.Contains(moved, web) {
				t.Error("the end of queued requests is not reported")
			}
		})
	}
}
