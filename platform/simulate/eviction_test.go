package simulate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// TestKilledMidEviction: a node, its agent's connection or the server is lost at every moment
// between the decision to evict a model and the readiness of the one that gets its GPU (F6).
// The checker looks after every step that no GPU holds two models and that no request is
// lost; at the end both models answer again.
func TestKilledMidEviction(t *testing.T) {
	seconds := func(n float64) functions.Duration { return functions.Duration(n * float64(time.Second)) }
	model := Model{Team: "a", GPUs: 1, Size: 20, Max: 1, Target: 2, Idle: seconds(60), Queue: 20}
	run := func(faults ...Fault) (from, to time.Duration) {
		t.Helper()
		e := Experiment{
			Seed: 6, Policy: "lru", Hosts: []Host{{GPUs: 1, Memory: 256, Store: 500}}, Models: []Model{model, model}, FaultsEnd: seconds(240),
			Faults: append([]Fault{{At: seconds(1), Do: requestBurst, N: 2}, {At: seconds(40), Do: requestBurst, Model: 1, N: 2}}, faults...),
		}
		r, err := RunTraced(t.Context(), e, func(at time.Duration, text string) {
			switch {
			case at < 40*time.Second:
			case from == 0 && strings.HasPrefix(text, "  stop ") && strings.Contains(text, "evicted"):
				from = at
			case from > 0 && to == 0 && strings.HasPrefix(text, "  ready "):
				to = at
			}
		})
		if err != nil || r.Broken != nil {
			t.Fatalf("%+v: %v %v", faults, err, r.Broken)
		}
		return from, to
	}
	from, to := run()
	if from == 0 || to <= from {
		t.Fatalf("no eviction was seen: from %v to %v", from, to)
	}
	const moments = 16
	for i := range moments + 1 {
		at := functions.Duration(from - 100*time.Millisecond + (to-from+200*time.Millisecond)*time.Duration(i)/moments)
		for _, f := range []Fault{{Do: kill, For: seconds(20)}, {Do: partition, For: seconds(20)}, {Do: restart}, {Do: replace, For: seconds(5)}, {Do: crash}} {
			f.At = at
			run(f)
		}
	}
}
