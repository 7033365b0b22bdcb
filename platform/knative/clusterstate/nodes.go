package clusterstate

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/knative"
)

type node struct {
	cluster *State
	name    string
	*nodeFacts
	reported      *functions.Heartbeat // from its loader; nil: none
	connected     bool
	seq           uint64
	changes       uint64
	lastHeartbeat functions.Heartbeat
	sentAt        time.Time
}

func (s *State) SetNode(k *corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[k.Name]
	if n == nil {
		n = &node{cluster: s, name: k.Name}
		s.nodes[k.Name] = n
	}
	was := n.nodeFacts
	n.nodeFacts = readNodeFacts(k)
	if n.cordoned && (was == nil || !was.cordoned) {
		s.bindings.dropPlaced(n.name)
	}
	if !reflect.DeepEqual(was, n.nodeFacts) {
		s.due.markNode(k.Name)
	}
}

// DropNode removes a node. The orchestrator misses its heartbeats.
func (s *State) DropNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, name)
}

// OnHeartbeat records the heartbeat of a node's loader. It reports whether the address at
// which the node serves blocks changed.
func (s *State) OnHeartbeat(name string, hb functions.Heartbeat) (peerChanged bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil {
		return false
	}
	was := ""
	if n.reported != nil && n.connected {
		was = n.reported.PeerURL
	}
	n.reported, n.connected = &hb, true
	s.due.markNode(name)
	return was != hb.PeerURL
}

func (s *State) SetConnected(name string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[name]; n != nil {
		n.connected = is
		s.due.markNode(name)
	}
}

// BlockServers lists the nodes whose loaders are connected, and the addresses at which
// they serve blocks.
func (s *State) BlockServers() (connected []string, peers []functions.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.nodes {
		if !n.connected {
			continue
		}
		connected = append(connected, name)
		if n.reported != nil && n.reported.PeerURL != "" {
			peers = append(peers, functions.Peer{ID: name, URL: n.reported.PeerURL})
		}
	}
	slices.Sort(connected)
	slices.SortFunc(peers, func(a, b functions.Peer) int { return cmp.Compare(a.ID, b.ID) })
	return connected, peers
}

// PreferredNode is the node on which the next pod of a revision was placed.
func (s *State) PreferredNode(name functions.Name) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next *replica
	for _, w := range s.bindings.replicas {
		if w.rev.name == name && w.pod == nil && !w.ending && (next == nil || w.plannedAt.Before(next.plannedAt)) {
			next = w
		}
	}
	if next == nil {
		return "", false
	}
	return next.node, true
}

// Load starts one more replica on this node for the orchestrator.
func (n *node) Load(ctx context.Context, req functions.LoadRequest) (functions.LoadReply, error) {
	f := n.cluster
	name := functions.Name{Team: req.Team, Name: req.Model}
	f.mu.Lock()
	r := f.revisions[name]
	if r == nil {
		f.mu.Unlock()
		return functions.LoadReply{}, fmt.Errorf("revision %s is gone", name)
	}
	w := f.bindings.replicas[req.ID]
	if w == nil {
		w = &replica{id: req.ID, rev: r, node: n.name, gpus: req.GPUs, plannedAt: f.o.Now()}
		f.bindings.replicas[req.ID] = w
		f.bindings.bindFree(w)
	}
	f.due.markNode(w.node)
	f.mu.Unlock()
	// The download can start before the pod is scheduled.
	if req.Spec.Source != "" {
		f.o.Send(n.name, controlstream.Update{Prefetch: []functions.LoadRequest{req}})
	}
	if err := f.writeScaleAsLeader(ctx, r); err != nil {
		f.mu.Lock()
		if w.pod == nil {
			delete(f.bindings.replicas, req.ID)
		}
		f.mu.Unlock()
		return functions.LoadReply{}, err
	}
	return functions.LoadReply{ID: req.ID, State: functions.Downloading}, nil
}

// Unload ends a drained replica for the orchestrator.
func (n *node) Unload(ctx context.Context, req functions.UnloadRequest) error {
	f := n.cluster
	f.mu.Lock()
	w := f.bindings.replicas[req.ID]
	if w == nil {
		f.mu.Unlock()
		return nil
	}
	if req.Reason == functions.ReasonCalledOff && w.pod != nil && w.pod.spawned() {
		f.mu.Unlock()
		return nil // its process runs: the start goes on
	}
	r, p := w.rev, w.pod
	first := !w.ending
	w.ending = true
	if p == nil {
		delete(f.bindings.replicas, req.ID)
	} else if p.ended {
		f.bindings.unbind(p)
	}
	others := f.bindings.pods.count(r)
	if p != nil && p.rev == r && p.active() {
		others--
	}
	f.due.markNode(w.node)
	var at, pod, namespace string
	if p != nil {
		at, pod, namespace = p.node, p.name, p.namespace
	}
	f.mu.Unlock()
	if p != nil && first {
		if r.shim {
			f.o.Send(at, controlstream.Update{Stop: []controlstream.Stop{{UID: string(p.uid), Seconds: req.DrainSeconds, Reason: req.Reason}}})
		}
		if others > 0 {
			if err := f.o.Writer.DeleteFirst(ctx, namespace, pod); err != nil {
				f.o.Log.Warn("cannot mark a pod for deletion first", "pod", namespace+"/"+pod, "error", err)
			}
		}
	}
	return f.writeScaleAsLeader(ctx, r)
}

// nodeFacts holds what a node offers.
type nodeFacts struct {
	ready, cordoned bool
	gpus            int
	gpuName         string
	gpuMemory       functions.Bytes // 0: unknown
	memory          functions.Bytes
	cpu             functions.CPU
	pods            int
	version         string
	labels          map[string]string
	taints          []functions.Taint // those that keep pods off
}

func readNodeFacts(k *corev1.Node) *nodeFacts {
	has := k.Status.Allocatable
	n := &nodeFacts{cordoned: k.Spec.Unschedulable, version: k.Status.NodeInfo.KubeletVersion, labels: k.Labels,
		memory: functions.Bytes(has.Memory().Value()), cpu: functions.CPU(has.Cpu().MilliValue()),
		pods: int(min(max(has.Pods().Value(), 0), math.MaxInt32))}
	for _, c := range k.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.ready = c.Status == corev1.ConditionTrue
		}
	}
	for _, t := range k.Spec.Taints {
		if t.Key != string(knative.GPU) && (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) {
			n.taints = append(n.taints, functions.Taint{Key: t.Key, Value: t.Value, Effect: string(t.Effect)})
		}
	}
	n.gpus, n.gpuName, n.gpuMemory = knative.GPUsOf(k)
	return n
}

// gpuList lists the GPUs that replicas may use: without as many unheld ones as foreign
// pods hold. Nothing on the node reads them.
func (n *nodeFacts) gpuList(held map[int]bool, strangers int) []functions.GPU {
	var out []functions.GPU
	for i := n.gpus - 1; i >= 0; i-- {
		if strangers > 0 && !held[i] {
			strangers--
			continue
		}
		out = append(out, functions.GPU{Index: i, Name: n.gpuName, MemoryTotal: n.gpuMemory, Health: functions.GPUUnknown})
	}
	slices.Reverse(out)
	return out
}
