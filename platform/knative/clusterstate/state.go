package clusterstate

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/platform/controlstream"
	"github.com/thaw-dev/thaw/platform/orchestrator"
)

// Writer changes Deployments and pods. Calls are bounded by ctx and may be made
// concurrently.
type Writer interface {
	// Scale sets the number of pods of a revision's Deployment.
	Scale(ctx context.Context, revision functions.Name, deployment string, replicas int) error
	// DeleteFirst makes a pod the first that is deleted when its Deployment is scaled
	// down.
	DeleteFirst(ctx context.Context, namespace, pod string) error
	// ForceDelete queues the removal of a terminating pod whose engine has already exited,
	// and returns at once.
	ForceDelete(namespace, pod string, uid types.UID)
}

// State holds the nodes of the cluster as nodes of the orchestrator, and pods as
// its replicas. Informers and loaders report to it, and it sends heartbeats to the
// orchestrator; the orchestrator's Load and Unload become scales of Deployments. One mutex
// guards it; no callback is called under it.
type State struct {
	o Options

	probes *prober
	due    *dueWork // wakes Run

	mu          sync.Mutex
	nodes       map[string]*node
	bindings    bindings
	revisions   map[functions.Name]*revisionState
	constraints map[string]*podConstraints // by what pods require of a node
}

// Options are what a State reports to and how it changes the cluster.
type Options struct {
	Epoch         int64
	Life          string // unique to this controller's term
	SendHeartbeat func(functions.Heartbeat, orchestrator.Node)
	Send          func(node string, d controlstream.Update) bool
	Writer        Writer
	Log           *slog.Logger
	Now           func() time.Time
	Changed       func(functions.Name)
}

// revisionState is one revision of class thaw.dev.
type revisionState struct {
	name       functions.Name
	deployment string
	shim       bool
	written    int // spec.replicas as last written; -1: never
	writtenAt  time.Time
	observed   int // spec.replicas as last observed; -1: never
	// When pods were deleted by others. The Deployment replaces them, or their room is
	// released after replacementWait.
	lost          []time.Time
	firstObserved time.Time // when its Deployment was first observed
	refusal       string    // why its Deployment creates no pods
	refusedAt     time.Time
	mu            sync.Mutex // held while the scale is written
	constraints   *podConstraints
}

// podConstraints is what revisions require of a node besides room, and their number.
type podConstraints struct {
	requires  string
	pod       functions.Pod
	revisions int
}

// replica is one replica that the orchestrator started or adopted.
type replica struct {
	id         string
	rev        *revisionState
	node       string
	gpus       []int
	pod        *pod
	plannedAt  time.Time
	ending     bool
	noLoader   bool                    // no loader of its node has reported yet
	published  bool                    // it was READY in a published snapshot
	lastStatus functions.ReplicaStatus // as last reported; dates the change of state
	stateSince time.Time               // when lastStatus.State began
}

// New makes an empty state.
func New(o Options) *State {
	due := &dueWork{nodes: map[string]bool{}, scales: map[functions.Name]bool{}, wakeup: newest.NewSignal()}
	s := &State{
		o: o, due: due, bindings: bindings{now: o.Now, pods: podSet{}, replicas: map[string]*replica{}, due: due},
		nodes: map[string]*node{}, revisions: map[functions.Name]*revisionState{}, constraints: map[string]*podConstraints{},
	}
	s.probes = newProber(s.onProbeSuccess, s.needsProbe)
	return s
}

// Run sends heartbeats, writes scales and probes pods without the shim until ctx ends.
func (s *State) Run(ctx context.Context) error {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { s.probes.run(ctx) })
	for {
		all := false
		select {
		case <-ctx.Done():
			return nil
		case <-s.due.wakeup:
		case <-t.C:
			all = true
		}
		s.SendHeartbeats(all)
		for _, r := range s.outdatedScales(all) {
			writing.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
				defer cancel()
				if err := s.writeScale(ctx, r); err != nil && ctx.Err() == nil {
					s.o.Log.Warn("cannot write a scale", "revision", r.name.String(), "error", err)
				}
			})
		}
	}
}

func (s *State) SetRevision(name functions.Name, target string, shim bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.revisions[name]
	if r == nil {
		r = &revisionState{name: name, written: -1, observed: -1}
		s.revisions[name] = r
		for _, p := range s.bindings.pods {
			if p.revisionName == name && p.rev == nil {
				p.rev = r
				s.bindings.bind(p)
			}
		}
	}
	r.deployment, r.shim = target, shim
}

// Require sets what the pods of a revision require of a node.
func (s *State) Require(name functions.Name, pod functions.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, requires := s.revisions[name], pod.Requires()
	if r == nil || r.constraints != nil && r.constraints.requires == requires {
		return
	}
	s.dropConstraints(r)
	k := s.constraints[requires]
	if k == nil {
		k = &podConstraints{requires: requires, pod: pod}
		s.constraints[requires] = k
		for node := range s.nodes {
			s.due.markNode(node) // each node reports anew whether it satisfies them
		}
	}
	k.revisions++
	r.constraints = k
}

// dropConstraints releases the constraints of a revision. mu must be held.
func (s *State) dropConstraints(r *revisionState) {
	if k := r.constraints; k != nil {
		r.constraints = nil
		if k.revisions--; k.revisions == 0 {
			delete(s.constraints, k.requires)
		}
	}
}

// DropRevision removes a revision. Kubernetes deletes its pods; until then they occupy
// their nodes.
func (s *State) DropRevision(name functions.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.revisions[name]
	if r == nil {
		return
	}
	delete(s.revisions, name)
	s.dropConstraints(r)
	for id, w := range s.bindings.replicas {
		if w.rev == r && w.pod == nil {
			delete(s.bindings.replicas, id)
			s.due.markNode(w.node)
		}
	}
}

// SetDeployment records the size of a revision's Deployment, and why it cannot create pods
// ("" if it can).
func (s *State) SetDeployment(name functions.Name, replicas int, refuse string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.revisions[name]
	if r == nil {
		return
	}
	if refuse != r.refusal {
		r.refusal, r.refusedAt = refuse, s.o.Now()
		for _, w := range s.bindings.replicas {
			if w.rev == r {
				s.due.markNode(w.node)
			}
		}
	}
	if r.firstObserved.IsZero() {
		r.firstObserved = s.o.Now()
	}
	if r.observed != replicas {
		r.observed = replicas
		s.due.scales[name] = true
		s.due.wakeup.Set()
	}
}

// AllPodsReported reports whether every running pod with the shim has reported its status.
func (s *State) AllPodsReported() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.bindings.pods {
		if p.rev != nil && p.rev.shim && p.running && p.active() && p.reported == nil {
			return false
		}
	}
	return true
}
