package simulate

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/simulate/fleet"
	"github.com/thaw-dev/thaw/platform/simulate/trace"
)

func hosts(count, gpus int) *fleet.Fleet {
	var n fleet.HostKind
	n.Default()
	n.Name, n.Count, n.GPUs = "node", count, gpus
	return &fleet.Fleet{Nodes: []fleet.HostKind{n}, Engine: fleet.DefaultEngine}
}

func model(name string, edit ...func(*functions.ModelSpec)) *functions.Model {
	m := functions.NewModel()
	n, err := functions.ParseName(name, functions.DefaultTeam)
	if err != nil {
		panic(err)
	}
	m.Metadata.Name, m.Metadata.Namespace = n.Name, n.Team
	m.Spec.Engine, m.Spec.Source = functions.EngineVLLM, "az://account/container/"+n.Name
	m.Spec.Resources = functions.Resources{GPUs: 1, Memory: 1 << 30}
	for _, e := range edit {
		e(&m.Spec)
	}
	return m
}

func models(n int, edit ...func(*functions.ModelSpec)) (out []*functions.Model) {
	for i := range n {
		out = append(out, model(fmt.Sprintf("m%d", i), edit...))
	}
	return out
}

// poisson draws n requests over a span, for models whose popularity falls with their
// index.
func poisson(ms []*functions.Model, n int, done time.Duration, seed uint64) trace.Requests {
	return func(yield func(trace.Request, error) bool) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cum := make([]float64, len(ms))
		sum := 0.0
		for i := range ms {
			sum += 1 / math.Pow(float64(i+1), 0.9)
			cum[i] = sum
		}
		at := 0.0
		for range n {
			at += rng.ExpFloat64() * float64(done) / float64(n)
			x := rng.Float64() * sum
			lo, hi := 0, len(ms)-1
			for lo < hi {
				if mid := (lo + hi) / 2; cum[mid] < x {
					lo = mid + 1
				} else {
					hi = mid
				}
			}
			if !yield(trace.Request{At: time.Duration(at), Function: ms[lo].FullName(), Input: 200, Output: 50}, nil) {
				return
			}
		}
	}
}

func runConfig(t testing.TB, c Config) Result {
	t.Helper()
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	total := r.Answered + r.Broken + r.Left + r.Unfinished
	for _, n := range r.Refused {
		total += n
	}
	if total != r.Requests {
		t.Errorf("%d requests, and %d have an end", r.Requests, total)
	}
	h := r.GPUHours
	if sum, want := h.Busy+h.Idle+h.Loading+h.Wasted+h.Free, float64(r.GPUs)*r.Seconds/3600; math.Abs(sum-want) > 1e-3*want+1e-4 {
		t.Errorf("GPU-hours add up to %v, not %v: %+v", sum, want, h)
	}
	if h.Free < -1e-6 {
		t.Errorf("more GPU-hours than there are: %+v", h)
	}
	return r
}

func resultText(r Result) string {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestRun(t *testing.T) {
	ms := models(12)
	c := Config{Fleet: hosts(2, 2), Functions: ms, Requests: poisson(ms, 3000, time.Hour, 7), Seed: 7}
	r := runConfig(t, c)
	t.Log(resultText(r))
	if again := runConfig(t, c); resultText(again) != resultText(r) {
		t.Errorf("the same run gave %s", resultText(again))
	}
}
