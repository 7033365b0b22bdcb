package metrics

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// sums is a Sink that adds up each series, and counts how often each was resolved.
type sums struct {
	total    map[string]float64
	resolved map[string]int
}

func newSums() *sums { return &sums{total: map[string]float64{}, resolved: map[string]int{}} }

func (s *sums) Series(metric string, labels ...string) func(float64) {
	key := metric + "{" + strings.Join(labels, ",") + "}"
	s.resolved[key]++
	return func(v float64) { s.total[key] += v }
}

func (*sums) Forget(string, string) {}

func (s *sums) expect(t *testing.T, want map[string]float64) {
	t.Helper()
	if !maps.Equal(s.total, want) {
		t.Errorf("%v\nwant %v", s.total, want)
	}
	clear(s.total)
}

var modelA = functions.Name{Team: "a", Name: "m"}

func TestFunction(t *testing.T) {
	s := newSums()
	f := New(s, modelA)
	for range 2 {
		f.CountEnd("chat", 200, false, time.Second)
	}
	f.CountEnd("chat", 200, true, 3*time.Second)
	f.CountEnd("chat", 503, false, 0)
	f.CountEnd("embeddings", 200, false, 0)
	s.expect(t, map[string]float64{
		"thaw_requests_total{m,a,chat,200,false}": 2, "thaw_requests_total{m,a,chat,200,true}": 1,
		"thaw_requests_total{m,a,chat,503,false}": 1, "thaw_requests_total{m,a,embeddings,200,false}": 1,
		"thaw_request_seconds{m,a,false}": 2, "thaw_request_seconds{m,a,true}": 3,
	})
	if n := s.resolved["thaw_requests_total{m,a,chat,200,false}"]; n != 1 {
		t.Errorf("the series of a usual end was looked up %d times", n)
	}
	f.ObserveTokenTime(false, 5, 2*time.Second) // four pauses between five tokens
	f.ObserveTokenTime(true, 1, time.Second)    // none
	f.CountFailure("truncated", 2)
	s.expect(t, map[string]float64{"thaw_time_per_output_token_seconds{m,a,false}": 0.5, "thaw_engine_errors_total{m,a,truncated}": 2})
}

func TestColdStart(t *testing.T) {
	at := func(id string, state functions.State, tier functions.Tier) *snapshot.Snapshot {
		return &snapshot.Snapshot{Name: modelA, ColdStart: &functions.Timeline{ID: id, State: state, Tier: tier, Total: 4,
			Phases: []functions.Span{{Phase: functions.PhaseWarmup, Duration: 1}}}}
	}
	ready := func(source, result string) map[string]float64 {
		return map[string]float64{
			"thaw_cold_start_seconds{m,a," + result + "}":                                                     4,
			fmt.Sprintf("thaw_cold_start_phase_seconds{m,a,%s,%s,%s}", functions.PhaseWarmup, source, result): 1,
		}
	}
	none := &snapshot.Snapshot{Name: modelA}
	for name, c := range map[string]struct {
		before, now *snapshot.Snapshot
		want        map[string]float64
	}{
		"none":                {none, none, nil},
		"under way":           {none, at("1", functions.Loading, ""), nil},
		"ended":               {at("1", functions.Loading, ""), at("1", functions.Ready, functions.TierRemote), ready(string(functions.TierRemote), "ready")},
		"failed, unknown":     {none, at("1", functions.Failed, ""), ready("unknown", "failed")},
		"counted before":      {at("1", functions.Ready, ""), at("1", functions.Ready, ""), nil},
		"another one, though": {at("1", functions.Ready, ""), at("2", functions.Ready, ""), ready("unknown", "ready")},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSums()
			ObserveColdStart(s, c.before, c.now)
			s.expect(t, c.want)
		})
	}
	s := newSums()
	New(s, modelA).ObserveFirstByte(nil, 2*time.Second)
	s.expect(t, map[string]float64{fmt.Sprintf("thaw_cold_start_phase_seconds{m,a,%s,unknown,ready}", functions.PhaseFirstToken): 2})
}
