package orchestrator

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// Sleeper is a Node whose replicas can sleep. Sleep puts a replica to sleep, or with
// level 0 wakes it. It does not wait; heartbeats report the result.
type Sleeper interface {
	Sleep(ctx context.Context, req functions.SleepRequest) error
}

const (
	deepLevel  = 2                // drops the weights; waking reads them again. Level 1 keeps them in host memory
	sleepGrace = 90 * time.Second // beyond the drain, for a replica to fall asleep
	wakeGrace  = 2 * time.Minute  // for a wake-up; one that reads its weights again may take as long as a start
)

// sleepState is the state of a replica that falls asleep, sleeps or wakes up.
type sleepState struct {
	goingToSleep bool              // out of the routes; the sleep command follows when it is drained
	sent         bool              // the sleep command was sent
	level        int               // sleep level, present or intended; 0: awake
	sleepBy      placement.Instant // the sleep command is sent then even with requests in flight
	wakingUp     bool              // the wake command was sent
	wokenAt      placement.Instant
	asleepSince  placement.Instant // 0: not asleep
	hostMemory   functions.Bytes   // host memory for its sleep
}

// beginSleep takes a replica out of the routes; sleepWhenIdle sends the sleep command
// when it is drained.
func (o *Orchestrator) beginSleep(r *replicaState, a *placement.Action, now placement.Instant) {
	r.sleep = sleepState{goingToSleep: true, sleepBy: now + a.Drain, level: max(a.Level, 1), hostMemory: r.function.SleepMemory}
	if r.sleep.level == deepLevel {
		r.sleep.hostMemory = 0
	}
	r.reason = a.Reason
	o.goingToSleep.Add(r)
	o.markChanged(r.function)
	o.replicaEvent("sleep", r, a.Reason, a.For)
	o.counts.add("thaw_sleeps_total", 1, a.Reason)
}

// sleepWhenIdle sends the sleep command to drained replicas, and stops those that do
// not fall asleep or wake in time. It reports whether it must run again soon.
func (o *Orchestrator) sleepWhenIdle(ctx context.Context, now placement.Instant) (again bool) {
	o.goingToSleep.Each(func(r *replicaState) {
		switch n := o.nodes[r.node]; {
		case r.stopping || !r.sleep.goingToSleep || o.replicas[r.id] != r:
			o.goingToSleep.Drop(r)
		case r.sleep.sent:
			if now > r.sleep.sleepBy+sleepGrace {
				o.sleepFailed(r, "it does not fall asleep", now)
			}
		case o.path.InFlightOf(r.function.Name, r.id) > 0 && now < r.sleep.sleepBy:
			again = true
		case o.mayCommand(n):
			r.sleep.sent = true
			o.commands.sleep(ctx, r, n, r.sleep.level, r.reason)
		}
	})
	o.wakingUp.Each(func(r *replicaState) {
		switch {
		case !r.sleep.wakingUp || r.stopping:
			o.wakingUp.Drop(r)
		case now > r.sleep.wokenAt+r.wakeTimeout():
			o.sleepFailed(r, "it does not wake", now)
			o.wakingUp.Drop(r)
		}
	})
	return again
}

// sleepFailed stops a replica that did not fall asleep or wake; its waiters get a cold
// start.
func (o *Orchestrator) sleepFailed(r *replicaState, why string, now placement.Instant) {
	o.goingToSleep.Drop(r)
	if r.sleep.wakingUp {
		o.counts.add("thaw_sleep_wakeups_total", 1, "failed")
	}
	if c := r.coldStart; c != nil && !c.over {
		c.replica, c.decided, c.placed, r.coldStart = nil, 0, 0, nil
	}
	o.event("sleep_failed", r.function.Name, r.id, r.node, "", why)
	o.stopReplica(r, 0, "sleep_failed", "", now)
}

