package orchestrator

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/thaw-dev/thaw/functions"
)

// TestMetrics: counters and states, with labels from a fixed set.
func TestMetrics(t *testing.T) {
	s := New(Options{})
	s.counts.recordFailure(false, "no such file")
	s.counts.recordFailure(true, "hung: no token for 10s")
	s.counts.recordFailure(true, "killed by SIGKILL")
	s.counts.evictions.WithLabelValues("idle").Inc()
	s.counts.recordStaged("az://a/c/p", functions.Timeline{Tier: functions.TierRemote, Bytes: 7, State: functions.Ready})
	s.counts.recordStaged("./here", functions.Timeline{Tier: functions.TierNVMe, Bytes: 7, State: functions.Ready}) // no bytes were staged
	s.functions[functions.Name{Team: "red", Name: "m"}] = &functionState{}
	s.accountOf("red")

	r := prometheus.NewPedanticRegistry()
	r.MustRegister(s)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, m := range f.Metric {
			line := f.GetName()
			for _, l := range m.Label {
				line += " " + l.GetValue()
			}
			got = append(got, line)
		}
	}
	want := []string{
		"thaw_engine_restarts_total died", "thaw_engine_restarts_total hung", "thaw_engine_restarts_total start",
		"thaw_evictions_total idle", "thaw_heartbeats_late_total", "thaw_model_state m cold red", "thaw_stage_bytes_total ready az",
		"thaw_team_evictions_total inflicted red", "thaw_team_evictions_total suffered red", "thaw_team_gpu_seconds_total red", "thaw_thrash_total",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
