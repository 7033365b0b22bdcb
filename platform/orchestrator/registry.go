package orchestrator

import (
	"cmp"
	"slices"

	"github.com/thaw-dev/thaw/functions"
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

	pending      []*functionState // functions with changes for the planner
	sparePending []*functionState // buffer for pending
	dirty        []*functionState // functions with changed snapshots
}

func newRegistry(p placement.Policy) registry {
	return registry{
		planner: p.Planner(), checkpoints: checkpoints{copies: map[string]int{}, maxSizes: 1000},
		functions: map[functions.Name]*functionState{}, nodes: map[string]*nodeState{}, replicas: map[string]*replicaState{},
	}
}

// enqueue marks f as changed for the planner.
func (g *registry) enqueue(f *functionState) {
	if !f.enqueued {
		f.enqueued = true
		g.pending = append(g.pending, f)
	}
}

// markForPublish marks f's snapshot as changed, in fields that the planner does not
// read.
func (g *registry) markForPublish(f *functionState) {
	if !f.toPublish {
		f.toPublish = true
		g.dirty = append(g.dirty, f)
	}
}

// markDirty marks f as changed for the planner and the data path.
func (g *registry) markDirty(f *functionState) {
	g.enqueue(f)
	g.markForPublish(f)
}

func (g *registry) addNode(n *nodeState) {
	g.nodes[n.id] = n
	g.nodeList = append(g.nodeList, n)
	slices.SortFunc(g.nodeList, func(a, b *nodeState) int {
		if a.Here != b.Here {
			if a.Here {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.ID, b.ID)
	})
}

// dropNode removes a node and its cached sources, but not its replicas.
func (g *registry) dropNode(n *nodeState) {
	delete(g.nodes, n.id)
	g.nodeList = slices.DeleteFunc(g.nodeList, func(x *nodeState) bool { return x == n })
	g.planner.DropNode(n.id)
	g.dropAllCachedSources(n)
}

func (g *registry) addReplica(r *replicaState, n *nodeState) {
	g.replicas[r.id] = r
	r.function.replicas = append(r.function.replicas, r)
	n.replicas = append(n.replicas, r)
}

func (g *registry) dropReplica(r *replicaState) {
	delete(g.replicas, r.id)
	r.forgotten = true
	if n := g.nodes[r.node]; n != nil {
		n.replicas = slices.DeleteFunc(n.replicas, func(x *replicaState) bool { return x == r })
	}
	r.function.replicas = slices.DeleteFunc(r.function.replicas, func(x *replicaState) bool { return x == r })
	g.markDirty(r.function)
}

// matchReplicas returns the replicas that a heartbeat lists, nil for one not known on
// that node. The result is valid until the next heartbeat. Agents sort their replicas,
// so most are found in the order of the last heartbeat.
func (g *registry) matchReplicas(n *nodeState, hb *functions.Heartbeat) []*replicaState {
	last, ours := n.matched, n.spareMatched[:0]
	for i := range hb.Models {
		id := hb.Models[i].ID
		for len(last) > 0 && (last[0] == nil || last[0].id < id) {
			last = last[1:]
		}
		var r *replicaState
		if len(last) > 0 && last[0].id == id && !last[0].forgotten {
			r = last[0]
		} else if r = g.replicas[id]; r != nil && r.node != n.id {
			r = nil
		}
		if r != nil {
			r.matched = n.matches
		}
		ours = append(ours, r)
	}
	n.matched, n.spareMatched = ours, n.matched
	return ours
}
