package forecast

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/starttime"
)

// StartTimes holds the durations of the last cold starts of a function. A Forecast is
// derived from it and, with the bytes staged so far, an ETA.
type StartTimes struct {
	samples      []StartSample // newest last
	cached       functions.Forecast
	cachedValid  bool // cached is valid for cachedAtHand
	cachedAtHand bool

	expect      starttime.Expect
	expectValid bool // expect is valid
}

// StartSample is one start that came to READY.
type StartSample struct {
	Node          string                            `json:"node"`
	Tier          functions.Tier                    `json:"tier"`
	Total         time.Duration                     `json:"total"` // from the wake
	Start         time.Duration                     `json:"-"`     // from the placement decision
	FromDeepSleep bool                              `json:"-"`     // a wake-up from sleep level 2, without weights in memory
	Phases        map[functions.Phase]time.Duration `json:"phases,omitempty"`
}

const keepSamples = 16

// withoutStaging estimates s for a start whose bytes are already on the node.
func (s StartSample) withoutStaging() StartSample {
	phases := map[functions.Phase]time.Duration{}
	var total time.Duration
	for p, d := range s.Phases {
		if p != functions.PhaseStage {
			phases[p], total = d, total+d
		}
	}
	start := s.Start - s.Phases[functions.PhaseStage]
	for _, p := range []functions.Phase{functions.PhaseSpawn, functions.PhaseLoad, functions.PhaseWarmup} {
		start = max(start, phases[p]) // the engine booted during staging: the start takes at least as long as each phase
	}
	return StartSample{Node: s.Node, Tier: functions.TierNVMe, Total: min(total, s.Total), Start: min(start, s.Start), Phases: phases}
}

// Add records a start that came to READY.
func (t *StartTimes) Add(s StartSample) {
	if len(t.samples) == keepSamples {
		copy(t.samples, t.samples[1:])
		t.samples = t.samples[:keepSamples-1]
	}
	t.samples = append(t.samples, s)
	t.cachedValid, t.expectValid = false, false
}

func (t *StartTimes) Len() int { return len(t.samples) }

// Forecast predicts the next cold start. If the bytes are on a node (atHand), it uses
// starts that found them there, or else starts with staging, less the staging; if not,
// starts with staging.
func (t *StartTimes) Forecast(atHand bool) functions.Forecast {
	if t.cachedValid && t.cachedAtHand == atHand {
		return t.cached
	}
	t.cachedValid, t.cachedAtHand, t.cached = true, atHand, functions.NoForecast
	cold := slices.DeleteFunc(slices.Clone(t.samples), func(s StartSample) bool { return s.Tier == functions.TierSleeping })
	if len(cold) == 0 {
		return t.cached
	}
	like := functions.Filter(cold, func(s StartSample) bool { return (s.Tier != functions.TierRemote) == atHand })
	if len(like) == 0 {
		if like = cold; atHand {
			like = functions.ConvertAll(cold, StartSample.withoutStaging)
		}
	}
	var totals []time.Duration
	byPhase := map[functions.Phase][]time.Duration{}
	for _, s := range like {
		totals = append(totals, s.Total)
		for p, d := range s.Phases {
			byPhase[p] = append(byPhase[p], d)
		}
	}
	t.cached.P50, t.cached.P90 = quantile(totals, 50), quantile(totals, 90)
	t.cached.Phases = map[functions.Phase]time.Duration{}
	for p, ds := range byPhase {
		t.cached.Phases[p] = quantile(ds, 50)
	}
	return t.cached
}

// WakeTime is the time to wake a sleeping replica, at a percentile; deep: one without
// weights in memory. -1 if none was measured.
func (t *StartTimes) WakeTime(deep bool, percent int) time.Duration {
	var totals []time.Duration
	for _, s := range t.samples {
		if s.Tier == functions.TierSleeping && s.FromDeepSleep == deep {
			totals = append(totals, s.Total)
		}
	}
	return quantile(totals, percent)
}

