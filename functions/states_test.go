package functions

import (
	"encoding/json"
	"testing"
	"time"
)

func TestEngineTime(t *testing.T) {
	span := func(p Phase, seconds float64) Span { return Span{Phase: p, Duration: seconds} }
	for name, c := range map[string]struct {
		start  time.Duration
		phases []Span
		want   time.Duration
	}{
		"nothing known":         {time.Minute, nil, time.Minute},
		"placed and staged":     {time.Hour, []Span{span(PhasePlace, 60), span(PhaseStage, 3000), span(PhaseSpawn, 10)}, 9 * time.Minute},
		"the download failed":   {time.Hour, []Span{span(PhaseStage, 3600)}, 0},
		"longer than the start": {time.Minute, []Span{span(PhaseStage, 1e300)}, 0},
		"a clock that ran back": {time.Minute, []Span{span(PhaseStage, -5)}, time.Minute},
	} {
		if got := EngineTime(c.start, c.phases); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestReplicaStatusForm: agents and servers of other releases read this form.
func TestReplicaStatusForm(t *testing.T) {
	b, err := json.Marshal(ReplicaStatus{
		ID: "r", Team: "t", Model: "m", State: Ready, Tier: TierGPU, Bytes: 1, TotalBytes: 2, Percent: 3, Endpoint: "http://h",
		EngineLoad: EngineLoad{InFlight: 4, QueueLength: 5, KVCacheHitRate: 0.5}, Phases: []Span{{Phase: PhaseLoad, Start: 1, Duration: 2}},
		Error: "e", ShortOf: "gpu", GPUs: []int{1}, Weights: "w", Start: StartWarm, StartNote: "n", GPUMemory: 6, SleepLevel: 1,
		Adapters: []string{"a"}, AdapterNotes: map[string]string{"a": "b"}, Key: "k", Since: 7,
	})
	const want = `{"id":"r","team":"t","model":"m","state":"READY","tier":"GPU_RESIDENT","bytes":1,"total_bytes":2,"percent":3,` +
		`"inference_endpoint_url":"http://h","in_flight":4,"queue_length":5,"kv_cache_hit_rate":0.5,` +
		`"phases":[{"phase":"load","start":1,"duration":2}],"error":"e","short_of":"gpu","gpus":[1],"weights":"w","start":"warm",` +
		`"start_note":"n","gpu_memory":6,"sleep_level":1,"adapters":["a"],"adapter_notes":{"a":"b"},"engine_key":"k","since":7}`
	if err != nil || string(b) != want {
		t.Errorf("%v\n%s, want\n%s", err, b, want)
	}
}
