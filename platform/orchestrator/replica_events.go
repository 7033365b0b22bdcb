package orchestrator

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/setbacks"
)

func (l *lifecycle) onStatus(ctx context.Context, r *replicaState, st functions.ReplicaStatus, now placement.Instant) {
	f, before := r.function, r.status.State
	if !slices.Equal(r.status.Adapters, st.Adapters) || r.status.Endpoint != st.Endpoint {
		l.markUnpublished(f)
	}
	if r.Cancelled || !samePlanned(&r.status, &st) {
		l.enqueue(f)
	}
	r.status, r.seen = st, true
	l.recordSize(f.Source, st.TotalBytes)
	if r.acceptedAt == 0 {
		r.acceptedAt = now
		if r.coldStart != nil {
			r.coldStart.Placed = now
		}
	}
	if r.Cancelled && hasProcess(st) && !st.State.Over() {
		r.Cancelled = false // the cancel came too late: it keeps starting
	}
	l.sleeping.onStatus(r, st, now)
	switch st.State {
	case functions.Ready:
		if r.ReadyAt == 0 {
			r.ReadyAt = now
			if before == "" && r.coldStart == nil { // adopted: READY since before this process began
				r.ReadyAt = max(1, now-time.Duration(max(0, min(st.Since, 1e12)))*time.Millisecond)
				if f.adoptLoad(l.autoscale, now) {
					l.busyFunctions.Add(f)
				}
			}
			f.failures, f.failure, f.failedOn, f.FailedOn = setbacks.StartFailures{}, nil, "", ""
			f.wakeLease, f.untilReady = 0, false // from now on its idle time keeps it
			l.markChanged(f)
			if r.coldStart != nil {
				// Waiters are released first.
				if !f.Gone { // it is still in the catalogue
					l.publisher.path.Publish(l.publisher.snapshotOf(f))
				}
				l.coldStarts.finish(r.coldStart, functions.Ready, "")
			}
			reason := ""
			if r.isUnprobed() {
				reason = "unprobed"
			}
			l.event("ready", f.Name, r.ID, r.Node, reason, "")
		}
	case functions.Failed:
		l.onFailure(ctx, r, st.Error, now)
	case functions.Unloaded:
		l.removeReplica(r, r.reason)
		if n := l.nodes[r.Node]; l.leadership.mayCommand(n) {
			l.commands.unload(ctx, n, functions.UnloadRequest{ID: r.ID, Reason: "forget"})
		}
	case functions.Draining:
	default:
		r.ReadyAt = 0
	}
	if before != st.State {
		l.markChanged(f)
	} else if r.coldStart != nil && !r.coldStart.Over && l.publisher.progress > 0 {
		l.markUnpublished(f)
	}
}

// removeReplica drops a replica whose room is free.
func (l *lifecycle) removeReplica(r *replicaState, why string) {
	f := r.function
	l.dropReplica(r)
	l.draining.Drop(r)
	l.unloadRetries.Drop(r)
	l.sleeping.drop(r)
	if why == "vanished" && r.reason != "" {
		why = r.reason // it ended on command
	}
	l.event("ended", f.Name, r.ID, r.Node, why, "")
	f.lastEnd.at, f.lastEnd.reason = l.lastTurn, why
	c := r.coldStart
	if c == nil || c.Over {
		return
	}
	if r.Stopping || r.Cancelled {
		l.coldStarts.finish(c, functions.Unloaded, why)
		return
	}
	// The same cold start continues with a replica on another node.
	c.Target, c.Decided, c.Placed = nil, 0, 0
}

