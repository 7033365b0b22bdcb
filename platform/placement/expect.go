package placement

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// What is assumed where nothing has been measured. They are the rates of
// ordinary machines: an estimate must put nodes in the right order, and a
// measurement takes its place after the first start.
const (
	bootTime  = 8 * time.Second // of an engine, until it wants its weights
	linkRate  = 1 << 30         // bytes a second from a source
	diskRate  = 2 << 30         // bytes a second from NVMe to a GPU
	hostRate  = 8 << 30         // bytes a second from host memory to a GPU
	checkSize = 16 << 30        // of a checkpoint of which not even the GPU memory is known
)

// expectedStart is the time from a decision to READY of f on n, which depends on
// where its bytes are and how fast n gets them.
//
// What has been measured goes first: of f on n from that tier, then of f from
// that tier on any node. Else it is worked out. Fetching and the engine's boot
// run side by side, and loading comes after both:
//
//	READY = max(fetch, boot) + load     fetch = size / link,  load = size / disk
//
// with no fetch for what is on NVMe, and a load at the rate of host memory for
// what is there. Where f has been measured from another tier, only the
// difference between the tiers is worked out.
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

// estimatedStart is what expected is where nothing has been measured.
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

// checkpointBytes of f's checkpoint; where it is unknown, what its GPUs are given for it.
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

// transferTime is how long size takes at a rate in bytes a second.
func transferTime(size functions.Bytes, rate float64) time.Duration {
	return time.Duration(float64(size) / rate * float64(time.Second))
}

// tier is the nearest one on n that holds all of f's bytes.
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

// canRead reports whether n can read a source that lies on a machine: in place, or by
// staging it from there.
func (n *Node) canRead(f *Function) bool {
	return f.Machine == "" || f.Machine == n.Machine || n.Borrows
}

// admits reports whether f may be here at all.
func (n *Node) admits(f *Function) bool { return n.canRead(f) && !n.Rejects[f.Requires] }

// hasBytes reports whether the bytes of a source are here.
func (n *Node) hasBytes(f *Function) bool {
	return n.Cached[f.Source] || f.Machine != "" && f.Machine == n.Machine
}

// storeFits reports whether n's store can take f's checkpoint at all.
func (n *Node) storeFits(f *Function) bool {
	if f.CachedNodesOnly != "" && !n.hasBytes(f) {
		return false
	}
	return n.Store.Bytes == 0 || f.Size <= n.Store.Bytes || n.hasBytes(f)
}

// Placing costs, in seconds: what a choice costs others is weighed against the
// time to READY of the function that is placed. They are small beside a cold start from far
// away and large beside the noise between two nodes that are alike.
const (
	costWhole  = 4    // an untouched node is broken into for less than all of it
	costGroup  = 1    // the same of an untouched group
	costGap    = 0.25 // each GPU that is left over beside it: the tighter fit goes first
	costSpread = 10   // its GPUs are of several groups: it is slower for as long as it lives
	costHost   = 1    // all of the host memory is taken; host-only functions are spread
	costEvict  = 0.5  // a second of fetching again what must leave the store: half of that is never wanted
)

// score of placing somewhere: the sum of its parts, in seconds. Less is better.
type score struct {
	ready, packing, topology, store float64
	tier                            functions.Tier
}

func (s score) total() float64 { return s.ready + s.packing + s.topology + s.store }

// score rates placing f on m, into the free room s.
func (d *decision) score(m *nodeRoom, s *freeRoom, f *Function) score {
	t, tier := f.expectedStart(m.node)
	x := score{ready: t.Seconds(), tier: tier}
	if over := m.node.Store.Used + f.Size - m.node.Store.Bytes; m.node.Store.Bytes > 0 && tier == functions.TierRemote && f.Size > 0 && over > 0 {
		x.store = costEvict * transferTime(min(over, f.Size), measuredRate(m.node.Link, linkRate)).Seconds()
	}
	k := f.Resources.GPUs
	if k == 0 {
		if m.node.Memory > 0 {
			x.packing = costHost * (1 - float64(s.memory)/float64(m.node.Memory))
		}
		return x
	}
	p := s.pickGPUs(m.node, f.Resources)
	if p.whole && k < p.healthy {
		x.packing += costWhole
	}
	if p.wholeGroup {
		x.packing += costGroup
	}
	x.packing += costGap * float64(p.unused)
	if p.groups > 1 {
		x.topology = costSpread
	}
	return x
}
