package orchestrator

import (
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// What the core knows of rates, sizes and times comes from what was measured:
// here it is taken from cold starts and heartbeats.

// gauge is a rate in bytes a second, of which each sample is a lower bound: who
// shares a link or a disk gets a part of it. The largest of the last few is near
// what there is, and forgets what was long ago.
type gauge struct {
	last [8]float64
	n    int
}

const least = 1 << 20 // bytes below which a rate says more of a start than of a wire

func (g *gauge) add(rate float64) {
	g.last[g.n%len(g.last)] = rate
	g.n++
}

func (g *gauge) rate() float64 { return slices.Max(g.last[:]) }

// over takes a sample from bytes and the seconds they took.
func (g *gauge) over(bytes functions.Bytes, took time.Duration) bool {
	if bytes < least || took <= time.Millisecond {
		return false
	}
	g.add(float64(bytes) / took.Seconds())
	return true
}

// known writes a rate down if it differs by more than a tenth: less is noise, and
// the core thinks anew about whoever waits for room.
func known(changed *bool, to *float64, rate float64) {
	if rate > 1.1**to || rate < 0.9**to {
		*to, *changed = rate, true
	}
}

// measure learns from a cold start that came to READY what its node's link and
// disk do.
func (s *Steer) measure(n *node, tier functions.Tier, bytes functions.Bytes, phases map[functions.Phase]time.Duration) {
	if n == nil {
		return
	}
	changed := false
	switch tier {
	case functions.TierRemote:
		if n.link.over(bytes, phases[functions.PhaseStage]) {
			known(&changed, &n.Link, n.link.rate())
		}
	case functions.TierNVMe:
		if n.disk.over(bytes, phases[functions.PhaseLoad]) {
			known(&changed, &n.Disk, n.disk.rate())
		}
	}
	if changed {
		s.plan.Node(n.Node)
	}
}

// stored takes in what a heartbeat says of a node's store. It reports whether that
// matters to the core: a store that fills is news every 64th of it.
func (n *node) stored(u functions.StoreUse) (changed bool) {
	if l := u.Loader; l != nil && l.Stagings > 0 && l.Rate > n.Link {
		n.link.add(l.Rate)
		known(&changed, &n.Link, n.link.rate())
	}
	if d := u.Used - n.Store.Used; u.Bytes != n.Store.Bytes || max(d, -d) > u.Bytes/64 {
		n.Store, changed = functions.StoreUse{Bytes: u.Bytes, Used: u.Used}, true
	}
	return changed
}

// sized notes how large the checkpoint of a source is.
func (s *Steer) sized(source string, bytes functions.Bytes) {
	if source == "" || bytes <= 0 || s.sizes[source] == bytes {
		return
	}
	if len(s.sizes) > 2*len(s.fns)+1000 {
		clear(s.sizes)
	}
	put(&s.sizes, source, bytes)
}

// expect is the median time from a decision to READY, by tier and by node and
// tier. What has not been seen from disk is taken from what came from afar, less
// its staging.
func (h *history) expect() placement.Expect {
	if h.expected {
		return h.times
	}
	h.expected, h.times = true, placement.Expect{}
	byTier := map[functions.Tier][]time.Duration{}
	byNode := map[string]map[functions.Tier][]time.Duration{}
	add := func(x sample) {
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
				add(x.staged())
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
		h.times.Tier = median(byTier)
		h.times.Node = make(map[string]map[functions.Tier]time.Duration, len(byNode))
		for id, times := range byNode {
			h.times.Node[id] = median(times)
		}
	}
	return h.times
}
