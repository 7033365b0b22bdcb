package forecast

import (
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

func TestForecast(t *testing.T) {
	var h StartTimes
	if f := h.Forecast(true); f.P50 != -1 || f.P90 != -1 {
		t.Errorf("of nothing: %+v", f)
	}
	add := func(node string, tier functions.Tier, total time.Duration) {
		h.Add(StartSample{Node: node, Tier: tier, Total: total, Phases: map[functions.Phase]time.Duration{
			functions.PhaseLoad: total / 2, functions.PhaseStage: total / 2}})
	}
	add("a", functions.TierRemote, time.Minute)
	if f := h.Forecast(false); f.P50 != time.Minute || f.P90 != time.Minute {
		t.Errorf("of one from afar: %+v", f)
	}
	if f := h.Forecast(true); f.P50 != 30*time.Second || f.P90 != 30*time.Second {
		t.Errorf("of one from afar, the next from disk: %+v", f)
	}
	for i := range 10 {
		add("a", functions.TierNVMe, time.Duration(i+1)*time.Second)
	}
	if f := h.Forecast(true); f.P50 != 5*time.Second || f.P90 != 9*time.Second || f.Phases[functions.PhaseLoad] != 2500*time.Millisecond {
		t.Errorf("of ten from disk after one from afar: %+v", f)
	}
	add("b", functions.TierNVMe, 100*time.Second)
	if d := h.PhaseTime(functions.PhaseLoad, "b", ""); d != 50*time.Second {
		t.Errorf("on b: %v", d)
	}
	if d := h.PhaseTime(functions.PhaseLoad, "c", ""); d >= 50*time.Second {
		t.Errorf("elsewhere: %v", d)
	}
	for range 100 {
		add("a", functions.TierNVMe, time.Second)
	}
	if len(h.samples) != keepSamples {
		t.Errorf("%d are kept", len(h.samples))
	}
	if d := (&StartTimes{}).PhaseTime(functions.PhaseLoad, "a", functions.EngineCommand); d != -1 {
		t.Errorf("of an unknown engine: %v", d)
	}
	if d := (&StartTimes{}).PhaseTime(functions.PhaseSpawn, "a", functions.EngineVLLM); d <= 0 {
		t.Errorf("of vLLM: %v", d)
	}
}

func TestExpect(t *testing.T) {
	var h StartTimes
	if e := h.Expected(); e.Tier != nil {
		t.Errorf("of nothing: %v", e)
	}
	h.Add(StartSample{Node: "a", Tier: functions.TierRemote, Total: 90 * time.Second, Start: 60 * time.Second,
		Phases: map[functions.Phase]time.Duration{functions.PhaseStage: 40 * time.Second, functions.PhaseSpawn: 25 * time.Second, functions.PhaseLoad: 15 * time.Second}})
	e := h.Expected()
	if e.Tier[functions.TierRemote] != time.Minute || e.Node["a"][functions.TierRemote] != time.Minute {
		t.Errorf("counted from the decision: %v", e)
	}
	if e.Tier[functions.TierNVMe] != 25*time.Second {
		t.Errorf("less its staging, but no less than its engine took: %v", e)
	}
	h.Add(StartSample{Node: "b", Tier: functions.TierNVMe, Start: 22 * time.Second})
	h.Add(StartSample{Node: "b", Tier: functions.TierSleeping, Start: 2 * time.Second})
	if e := h.Expected(); e.Tier[functions.TierNVMe] != 22*time.Second || e.Node["b"][functions.TierSleeping] != 2*time.Second ||
		e.Node["a"][functions.TierNVMe] != 0 {
		t.Errorf("%v", e)
	}
}
