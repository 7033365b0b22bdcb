package orchestrator

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// setRateIfChanged sets a rate that differs by more than a tenth. Smaller changes are
// noise, and each change makes the planner evaluate waiting functions again.
func setRateIfChanged(changed *bool, to *float64, rate float64) {
	if rate > 1.1**to || rate < 0.9**to {
		*to, *changed = rate, true
	}
}

// recordRates derives the rates of a node's link and disk from a start that reached
// READY. It reports whether the planner must know.
func (n *nodeState) recordRates(tier functions.Tier, bytes functions.Bytes, phases map[functions.Phase]time.Duration) (changed bool) {
	switch tier {
	case functions.TierRemote:
		if n.linkRate.AddTransfer(bytes, phases[functions.PhaseStage]) {
			setRateIfChanged(&changed, &n.Link, n.linkRate.Peak())
		}
	case functions.TierNVMe:
		if n.diskRate.AddTransfer(bytes, phases[functions.PhaseLoad]) {
			setRateIfChanged(&changed, &n.Disk, n.diskRate.Peak())
		}
	}
	return changed
}

// setStore sets the use of a node's store from a heartbeat. It reports whether the
// planner must know, which is once for each 64th of the store.
func (n *nodeState) setStore(u functions.StoreUse) (changed bool) {
	if l := u.Loader; l != nil && l.Stagings > 0 && l.Rate > n.Link {
		n.linkRate.Add(l.Rate)
		setRateIfChanged(&changed, &n.Link, n.linkRate.Peak())
	}
	if d := u.Used - n.Store.Used; u.Bytes != n.Store.Bytes || max(d, -d) > u.Bytes/64 {
		n.Store, changed = functions.StoreUse{Bytes: u.Bytes, Used: u.Used}, true
	}
	return changed
}
