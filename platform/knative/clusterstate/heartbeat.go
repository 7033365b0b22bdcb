package clusterstate

import (
	"maps"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// replacementWait is how long a deleted pod's replacement may take before its replica is
// given up.
const replacementWait = 2 * time.Second

// SendHeartbeats sends the heartbeats that are due; with all, also expires lost pods.
func (s *State) SendHeartbeats(all bool) {
	type beat struct {
		hb functions.Heartbeat
		n  *node
	}
	var beats []beat
	now := s.o.Now()
	s.mu.Lock()
	if all {
		s.expireLost(now)
	}
	var on *nodeIndex
	for name, n := range s.nodes {
		if n.nodeFacts == nil || !n.ready || !s.due.nodes[name] && now.Sub(n.sentAt) < 2*time.Second {
			continue
		}
		if on == nil {
			on = s.bindings.indexNodes()
		}
		beats = append(beats, beat{s.heartbeat(n, on, now), n})
	}
	clear(s.due.nodes)
	s.mu.Unlock()
	for _, b := range beats {
		s.o.SendHeartbeat(b.hb, b.n)
	}
}

// expireLost gives up deleted pods without a replacement. mu must be held.
func (s *State) expireLost(now time.Time) {
	for _, r := range s.revisions {
		before := len(r.lost)
		r.lost = slices.DeleteFunc(r.lost, func(t time.Time) bool { return now.Sub(t) >= replacementWait })
		if len(r.lost) != before {
			s.due.scales[r.name] = true
		}
	}
	for _, w := range s.bindings.replicas {
		if w.pod == nil || w.pod.timeChangesState(now) {
			s.due.nodes[w.node] = true
		}
	}
}

// nodeIndex is what runs on each node, gathered once per round.
type nodeIndex struct {
	replicas map[string][]*replica          // in the order of ids
	foreign  map[string]functions.Resources // of pods that are no replicas
}

// indexNodes gathers all nodes.
func (b *bindings) indexNodes() *nodeIndex {
	x := &nodeIndex{replicas: map[string][]*replica{}, foreign: map[string]functions.Resources{}}
	for _, id := range slices.Sorted(maps.Keys(b.replicas)) {
		w := b.replicas[id]
		x.replicas[w.node] = append(x.replicas[w.node], w)
	}
	for _, p := range b.pods {
		// Includes a pod of ours that is no longer a replica and still exists.
		if p.replica == nil && p.node != "" && !p.ended {
			sum, own := x.foreign[p.node], p.requests
			x.foreign[p.node] = functions.Resources{GPUs: sum.GPUs + own.GPUs, Memory: sum.Memory + own.Memory, CPU: sum.CPU + own.CPU,
				Pods: sum.Pods + 1}
		}
	}
	return x
}

// heartbeat makes the heartbeat of a node. mu must be held.
func (s *State) heartbeat(n *node, on *nodeIndex, now time.Time) functions.Heartbeat {
	hb := functions.Heartbeat{
		AgentID: n.name, Epoch: s.o.Epoch, State: functions.NodeIdle, Version: n.version, Life: s.o.Life,
		Memory: functions.Capacity{Total: n.memory},
	}
	if n.reported != nil {
		hb.Store, hb.Cached, hb.PeerURL, hb.Borrows = n.reported.Store, n.reported.Cached, n.reported.PeerURL, n.reported.Borrows
	}
	held := map[int]bool{}
	for _, w := range on.replicas[n.name] {
		w.noLoader = n.reported == nil
		st := w.status(s.bindings.pods, now)
		if st.State == functions.Downloading || st.State == functions.Loading {
			hb.State = functions.NodeLoading
		}
		for _, g := range w.gpus {
			held[g] = true
		}
		hb.Models = append(hb.Models, st)
	}
	foreign := on.foreign[n.name]
	hb.Memory.Total = max(hb.Memory.Total-foreign.Memory, 0)
	hb.GPUs = n.gpuList(held, foreign.GPUs)
	// 0 would mean unknown, so 1 stands for nothing left.
	if n.cpu > 0 {
		hb.CPU = max(n.cpu-foreign.CPU, 1)
	}
	if n.pods > 0 {
		if hb.Pods = n.pods - foreign.Pods; hb.Pods <= 0 {
			hb.Pods = -1
		}
	}
	if n.cordoned {
		// A cordoned node offers only GPUs in use.
		hb.GPUs = slices.DeleteFunc(hb.GPUs, func(g functions.GPU) bool { return !held[g.Index] })
		hb.Memory.Total, hb.CPU, hb.Pods = 1, 1, -1
	}
	for _, k := range slices.Sorted(maps.Keys(s.constraints)) {
		if s.constraints[k].pod.Refuses(n.labels, n.taints) != "" {
			hb.UnmetRequirements = append(hb.UnmetRequirements, k)
		}
	}
	if !sameHeartbeat(&n.lastHeartbeat, &hb) {
		n.changes++
	}
	n.seq++
	n.sentAt, n.lastHeartbeat = now, hb
	hb.Seq, hb.Change = n.seq, n.changes
	return hb
}

// sameHeartbeat compares two heartbeats except for times and utilisation.
func sameHeartbeat(a, b *functions.Heartbeat) bool {
	return a.State == b.State && a.Memory.Total == b.Memory.Total && a.CPU == b.CPU && a.Pods == b.Pods &&
		slices.Equal(a.UnmetRequirements, b.UnmetRequirements) && a.PeerURL == b.PeerURL &&
		slices.Equal(a.GPUs, b.GPUs) && slices.Equal(a.Cached, b.Cached) && a.Store.Bytes == b.Store.Bytes &&
		slices.EqualFunc(a.Models, b.Models, func(x, y functions.ReplicaStatus) bool {
			return x.ID == y.ID && x.State == y.State && x.Endpoint == y.Endpoint && x.Percent == y.Percent && x.Bytes == y.Bytes &&
				x.TotalBytes == y.TotalBytes && x.Error == y.Error && slices.Equal(x.Adapters, y.Adapters) && len(x.Phases) == len(y.Phases)
		})
}
