package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// clusterWriter are what the fleet does to the cluster. Calls are bounded by ctx and may
// be made concurrently.
type clusterWriter interface {
	// Scale sets how many pods the Deployment that a revision scales by has.
	Scale(ctx context.Context, revision functions.Name, deployment string, replicas int) error
	// DeleteFirst makes a pod the first to go when its Deployment is scaled down.
	DeleteFirst(ctx context.Context, namespace, pod string) error
	// ForceDelete has a pod that is terminating, and whose engine has ended, forgotten.
	ForceDelete(ctx context.Context, namespace, pod string, uid types.UID) error
}

// clusterState is the nodes of the cluster as steer commands them, and the pods as its
// replicas. It is told what informers and loaders see, and turns that into
// heartbeats; it is told by steer to load and unload, and turns that into scales
// of Deployments. One mutex holds all of it; nothing is called under it.
//
// Steer counts replicas, Kubernetes pods. A replica that is wanted is one more
// pod of its revision, whichever that will be; the first pod that comes and is
// nobody's is bound to it. A pod that nobody wanted (one that was there before
// this controller, or that replaces one that was evicted) becomes a replica of
// its own name, which steer adopts.
type clusterState struct {
	o clusterStateOptions

	mu          sync.Mutex
	nodes       map[string]*node
	pods        map[types.UID]*pod
	revisions   map[functions.Name]*revisionState
	replicas    map[string]*replica
	dirtyNodes  map[string]bool // nodes of which there is news
	dueScales   map[functions.Name]bool
	constraints map[string]*podConstraints // of pods, by what they require of a node
	wakeup      chan struct{}              // there is something for Run
}

type clusterStateOptions struct {
	epoch         int64
	life          string // of this controller, unlike any other's
	sendHeartbeat func(functions.Heartbeat, orchestrator.Node)
	send          func(node string, d controlstream.Down) bool
	writer        clusterWriter
	log           *slog.Logger
	now           func() time.Time
	probe         func(p probe) // asks a pod without the shim whether it answers, until it does or is gone
	changed       func(functions.Name)
	forceDelete   func(namespace, pod string, uid types.UID) // has Hands.ForceDelete done, and returns at once
}

// probe is a pod that is to be asked whether it answers.
type probe struct {
	uid types.UID
	ip  string
}

// node is one node of Kubernetes.
type node struct {
	cluster *clusterState
	name    string
	*nodeFacts
	reported      *functions.Heartbeat // from its loader; nil: there is none
	connected     bool
	seq           uint64
	changes       uint64
	lastHeartbeat functions.Heartbeat
	sentAt        time.Time
}

// revisionState is one revision of our class.
type revisionState struct {
	name       functions.Name
	deployment string
	shim       bool
	written    int // replicas that were last written; -1 nothing was
	writtenAt  time.Time
	observed   int // spec.replicas as last seen; -1 it was not
	// Pods that went without our doing: they are replaced by their Deployment, or
	// their room is given back after a moment.
	lost          []time.Time
	firstObserved time.Time // when its Deployment was first seen
	refusal       string    // why its Deployment makes no pods
	refusedAt     time.Time
	mu            sync.Mutex // held while its scale is written
	constraints   *podConstraints
}

// podConstraints is what revisions ask of a node beside room, and how many ask it.
type podConstraints struct {
	requires  string
	pod       functions.Pod
	revisions int
}

// replica is one replica that steer asked for or adopted.
type replica struct {
	id         string
	rev        *revisionState
	node       string
	gpus       []int
	pod        *pod
	plannedAt  time.Time
	ending     bool
	published  bool                    // it was READY in a picture
	lastStatus functions.ReplicaStatus // as last told, for how long its state holds
	stateSince time.Time               // since when
}

// replacementWait is how long a pod that was taken away may take to come back under
// another name before its replica is given up.
const replacementWait = 2 * time.Second

// newClusterState makes a fleet that knows nothing.
func newClusterState(o clusterStateOptions) *clusterState {
	return &clusterState{
		o: o, nodes: map[string]*node{}, pods: map[types.UID]*pod{}, revisions: map[functions.Name]*revisionState{}, replicas: map[string]*replica{},
		dirtyNodes: map[string]bool{}, dueScales: map[functions.Name]bool{}, constraints: map[string]*podConstraints{}, wakeup: make(chan struct{}, 1),
	}
}

