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
func (s *Orchestrator) onStatus(ctx context.Context, r *replicaState, st functions.ReplicaStatus, now placement.Instant) {
	f, before := r.function, r.status.State
	if !slices.Equal(r.status.Adapters, st.Adapters) || r.status.Endpoint != st.Endpoint {
		s.markForPublish(f)
	}
	if plannedStatusOf(&r.status) != plannedStatusOf(&st) || r.cancelled {
		s.enqueue(f)
	}
	r.status, r.seen = st, true
	s.recordSize(f.Source, st.TotalBytes)
	if r.acceptedAt == 0 {
		r.acceptedAt = now
		if r.coldStart != nil {
			r.coldStart.placed = now
		}
	}
	if r.cancelled && hasProcess(st) && !st.State.Over() {
		r.cancelled = false // the cancel came too late: it keeps starting
	}
	s.onSleepStatus(r, st, now)
	switch st.State {
	case functions.Ready:
		if r.readyAt == 0 {
			r.readyAt = now
			if before == "" && r.coldStart == nil { // adopted: READY since before this process began
				r.readyAt = max(1, now-time.Duration(max(0, min(st.Since, 1e12)))*time.Millisecond)
				if f.adoptLoad(s.policy.Autoscale, now) {
					s.busyFunctions.Add(f)
				}
			}
			f.failures, f.failure = setbacks.StartFailures{}, nil
			f.wakeLease, f.untilReady = 0, false // from now on its idle time keeps it
			s.markDirty(f)
			if r.coldStart != nil {
				// Waiters are released first.
				if !f.Gone { // it is still in the catalogue
					s.path.Publish(s.snapshotOf(f))
				}
				s.finishColdStart(r.coldStart, functions.Ready, "")
			}
			reason := ""
			if r.isUnprobed() {
				reason = "unprobed"
			}
			s.event("ready", f.Name, r.id, r.node, reason, "")
		}
	case functions.Failed:
		s.onFailure(ctx, r, st.Error, now)
	case functions.Unloaded:
		s.removeReplica(r, r.reason)
		if n := s.nodes[r.node]; s.mayCommand(n) {
			s.commands.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "forget"})
		}
	case functions.Draining:
	default:
		r.readyAt = 0
	}
	if before != st.State {
		s.markDirty(f)
	} else if r.coldStart != nil && !r.coldStart.over && s.progress > 0 {
		s.markForPublish(f)
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
func (s *Orchestrator) removeReplica(r *replicaState, why string) {
	f := r.function
	s.dropReplica(r)
	s.draining.Drop(r)
	s.goingToSleep.Drop(r)
	s.unloadRetries.Drop(r)
	s.wakingUp.Drop(r)
	if why == "vanished" && r.reason != "" {
		why = r.reason // it ended on command
	}
	s.event("ended", f.Name, r.id, r.node, why, "")
	f.lastEnd.at, f.lastEnd.reason = s.lastTurn, why
	c := r.coldStart
	if c == nil || c.over {
		return
	}
	if r.stopping || r.cancelled {
		s.finishColdStart(c, functions.Unloaded, why)
		return
	}
	// The same cold start continues with a replica on another node.
	c.replica, c.decided, c.placed = nil, 0, 0
}

// onFailure ends a failed replica, fails its waiters with the cause, and sets the
// backoff of the next start.
func (s *Orchestrator) onFailure(ctx context.Context, r *replicaState, cause string, now placement.Instant) {
	f := r.function
	if cause == "" {
		cause = "the engine ended"
	}
	if n := s.nodes[r.node]; s.mayCommand(n) {
		s.commands.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "failed"})
	}
	if r.stopping || r.cancelled {
		s.removeReplica(r, "failed")
		return
	}
	if r.sleep.wakingUp || r.sleep.goingToSleep || r.sleep.asleepSince > 0 {
		// A failed sleep is not a fault of the model: waiters get a cold start at once.
		if r.sleep.wakingUp {
			s.counts.add("thaw_sleep_wakeups_total", 1, "failed")
		}
		s.event("failed", f.Name, r.id, r.node, "sleep", cause)
		s.counts.recordFailure(true, cause)
		s.removeReplica(r, "failed")
		return
	}
	if s.retryAfterEviction(r, cause) {
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
	if r.recipe == f.recipe {
		s.backOff(f, cause, pause, now)
	}
	s.event("failed", f.Name, r.id, r.node, "", cause)
	s.counts.recordFailure(r.readyAt > 0, cause)
	s.finishColdStart(r.coldStart, functions.Failed, cause)
	s.removeReplica(r, "failed")
}

