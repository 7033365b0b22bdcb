package clusterstate

import (
	"strings"
)

// PodOf is the pod of a replica; false if it has none.
func (s *State) PodOf(replica string) (namespace, name string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.replicas[replica]; w != nil && w.pod != nil {
		return w.pod.namespace, w.pod.name, true
	}
	return "", "", false
}

// bind assigns a pod to a replica that waits for one. mu must be held.
func (s *State) bind(p *pod) {
	if p.rev == nil || p.replica != nil || p.terminating || p.ended {
		return
	}
	var to *replica
	for _, w := range s.replicas {
		if w.rev != p.rev || w.pod != nil || w.ending {
			continue
		}
		// Prefers the replica placed on the pod's node, then the oldest.
		better := to == nil || w.node == p.node && to.node != p.node
		if !better && (w.node == p.node) == (to.node == p.node) {
			better = w.plannedAt.Before(to.plannedAt) || w.plannedAt.Equal(to.plannedAt) && w.id < to.id
		}
		if better {
			to = w
		}
	}
	if to == nil {
		if p.node == "" {
			return // it is bound once it has a node
		}
		to = &replica{id: podLabel(p.name), rev: p.rev, node: p.node, plannedAt: s.o.Now()}
		if s.replicas[to.id] != nil {
			return
		}
		to.gpus = s.freeGPUs(p.node, p.gpus)
		s.replicas[to.id] = to
		if len(p.rev.lost) > 0 {
			p.rev.lost = p.rev.lost[1:] // it replaces a deleted one
		}
		s.dueScales[p.rev.name] = true
	}
	to.pod, p.replica = p, to
	s.moveReplica(to)
	s.markNode(to.node)
}

// bindFree assigns an unbound pod to a new replica. mu must be held.
func (s *State) bindFree(w *replica) {
	for _, p := range s.pods {
		if p.rev == w.rev && p.replica == nil && !p.terminating && !p.ended {
			w.pod, p.replica = p, w
			s.moveReplica(w)
			return
		}
	}
}

// moveReplica moves a replica to the node on which its pod was scheduled. mu must be held.
// For the orchestrator the placed replica vanishes and another one is adopted.
func (s *State) moveReplica(w *replica) {
	if w.pod.node == "" || w.pod.node == w.node {
		return
	}
	delete(s.replicas, w.id)
	s.markNode(w.node)
	moved := *w
	moved.id, moved.node = podLabel(w.pod.name), w.pod.node
	moved.gpus = s.freeGPUs(moved.node, max(len(w.gpus), w.pod.gpus))
	s.replicas[moved.id] = &moved
	w.pod.replica = &moved
	s.markNode(moved.node)
}

// freeGPUs picks k GPU indices of a node that no replica holds. mu must be held.
func (s *State) freeGPUs(name string, k int) []int {
	held := map[int]bool{}
	for _, w := range s.replicas {
		if w.node == name {
			for _, g := range w.gpus {
				held[g] = true
			}
		}
	}
	var out []int
	for i := 0; len(out) < k && i < 4096; i++ {
		if !held[i] {
			out = append(out, i)
		}
	}
	return out
}

// podLabel makes a pod's name a DNS label, as replica ids are.
func podLabel(name string) string {
	if len(name) > 63 {
		name = name[len(name)-63:]
	}
	return strings.TrimLeft(strings.ReplaceAll(name, ".", "-"), "-")
}
