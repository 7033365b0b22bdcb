package orchestrator

import (
	"slices"

	"github.com/thaw-dev/thaw/functions"
)

// updateCachedSources takes in which sources' bytes a node says it has: of a list that may be
// long what differs from the last one. A READY replica's are there too, listed or
// not. ours are the replicas it names, where they are known. It reports whether
// anything differs.
func (s *Orchestrator) updateCachedSources(n *nodeState, was, now *functions.Heartbeat, ours []*replicaState) (changed bool) {
	all := len(n.fromReady) > 0 // look at all replicas, not only at those with news
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
			stays := make(map[string]bool, len(now.Cached))
			for i := range now.Cached {
				stays[now.Cached[i].Source] = true
			}
			for i := range old {
				if c := &old[i]; !stays[c.Source] && n.Tiers[c.Source] != "" {
					s.dropCachedSource(n, c.Source)
					changed, all = true, true
				}
			}
		}
		for i := range list {
			c := &list[i]
			changed = s.addCachedSource(n, c.Source, c.Tier) || changed
			delete(n.fromReady, c.Source)
			s.recordSize(c.Source, c.Bytes)
		}
	}
	var used []string // of extra
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
		if r != nil && r.recipe == r.function.recipe && !isLocalFolder(m.Spec.Source) {
			at = r.function.Source
		} else {
			at = sourceLocation(m.Spec.Source, "")
		}
		if n.Tiers[at] == "" {
			s.addCachedSource(n, at, functions.TierNVMe)
			n.fromReady[at], changed = true, true
		}
		if len(n.fromReady) > 0 && n.fromReady[at] {
			used = append(used, at)
		}
	}
	for at := range n.fromReady {
		if !slices.Contains(used, at) {
			s.dropCachedSource(n, at)
			changed = true
		}
	}
	return changed
}

// addCachedSource notes that a node has a source's bytes, and how near.
func (s *Orchestrator) addCachedSource(n *nodeState, source string, t functions.Tier) (changed bool) {
	before, there := n.Tiers[source]
	if there && before == t {
		return false
	}
	if !there {
		s.copies[source]++
	}
	n.Tiers[source], n.Cached[source] = t, true
	return true
}

// dropCachedSource notes that a node has them no more.
func (s *Orchestrator) dropCachedSource(n *nodeState, source string) {
	delete(n.Tiers, source)
	delete(n.Cached, source)
	delete(n.fromReady, source)
	if s.copies[source]--; s.copies[source] <= 0 {
		delete(s.copies, source)
	}
}

// dropAllCachedSources notes that a node has none: it is lost.
func (s *Orchestrator) dropAllCachedSources(n *nodeState) {
	for source := range n.Tiers {
		if s.copies[source]--; s.copies[source] <= 0 {
			delete(s.copies, source)
		}
	}
	n.Tiers, n.Cached, n.fromReady = nil, nil, nil
}
