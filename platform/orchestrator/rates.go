package orchestrator

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// What the core knows of rates, sizes and times comes from what was measured:
// here it is taken from cold starts and heartbeats.

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
		if n.linkRate.AddTransfer(bytes, phases[functions.PhaseStage]) {
			setRateIfChanged(&changed, &n.Link, n.linkRate.Rate())
		}
	case functions.TierNVMe:
		if n.diskRate.AddTransfer(bytes, phases[functions.PhaseLoad]) {
			setRateIfChanged(&changed, &n.Disk, n.diskRate.Rate())
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
		n.linkRate.Add(l.Rate)
		setRateIfChanged(&changed, &n.Link, n.linkRate.Rate())
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
