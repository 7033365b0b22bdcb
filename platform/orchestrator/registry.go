package orchestrator

import (
	"slices"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/orderedset"
	"github.com/thaw-dev/thaw/platform/placement"
)

// registry holds the functions, nodes and replicas, and which of them changed since the
// planner and the data path last got them.
type registry struct {
	checkpoints
	planner      *placement.Planner
	functions    map[functions.Name]*functionState
	functionList []*functionState // in the order in which the catalogue first listed them
	nodes        map[string]*nodeState
	nodeList     []*nodeState // the node of this process first, the others by id
	replicas     map[string]*replicaState

	busyFunctions orderedset.Set[*functionState] // functions that had demand in the last turn

	pending      []*functionState // functions with changes for the planner
	sparePending []*functionState // buffer for pending
	unpublished  []*functionState // functions with changed snapshots
}

func newRegistry(p placement.Policy) registry {
	return registry{
		planner: p.Planner(), checkpoints: checkpoints{copies: map[string]int{}, sizes: map[string]functions.Bytes{}, maxSizes: 1000},
		functions: map[functions.Name]*functionState{}, nodes: map[string]*nodeState{}, replicas: map[string]*replicaState{},
	}
}

// enqueue marks f as changed for the planner.
func (r *registry) enqueue(f *functionState) {
	if !f.enqueued {
		f.enqueued = true
		r.pending = append(r.pending, f)
	}
}

// markUnpublished marks f's snapshot as changed, in fields that the planner does not
// read.
func (r *registry) markUnpublished(f *functionState) {
	if !f.toPublish {
		f.toPublish = true
		r.unpublished = append(r.unpublished, f)
	}
}

// markChanged marks f as changed for the planner and the data path.
func (r *registry) markChanged(f *functionState) {
	r.enqueue(f)
	r.markUnpublished(f)
}

func (r *registry) addNode(n *nodeState) {
	r.nodes[n.id] = n
	r.nodeList = append(r.nodeList, n)
	slices.SortFunc(r.nodeList, func(a, b *nodeState) int { return placement.CompareNodes(a.Node, b.Node) })
}

// dropNode removes a node and its cached sources, but not its replicas.
func (r *registry) dropNode(n *nodeState) {
	delete(r.nodes, n.id)
	r.nodeList = slices.DeleteFunc(r.nodeList, func(x *nodeState) bool { return x == n })
	r.planner.DropNode(n.id)
	r.dropAllCachedSources(n)
}

func (r *registry) addReplica(replica *replicaState, n *nodeState) {
	r.replicas[replica.ID] = replica
	replica.function.replicas = append(replica.function.replicas, replica)
	n.replicas = append(n.replicas, replica)
}

func (r *registry) dropReplica(replica *replicaState) {
	delete(r.replicas, replica.ID)
	replica.forgotten = true
	if n := r.nodes[replica.Node]; n != nil {
		n.replicas = slices.DeleteFunc(n.replicas, func(x *replicaState) bool { return x == replica })
	}
	replica.function.replicas = slices.DeleteFunc(replica.function.replicas, func(x *replicaState) bool { return x == replica })
	r.markChanged(replica.function)
}

// matchReplicas returns the replicas that a heartbeat lists, nil for one not known on
// that node. The result is valid until the next heartbeat. Agents sort their replicas,
// so most are found in the order of the last heartbeat.
func (r *registry) matchReplicas(n *nodeState, hb *functions.Heartbeat) []*replicaState {
	last, ours := n.matched, n.spareMatched[:0]
	for i := range hb.Models {
		id := hb.Models[i].ID
		for len(last) > 0 && (last[0] == nil || last[0].ID < id) {
			last = last[1:]
		}
		var replica *replicaState
		if len(last) > 0 && last[0].ID == id && !last[0].forgotten {
			replica = last[0]
		} else if replica = r.replicas[id]; replica != nil && replica.Node != n.id {
			replica = nil
		}
		if replica != nil {
			replica.matched = n.matches
		}
		ours = append(ours, replica)
	}
	n.matched, n.spareMatched = ours, n.matched
	return ours
}
