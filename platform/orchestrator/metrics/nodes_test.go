package metrics

import (
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

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
