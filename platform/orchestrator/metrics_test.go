package orchestrator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// TestMetrics: counters and states, with labels from a fixed set.
func TestMetrics(t *testing.T) {
	s := New(Options{})
	s.loop.counts.RecordFailure(false, "no such file")
	s.loop.counts.RecordFailure(true, "hung: no token for 10s")
	s.loop.counts.RecordFailure(true, "killed by SIGKILL")
	s.loop.counts.Add("thaw_evictions_total", 1, "idle")
	s.loop.counts.RecordStaged("az://a/c/p", functions.Timeline{Tier: functions.TierRemote, Bytes: 7, State: functions.Ready})
	// No bytes were staged.
	s.loop.counts.RecordStaged("./here", functions.Timeline{Tier: functions.TierNVMe, Bytes: 7, State: functions.Ready})
	s.loop.functions[functions.Name{Team: "red", Name: "m"}] = &functionState{}
	s.loop.teams.account("red")

	var got []string
	s.Samples(func(metric string, _ float64, labels ...string) {
		got = append(got, strings.Join(append([]string{metric}, labels...), " "))
	})
	slices.Sort(got)
	want := []string{
		"thaw_engine_restarts_total died", "thaw_engine_restarts_total hung", "thaw_engine_restarts_total start",
		"thaw_evictions_total idle", "thaw_heartbeats_late_total", "thaw_model_state m red cold", "thaw_stage_bytes_total az ready",
		"thaw_team_evictions_total red inflicted", "thaw_team_evictions_total red suffered", "thaw_team_gpu_seconds_total red", "thaw_thrash_total",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestGPUMetrics: what is not known of a GPU has no series.
func TestGPUMetrics(t *testing.T) {
	s := New(Options{Epoch: 1, Catalog: &fakeCatalog{}})
	s.Attach(newFakePath())
	s.Heartbeat(functions.Heartbeat{AgentID: "n", GPUs: []functions.GPU{
		{Index: 0, MemoryTotal: 80, MemoryFree: 0, Health: "ok"}, {Index: 1, MemoryTotal: 80, Health: functions.GPUUnknown}, {Index: 2, Health: functions.GPUUnknown},
	}}, newFakeAgent("n", 0))
	s.Turn(t.Context())
	if g := s.loop.nodes["n"].GPUs; g[0].Whole || !g[1].Whole || g[1].Memory != 80 || g[1].Unhealthy {
		t.Errorf("placed by %+v", g)
	}
	got := ""
	s.Samples(func(metric string, v float64, labels ...string) {
		if metric == "thaw_gpu_memory_bytes" {
			got += fmt.Sprintln(labels[1:], v)
		}
	})
	if want := "[0 total] 80\n[0 free] 0\n[1 total] 80\n"; got != want {
		t.Errorf("got\n%s", got)
	}
}