// Run sends heartbeats and writes scales until ctx ends.
func (f *clusterState) Run(ctx context.Context) error {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	var writing sync.WaitGroup
	defer writing.Wait()
	for {
		all := false
		select {
		case <-ctx.Done():
			return nil
		case <-f.wakeup:
		case <-t.C:
			all = true
		}
		f.sendHeartbeats(all)
		for _, r := range f.outdatedScales(all) {
			writing.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
				defer cancel()
				if err := f.writeScale(ctx, r); err != nil && ctx.Err() == nil {
					f.o.log.Warn("a scale was not written", "revision", r.name.String(), "error", err)
				}
			})
		}
	}
}

func (f *clusterState) wakeRun() {
	select {
	case f.wakeup <- struct{}{}:
	default:
	}
}

// markNode notes that there is news of a node. Under mu.
func (f *clusterState) markNode(node string) {
	if node != "" {
		f.dirtyNodes[node] = true
	}
	f.wakeRun()
}

// sendHeartbeats sends the heartbeats that are due.
func (f *clusterState) sendHeartbeats(all bool) {
	type beat struct {
		hb functions.Heartbeat
		n  *node
	}
	var beats []beat
	now := f.o.now()
	f.mu.Lock()
	if all {
		f.expireLost(now)
	}
	var on *nodeIndex
	for name, n := range f.nodes {
		if n.nodeFacts == nil || !n.ready || !f.dirtyNodes[name] && now.Sub(n.sentAt) < 2*time.Second {
			continue
		}
		if on == nil {
			on = f.indexNodes()
		}
		beats = append(beats, beat{f.heartbeat(n, on, now), n})
	}
	clear(f.dirtyNodes)
	f.mu.Unlock()
	for _, b := range beats {
		f.o.sendHeartbeat(b.hb, b.n)
	}
}

// expireLost gives up what did not come back in time. Under mu.
func (f *clusterState) expireLost(now time.Time) {
	for _, r := range f.revisions {
		before := len(r.lost)
		r.lost = slices.DeleteFunc(r.lost, func(t time.Time) bool { return now.Sub(t) >= replacementWait })
		if len(r.lost) != before {
			f.dueScales[r.name] = true
		}
	}
	for _, w := range f.replicas {
		if w.pod == nil || w.pod.timeChangesState(now) {
			f.dirtyNodes[w.node] = true
		}
	}
}

// nodeIndex is what is on each node, gathered once for all that are asked about.
type nodeIndex struct {
	replicas map[string][]*replica // by id
	foreign  map[string]foreignUsage
}

// foreignUsage is what pods that are none of ours take of a node.
type foreignUsage struct {
	memory functions.Bytes
	cpu    functions.CPU
	gpus   int
	pods   int
}

// indexNodes of all there is. Under mu.
func (f *clusterState) indexNodes() *nodeIndex {
	x := &nodeIndex{replicas: map[string][]*replica{}, foreign: map[string]foreignUsage{}}
	for _, id := range slices.Sorted(maps.Keys(f.replicas)) {
		w := f.replicas[id]
		x.replicas[w.node] = append(x.replicas[w.node], w)
	}
	for _, p := range f.pods {
		// Also one of ours that is nobody's replica any more, and still there.
		if p.replica == nil && p.node != "" && !p.ended {
			b := x.foreign[p.node]
			b.memory, b.cpu, b.gpus, b.pods = b.memory+p.memory, b.cpu+p.cpu, b.gpus+p.gpus, b.pods+1
			x.foreign[p.node] = b
		}
	}
	return x
}