// wakeUp wakes a sleeping replica. The wake-up is recorded as a cold start.
func (o *Orchestrator) wakeUp(ctx context.Context, a *placement.Action, now placement.Instant) {
	r, n := o.replicas[a.Replica], o.nodes[a.Node]
	if r == nil || n == nil || r.stopping {
		return
	}
	f := r.function
	r.sleep.wakingUp, r.sleep.wokenAt, r.cause = true, now, a.Reason
	o.wakingUp.Add(r)
	c := f.coldStart
	switch {
	case c != nil && !c.over && c.replica == nil:
	case !slices.ContainsFunc(f.replicas, func(x *replicaState) bool { return x.readyAt > 0 && !x.stopping && !x.sleep.goingToSleep }):
		c = o.coldStarts.begin(f, "", o.timeNow())
	default:
		c = o.coldStarts.beginExtra(f)
	}
	c.decided, c.placed, c.replica, c.Node, c.Tier = now, now, r, n.id, functions.TierSleeping
	c.fromDeepSleep = r.sleep.level == deepLevel
	r.coldStart = c
	f.failure = nil
	o.markChanged(f)
	o.event("wake_up", f.Name, r.id, r.node, a.Reason, "")
	o.commands.sleep(ctx, r, n, 0, a.Reason)
}

// onSleepStatus applies the sleep part of a replica's status.
func (o *Orchestrator) onSleepStatus(r *replicaState, st functions.ReplicaStatus, now placement.Instant) {
	switch {
	case st.State == functions.Sleeping && st.SleepLevel > 0:
		if r.sleep.wakingUp || r.sleep.asleepSince > 0 {
			return
		}
		r.sleep.goingToSleep, r.sleep.asleepSince = false, now
		if r.sleep.level == 0 { // it fell asleep before this process began
			if st.SleepLevel < deepLevel {
				r.sleep.hostMemory = r.function.sleepMemory() // the planner knew it before its size was known
			}
			r.sleep.asleepSince = max(1, now-time.Duration(max(0, min(st.Since, 1e12)))*time.Millisecond)
		}
		r.sleep.level = st.SleepLevel
		o.goingToSleep.Drop(r)
		o.event("asleep", r.function.Name, r.id, r.node, r.reason, "")
	case st.State == functions.Loading:
		r.sleep.asleepSince, r.sleep.goingToSleep = 0, false // it woke up, with or without a command
	case st.State == functions.Ready && r.readyAt == 0:
		if r.sleep.wakingUp {
			o.counts.add("thaw_sleep_wakeups_total", 1, "ready")
		}
		r.sleep = sleepState{}
	}
}

// asleep reports whether a replica sleeps or is falling asleep.
func (r *replicaState) asleep() bool {
	return r.sleep.goingToSleep || r.status.State == functions.Sleeping && !r.sleep.wakingUp
}

// wakeTimeout bounds a wake-up.
func (r *replicaState) wakeTimeout() time.Duration {
	if r.sleep.level == deepLevel && r.function.model != nil {
		return max(wakeGrace, r.function.model.Spec.Deadlines.Start.Std())
	}
	return wakeGrace
}

// canSleep sets the fields that the planner needs to let replicas of f sleep.
func (f *functionState) canSleep(atHand bool) {
	f.SleepMemory = f.sleepMemory()
	f.DeepWakeTime = max(f.starts.WakeTime(true, 50), 0)
	f.WakeTime, f.ColdStart = max(f.starts.WakeTime(false, 50), 0), max(f.starts.Forecast(atHand).P50, 0)
}

// sleepMemory is the host memory that a sleeping replica of f takes: its weights, as
// large as the checkpoint and at most the GPUs' share.
func (f *functionState) sleepMemory() functions.Bytes {
	n := f.Resources.GPUs
	if n == 0 {
		return 0
	}
	most := f.Resources.GPUMemory * functions.Bytes(n)
	if most <= 0 {
		most = math.MaxInt64
	}
	size := f.Size
	for _, r := range f.replicas {
		size = max(size, r.status.TotalBytes)
	}
	if size == 0 && most < math.MaxInt64 {
		size = most
	}
	return min(size, most)
}