// PhaseTime is the median of one phase: on this node if measured there, else on any,
// else typical of the engine; -1 if unknown.
func (t *StartTimes) PhaseTime(p functions.Phase, node string, e functions.Engine) time.Duration {
	var here, any []time.Duration
	for _, s := range t.samples {
		if d, ok := s.Phases[p]; ok && s.Tier != functions.TierSleeping {
			any = append(any, d)
			if s.Node == node {
				here = append(here, d)
			}
		}
	}
	switch {
	case len(here) > 0:
		return quantile(here, 50)
	case len(any) > 0:
		return quantile(any, 50)
	}
	if d, ok := typicalPhases[e][p]; ok {
		return d
	}
	return -1
}

// typicalPhases are the phase times assumed before a measurement: small models on an
// ordinary machine. Staging is not included.
var typicalPhases = map[functions.Engine]map[functions.Phase]time.Duration{
	functions.EngineEmber: {
		functions.PhaseSpawn: 20 * time.Millisecond, functions.PhaseLoad: 100 * time.Millisecond, functions.PhaseWarmup: 20 * time.Millisecond,
	},
	functions.EngineLlamaCpp: {
		functions.PhaseSpawn: 500 * time.Millisecond, functions.PhaseLoad: 3 * time.Second, functions.PhaseWarmup: 200 * time.Millisecond,
	},
	// These two listen only when they are ready, so their whole boot counts as spawn.
	functions.EngineVLLM: {
		functions.PhaseSpawn: 29 * time.Second, functions.PhaseLoad: 0, functions.PhaseWarmup: time.Second,
	},
	functions.EngineSGLang: {
		functions.PhaseSpawn: 29 * time.Second, functions.PhaseLoad: 0, functions.PhaseWarmup: time.Second,
	},
}

func quantile(ds []time.Duration, percent int) time.Duration {
	if len(ds) == 0 {
		return -1
	}
	s := slices.Clone(ds)
	slices.Sort(s)
	return s[(len(s)*percent+99)/100-1]
}

// Expected is the median time from a decision to READY, by tier and by node and tier.
// Without samples from NVMe it uses remote ones, less their staging.
func (t *StartTimes) Expected() starttime.Expect {
	if t.expectValid {
		return t.expect
	}
	t.expectValid, t.expect = true, starttime.Expect{}
	byTier := map[functions.Tier][]time.Duration{}
	byNode := map[string]map[functions.Tier][]time.Duration{}
	add := func(x StartSample) {
		byTier[x.Tier] = append(byTier[x.Tier], x.Start)
		if byNode[x.Node] == nil {
			byNode[x.Node] = map[functions.Tier][]time.Duration{}
		}
		byNode[x.Node][x.Tier] = append(byNode[x.Node][x.Tier], x.Start)
	}
	for _, x := range t.samples {
		add(x)
	}
	if len(byTier[functions.TierNVMe]) == 0 {
		for _, x := range t.samples {
			if x.Tier == functions.TierRemote {
				add(x.withoutStaging())
			}
		}
	}
	median := func(times map[functions.Tier][]time.Duration) map[functions.Tier]time.Duration {
		out := make(map[functions.Tier]time.Duration, len(times))
		for tier, ds := range times {
			out[tier] = quantile(ds, 50)
		}
		return out
	}
	if len(byTier) > 0 {
		t.expect.Tier = median(byTier)
		t.expect.Node = make(map[string]map[functions.Tier]time.Duration, len(byNode))
		for id, times := range byNode {
			t.expect.Node[id] = median(times)
		}
	}
	return t.expect
}

// RateGauge estimates a rate in bytes per second. Each sample is a lower bound,
// because transfers share a link or a disk; the estimate is the largest of the last
// eight.
type RateGauge struct {
	last [8]float64
	n    int
}

// minSampleBytes is the smallest transfer used as a sample: below it latency dominates.
const minSampleBytes = 1 << 20

func (g *RateGauge) Add(rate float64) {
	g.last[g.n%len(g.last)] = rate
	g.n++
}

// Peak is the estimate, 0 without samples.
func (g *RateGauge) Peak() float64 { return slices.Max(g.last[:]) }

// AddTransfer records a transfer. It returns false if the transfer is too small for a
// sample.
func (g *RateGauge) AddTransfer(bytes functions.Bytes, took time.Duration) bool {
	if bytes < minSampleBytes || took <= time.Millisecond {
		return false
	}
	g.Add(float64(bytes) / took.Seconds())
	return true
}