// heartbeat is what a node says of itself. Under mu.
func (f *clusterState) heartbeat(n *node, on *nodeIndex, now time.Time) functions.Heartbeat {
	hb := functions.Heartbeat{
		AgentID: n.name, Epoch: f.o.epoch, State: functions.NodeIdle, Version: n.version, Life: f.o.life,
		Memory: functions.Capacity{Total: n.memory},
	}
	if n.reported != nil {
		hb.Store, hb.Cached, hb.PeerURL, hb.Borrows = n.reported.Store, n.reported.Cached, n.reported.PeerURL, n.reported.Borrows
	}
	held := map[int]bool{}
	for _, w := range on.replicas[n.name] {
		st := f.replicaStatus(w, now)
		if st.State == functions.Downloading || st.State == functions.Loading {
			hb.State = functions.NodeLoading
		}
		for _, g := range w.gpus {
			held[g] = true
		}
		hb.Models = append(hb.Models, st)
	}
	strangers := on.foreign[n.name]
	hb.Memory.Total = max(hb.Memory.Total-strangers.memory, 0)
	hb.GPUs = n.gpuList(held, strangers.gpus)
	// None is left: to say nothing would be that nobody counts.
	if n.cpu > 0 {
		hb.CPU = max(n.cpu-strangers.cpu, 1)
	}
	if n.pods > 0 {
		if hb.Pods = n.pods - strangers.pods; hb.Pods <= 0 {
			hb.Pods = -1
		}
	}
	if n.cordoned {
		// Nothing new is to come here: what is held is all there is.
		hb.GPUs = slices.DeleteFunc(hb.GPUs, func(g functions.GPU) bool { return !held[g.Index] })
		hb.Memory.Total, hb.CPU, hb.Pods = 1, 1, -1
	}
	for _, k := range slices.Sorted(maps.Keys(f.constraints)) {
		if f.constraints[k].pod.Refuses(n.labels, n.taints) != "" {
			hb.Bars = append(hb.Bars, k)
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

// SetRevision adds a revision, or takes over what changed of it.
func (f *clusterState) SetRevision(name functions.Name, target string, shim bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.revisions[name]
	if r == nil {
		r = &revisionState{name: name, written: -1, observed: -1}
		f.revisions[name] = r
		for _, p := range f.pods {
			if p.revisionName == name && p.rev == nil {
				p.rev = r
				f.bind(p)
			}
		}
	}
	r.deployment, r.shim = target, shim
}

// Require takes in what the pods of a revision ask of a node.
func (f *clusterState) Require(name functions.Name, pod functions.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, requires := f.revisions[name], pod.Requires()
	if r == nil || r.constraints != nil && r.constraints.requires == requires {
		return
	}
	f.dropConstraints(r)
	k := f.constraints[requires]
	if k == nil {
		k = &podConstraints{requires: requires, pod: pod}
		f.constraints[requires] = k
		for node := range f.nodes {
			f.markNode(node) // each has to say whether it may come there
		}
	}
	k.revisions++
	r.constraints = k
}

// dropConstraints takes a revision out of its kind. Under mu.
func (f *clusterState) dropConstraints(r *revisionState) {
	if k := r.constraints; k != nil {
		r.constraints = nil
		if k.revisions--; k.revisions == 0 {
			delete(f.constraints, k.requires)
		}
	}
}

// DropRevision forgets one. Its pods are the garbage collector's; until they are
// gone they are somebody's on their node.
func (f *clusterState) DropRevision(name functions.Name) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.revisions[name]
	if r == nil {
		return
	}
	delete(f.revisions, name)
	f.dropConstraints(r)
	for id, w := range f.replicas {
		if w.rev == r && w.pod == nil {
			delete(f.replicas, id)
			f.markNode(w.node)
		}
	}
}

// SetDeployment takes in how many pods a revision's Deployment is to have, and why
// it cannot make them.
func (f *clusterState) SetDeployment(name functions.Name, replicas int, refuse string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.revisions[name]
	if r == nil {
		return
	}
	if refuse != r.refusal {
		r.refusal, r.refusedAt = refuse, f.o.now()
		for _, w := range f.replicas {
			if w.rev == r {
				f.markNode(w.node)
			}
		}
	}
	if r.firstObserved.IsZero() {
		r.firstObserved = f.o.now()
	}
	if r.observed != replicas {
		r.observed = replicas
		f.dueScales[name] = true
		f.wakeRun()
	}
}

// SetNode takes in what the API server says of a node.
func (f *clusterState) SetNode(k *corev1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[k.Name]
	if n == nil {
		n = &node{cluster: f, name: k.Name}
		f.nodes[k.Name] = n
	}
	was := n.nodeFacts
	n.nodeFacts = readNodeFacts(k)
	if n.cordoned && (was == nil || !was.cordoned) {
		f.dropPlacements(n.name)
	}
	if was == nil || !was.equal(n.nodeFacts) {
		f.markNode(k.Name)
	}
}

// dropPlacements gives up what was placed on a node and whose pod has not come there: it is
// wanted elsewhere now. Under mu. The pod, where there is one, is whose it will be.
func (f *clusterState) dropPlacements(node string) {
	for id, w := range f.replicas {
		if w.node == node && !w.ending && (w.pod == nil || w.pod.node == "") {
			if w.pod != nil {
				w.pod.replica = nil
			}
			delete(f.replicas, id)
			f.dueScales[w.rev.name] = true
			f.markNode(node)
		}
	}
}

// DropNode forgets one. Steer hears nothing of it any more, which says enough.
func (f *clusterState) DropNode(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.nodes, name)
}

// OnHeartbeat takes in what a node's loader says of the node. It reports whether who
// lends blocks has changed by it.
func (f *clusterState) OnHeartbeat(name string, hb functions.Heartbeat) (lends bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.nodes[name]
	if n == nil {
		return false
	}
	was := ""
	if n.reported != nil && n.connected {
		was = n.reported.PeerURL
	}
	n.reported, n.connected = &hb, true
	f.markNode(name)
	return was != hb.PeerURL
}

// AllPodsReported reports whether every pod of ours that runs with the shim has been heard
// of.
func (f *clusterState) AllPodsReported() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.pods {
		if p.rev != nil && p.rev.shim && p.running && !p.terminating && !p.ended && p.reported == nil {
			return false
		}
	}
	return true
}

