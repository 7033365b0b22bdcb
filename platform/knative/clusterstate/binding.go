package clusterstate

import (
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
)

// bindings are the pods and the replicas, and which pod runs which replica: w.pod.replica
// is w for each replica w that has a pod. The mu of its State guards it.
type bindings struct {
	now      func() time.Time
	pods     podSet
	replicas map[string]*replica
	due      *dueWork // what a change makes due
}

// dueWork is what Run has to do at once. The mu of its State guards the maps.
type dueWork struct {
	nodes  map[string]bool         // whose heartbeat is due
	scales map[functions.Name]bool // whose Deployment may have a wrong size
	wakeup newest.Signal
}

// markNode makes the heartbeat of a node due.
func (d *dueWork) markNode(node string) {
	if node != "" {
		d.nodes[node] = true
	}
	d.wakeup.Set()
}

// PodOf is the pod of a replica; false if it has none.
func (s *State) PodOf(replica string) (namespace, name string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.bindings.replicas[replica]; w != nil && w.pod != nil {
		return w.pod.namespace, w.pod.name, true
	}
	return "", "", false
}

// bind assigns a pod to a replica that waits for one.
func (b *bindings) bind(p *pod) {
	if p.rev == nil || p.replica != nil || !p.active() {
		return
	}
	var to *replica
	for _, w := range b.replicas {
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
		to = &replica{id: podLabel(p.name), rev: p.rev, node: p.node, plannedAt: b.now()}
		if b.replicas[to.id] != nil {
			return
		}
		to.gpus = b.freeGPUs(p.node, p.requests.GPUs)
		b.replicas[to.id] = to
		if len(p.rev.lost) > 0 {
			p.rev.lost = p.rev.lost[1:] // it replaces a deleted one
		}
		b.due.scales[p.rev.name] = true
	}
	to.pod, p.replica = p, to
	b.move(to)
	b.due.markNode(to.node)
}

// bindFree assigns an unbound pod to a new replica.
func (b *bindings) bindFree(w *replica) {
	for _, p := range b.pods {
		if p.rev == w.rev && p.replica == nil && p.active() {
			w.pod, p.replica = p, w
			b.move(w)
			return
		}
	}
}

// unbind removes the replica of a pod.
func (b *bindings) unbind(p *pod) {
	w := p.replica
	if w == nil {
		return
	}
	p.replica = nil
	delete(b.replicas, w.id)
	b.due.scales[w.rev.name] = true
	b.due.markNode(w.node)
}

// dropPlaced drops the replicas placed on a node whose pod is not there yet; the
// orchestrator places them again. Such a pod stays unbound.
func (b *bindings) dropPlaced(node string) {
	for id, w := range b.replicas {
		if w.node == node && !w.ending && (w.pod == nil || w.pod.node == "") {
			if w.pod != nil {
				w.pod.replica = nil
			}
			delete(b.replicas, id)
			b.due.scales[w.rev.name] = true
			b.due.markNode(node)
		}
	}
}

// move moves a replica to the node on which its pod was scheduled. For the orchestrator
// the placed replica vanishes and another one is adopted.
func (b *bindings) move(w *replica) {
	if w.pod.node == "" || w.pod.node == w.node {
		return
	}
	delete(b.replicas, w.id)
	b.due.markNode(w.node)
	moved := *w
	moved.id, moved.node = podLabel(w.pod.name), w.pod.node
	moved.gpus = b.freeGPUs(moved.node, max(len(w.gpus), w.pod.requests.GPUs))
	b.replicas[moved.id] = &moved
	w.pod.replica = &moved
	b.due.markNode(moved.node)
}

// freeGPUs picks k GPU indices of a node that no replica holds.
func (b *bindings) freeGPUs(name string, k int) []int {
	held := map[int]bool{}
	for _, w := range b.replicas {
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