// onFailure ends a failed replica, fails its waiters with the cause, and sets the
// backoff of the next start.
func (l *lifecycle) onFailure(ctx context.Context, r *replicaState, cause string, now placement.Instant) {
	f := r.function
	cause = cmp.Or(cause, "the engine ended")
	if n := l.nodes[r.Node]; l.leadership.mayCommand(n) {
		l.commands.unload(ctx, n, functions.UnloadRequest{ID: r.ID, Reason: "failed"})
	}
	if r.Stopping || r.Cancelled {
		l.removeReplica(r, "failed")
		return
	}
	if r.WakingUp || r.sleep.goingToSleep || r.SleptAt > 0 {
		// A failed sleep is not a fault of the model: waiters get a cold start at once.
		if r.WakingUp {
			l.counts.Add("thaw_sleep_wakeups_total", 1, "failed")
		}
		l.event("failed", f.Name, r.ID, r.Node, "sleep", cause)
		l.counts.RecordFailure(true, cause)
		l.removeReplica(r, "failed")
		return
	}
	if l.retryAfterEviction(r, cause) {
		return
	}
	var pause time.Duration
	if r.ReadyAt > 0 {
		// It was READY. A single failure is repaired at once; repeated failures
		// soon after READY get a backoff.
		if now-r.ReadyAt < earlyDeath {
			f.deaths++
		} else {
			f.deaths = 1
		}
		pause = setbacks.Backoff(f.deaths - 1)
	} else {
		pause = f.failures.Add(cause, functions.EngineTime(now-r.requestedAt, r.status.Phases))
	}
	if r.specHash == f.specHash {
		if r.ReadyAt == 0 && f.failedOn == r.Node {
			f.FailedOn = r.Node
		}
		f.failedOn = r.Node
		l.backOff(f, cause, pause, now)
	}
	l.event("failed", f.Name, r.ID, r.Node, "", cause)
	l.counts.RecordFailure(r.ReadyAt > 0, cause)
	l.coldStarts.finish(r.coldStart, functions.Failed, cause)
	l.removeReplica(r, "failed")
}

// retryAfterEviction lets a function whose start found too little memory start once more:
// the planner first evicts the idle replicas that share that memory. It reports whether
// there are such replicas and this is the first such failure since its last READY.
func (l *lifecycle) retryAfterEviction(r *replicaState, cause string) bool {
	f := r.function
	if r.status.ShortOf == "" || r.ReadyAt > 0 || r.specHash != f.specHash {
		return false
	}
	f.RetryOn, f.RetryGPUs = r.Node, nil
	if r.status.ShortOf == functions.ShortOfGPUMemory {
		f.RetryGPUs = r.GPUs
	}
	if !l.planner.MayRetry(&f.Function) || !f.failures.AfterEviction() {
		f.RetryOn = ""
		return false
	}
	if r.coldStart != nil {
		r.coldStart.Retried = cause
	}
	l.event("retry", f.Name, r.ID, r.Node, string(r.status.ShortOf), cause)
	l.removeReplica(r, "failed")
	return true
}

// backOff fails the waiters of f with the cause, and delays its next start.
func (l *lifecycle) backOff(f *functionState, cause string, backOff time.Duration, now placement.Instant) {
	if backOff <= 0 {
		return
	}
	f.RetryAt = now + backOff
	f.failure = &snapshot.Failure{Reason: cause, At: l.timeNow(), Until: l.timeNow().Add(backOff)}
	f.wakeLease, f.untilReady = 0, false
	l.markChanged(f)
}

func (l *lifecycle) onLoaded(ctx context.Context, id string, result commandResult, now placement.Instant) {
	r := l.replicas[id]
	if r == nil || r.Node != result.node {
		return
	}
	n := l.nodes[r.Node]
	if result.err == nil {
		r.function.refusals = 0
		if r.acceptedAt == 0 {
			r.acceptedAt = l.instant(result.at)
			if r.coldStart != nil {
				r.coldStart.Placed = r.acceptedAt
			}
		}
		return
	}
	if r.seen {
		return // the replica is in heartbeats: only the answer was lost
	}
	l.event("load_refused", r.function.Name, r.ID, r.Node, "", result.err.Error())
	if n != nil {
		n.AvoidUntil = now + nodePauseAfterRefusal
		l.planner.NodeChanged(n.Node)
		if l.leadership.noteStaleEpoch(r, result); !n.stale {
			// The agent may have received the load although its answer was lost.
			l.commands.unload(ctx, n, functions.UnloadRequest{ID: r.ID, Reason: "lost"})
		}
	}
	// One or two refusals count as a problem of the node, and another node is tried.
	// More are a failure of the function, which its waiters get.
	f := r.function
	if f.refusals++; f.refusals >= maxRefusals {
		l.backOff(f, "no agent accepted the start: "+result.err.Error(), f.failures.Add(result.err.Error(), 0), now)
		l.coldStarts.finish(r.coldStart, functions.Failed, result.err.Error())
	}
	l.removeReplica(r, "load_refused")
}