// SetConnected takes in that a node's loader has come or gone.
func (f *clusterState) SetConnected(name string, is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.nodes[name]; n != nil {
		n.connected = is
		f.markNode(name)
	}
}

// BlockServers are the nodes whose loaders are there, and the addresses at which they lend.
func (f *clusterState) BlockServers() (linked []string, lend []functions.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.nodes {
		if !n.connected {
			continue
		}
		linked = append(linked, name)
		if n.reported != nil && n.reported.PeerURL != "" {
			lend = append(lend, functions.Peer{ID: name, URL: n.reported.PeerURL})
		}
	}
	slices.Sort(linked)
	slices.SortFunc(lend, func(a, b functions.Peer) int { return cmp.Compare(a.ID, b.ID) })
	return linked, lend
}

// PreferredNode is the node that the next pod of a revision was placed on.
func (f *clusterState) PreferredNode(name functions.Name) (string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var next *replica
	for _, w := range f.replicas {
		if w.rev.name == name && w.pod == nil && !w.ending && (next == nil || w.plannedAt.Before(next.plannedAt)) {
			next = w
		}
	}
	if next == nil {
		return "", false
	}
	return next.node, true
}

// Load is one more replica on this node. It is steer's.
func (n *node) Load(ctx context.Context, req functions.LoadRequest) (functions.LoadReply, error) {
	f := n.cluster
	name := functions.Name{Team: req.Team, Name: req.Model}
	f.mu.Lock()
	r := f.revisions[name]
	if r == nil {
		f.mu.Unlock()
		return functions.LoadReply{}, fmt.Errorf("revision %s is gone", name)
	}
	w := f.replicas[req.ID]
	if w == nil {
		w = &replica{id: req.ID, rev: r, node: n.name, gpus: req.GPUs, plannedAt: f.o.now()}
		f.replicas[req.ID] = w
		f.bindFree(w)
	}
	f.markNode(w.node)
	f.mu.Unlock()
	// The bytes can come while the pod is still looking for its node.
	if req.Spec.Source != "" {
		f.o.send(n.name, controlstream.Down{Prefetch: []functions.LoadRequest{req}})
	}
	if err := f.writeScaleAsLeader(ctx, r); err != nil {
		f.mu.Lock()
		if w.pod == nil {
			delete(f.replicas, req.ID)
		}
		f.mu.Unlock()
		return functions.LoadReply{}, err
	}
	return functions.LoadReply{ID: req.ID, State: functions.Downloading}, nil
}

