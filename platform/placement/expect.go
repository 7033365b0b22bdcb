package placement

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// Rates and times assumed before the first measurement, those of ordinary machines.
// They only have to order nodes correctly.
const (
	bootTime  = 8 * time.Second // of an engine, until it reads its weights
	linkRate  = 1 << 30         // bytes a second from a source
	diskRate  = 2 << 30         // bytes a second from NVMe to a GPU
	hostRate  = 8 << 30         // bytes a second from host memory to a GPU
	checkSize = 16 << 30        // of a checkpoint without a known size or GPU memory
)

// expectedStart returns the expected time from a decision to READY of f on n, and the
// tier that its bytes are read from.
//
// A measurement is preferred: of f on n from that tier, then of f from that tier on
// any node. Otherwise the time is derived. Fetching and the engine's boot run
// concurrently, and loading follows both:
//
//	READY = max(fetch, boot) + load     fetch = size / link,  load = size / disk
//
// Bytes on NVMe are not fetched; bytes in host memory load at its rate. If f was
// measured from another tier, only the difference between the tiers is derived.
func (f *Function) expectedStart(n *Node) (time.Duration, functions.Tier) {
	tier := n.tier(f)
	if t := f.Expect.Node[n.ID][tier]; t > 0 {
		return t, tier
	}
	if t := f.Expect.Tier[tier]; t > 0 {
		return t, tier
	}
	here := f.estimatedStart(n, tier)
	for _, other := range [...]functions.Tier{functions.TierNVMe, functions.TierRemote, functions.TierDRAM} {
		if t := f.Expect.Tier[other]; t > 0 && other != tier {
			return max(t+here-f.estimatedStart(n, other), here/4), tier
		}
	}
	return here, tier
}

// estimatedStart derives the start time of f on n from sizes and rates.
func (f *Function) estimatedStart(n *Node, tier functions.Tier) time.Duration {
	size := f.checkpointBytes()
	disk := measuredRate(n.Disk, diskRate)
	switch tier {
	case functions.TierDRAM, functions.TierSleeping, functions.TierGPU:
		return bootTime + transferTime(size, hostRate)
	case functions.TierNVMe:
		return bootTime + transferTime(size, disk)
	}
	return max(bootTime, transferTime(size, measuredRate(n.Link, linkRate))) + transferTime(size, disk)
}

// checkpointBytes is the size of f's checkpoint; if unknown, its GPU or host memory.
func (f *Function) checkpointBytes() functions.Bytes {
	switch r := f.Resources; {
	case f.Size > 0:
		return f.Size
	case r.GPUs > 0 && r.GPUMemory > 0:
		return r.GPUMemory * functions.Bytes(r.GPUs)
	case r.GPUs == 0 && r.Memory > 0:
		return r.Memory
	}
	return checkSize
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

// tier is the fastest tier on n that holds all of f's bytes.
func (n *Node) tier(f *Function) functions.Tier {
	if f.Source != "" {
		if t, ok := n.Tiers[f.Source]; ok && t != "" {
			return t
		}
	}
	if n.hasBytes(f) {
		return functions.TierNVMe
	}
	return functions.TierRemote
}

// canRead reports whether n can read f's source: one that is a folder of a machine is
// read in place there, or staged from there.
func (n *Node) canRead(f *Function) bool {
	return f.Machine == "" || f.Machine == n.Machine || n.Borrows
}

// admits reports whether f may run on n: n can read its source and meets Requires.
func (n *Node) admits(f *Function) bool { return n.canRead(f) && !n.Rejects[f.Requires] }

// hasBytes reports whether the bytes of f's source are on n.
func (n *Node) hasBytes(f *Function) bool {
	return n.Cached[f.Source] || f.Machine != "" && f.Machine == n.Machine
}

// storeFits reports whether f's checkpoint is on n or may be staged in n's store.
func (n *Node) storeFits(f *Function) bool {
	if f.CachedNodesOnly != "" && !n.hasBytes(f) {
		return false
	}
	return n.Store.Bytes == 0 || f.Size <= n.Store.Bytes || n.hasBytes(f)
}

// Placing costs, in seconds: the cost of a choice for other functions, added to the
// time to READY. They are small beside a cold start from a remote source and large
// beside the noise between two similar nodes.
const (
	costWhole  = 4    // an unused node is opened for fewer than all its GPUs
	costGroup  = 1    // an unused group of GPUs is opened
	costGap    = 0.25 // each GPU left unused beside it: the tighter fit is preferred
	costSpread = 10   // its GPUs are of several groups: the replica is slower for its whole life
	costHost   = 1    // all host memory is in use; this spreads host-only functions
	costEvict  = 0.5  // a second of refetching evicted checkpoints; half are never needed again
)

// score of a placement is the sum of its parts, in seconds. Less is better.
type score struct {
	ready, packing, topology, store float64
	tier                            functions.Tier
}

func (s score) total() float64 { return s.ready + s.packing + s.topology + s.store }

// score rates placing f on m, into the free room s.
func (d *decision) score(m *nodeRoom, s *rooms.Room, f *Function) score {
	t, tier := f.expectedStart(m.node)
	x := score{ready: t.Seconds(), tier: tier}
	if over := m.node.Store.Used + f.Size - m.node.Store.Bytes; m.node.Store.Bytes > 0 && tier == functions.TierRemote && f.Size > 0 && over > 0 {
		x.store = costEvict * transferTime(min(over, f.Size), measuredRate(m.node.Link, linkRate)).Seconds()
	}
	k := f.Resources.GPUs
	if k == 0 {
		if m.node.Memory > 0 {
			x.packing = costHost * (1 - float64(s.Memory)/float64(m.node.Memory))
		}
		return x
	}
	p := s.Pick(f.Resources)
	if p.Whole && k < p.Healthy {
		x.packing += costWhole
	}
	if p.WholeGroup {
		x.packing += costGroup
	}
	x.packing += costGap * float64(p.Unused)
	if p.Groups > 1 {
		x.topology = costSpread
	}
	return x
}
