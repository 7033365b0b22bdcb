package orchestrator

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/setbacks"
)

// onStatus applies the status of a replica.
func (o *Orchestrator) onStatus(ctx context.Context, r *replicaState, st functions.ReplicaStatus, now placement.Instant) {
	f, before := r.function, r.status.State
	if !slices.Equal(r.status.Adapters, st.Adapters) || r.status.Endpoint != st.Endpoint {
		o.markUnpublished(f)
	}
	if plannedStatusOf(&r.status) != plannedStatusOf(&st) || r.cancelled {
		o.enqueue(f)
	}
	r.status, r.seen = st, true
	o.recordSize(f.Source, st.TotalBytes)
	if r.acceptedAt == 0 {
		r.acceptedAt = now
		if r.coldStart != nil {
			r.coldStart.placed = now
		}
	}
	if r.cancelled && hasProcess(st) && !st.State.Over() {
		r.cancelled = false // the cancel came too late: it keeps starting
	}
	o.onSleepStatus(r, st, now)
	switch st.State {
	case functions.Ready:
		if r.readyAt == 0 {
			r.readyAt = now
			if before == "" && r.coldStart == nil { // adopted: READY since before this process began
				r.readyAt = max(1, now-time.Duration(max(0, min(st.Since, 1e12)))*time.Millisecond)
				if f.adoptLoad(o.policy.Autoscale, now) {
					o.busyFunctions.Add(f)
				}
			}
			f.failures, f.failure = setbacks.StartFailures{}, nil
			f.wakeLease, f.untilReady = 0, false // from now on its idle time keeps it
			o.markChanged(f)
			if r.coldStart != nil {
				// Waiters are released first.
				if !f.Gone { // it is still in the catalogue
					o.path.Publish(o.snapshotOf(f))
				}
				o.finishColdStart(r.coldStart, functions.Ready, "")
			}
			reason := ""
			if r.isUnprobed() {
				reason = "unprobed"
			}
			o.event("ready", f.Name, r.id, r.node, reason, "")
		}
	case functions.Failed:
		o.onFailure(ctx, r, st.Error, now)
	case functions.Unloaded:
		o.removeReplica(r, r.reason)
		if n := o.nodes[r.node]; o.mayCommand(n) {
			o.commands.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "forget"})
		}
	case functions.Draining:
	default:
		r.readyAt = 0
	}
	if before != st.State {
		o.markChanged(f)
	} else if r.coldStart != nil && !r.coldStart.over && o.progress > 0 {
		o.markUnpublished(f)
	}
}

// plannedStatus is the part of a status that the planner reads.
type plannedStatus struct {
	spawned bool
	level   int
	total   functions.Bytes
}

func plannedStatusOf(st *functions.ReplicaStatus) plannedStatus {
	return plannedStatus{hasProcess(*st), st.SleepLevel, st.TotalBytes}
}

// removeReplica drops a replica whose room is free.
func (o *Orchestrator) removeReplica(r *replicaState, why string) {
	f := r.function
	o.dropReplica(r)
	o.draining.Drop(r)
	o.goingToSleep.Drop(r)
	o.unloadRetries.Drop(r)
	o.wakingUp.Drop(r)
	if why == "vanished" && r.reason != "" {
		why = r.reason // it ended on command
	}
	o.event("ended", f.Name, r.id, r.node, why, "")
	f.lastEnd.at, f.lastEnd.reason = o.lastTurn, why
	c := r.coldStart
	if c == nil || c.over {
		return
	}
	if r.stopping || r.cancelled {
		o.finishColdStart(c, functions.Unloaded, why)
		return
	}
	// The same cold start continues with a replica on another node.
	c.replica, c.decided, c.placed = nil, 0, 0
}

// onFailure ends a failed replica, fails its waiters with the cause, and sets the
// backoff of the next start.
func (o *Orchestrator) onFailure(ctx context.Context, r *replicaState, cause string, now placement.Instant) {
	f := r.function
	if cause == "" {
		cause = "the engine ended"
	}
	if n := o.nodes[r.node]; o.mayCommand(n) {
		o.commands.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "failed"})
	}
	if r.stopping || r.cancelled {
		o.removeReplica(r, "failed")
		return
	}
	if r.sleep.wakingUp || r.sleep.goingToSleep || r.sleep.asleepSince > 0 {
		// A failed sleep is not a fault of the model: waiters get a cold start at once.
		if r.sleep.wakingUp {
			o.counts.add("thaw_sleep_wakeups_total", 1, "failed")
		}
		o.event("failed", f.Name, r.id, r.node, "sleep", cause)
		o.counts.recordFailure(true, cause)
		o.removeReplica(r, "failed")
		return
	}
	if o.retryAfterEviction(r, cause) {
		return
	}
	var pause time.Duration
	if r.readyAt > 0 {
		// It was READY. A single failure is repaired at once; repeated failures
		// soon after READY get a backoff.
		if now-r.readyAt < earlyDeath {
			f.deaths++
		} else {
			f.deaths = 1
		}
		pause = setbacks.Backoff(f.deaths - 1)
	} else {
		pause = f.failures.Add(cause, functions.EngineTime(now-r.requestedAt, r.status.Phases))
	}
	if r.specHash == f.specHash {
		o.backOff(f, cause, pause, now)
	}
	o.event("failed", f.Name, r.id, r.node, "", cause)
	o.counts.recordFailure(r.readyAt > 0, cause)
	o.finishColdStart(r.coldStart, functions.Failed, cause)
	o.removeReplica(r, "failed")
}

