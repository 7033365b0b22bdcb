package control

import (
	"context"
	"log/slog"
	"sync"
	"time"

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
	send          func(node string, d controlstream.Update) bool
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
