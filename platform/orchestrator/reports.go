package orchestrator

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/metrics"
	"github.com/thaw-dev/thaw/platform/placement/rooms"
)

// ColdStart finds a cold start by its id; the last 1,000 are kept.
func (o *Orchestrator) ColdStart(id string) (functions.Timeline, bool) {
	o.loop.Lock()
	defer o.loop.Unlock()
	c := o.loop.coldStarts.find(id)
	if c == nil {
		return functions.Timeline{}, false
	}
	return c.At(o.loop.now()), true
}

// ColdStarts returns cold starts, the newest first, at most limit (0: all kept ones).
func (o *Orchestrator) ColdStarts(limit int) []functions.Timeline {
	o.loop.Lock()
	defer o.loop.Unlock()
	return o.loop.coldStarts.newest(limit, o.loop.now())
}

// Replicas returns all replicas, sorted by function and id.
func (o *Orchestrator) Replicas() []functions.Replica {
	o.loop.Lock()
	defer o.loop.Unlock()
	out := make([]functions.Replica, 0, len(o.loop.replicas))
	for _, r := range o.loop.replicas {
		v := functions.Replica{
			ID: r.ID, Function: r.function.Name.String(), Node: r.Node, State: r.status.State, Tier: r.status.Tier,
			Endpoint: r.status.Endpoint, GPUs: r.GPUs, GPUMemory: cmp.Or(r.status.GPUMemory, r.Reserved.GPUMemory), Memory: r.Reserved.Memory,
			Bytes: r.status.Bytes, Total: r.status.TotalBytes, Error: r.status.Error,
			Start: r.status.Start, StartNote: r.status.StartNote, SleepLevel: r.status.SleepLevel, Unprobed: r.isUnprobed(),
			QueueLength: r.status.QueueLength, KVCacheHitRate: r.status.KVCacheHitRate, Adapters: r.status.Adapters, Notes: r.status.AdapterNotes,
			Since: o.loop.wallTime(r.requestedAt),
		}
		if p := r.status.Percent; p >= 0 && !v.State.Over() && v.State != functions.Ready {
			v.Percent = &p
		}
		if n := o.loop.nodes[r.Node]; n != nil && r.seen {
			v.Since = n.heardAt.Add(-time.Duration(max(0, min(r.status.Since, 1e12))) * time.Millisecond)
		}
		if r.Stopping && !v.State.Over() {
			v.State = functions.Draining
		}
		if end := o.loop.policy.IdleEnd(&r.function.Function, r.ReadyAt); end > 0 && r.serves() {
			v.IdleEnd = o.loop.wallTime(end)
		}
		if r.ReadyAt > 0 {
			v.InFlight = o.inbox.inFlightOf(r.function, r.ID)
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b functions.Replica) int {
		return cmp.Or(cmp.Compare(a.Function, b.Function), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Nodes returns the connected nodes, sorted by id.
func (o *Orchestrator) Nodes() []functions.Node {
	o.loop.Lock()
	defer o.loop.Unlock()
	out := make([]functions.Node, 0, len(o.loop.nodes))
	for _, n := range o.loop.nodes {
		hb := &n.last
		out = append(out, functions.Node{
			ID: n.id, State: hb.State, Lost: !n.Here && o.loop.now()-n.Seen > o.loop.policy.Lease/2, Seen: n.heardAt, Version: hb.Version,
			URL: hb.URL, GPUs: hb.GPUs, Memory: hb.Memory, Store: hb.Store, Replicas: len(hb.Models), Cached: hb.Cached, Warm: hb.Warm,
		})
	}
	slices.SortFunc(out, func(a, b functions.Node) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Packing returns a function that reports whether a replica of a model fits onto the nodes
// beside those of the models that it was called for before, without all others.
func (o *Orchestrator) Packing() func(functions.Name) bool {
	o.loop.Lock()
	defer o.loop.Unlock()
	nodes := slices.SortedFunc(maps.Values(o.loop.nodes), func(a, b *nodeState) int { return cmp.Compare(a.id, b.id) })
	var packing rooms.Packing
	for _, n := range nodes {
		if n.Here || o.loop.now()-n.Seen <= o.loop.policy.Lease {
			packing = append(packing, n.Room())
		}
	}
	return func(name functions.Name) bool {
		o.loop.Lock()
		defer o.loop.Unlock()
		f := o.loop.functions[name]
		return f == nil || len(packing) == 0 || packing.Place(f.Resources)
	}
}

// Function returns the snapshot of a function as published, false if the catalogue has
// none of that name.
func (o *Orchestrator) Function(name functions.Name) (snapshot.Snapshot, bool) {
	o.loop.Lock()
	defer o.loop.Unlock()
	f := o.loop.functions[name.WithoutAdapter()]
	if f == nil || f.Gone {
		return snapshot.Snapshot{}, false
	}
	return o.loop.publisher.snapshotOf(f), true
}

// Changes returns a channel that receives after snapshots were published, once for
// changes in quick succession. It is closed when ctx ends.
func (o *Orchestrator) Changes(ctx context.Context) <-chan struct{} {
	return o.loop.publisher.changes.Add(ctx, 1)
}

// NodeOf returns the Node of a replica; nil for an unknown replica.
func (o *Orchestrator) NodeOf(replica string) Node { return o.loop.adapters.nodeOf(replica) }

// Samples yields the counters and the current state.
func (o *Orchestrator) Samples(yield func(metric string, value float64, labels ...string)) {
	o.loop.counts.Each(yield)
	type state struct {
		name functions.Name
		word string
	}
	o.loop.Lock() // yielded without it: the reader may be slow
	states := make([]state, 0, len(o.loop.functions))
	for name, f := range o.loop.functions {
		if !f.Gone {
			states = append(states, state{name, f.state().Word()})
		}
	}
	o.loop.Unlock()
	for _, x := range states {
		yield("thaw_model_state", 1, x.name.Name, x.name.Team, x.word)
	}
	o.loop.teams.sample(yield)
	for _, n := range o.Nodes() {
		metrics.SampleNode(n, yield)
	}
}
