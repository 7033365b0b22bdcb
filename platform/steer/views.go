package steer

import (
	"cmp"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

// Replica is a replica as the control API lists it.
type Replica struct {
	ID       string          `json:"id"`
	Function string          `json:"function"`
	Node     string          `json:"node"`
	State    functions.State `json:"state"`
	Tier     functions.Tier  `json:"tier,omitempty"`
	Endpoint string          `json:"endpoint,omitempty"`
	Since    time.Time       `json:"since"`
	InFlight int             `json:"in_flight"`
	GPUs     []int           `json:"gpus,omitempty"`
	Stopping bool            `json:"stopping,omitempty"`

	Name functions.Name `json:"-"`
}

// NodeView is a node as the control API lists it: its last heartbeat and when
// that was heard.
type NodeView struct {
	functions.Heartbeat
	Seen time.Time `json:"seen"`
}

// ColdStart finds a cold start by its id; the last 1,000 are kept.
func (s *Steer) ColdStart(id string) (functions.Timeline, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.colds.byID[id]
	if c == nil {
		return functions.Timeline{}, false
	}
	return s.timeline(c), true
}

// ColdStarts are the newest first, at most limit (0: all that are kept).
func (s *Steer) ColdStarts(limit int) []functions.Timeline {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit <= 0 || limit > keepColdStarts {
		limit = keepColdStarts
	}
	var out []functions.Timeline
	for i := len(s.colds.ring) - 1; i >= 0 && len(out) < limit; i-- {
		out = append(out, s.timeline(s.colds.ring[i]))
	}
	return out
}

// Replicas are all there are, by function and id.
func (s *Steer) Replicas() []Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Replica, 0, len(s.reps))
	for _, r := range s.reps {
		v := Replica{
			ID: r.id, Function: r.fn.Name.String(), Name: r.fn.Name, Node: r.node, State: r.status.State, Tier: r.status.Tier,
			Endpoint: r.status.Endpoint, GPUs: r.gpus, Stopping: r.stopping,
			Since: s.began.Add(r.asked),
		}
		if n := s.nodes[r.node]; n != nil && r.seen {
			v.Since = n.at.Add(-time.Duration(r.status.Since) * time.Millisecond)
		}
		if r.stopping && !v.State.Over() {
			v.State = functions.Draining
		}
		if r.readyAt > 0 {
			v.InFlight = s.path.InFlight(r.id)
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(a.Function, b.Function), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Nodes are those connected, by id.
func (s *Steer) Nodes() []NodeView {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]NodeView, 0, len(s.nodes))
	for _, n := range s.nodes {
		out = append(out, NodeView{Heartbeat: n.hb, Seen: n.at})
	}
	slices.SortFunc(out, func(a, b NodeView) int { return cmp.Compare(a.AgentID, b.AgentID) })
	return out
}

// Epoch of this life of the server.
func (s *Steer) Epoch() int64 { return s.epoch }
