package orchestrator

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// startHistory is what the last cold starts of a function took. It is what a
// forecast is made of, and with bytes under way what an ETA is made of.
type startHistory struct {
	samples      []startSample // newest last
	cached       functions.Forecast
	cachedValid  bool // known holds, for cachedAtHand
	cachedAtHand bool

	expect      placement.Expect
	expectValid bool // times holds
}

type startSample struct {
	node          string
	tier          functions.Tier
	total         time.Duration // from the wake
	start         time.Duration // from the decision where
	fromDeepSleep bool          // it rose from a sleep without its weights
	phases        map[functions.Phase]time.Duration
}

const keepSamples = 16

// withoutStaging is what s would have been with its bytes at hand.
func (s startSample) withoutStaging() startSample {
	phases := map[functions.Phase]time.Duration{}
	var total time.Duration
	for p, d := range s.phases {
		if p != functions.PhaseStage {
			phases[p], total = d, total+d
		}
	}
	start := s.start - s.phases[functions.PhaseStage]
	for _, p := range []functions.Phase{functions.PhaseSpawn, functions.PhaseLoad, functions.PhaseWarmup} {
		start = max(start, phases[p]) // the engine came up meanwhile: it cannot have taken less
	}
	return startSample{node: s.node, tier: functions.TierNVMe, total: min(total, s.total), start: min(start, s.start), phases: phases}
}

func (h *startHistory) add(s startSample) {
	if len(h.samples) == keepSamples {
		copy(h.samples, h.samples[1:])
		h.samples = h.samples[:keepSamples-1]
	}
	h.samples = append(h.samples, s)
	h.cachedValid, h.expectValid = false, false
}

func (h *startHistory) clear() { *h = startHistory{} }

// forecast of the next cold start. Where the bytes are at hand it comes from
// starts that found them so, or else from those that had to fetch them, less the
// fetching; where they are not, from those that fetched.
func (h *startHistory) forecast(atHand bool) functions.Forecast {
	if h.cachedValid && h.cachedAtHand == atHand {
		return h.cached
	}
	h.cachedValid, h.cachedAtHand, h.cached = true, atHand, functions.NoForecast
	var like []startSample
	cold := slices.DeleteFunc(slices.Clone(h.samples), func(s startSample) bool { return s.tier == functions.TierSleeping })
	if len(cold) == 0 {
		return h.cached
	}
	for _, s := range cold {
		if (s.tier != functions.TierRemote) == atHand {
			like = append(like, s)
		}
	}
	if len(like) == 0 {
		for _, s := range cold {
			if atHand {
				s = s.withoutStaging()
			}
			like = append(like, s)
		}
	}
	var totals []time.Duration
	byPhase := map[functions.Phase][]time.Duration{}
	for _, s := range like {
		totals = append(totals, s.total)
		for p, d := range s.phases {
			byPhase[p] = append(byPhase[p], d)
		}
	}
	h.cached.P50, h.cached.P90 = quantile(totals, 50), quantile(totals, 90)
	h.cached.Phases = map[functions.Phase]time.Duration{}
	for p, ds := range byPhase {
		h.cached.Phases[p] = quantile(ds, 50)
	}
	return h.cached
}

// wakeTime is how long waking a replica that slept takes, at a percentile; -1 where
// nothing is known.
func (h *startHistory) wakeTime(percent int) time.Duration {
	return h.wakeTimes(false, percent)
}

// deepWakeTime is the same from a sleep without weights.
func (h *startHistory) deepWakeTime(percent int) time.Duration { return h.wakeTimes(true, percent) }

func (h *startHistory) wakeTimes(deep bool, percent int) time.Duration {
	var totals []time.Duration
	for _, s := range h.samples {
		if s.tier == functions.TierSleeping && s.fromDeepSleep == deep {
			totals = append(totals, s.total)
		}
	}
	return quantile(totals, percent)
}

// phaseTime is the median of one phase: on this node if it is known there, else on
// any, else what the engine is known to take; -1 where nothing is known.
func (h *startHistory) phaseTime(p functions.Phase, node string, e functions.Engine) time.Duration {
	var here, any []time.Duration
	for _, s := range h.samples {
		if d, ok := s.phases[p]; ok && s.tier != functions.TierSleeping {
			any = append(any, d)
			if s.node == node {
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

// typicalPhases is what engines take where nothing has been measured yet: small models
// on an ordinary machine. The weights' own time comes on top, from their bytes.
var typicalPhases = map[functions.Engine]map[functions.Phase]time.Duration{
	functions.EngineEmber: {
		functions.PhaseSpawn: 20 * time.Millisecond, functions.PhaseLoad: 100 * time.Millisecond, functions.PhaseWarmup: 20 * time.Millisecond,
	},
	functions.EngineLlamaCpp: {
		functions.PhaseSpawn: 500 * time.Millisecond, functions.PhaseLoad: 3 * time.Second, functions.PhaseWarmup: 200 * time.Millisecond,
	},
	// These two listen only when they are ready, so all of it is spawn.
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
