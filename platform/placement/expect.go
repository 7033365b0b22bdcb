package placement

import (
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
	"github.com/thaw-dev/thaw/platform/placement/starttime"
)

// expectedStart returns the expected time from a decision to READY of f on n, and the
// tier that its bytes are read from.
func (f *Function) expectedStart(n *Node) (time.Duration, functions.Tier) {
	tier := n.tier(f)
	return f.Expect.On(n.ID, tier, f.checkpointBytes(), n.rates()), tier
}

func (n *Node) rates() starttime.Rates { return starttime.Rates{Link: n.Link, Disk: n.Disk} }

// checkSize is the size of a checkpoint without a known size or GPU memory.
const checkSize = 16 << 30

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

// host is the machines that f is bound to, a key of what holds for all functions bound alike.
func (f *Function) host() string {
	if f.RunsOn == "" {
		return f.Machine
	}
	return f.Machine + "\n" + f.RunsOn
}

// canRead reports whether n can read f's source: one that is a folder of a machine is
// read in place there, or staged from there. A folder that an engine runs in is only there.
func (n *Node) canRead(f *Function) bool {
	if f.RunsOn != "" && f.RunsOn != n.Machine {
		return false
	}
	return f.Machine == "" || f.Machine == n.Machine || n.Borrows
}

// admits reports whether f may run on n: n can read its source and meets Requires.
func (n *Node) admits(f *Function) bool { return n.canRead(f) && !n.Rejects[f.Requires] }

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
	if over := m.node.Store.Used + f.Size - m.node.Store.Bytes; m.node.Store.Bytes > 0 && tier == functions.TierRemote && f.Size > 0 &&
		over > 0 {
		x.store = costEvict * m.node.rates().Fetch(min(over, f.Size)).Seconds()
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