// retryAfterEviction lets a function whose start found too little memory start once more:
// the planner first evicts the idle replicas that share that memory. It reports whether
// there are such replicas and this is the first such failure since its last READY.
func (s *Orchestrator) retryAfterEviction(r *replicaState, cause string) bool {
	f := r.function
	if r.status.ShortOf == "" || r.readyAt > 0 || r.recipe != f.recipe {
		return false
	}
	f.RetryOn, f.RetryGPUs = r.node, nil
	if r.status.ShortOf == functions.ShortOfGPUMemory {
		f.RetryGPUs = r.gpus
	}
	if !s.planner.MayRetry(&f.Function) || !f.failures.AfterEviction() {
		f.RetryOn = ""
		return false
	}
	if r.coldStart != nil {
		r.coldStart.Retried = cause
	}
	s.event("retry", f.Name, r.id, r.node, string(r.status.ShortOf), cause)
	s.removeReplica(r, "failed")
	return true
}

// backOff fails the waiters of f with the cause, and delays its next start.
func (s *Orchestrator) backOff(f *functionState, cause string, backOff time.Duration, now placement.Instant) {
	if backOff <= 0 {
		return
	}
	f.RetryAt = now + backOff
	f.failure = &snapshot.Failure{Reason: cause, At: s.timeNow(), Until: s.timeNow().Add(backOff)}
	f.wakeLease, f.untilReady = 0, false
	s.markDirty(f)
}

// endPause allows a start at once, as if none had failed.
func (f *functionState) endPause() {
	f.failures, f.deaths, f.refusals, f.failure, f.RetryAt = setbacks.StartFailures{}, 0, 0, nil, 0
}

// onLoaded applies the result of a load command.
func (s *Orchestrator) onLoaded(ctx context.Context, id string, o commandResult, now placement.Instant) {
	r := s.replicas[id]
	if r == nil || r.node != o.node {
		return
	}
	n := s.nodes[r.node]
	if o.err == nil {
		r.function.refusals = 0
		if r.acceptedAt == 0 {
			r.acceptedAt = s.instant(o.at)
			if r.coldStart != nil {
				r.coldStart.placed = r.acceptedAt
			}
		}
		return
	}
	if r.seen {
		return // the replica is in heartbeats: only the answer was lost
	}
	s.event("load_refused", r.function.Name, r.id, r.node, "", o.err.Error())
	if n != nil {
		n.AvoidUntil = now + nodePauseAfterRefusal
		s.planner.Node(n.Node)
		if s.noteStaleEpoch(r, o); !n.stale {
			// The agent may have received the load although its answer was lost.
			s.commands.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "lost"})
		}
	}
	// One or two refusals count as a problem of the node, and another node is tried.
	// More are a failure of the function, which its waiters get.
	f := r.function
	if f.refusals++; f.refusals >= maxRefusals {
		s.backOff(f, "no agent takes it: "+o.err.Error(), f.failures.Add(o.err.Error(), 0), now)
		s.finishColdStart(r.coldStart, functions.Failed, o.err.Error())
	}
	s.removeReplica(r, "load_refused")
}

// noteStaleEpoch records a refusal that means a newer server.
func (s *Orchestrator) noteStaleEpoch(r *replicaState, o commandResult) {
	if n := s.nodes[r.node]; n != nil && n.id == o.node && errors.Is(o.err, functions.ErrStaleEpoch) {
		s.noteNewerServer(n, true, o.err.Error())
	}
}

func (s *Orchestrator) sendVerify(ctx context.Context, id string, a healthReport) {
	r := s.replicas[id]
	if r == nil {
		return
	}
	s.event("suspected", a.name, id, r.node, a.problem, "")
	n := s.nodes[r.node]
	if n == nil {
		return
	}
	if v, ok := n.commands.(Verifier); ok {
		s.commands.run(ctx, func(ctx context.Context) { v.Verify(ctx, id, a.problem) })
	}
}

// isUnprobed reports that nothing was asked of the replica's engine before READY.
func (r *replicaState) isUnprobed() bool {
	return r.status.State == functions.Ready && r.function.model != nil && r.function.model.Spec.Probe.None
}
