package orchestrator

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// history is what the last cold starts of a function took. It is what a
// forecast is made of, and with bytes under way what an ETA is made of.
type history struct {
	samples []sample // newest last
	known   functions.Forecast
	fresh   bool // known holds, for atHand
	atHand  bool

	times    placement.Expect
	expected bool // times holds
}

type sample struct {
	node   string
	tier   functions.Tier
	total  time.Duration // from the wake
	start  time.Duration // from the decision where
	deep   bool          // it rose from a sleep without its weights
	phases map[functions.Phase]time.Duration
}

const keepSamples = 16

// staged is what s would have been with its bytes at hand.
func (s sample) staged() sample {
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
	return sample{node: s.node, tier: functions.TierNVMe, total: min(total, s.total), start: min(start, s.start), phases: phases}
}

func (h *history) add(s sample) {
	if len(h.samples) == keepSamples {
		copy(h.samples, h.samples[1:])
		h.samples = h.samples[:keepSamples-1]
	}
	h.samples = append(h.samples, s)
	h.fresh, h.expected = false, false
}

func (h *history) forget() { *h = history{} }

// forecast of the next cold start. Where the bytes are at hand it comes from
// starts that found them so, or else from those that had to fetch them, less the
// fetching; where they are not, from those that fetched.
func (h *history) forecast(atHand bool) functions.Forecast {
	if h.fresh && h.atHand == atHand {
		return h.known
	}
	h.fresh, h.atHand, h.known = true, atHand, functions.NoForecast
	var like []sample
	cold := slices.DeleteFunc(slices.Clone(h.samples), func(s sample) bool { return s.tier == functions.TierSleeping })
	if len(cold) == 0 {
		return h.known
	}
	for _, s := range cold {
		if (s.tier != functions.TierRemote) == atHand {
			like = append(like, s)
		}
	}
	if len(like) == 0 {
		for _, s := range cold {
			if atHand {
				s = s.staged()
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
	h.known.P50, h.known.P90 = quantile(totals, 50), quantile(totals, 90)
	h.known.Phases = map[functions.Phase]time.Duration{}
	for p, ds := range byPhase {
		h.known.Phases[p] = quantile(ds, 50)
	}
	return h.known
}

// rise is how long waking a replica that slept takes, at a percentile; -1 where
// nothing is known.
func (h *history) rise(percent int) time.Duration {
	return h.rises(false, percent)
}

// deep is the same from a sleep without weights.
func (h *history) deep(percent int) time.Duration { return h.rises(true, percent) }

func (h *history) rises(deep bool, percent int) time.Duration {
	var totals []time.Duration
	for _, s := range h.samples {
		if s.tier == functions.TierSleeping && s.deep == deep {
			totals = append(totals, s.total)
		}
	}
	return quantile(totals, percent)
}

// phase is the median of one phase: on this node if it is known there, else on
// any, else what the engine is known to take; -1 where nothing is known.
func (h *history) phase(p functions.Phase, node string, e functions.Engine) time.Duration {
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
	if d, ok := usual[e][p]; ok {
		return d
	}
	return -1
}

// usual is what engines take where nothing has been measured yet: small models
// on an ordinary machine. The weights' own time comes on top, from their bytes.
var usual = map[functions.Engine]map[functions.Phase]time.Duration{
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
