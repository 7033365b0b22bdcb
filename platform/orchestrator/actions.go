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
func (s *Orchestrator) stopFunction(name functions.Name, now placement.Instant) {
	f := s.functions[name]
	if f == nil {
		return
	}
	f.wakeLease, f.userLease, f.untilReady = 0, 0, false
	s.enqueue(f)
	for _, r := range f.replicas {
		if !r.stopping {
			s.stopReplica(r, f.Drain, reasonUser, "", now)
		}
	}
}

// stopReplica takes r out of the routes; it is unloaded when drained.
func (s *Orchestrator) stopReplica(r *replicaState, drain time.Duration, reason, whom string, now placement.Instant) {
	r.stopping, r.reason = true, reason
	r.drainEnd = now + drain
	s.draining.Add(r)
	s.markDirty(r.function)
	s.replicaEvent("stop", r, reason, whom)
	s.counts.add("thaw_evictions_total", 1, reason)
}

// perform executes one action of a plan.
func (s *Orchestrator) perform(ctx context.Context, a *placement.Action, now placement.Instant) {
	switch a.Kind {
	case placement.Start:
		s.startReplica(ctx, a, now)
		if f := s.functions[a.Function]; f != nil {
			s.teams.recordRestart(f, now)
		}
	case placement.Stop:
		if r := s.replicas[a.Replica]; r != nil && !r.stopping {
			s.teams.recordEviction(a, now)
			s.stopReplica(r, a.Drain, a.Reason, a.For, now)
		}
	case placement.Sleep:
		if r := s.replicas[a.Replica]; r != nil && !r.stopping {
			s.teams.recordEviction(a, now)
			s.beginSleep(r, a, now)
		}
	case placement.WakeUp:
		s.wakeUp(ctx, a, now)
		if f := s.functions[a.Function]; f != nil {
			s.teams.recordRestart(f, now)
		}
	case placement.CancelStart:
		r := s.replicas[a.Replica]
		n := s.nodes[a.Node]
		if r == nil || n == nil {
			return
		}
		r.cancelled, r.reason = true, a.Reason
		s.markDirty(r.function)
		s.event("call_off", r.function.Name, r.id, r.node, a.Reason, "")
		s.commands.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: functions.ReasonCalledOff})
	case placement.MarkNodeLost:
		n := s.nodes[a.Node]
		if n == nil {
			return
		}
		s.dropNode(n)
		if n.last.URL != "" {
			s.lostAgents = append(s.lostAgents, n.last.URL)
		}
		if s.superseded {
			s.updateSuperseded()
		}
		s.event("node_lost", functions.Name{}, "", a.Node, a.Reason, "")
		for _, r := range n.replicas {
			s.removeReplica(r, "node_lost")
		}
	}
}

// startReplica registers a new replica and sends its load.
func (s *Orchestrator) startReplica(ctx context.Context, a *placement.Action, now placement.Instant) {
	f, n := s.functions[a.Function], s.nodes[a.Node]
	if f == nil || n == nil {
		return
	}
	r := &replicaState{id: s.newID(f.Name.Name), function: f, node: n.id, cause: a.Reason, recipe: f.recipe, reserved: f.Resources, gpus: a.GPUs, requestedAt: now}
	r.status = functions.ReplicaStatus{ID: r.id, Team: f.Name.Team, Model: f.Name.Name, State: functions.Downloading, Percent: -1}
	c := f.coldStart
	if c == nil || c.over {
		if zero := !slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.readyAt > 0 && !r.stopping }); zero {
			c = s.coldStarts.begin(f, "", s.timeNow())
		} else { // a further replica: Wake does not return its cold start
			c = s.coldStarts.beginExtra(f)
		}
	} else if c.replica != nil {
		c = s.coldStarts.beginExtra(f)
	}
	c.decided, c.replica, c.Node = now, r, n.id
	c.Tier = functions.TierRemote
	if t, ok := n.Tiers[f.Source]; ok {
		c.Tier = t
	} else if f.Machine != "" && f.Machine == n.Machine || f.Source == "" || n.Cached[f.Source] {
		c.Tier = functions.TierNVMe
	}
	r.coldStart = c
	s.addReplica(r, n)
	f.failure, f.RetryOn = nil, ""
	s.markDirty(f)
	s.event("start", f.Name, r.id, r.node, a.Reason, "")
	dir := f.model.Dir
	if n.Borrows && n.Machine != s.machine {
		// A path in the model file is a path of this machine.
		dir = loader.PeerLocation(s.here, cmp.Or(dir, "/"))
	}
	s.commands.load(ctx, n, functions.LoadRequest{
		ID: r.id, Team: f.Name.Team, Model: f.Name.Name, Spec: f.model.Spec, Dir: dir, GPUs: a.GPUs,
	})
}

// unloadDrained unloads stopping replicas that have no requests in flight or whose
// drain time is over. It reports whether it must run again soon.
func (s *Orchestrator) unloadDrained(ctx context.Context, now placement.Instant) (again bool) {
	for _, r := range s.draining.List {
		if r.unloading {
			continue
		}
		if s.path.InFlightOf(r.function.Name, r.id) > 0 && now < r.drainEnd {
			again = true
			continue
		}
		n := s.nodes[r.node]
		if !s.mayCommand(n) {
			continue
		}
		r.unloading = true
		s.commands.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: r.reason, DrainSeconds: max(0, (r.drainEnd - now).Seconds())})
	}
	return again
}
