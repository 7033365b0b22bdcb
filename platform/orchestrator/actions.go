package orchestrator

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/placement"
)

// reasonUser marks replicas stopped by `thaw stop`.
const reasonUser = "asked"

// stopFunction stops all replicas of a function for a user.
func (o *Orchestrator) stopFunction(name functions.Name, now placement.Instant) {
	f := o.functions[name]
	if f == nil {
		return
	}
	f.wakeLease, f.userLease, f.untilReady = 0, 0, false
	o.enqueue(f)
	for _, r := range f.replicas {
		if !r.stopping {
			o.stopReplica(r, f.Drain, reasonUser, "", now)
		}
	}
}

// stopReplica takes r out of the routes; it is unloaded when drained.
func (o *Orchestrator) stopReplica(r *replicaState, drain time.Duration, reason, whom string, now placement.Instant) {
	r.stopping, r.reason = true, reason
	r.drainEnd = now + drain
	o.draining.Add(r)
	o.markChanged(r.function)
	o.replicaEvent("stop", r, reason, whom)
	o.counts.add("thaw_evictions_total", 1, reason)
}

// perform executes one action of a plan.
func (o *Orchestrator) perform(ctx context.Context, a *placement.Action, now placement.Instant) {
	switch a.Kind {
	case placement.Start:
		o.startReplica(ctx, a, now)
		if f := o.functions[a.Function]; f != nil {
			o.teams.recordRestart(f, now)
		}
	case placement.Stop:
		if r := o.replicas[a.Replica]; r != nil && !r.stopping {
			o.teams.recordEviction(a, now)
			o.stopReplica(r, a.Drain, a.Reason, a.For, now)
		}
	case placement.Sleep:
		if r := o.replicas[a.Replica]; r != nil && !r.stopping {
			o.teams.recordEviction(a, now)
			o.beginSleep(r, a, now)
		}
	case placement.WakeUp:
		o.wakeUp(ctx, a, now)
		if f := o.functions[a.Function]; f != nil {
			o.teams.recordRestart(f, now)
		}
	case placement.CancelStart:
		r := o.replicas[a.Replica]
		n := o.nodes[a.Node]
		if r == nil || n == nil {
			return
		}
		r.cancelled, r.reason = true, a.Reason
		o.markChanged(r.function)
		o.event("start_cancelled", r.function.Name, r.id, r.node, a.Reason, "")
		o.commands.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: functions.ReasonCalledOff})
	case placement.MarkNodeLost:
		n := o.nodes[a.Node]
		if n == nil {
			return
		}
		o.dropNode(n)
		if n.last.URL != "" {
			o.lostAgents = append(o.lostAgents, n.last.URL)
		}
		if o.superseded {
			o.updateSuperseded()
		}
		o.event("node_lost", functions.Name{}, "", a.Node, a.Reason, "")
		for _, r := range n.replicas {
			o.removeReplica(r, "node_lost")
		}
	}
}

// startReplica registers a new replica and sends its load.
func (o *Orchestrator) startReplica(ctx context.Context, a *placement.Action, now placement.Instant) {
	f, n := o.functions[a.Function], o.nodes[a.Node]
	if f == nil || n == nil {
		return
	}
	r := &replicaState{id: o.newID(f.Name.Name), function: f, node: n.id, cause: a.Reason, specHash: f.specHash, reserved: f.Resources, gpus: a.GPUs, requestedAt: now}
	r.status = functions.ReplicaStatus{ID: r.id, Team: f.Name.Team, Model: f.Name.Name, State: functions.Downloading, Percent: -1}
	c := f.coldStart
	if c == nil || c.over {
		if zero := !slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.readyAt > 0 && !r.stopping }); zero {
			c = o.coldStarts.begin(f, "", o.timeNow())
		} else { // a further replica: Wake does not return its cold start
			c = o.coldStarts.beginExtra(f)
		}
	} else if c.replica != nil {
		c = o.coldStarts.beginExtra(f)
	}
	c.decided, c.replica, c.Node = now, r, n.id
	c.Tier = functions.TierRemote
	if t, ok := n.Tiers[f.Source]; ok {
		c.Tier = t
	} else if f.Machine != "" && f.Machine == n.Machine || f.Source == "" || n.Cached[f.Source] {
		c.Tier = functions.TierNVMe
	}
	r.coldStart = c
	o.addReplica(r, n)
	f.failure, f.RetryOn = nil, ""
	o.markChanged(f)
	o.event("start", f.Name, r.id, r.node, a.Reason, "")
	dir := f.model.Dir
	if n.Borrows && n.Machine != o.machine {
		// A path in the model file is a path of this machine.
		dir = loader.PeerLocation(o.here, cmp.Or(dir, "/"))
	}
	o.commands.load(ctx, n, functions.LoadRequest{
		ID: r.id, Team: f.Name.Team, Model: f.Name.Name, Spec: f.model.Spec, Dir: dir, GPUs: a.GPUs,
	})
}

// unloadDrained unloads stopping replicas that have no requests in flight or whose
// drain time is over. It reports whether it must run again soon.
func (o *Orchestrator) unloadDrained(ctx context.Context, now placement.Instant) (again bool) {
	for _, r := range o.draining.List {
		if r.unloading {
			continue
		}
		if o.path.InFlightOf(r.function.Name, r.id) > 0 && now < r.drainEnd {
			again = true
			continue
		}
		n := o.nodes[r.node]
		if !o.mayCommand(n) {
			continue
		}
		r.unloading = true
		o.commands.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: r.reason, DrainSeconds: max(0, (r.drainEnd - now).Seconds())})
	}
	return again
}
