package orchestrator

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// What the core knows of rates, sizes and times comes from what was measured:
// here it is taken from cold starts and heartbeats.

// rateGauge is a rate in bytes a second, of which each sample is a lower bound: who
// shares a link or a disk gets a part of it. The largest of the last few is near
// what there is, and forgets what was long ago.
type rateGauge struct {
	last [8]float64
	n    int
}

const minSampleBytes = 1 << 20 // bytes below which a rate says more of a start than of a wire

func (g *rateGauge) add(rate float64) {
	g.last[g.n%len(g.last)] = rate
	g.n++
}

func (g *rateGauge) rate() float64 { return slices.Max(g.last[:]) }

// addTransfer takes a sample from bytes and the seconds they took.
func (g *rateGauge) addTransfer(bytes functions.Bytes, took time.Duration) bool {
	if bytes < minSampleBytes || took <= time.Millisecond {
		return false
	}
	g.add(float64(bytes) / took.Seconds())
	return true
}

// setRateIfChanged writes a rate down if it differs by more than a tenth: less is noise, and
// the core thinks anew about whoever waits for room.
func setRateIfChanged(changed *bool, to *float64, rate float64) {
	if rate > 1.1**to || rate < 0.9**to {
		*to, *changed = rate, true
	}
}

// recordRates learns from a cold start that came to READY what its node's link and
// disk do.
func (s *Orchestrator) recordRates(n *nodeState, tier functions.Tier, bytes functions.Bytes, phases map[functions.Phase]time.Duration) {
	if n == nil {
		return
	}
	changed := false
	switch tier {
	case functions.TierRemote:
		if n.linkRate.addTransfer(bytes, phases[functions.PhaseStage]) {
			setRateIfChanged(&changed, &n.Link, n.linkRate.rate())
		}
	case functions.TierNVMe:
		if n.diskRate.addTransfer(bytes, phases[functions.PhaseLoad]) {
			setRateIfChanged(&changed, &n.Disk, n.diskRate.rate())
		}
	}
	if changed {
		s.planner.Node(n.Node)
	}
}

// setStore takes in what a heartbeat says of a node's store. It reports whether that
// matters to the core: a store that fills is news every 64th of it.
func (n *nodeState) setStore(u functions.StoreUse) (changed bool) {
	if l := u.Loader; l != nil && l.Stagings > 0 && l.Rate > n.Link {
		n.linkRate.add(l.Rate)
		setRateIfChanged(&changed, &n.Link, n.linkRate.rate())
	}
	if d := u.Used - n.Store.Used; u.Bytes != n.Store.Bytes || max(d, -d) > u.Bytes/64 {
		n.Store, changed = functions.StoreUse{Bytes: u.Bytes, Used: u.Used}, true
	}
	return changed
}

// recordSize notes how large the checkpoint of a source is.
func (s *Orchestrator) recordSize(source string, bytes functions.Bytes) {
	if source == "" || bytes <= 0 || s.sizes[source] == bytes {
		return
	}
	if len(s.sizes) > 2*len(s.functions)+1000 {
		clear(s.sizes)
	}
	setInMap(&s.sizes, source, bytes)
}

// expectedTimes is the median time from a decision to READY, by tier and by node and
// tier. What has not been seen from disk is taken from what came from afar, less
// its staging.
func (h *startHistory) expectedTimes() placement.Expect {
	if h.expectValid {
		return h.expect
	}
	h.expectValid, h.expect = true, placement.Expect{}
	byTier := map[functions.Tier][]time.Duration{}
	byNode := map[string]map[functions.Tier][]time.Duration{}
	add := func(x startSample) {
		byTier[x.tier] = append(byTier[x.tier], x.start)
		if byNode[x.node] == nil {
			byNode[x.node] = map[functions.Tier][]time.Duration{}
		}
		byNode[x.node][x.tier] = append(byNode[x.node][x.tier], x.start)
	}
	for _, x := range h.samples {
		add(x)
	}
	if len(byTier[functions.TierNVMe]) == 0 {
		for _, x := range h.samples {
			if x.tier == functions.TierRemote {
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
		h.expect.Tier = median(byTier)
		h.expect.Node = make(map[string]map[functions.Tier]time.Duration, len(byNode))
		for id, times := range byNode {
			h.expect.Node[id] = median(times)
		}
	}
	return h.expect
}
