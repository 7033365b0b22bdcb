package orchestrator

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/newest"
	"github.com/thaw-dev/thaw/functions/orderedset"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/autoscale"
	"github.com/thaw-dev/thaw/platform/placement"
)

// lifecycle starts and stops replicas, and follows them to their end.
type lifecycle struct {
	*world
	commands   *commander
	publisher  *publisher
	leadership *leadership
	sleeping   *sleeping
	coldStarts *coldStartLog
	autoscale  autoscale.Settings
	machine    string
	here       string
	newID      func(prefix string) string

	orphans       map[string]placement.Instant // unknown replicas, by the time of their first heartbeat
	draining      orderedset.Set[*replicaState]
	unloadRetries orderedset.Set[*replicaState] // replicas whose unload is repeated
}

// stopFunction stops all replicas of a function for a user.
func (l *lifecycle) stopFunction(f *functionState, now placement.Instant) {
	f.wakeLease, f.userLease, f.untilReady = 0, 0, false
	l.enqueue(f)
	for _, r := range f.replicas {
		if !r.Stopping {
			l.stopReplica(r, f.Drain, reasonUser, "", now)
		}
	}
}

// stopReplica takes r out of the routes; it is unloaded when drained.
func (l *lifecycle) stopReplica(r *replicaState, drain time.Duration, reason, whom string, now placement.Instant) {
	r.Stopping, r.reason = true, reason
	r.drainEnd = now + drain
	l.draining.Add(r)
	l.markChanged(r.function)
	l.replicaEvent("stop", r, reason, whom)
	l.counts.Add("thaw_evictions_total", 1, reason)
}

// startReplica registers a new replica and sends its load.
func (l *lifecycle) startReplica(ctx context.Context, a *placement.Action, now placement.Instant) {
	f, n := l.functions[a.Function], l.nodes[a.Node]
	if f == nil || n == nil {
		return
	}
	r := &replicaState{
		Replica:  placement.Replica{ID: l.newID(f.Name.Name), Node: n.id, Reserved: f.Resources, GPUs: a.GPUs},
		function: f, cause: a.Reason, specHash: f.specHash, requestedAt: now,
	}
	r.status = functions.ReplicaStatus{ID: r.ID, Team: f.Name.Team, Model: f.Name.Name, State: functions.Downloading, Percent: -1}
	c := f.coldStart
	if c == nil || c.Over {
		if zero := !slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return r.ReadyAt > 0 && !r.Stopping }); zero {
			c = l.coldStarts.begin(f, "", l.timeNow())
		} else { // a further replica: Wake does not return its cold start
			c = l.coldStarts.beginExtra(f)
		}
	} else if c.Target != nil {
		c = l.coldStarts.beginExtra(f)
	}
	c.Decided, c.Target, c.Node = now, r, n.id
	c.Tier = functions.TierRemote
	if t, ok := n.Tiers[f.Source]; ok {
		c.Tier = t
	} else if f.Machine != "" && f.Machine == n.Machine || f.Source == "" || n.Cached[f.Source] {
		c.Tier = functions.TierNVMe
	}
	r.coldStart = c
	l.addReplica(r, n)
	f.failure, f.RetryOn = nil, ""
	l.markChanged(f)
	l.event("start", f.Name, r.ID, r.Node, a.Reason, "")
	dir := f.model.Dir
	if n.Borrows && n.Machine != l.machine {
		// A path in the model file is a path of this machine.
		dir = loader.PeerLocation(l.here, cmp.Or(dir, "/"))
	}
	l.commands.load(ctx, n, functions.LoadRequest{
		ID: r.ID, Team: f.Name.Team, Model: f.Name.Name, Spec: f.model.Spec, Dir: dir, GPUs: a.GPUs,
	})
}

// unloadDrained unloads stopping replicas that have no requests in flight or whose
// drain time is over. It reports whether it must run again soon.
func (l *lifecycle) unloadDrained(ctx context.Context, now placement.Instant) (again bool) {
	for _, r := range l.draining.List {
		if r.unloading {
			continue
		}
		if l.commands.inbox.inFlightOf(r.function, r.ID) > 0 && now < r.drainEnd {
			again = true
			continue
		}
		n := l.nodes[r.Node]
		if !l.leadership.mayCommand(n) {
			continue
		}
		r.unloading = true
		l.commands.unload(ctx, n, functions.UnloadRequest{ID: r.ID, Reason: r.reason, DrainSeconds: max(0, (r.drainEnd - now).Seconds())})
	}
	return again
}

// retryUnloads repeats unloads that had no effect.
func (l *lifecycle) retryUnloads(results []newest.Entry[string, commandResult], now placement.Instant) {
	for _, e := range results {
		if r := l.replicas[e.Key]; r != nil {
			l.leadership.noteStaleEpoch(r, e.Value)
			r.retryUnloadAt = now + tick
			if e.Value.err == nil {
				r.retryUnloadAt = now + unloadRetryAfter // the replica should be gone by then
			}
			l.unloadRetries.Add(r)
		}
	}
	l.unloadRetries.Each(func(r *replicaState) {
		if now >= r.retryUnloadAt || l.replicas[r.ID] != r {
			r.unloading, r.Cancelled = false, false
			l.enqueue(r.function)
			l.unloadRetries.Drop(r)
		}
	})
}