func (l *lifecycle) sendVerify(ctx context.Context, id string, a healthReport) {
	r := l.replicas[id]
	if r == nil {
		return
	}
	l.event("suspected", a.name, id, r.Node, a.problem, "")
	n := l.nodes[r.Node]
	if n == nil {
		return
	}
	if v, ok := n.commands.(Verifier); ok {
		l.commands.run(ctx, func(ctx context.Context) { v.Verify(ctx, id, a.problem) })
	}
}

// refuseStart fails the waiters of f, unless it is READY: this server was superseded
// and starts nothing.
func (l *lifecycle) refuseStart(f *functionState, now placement.Instant) {
	if f.serving() == 0 {
		l.backOff(f, "a newer server has taken over, and this one starts nothing any more", time.Minute, now)
	}
}

// onUnknownReplica adopts a replica that this process did not start, or after a recheck
// stops it if its model is unknown.
func (l *lifecycle) onUnknownReplica(ctx context.Context, n *nodeState, st functions.ReplicaStatus, now placement.Instant) {
	name := functions.Name{Team: st.Team, Name: st.Model}
	f := l.functions[name]
	if st.State.Over() || st.State == functions.Draining || f == nil || f.Gone || l.replicas[st.ID] != nil {
		since, ok := l.orphans[st.ID]
		if !ok {
			l.orphans[st.ID], since = now, now
		}
		if st.State.Over() || now-since >= orphanGrace {
			l.orphans[st.ID] = now // repeated if it is still there after orphanGrace
			if l.leadership.mayCommand(n) {
				l.commands.unload(ctx, n, functions.UnloadRequest{ID: st.ID, Reason: "unknown", DrainSeconds: 30})
			}
		}
		if len(l.orphans) > 4096 {
			clear(l.orphans)
		}
		return
	}
	delete(l.orphans, st.ID)
	r := &replicaState{
		Replica:  placement.Replica{ID: st.ID, Node: n.id, Reserved: f.Resources, GPUs: st.GPUs},
		function: f, specHash: f.specHash, acceptedAt: now, requestedAt: now,
	}
	if st.Spec != nil {
		r.Reserved = st.Spec.Resources
		dir := ""
		if f.model != nil {
			dir = f.model.Dir
		}
		r.specHash = hashSpec(*st.Spec, dir)
	}
	r.listed = n.heartbeats
	l.addReplica(r, n)
	l.event("adopted", name, r.ID, n.id, string(st.State), "")
	// An activator may not have reported its waiters yet.
	if st.State == functions.Downloading || st.State == functions.Loading {
		f.userLease = max(f.userLease, now+placement.Instant(adoptedStartLease))
		l.enqueue(f)
	}
	l.onStatus(ctx, r, st, now)
}

// samePlanned reports whether two statuses are equal in what the planner reads.
func samePlanned(a, b *functions.ReplicaStatus) bool {
	return hasProcess(*a) == hasProcess(*b) && a.SleepLevel == b.SleepLevel && a.TotalBytes == b.TotalBytes
}

// endPause allows a start at once, as if none had failed.
func (f *functionState) endPause() {
	f.failures, f.deaths, f.refusals, f.failure, f.RetryAt = setbacks.StartFailures{}, 0, 0, nil, 0
}

// isUnprobed reports that nothing was asked of the replica's engine before READY.
func (r *replicaState) isUnprobed() bool {
	return r.status.State == functions.Ready && r.function.model != nil && r.function.model.Spec.Probe.None
}