// Unload is the end of a replica, which has been drained. It is steer's.
func (n *node) Unload(ctx context.Context, req functions.UnloadRequest) error {
	f := n.cluster
	f.mu.Lock()
	w := f.replicas[req.ID]
	if w == nil {
		f.mu.Unlock()
		return nil
	}
	if req.Reason == functions.ReasonCalledOff && w.pod != nil && w.pod.spawned() {
		f.mu.Unlock()
		return nil // it has its process: it goes on
	}
	r, p := w.rev, w.pod
	first := !w.ending
	w.ending = true
	if p == nil {
		delete(f.replicas, req.ID)
	} else if p.ended {
		f.unbind(p)
	}
	others := 0
	for _, x := range f.pods {
		if x.rev == r && x != p && !x.terminating && !x.ended {
			others++
		}
	}
	f.markNode(w.node)
	var at, pod, namespace string
	if p != nil {
		at, pod, namespace = p.node, p.name, p.namespace
	}
	f.mu.Unlock()
	if p != nil && first {
		if r.shim {
			f.o.send(at, controlstream.Down{Stop: []controlstream.Stop{{UID: string(p.uid), Seconds: req.DrainSeconds, Reason: req.Reason}}})
		}
		if others > 0 {
			if err := f.o.writer.DeleteFirst(ctx, namespace, pod); err != nil {
				f.o.log.Warn("a pod was not made the first to go", "pod", namespace+"/"+pod, "error", err)
			}
		}
	}
	return f.writeScaleAsLeader(ctx, r)
}

// desired is how many pods each revision is to have; those that are absent none.
// Under mu.
func (f *clusterState) desired() map[*revisionState]int {
	out := map[*revisionState]int{}
	for _, w := range f.replicas {
		if !w.ending && (w.pod == nil || !w.pod.terminating) {
			out[w.rev]++
		}
	}
	now := f.o.now()
	for _, p := range f.pods {
		// One that nobody asked for here and that looks for its node: it is somebody's
		// once it has found one.
		if p.rev != nil && p.replica == nil && p.node == "" && !p.terminating && !p.ended && now.Sub(p.created) < unschedulable {
			out[p.rev]++
		}
	}
	for _, r := range f.revisions {
		if k := len(r.lost); k > 0 {
			out[r] += k
		}
	}
	f.holdForTermination(out)
	return out
}

// holdForTermination has Deployments be small until the pods that are to end have begun to:
// Kubernetes looks at what is wanted now, not at what was in between, and one that is
// made smaller and larger again at once keeps the pod whose engine has ended, and
// makes no other. Under mu.
func (f *clusterState) holdForTermination(desired map[*revisionState]int) {
	var leave map[*revisionState]int
	for _, w := range f.replicas {
		if w.ending && w.pod != nil && !w.pod.terminating && !w.pod.ended {
			if leave == nil {
				leave = map[*revisionState]int{}
			}
			leave[w.rev]++
		}
	}
	for r, k := range leave {
		have := 0
		for _, p := range f.pods {
			if p.rev == r && !p.terminating && !p.ended {
				have++
			}
		}
		size := r.written
		if size < 0 {
			size = r.observed
		}
		// Of those that are there, or are being made, so many are to go.
		desired[r] = min(desired[r], max(0, max(size, have)-k))
	}
}

// outdatedScales are the revisions whose Deployment is not as it should be.
func (f *clusterState) outdatedScales(all bool) []*revisionState {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !all && len(f.dueScales) == 0 {
		return nil
	}
	var out []*revisionState
	now, desired := f.o.now(), f.desired()
	look := func(r *revisionState) {
		if r == nil || r.deployment == "" || r.observed < 0 {
			return
		}
		want := desired[r]
		if r.written < 0 && want < r.observed && now.Sub(r.firstObserved) < adoptDelay {
			return // its pods may not have been made yet: somebody else has scaled it
		}
		switch {
		case r.written >= 0 && r.written != want: // whatever is seen may be what was before
		case r.observed != want && (r.written < 0 || now.Sub(r.writtenAt) > rewriteAfter):
		default:
			return
		}
		out = append(out, r)
	}
	if all {
		for _, r := range f.revisions {
			look(r)
		}
	} else {
		for name := range f.dueScales {
			look(f.revisions[name])
		}
	}
	clear(f.dueScales)
	return out
}

// writeScaleAsLeader is write for steer, which takes the word that somebody else leads for an
// order to send everybody away. Here it is a doubt that passes: either the lease is
// renewed after all, or the reign ends, with ctx, and who waits is held for the next.
func (f *clusterState) writeScaleAsLeader(ctx context.Context, r *revisionState) error {
	for {
		err := f.writeScale(ctx, r)
		if !errors.Is(err, functions.ErrStaleEpoch) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(staleEpochRetry):
		}
	}
}

// staleEpochRetry is how long who may not lead any more waits before it asks again.
const staleEpochRetry = 200 * time.Millisecond

