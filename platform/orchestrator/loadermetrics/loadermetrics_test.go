package loadermetrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/thaw-dev/thaw/functions"
)

type loaders map[string]*functions.LoaderStats

func (loaders) Describe(ch chan<- *prometheus.Desc) { Describe(ch) }

func (l loaders) Collect(ch chan<- prometheus.Metric) {
	for node, s := range l {
		Collect(ch, node, s)
	}
}

// TestLoaderMetrics: unknown schemes of an agent share one label, and make no two
// series of one name.
func TestLoaderMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(loaders{"a": {Bytes: map[string]functions.Bytes{"az": 7, "peer": 3}, Retries: 2, Staged: 1, InFlight: 4, EvictedBytes: 9}, "old": nil,
		"liar": {Bytes: map[string]functions.Bytes{"A B\n": 1, "-": 2}}})
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			line := f.GetName()
			for _, l := range m.Label {
				line += " " + l.GetValue()
			}
			got[line] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for line, want := range map[string]float64{
		"thaw_loader_bytes_total a az": 7, "thaw_loader_bytes_total a peer": 3, "thaw_loader_retries_total a": 2, "thaw_loader_in_flight ranges a": 4,
		"thaw_loader_stagings_total a ready": 1, "thaw_store_evicted_bytes_total a": 9, "thaw_loader_bytes_total liar other": 3,
	} {
		if got[line] != want {
			t.Errorf("%s is %v, want %v", line, got[line], want)
		}
	}
	for line := range got {
		if strings.Contains(line, "old") {
			t.Errorf("%s of an agent that says nothing", line)
		}
	}
}
