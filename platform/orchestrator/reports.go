package orchestrator

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// ColdStart finds a cold start by its id; the last 1,000 are kept.
func (s *Orchestrator) ColdStart(id string) (functions.Timeline, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.coldStarts.byID[id]
	if c == nil {
		return functions.Timeline{}, false
	}
	return c.timeline(s.now()), true
}

// ColdStarts returns cold starts, the newest first, at most limit (0: all kept ones).
func (s *Orchestrator) ColdStarts(limit int) []functions.Timeline {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit <= 0 || limit > keepColdStarts {
		limit = keepColdStarts
	}
	var out []functions.Timeline
	for i := len(s.coldStarts.ring) - 1; i >= 0 && len(out) < limit; i-- {
		out = append(out, s.coldStarts.ring[i].timeline(s.now()))
	}
	return out
}

// Replicas returns all replicas, sorted by function and id.
func (s *Orchestrator) Replicas() []functions.Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]functions.Replica, 0, len(s.replicas))
	for _, r := range s.replicas {
		v := functions.Replica{
			ID: r.id, Function: r.function.Name.String(), Node: r.node, State: r.status.State, Tier: r.status.Tier,
			Endpoint: r.status.Endpoint, GPUs: r.gpus, GPUMemory: cmp.Or(r.status.GPUMemory, r.reserved.GPUMemory), Memory: r.reserved.Memory, Bytes: r.status.Bytes, Total: r.status.TotalBytes, Error: r.status.Error,
			Start: r.status.Start, StartNote: r.status.StartNote, SleepLevel: r.status.SleepLevel, Unprobed: r.isUnprobed(), QueueLength: r.status.QueueLength, KVCacheHitRate: r.status.KVCacheHitRate, Adapters: r.status.Adapters, Notes: r.status.AdapterNotes,
			Since: s.wallTime(r.requestedAt),
		}
		if p := r.status.Percent; p >= 0 && !v.State.Over() && v.State != functions.Ready {
			v.Percent = &p
		}
		if n := s.nodes[r.node]; n != nil && r.seen {
			v.Since = n.heardAt.Add(-time.Duration(max(0, min(r.status.Since, 1e12))) * time.Millisecond)
		}
		if r.stopping && !v.State.Over() {
			v.State = functions.Draining
		}
		if end := s.policy.IdleEnd(&r.function.Function, r.readyAt); end > 0 && r.serves() {
			v.IdleEnd = s.wallTime(end)
		}
		if r.readyAt > 0 {
			v.InFlight = s.path.InFlightOf(r.function.Name, r.id)
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b functions.Replica) int {
		return cmp.Or(cmp.Compare(a.Function, b.Function), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Nodes returns the connected nodes, sorted by id.
func (s *Orchestrator) Nodes() []functions.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]functions.Node, 0, len(s.nodes))
	for _, n := range s.nodes {
		hb := &n.last
		out = append(out, functions.Node{
			ID: n.id, State: hb.State, Lost: !n.Here && s.now()-n.Seen > s.policy.Lease/2, Seen: n.heardAt, Version: hb.Version, URL: hb.URL,
			GPUs: hb.GPUs, Memory: hb.Memory, Store: hb.Store, Replicas: len(hb.Models), Cached: hb.Cached, Warm: hb.Warm,
		})
	}
	slices.SortFunc(out, func(a, b functions.Node) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Function returns the snapshot of a function as published, false if the catalogue has
// none of that name.
func (s *Orchestrator) Function(name functions.Name) (snapshot.Snapshot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.functions[name.WithoutAdapter()]
	if f == nil || f.Gone {
		return snapshot.Snapshot{}, false
	}
	return s.snapshotOf(f), true
}

// NodeOf returns the Node of a replica; nil for an unknown replica.
func (s *Orchestrator) NodeOf(replica string) Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.replicas[replica]; r != nil {
		if n := s.nodes[r.node]; n != nil {
			return n.commands
		}
	}
	return nil
}

// Changes returns a channel that receives after snapshots were published, once for
// changes in quick succession. It is closed when ctx ends.
func (s *Orchestrator) Changes(ctx context.Context) <-chan struct{} { return s.changes.add(ctx, 1) }
