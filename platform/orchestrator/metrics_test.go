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
	s.counts.recordFailure(false, "no such file")
	s.counts.recordFailure(true, "hung: no token for 10s")
	s.counts.recordFailure(true, "killed by SIGKILL")
	s.counts.add("thaw_evictions_total", 1, "idle")
	s.counts.recordStaged("az://a/c/p", functions.Timeline{Tier: functions.TierRemote, Bytes: 7, State: functions.Ready})
	s.counts.recordStaged("./here", functions.Timeline{Tier: functions.TierNVMe, Bytes: 7, State: functions.Ready}) // no bytes were staged
	s.functions[functions.Name{Team: "red", Name: "m"}] = &functionState{}
	s.teams.account("red")

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
	if g := s.nodes["n"].GPUs; g[0].Whole || !g[1].Whole || g[1].Memory != 80 || g[1].Unhealthy {
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

// TestLoaderMetrics: unknown schemes of an agent share one label.
func TestLoaderMetrics(t *testing.T) {
	got := map[string]float64{}
	for node, s := range map[string]*functions.LoaderStats{
		"a":    {Bytes: map[string]functions.Bytes{"az": 7, "peer": 3}, Retries: 2, Staged: 1, InFlight: 4, EvictedBytes: 9},
		"liar": {Bytes: map[string]functions.Bytes{"A B\n": 1, "-": 2}},
	} {
		sampleLoader(node, s, func(metric string, value float64, labels ...string) {
			name := strings.Join(append([]string{metric}, labels...), " ")
			if _, twice := got[name]; twice {
				t.Errorf("%s twice", name)
			}
			got[name] = value
		})
	}
	for name, want := range map[string]float64{
		"thaw_loader_bytes_total a az": 7, "thaw_loader_bytes_total a peer": 3, "thaw_loader_retries_total a": 2, "thaw_loader_in_flight a ranges": 4,
		"thaw_loader_stagings_total a ready": 1, "thaw_store_evicted_bytes_total a": 9, "thaw_loader_bytes_total liar other": 3,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