// writeScale brings a revision's Deployment to what it should be.
func (f *clusterState) writeScale(ctx context.Context, r *revisionState) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.mu.Lock()
	want, target := f.desired()[r], r.deployment
	fresh := r.written == want && f.o.now().Sub(r.writtenAt) <= rewriteAfter
	if target == "" || fresh || r.observed == want && (r.written == want || r.written < 0) {
		f.mu.Unlock()
		return nil
	}
	f.mu.Unlock()
	if err := f.o.writer.Scale(ctx, r.name, target, want); err != nil {
		return err
	}
	f.mu.Lock()
	r.written, r.writtenAt = want, f.o.now()
	f.mu.Unlock()
	return nil
}

// adoptDelay is how long the size of a Deployment that somebody else gave it stands
// though its pods are not seen: a new revision's, or that of a controller that has
// just ended.
const adoptDelay = 5 * time.Second

// rewriteAfter is when a scale that was written and is not seen is written again.
const rewriteAfter = 3 * time.Second

// ReplicaCounts is how a revision stands.
func (f *clusterState) ReplicaCounts(name functions.Name) (desired, actual, ready int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.revisions[name]
	if r == nil {
		return 0, 0, 0
	}
	now := f.o.now()
	for _, w := range f.replicas {
		if w.rev != r {
			continue
		}
		if !w.ending {
			desired++
		}
		if w.pod == nil || w.pod.terminating {
			continue
		}
		actual++
		if f.replicaStatus(w, now).State == functions.Ready {
			ready++
		}
	}
	return desired, actual, ready
}

// PodOf is where a replica runs, for its log; false where there is no such pod.
func (f *clusterState) PodOf(replica string) (namespace, name string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.replicas[replica]; w != nil && w.pod != nil {
		return w.pod.namespace, w.pod.name, true
	}
	return "", "", false
}

// bind gives a pod to the replica that it is to be. Under mu.
func (f *clusterState) bind(p *pod) {
	if p.rev == nil || p.replica != nil || p.terminating || p.ended {
		return
	}
	var to *replica
	for _, w := range f.replicas {
		if w.rev != p.rev || w.pod != nil || w.ending {
			continue
		}
		// One that was placed where the pod is; else the oldest.
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
			return // nobody's yet: it is looked at again when it has a node
		}
		to = &replica{id: podLabel(p.name), rev: p.rev, node: p.node, plannedAt: f.o.now()}
		if f.replicas[to.id] != nil {
			return
		}
		to.gpus = f.freeGPUs(p.node, p.gpus)
		f.replicas[to.id] = to
		if len(p.rev.lost) > 0 {
			p.rev.lost = p.rev.lost[1:] // it came in the place of one that went
		}
		f.dueScales[p.rev.name] = true
	}
	to.pod, p.replica = p, to
	f.moveReplica(to)
	f.markNode(to.node)
}

// bindFree gives a new want a pod that is there and nobody's. Under mu.
func (f *clusterState) bindFree(w *replica) {
	for _, p := range f.pods {
		if p.rev == w.rev && p.replica == nil && !p.terminating && !p.ended {
			w.pod, p.replica = p, w
			f.moveReplica(w)
			return
		}
	}
}

// moveReplica moves a replica to the node on which its pod has come to be. Under mu.
// To steer it is another one: what it placed has vanished, and one that it finds
// there it adopts.
func (f *clusterState) moveReplica(w *replica) {
	if w.pod.node == "" || w.pod.node == w.node {
		return
	}
	delete(f.replicas, w.id)
	f.markNode(w.node)
	moved := *w
	moved.id, moved.node = podLabel(w.pod.name), w.pod.node
	moved.gpus = f.freeGPUs(moved.node, max(len(w.gpus), w.pod.gpus))
	f.replicas[moved.id] = &moved
	w.pod.replica = &moved
	f.markNode(moved.node)
}

// freeGPUs are k indices of a node that no replica has. Under mu.
func (f *clusterState) freeGPUs(name string, k int) []int {
	held := map[int]bool{}
	for _, w := range f.replicas {
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

// podLabel makes a pod's name a DNS label, as ids of replicas are.
func podLabel(name string) string {
	if len(name) > 63 {
		name = name[len(name)-63:]
	}
	return strings.TrimLeft(strings.ReplaceAll(name, ".", "-"), "-")
}
