package starttime

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Boot is how long an engine is assumed to boot until it reads its weights.
const Boot = 8 * time.Second

// Rates in bytes a second that are assumed before the first measurement, those of
// ordinary machines.
const (
	linkRate = 1 << 30 // from a source
	diskRate = 2 << 30 // from NVMe to a GPU
	hostRate = 8 << 30 // from host memory to a GPU
)

// Rates are what was measured on a node, in bytes a second; 0 is unknown.
type Rates struct {
	Link float64 // from sources
	Disk float64 // from its store
}

// Fetch is the time that size takes from a source.
func (r Rates) Fetch(size functions.Bytes) time.Duration {
	return transferTime(size, measuredRate(r.Link, linkRate))
}

// start derives the start time of a checkpoint from its size and the rates.
func (r Rates) start(size functions.Bytes, tier functions.Tier) time.Duration {
	switch tier {
	case functions.TierDRAM, functions.TierSleeping, functions.TierGPU:
		return Boot + transferTime(size, hostRate)
	}
	load := transferTime(size, measuredRate(r.Disk, diskRate))
	if tier == functions.TierNVMe {
		return Boot + load
	}
	return max(Boot, r.Fetch(size)) + load
}

func measuredRate(measured, assumed float64) float64 {
	if measured > 0 {
		return measured
	}
	return assumed
}

// transferTime is the time that size takes at a rate in bytes a second.
func transferTime(size functions.Bytes, rate float64) time.Duration {
	return time.Duration(float64(size) / rate * float64(time.Second))
}

// Expect holds the median time from a decision to READY of a model, by the tier of the
// bytes, for any node and for measured nodes. An absent key is unknown.
type Expect struct {
	Tier map[functions.Tier]time.Duration
	Node map[string]map[functions.Tier]time.Duration
}

// On returns the expected time from a decision to READY on a node with these rates, for a
// checkpoint of this size that it reads from this tier.
//
// A measurement is preferred: on this node from that tier, then from that tier on any
// node. Otherwise the time is derived. Fetching and the engine's boot run concurrently,
// and loading follows both:
//
//	READY = max(fetch, boot) + load     fetch = size / link,  load = size / disk
//
// Bytes on NVMe are not fetched; bytes in host memory load at its rate. If the model was
// measured from another tier, only the difference between the tiers is derived.
func (e Expect) On(node string, tier functions.Tier, size functions.Bytes, r Rates) time.Duration {
	if t := e.Node[node][tier]; t > 0 {
		return t
	}
	if t := e.Tier[tier]; t > 0 {
		return t
	}
	here := r.start(size, tier)
	for _, other := range [...]functions.Tier{functions.TierNVMe, functions.TierRemote, functions.TierDRAM} {
		if t := e.Tier[other]; t > 0 && other != tier {
			return max(t+here-r.start(size, other), here/4)
		}
	}
	return here
}

// Cold is the time of a start from a store to READY: measured there, else whole if that is
// known, else measured from another tier, else derived from the size.
func (e Expect) Cold(whole time.Duration, size functions.Bytes) time.Duration {
	if t := e.Tier[functions.TierNVMe]; t > 0 {
		return t
	}
	if whole > 0 {
		return whole
	}
	for _, tier := range []functions.Tier{functions.TierDRAM, functions.TierRemote} {
		if t := e.Tier[tier]; t > 0 {
			return t
		}
	}
	return Rates{}.start(size, functions.TierNVMe)
}