// retryAfterEviction lets a function whose start found too little memory start once more:
// the planner first evicts the idle replicas that share that memory. It reports whether
// there are such replicas and this is the first such failure since its last READY.
func (o *Orchestrator) retryAfterEviction(r *replicaState, cause string) bool {
	f := r.function
	if r.status.ShortOf == "" || r.readyAt > 0 || r.specHash != f.specHash {
		return false
	}
	f.RetryOn, f.RetryGPUs = r.node, nil
	if r.status.ShortOf == functions.ShortOfGPUMemory {
		f.RetryGPUs = r.gpus
	}
	if !o.planner.MayRetry(&f.Function) || !f.failures.AfterEviction() {
		f.RetryOn = ""
		return false
	}
	if r.coldStart != nil {
		r.coldStart.Retried = cause
	}
	o.event("retry", f.Name, r.id, r.node, string(r.status.ShortOf), cause)
	o.removeReplica(r, "failed")
	return true
}

// backOff fails the waiters of f with the cause, and delays its next start.
func (o *Orchestrator) backOff(f *functionState, cause string, backOff time.Duration, now placement.Instant) {
	if backOff <= 0 {
		return
	}
	f.RetryAt = now + backOff
	f.failure = &snapshot.Failure{Reason: cause, At: o.timeNow(), Until: o.timeNow().Add(backOff)}
	f.wakeLease, f.untilReady = 0, false
	o.markChanged(f)
}

// endPause allows a start at once, as if none had failed.
func (f *functionState) endPause() {
	f.failures, f.deaths, f.refusals, f.failure, f.RetryAt = setbacks.StartFailures{}, 0, 0, nil, 0
}

// onLoaded applies the result of a load command.
func (o *Orchestrator) onLoaded(ctx context.Context, id string, result commandResult, now placement.Instant) {
	r := o.replicas[id]
	if r == nil || r.node != result.node {
		return
	}
	n := o.nodes[r.node]
	if result.err == nil {
		r.function.refusals = 0
		if r.acceptedAt == 0 {
			r.acceptedAt = o.instant(result.at)
			if r.coldStart != nil {
				r.coldStart.placed = r.acceptedAt
			}
		}
		return
	}
	if r.seen {
		return // the replica is in heartbeats: only the answer was lost
	}
	o.event("load_refused", r.function.Name, r.id, r.node, "", result.err.Error())
	if n != nil {
		n.AvoidUntil = now + nodePauseAfterRefusal
		o.planner.NodeChanged(n.Node)
		if o.noteStaleEpoch(r, result); !n.stale {
			// The agent may have received the load although its answer was lost.
			o.commands.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "lost"})
		}
	}
	// One or two refusals count as a problem of the node, and another node is tried.
	// More are a failure of the function, which its waiters get.
	f := r.function
	if f.refusals++; f.refusals >= maxRefusals {
		o.backOff(f, "no agent accepted the start: "+result.err.Error(), f.failures.Add(result.err.Error(), 0), now)
		o.finishColdStart(r.coldStart, functions.Failed, result.err.Error())
	}
	o.removeReplica(r, "load_refused")
}

// noteStaleEpoch records a refusal that means a newer server.
func (o *Orchestrator) noteStaleEpoch(r *replicaState, result commandResult) {
	if n := o.nodes[r.node]; n != nil && n.id == result.node && errors.Is(result.err, functions.ErrStaleEpoch) {
		o.noteNewerServer(n, true, result.err.Error())
	}
}

func (o *Orchestrator) sendVerify(ctx context.Context, id string, a healthReport) {
	r := o.replicas[id]
	if r == nil {
		return
	}
	o.event("suspected", a.name, id, r.node, a.problem, "")
	n := o.nodes[r.node]
	if n == nil {
		return
	}
	if v, ok := n.commands.(Verifier); ok {
		o.commands.run(ctx, func(ctx context.Context) { v.Verify(ctx, id, a.problem) })
	}
}

// isUnprobed reports that nothing was asked of the replica's engine before READY.
func (r *replicaState) isUnprobed() bool {
	return r.status.State == functions.Ready && r.function.model != nil && r.function.model.Spec.Probe.None
}
