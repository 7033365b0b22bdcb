package orchestrator

import (
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// checkpoints counts the nodes that have the bytes of each source, and keeps the sizes.
type checkpoints struct {
	copies   map[string]int             // number of nodes that have a source's bytes
	sizes    map[string]functions.Bytes // sizes of checkpoints, by source
	maxSizes int                        // beyond it all sizes are dropped
}

// updateCachedSources applies the difference between the cached sources of two
// heartbeats of a node; the lists may be long. Sources of READY replicas count as
// cached, listed or not. ours are the replicas named in now, nil for unknown ones. It
// reports whether anything changed.
func (c *checkpoints) updateCachedSources(n *nodeState, was, now *functions.Heartbeat, ours []*replicaState) (changed bool) {
	all := len(n.fromReady) > 0 // check all replicas, not only changed ones
	old, list := was.Cached, now.Cached
	if n.Tiers == nil {
		n.Tiers, n.Cached, n.fromReady = map[string]functions.Tier{}, map[string]bool{}, map[string]bool{}
		old, changed, all = nil, true, true
	}
	if len(old) != len(list) || len(old) > 0 && &old[0] != &list[0] {
		for len(old) > 0 && len(list) > 0 && old[0] == list[0] {
			old, list = old[1:], list[1:]
		}
		for len(old) > 0 && len(list) > 0 && old[len(old)-1] == list[len(list)-1] {
			old, list = old[:len(old)-1], list[:len(list)-1]
		}
		if len(old) > 0 {
			stays := functions.SetOf(now.Cached, func(c functions.CachedModel) string { return c.Source })
			for i := range old {
				if o := &old[i]; !stays[o.Source] && n.Tiers[o.Source] != "" {
					c.dropCachedSource(n, o.Source)
					changed, all = true, true
				}
			}
		}
		for i := range list {
			o := &list[i]
			changed = c.addCachedSource(n, o.Source, o.Tier) || changed
			delete(n.fromReady, o.Source)
			c.recordSize(o.Source, o.Bytes)
		}
	}
	var used []string // sources of fromReady that are still in use
	for i := range now.Models {
		m := &now.Models[i]
		if m.Spec == nil || m.State != functions.Ready {
			continue
		}
		r := ours[i]
		if r != nil && !all && r.unchanged(m) {
			continue
		}
		at := ""
		if r != nil && r.specHash == r.function.specHash && !isLocalFolder(m.Spec.Source) {
			at = r.function.Source
		} else {
			at = sourceLocation(m.Spec.Source, "")
		}
		if n.Tiers[at] == "" {
			c.addCachedSource(n, at, functions.TierNVMe)
			n.fromReady[at], changed = true, true
		}
		if len(n.fromReady) > 0 && n.fromReady[at] {
			used = append(used, at)
		}
	}
	for at := range n.fromReady {
		if !slices.Contains(used, at) {
			c.dropCachedSource(n, at)
			changed = true
		}
	}
	return changed
}

// addCachedSource records that a node has the bytes of a source, and in which tier.
func (c *checkpoints) addCachedSource(n *nodeState, source string, t functions.Tier) (changed bool) {
	before, there := n.Tiers[source]
	if there && before == t {
		return false
	}
	if !there {
		c.copies[source]++
	}
	n.Tiers[source], n.Cached[source] = t, true
	return true
}

// dropCachedSource records that a node no longer has the bytes of a source.
func (c *checkpoints) dropCachedSource(n *nodeState, source string) {
	delete(n.Tiers, source)
	delete(n.Cached, source)
	delete(n.fromReady, source)
	if c.copies[source]--; c.copies[source] <= 0 {
		delete(c.copies, source)
	}
}

// dropAllCachedSources removes all sources of a lost node.
func (c *checkpoints) dropAllCachedSources(n *nodeState) {
	for source := range n.Tiers {
		c.dropCachedSource(n, source)
	}
	n.Tiers, n.Cached, n.fromReady = nil, nil, nil
}

func (c *checkpoints) recordSize(source string, bytes functions.Bytes) {
	if source == "" || bytes <= 0 || c.sizes[source] == bytes {
		return
	}
	if len(c.sizes) > c.maxSizes {
		clear(c.sizes)
	}
	c.sizes[source] = bytes
}

// bytesAtHand reports whether a node has the bytes of f.
func (c *checkpoints) bytesAtHand(f *functionState) bool {
	return f.Machine != "" || f.Source == "" || c.copies[f.Source] > 0
}
