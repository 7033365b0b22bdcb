package orchestrator

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/orderedset"
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
	wokenAt      placement.Instant
}

// sleeping puts replicas to sleep and wakes them.
type sleeping struct {
	*world
	commands     *commander
	leadership   *leadership
	coldStarts   *coldStartLog
	stop         func(r *replicaState, drain time.Duration, reason, whom string, now placement.Instant)
	goingToSleep orderedset.Set[*replicaState] // draining before the sleep command
	wakingUp     orderedset.Set[*replicaState] // the wake command was sent
}

// drop forgets a replica that has ended.
func (s *sleeping) drop(r *replicaState) {
	s.goingToSleep.Drop(r)
	s.wakingUp.Drop(r)
}

// begin takes a replica out of the routes; sleepWhenIdle sends the sleep command
// when it is drained.
func (s *sleeping) begin(r *replicaState, a *placement.Action, now placement.Instant) {
	r.sleep = sleepState{goingToSleep: true, sleepBy: now + a.Drain, level: max(a.Level, 1)}
	r.SleptAt, r.WakingUp, r.SleepMemory = 0, false, r.function.SleepMemory
	if r.sleep.level == deepLevel {
		r.SleepMemory = 0
	}
	r.reason = a.Reason
	s.goingToSleep.Add(r)
	s.markChanged(r.function)
	s.replicaEvent("sleep", r, a.Reason, a.For)
	s.counts.Add("thaw_sleeps_total", 1, a.Reason)
}

// sleepWhenIdle sends the sleep command to drained replicas, and stops those that do
// not fall asleep or wake in time. It reports whether it must run again soon.
func (s *sleeping) sleepWhenIdle(ctx context.Context, now placement.Instant) (again bool) {
	s.goingToSleep.Each(func(r *replicaState) {
		switch n := s.nodes[r.Node]; {
		case r.Stopping || !r.sleep.goingToSleep || s.replicas[r.ID] != r:
			s.goingToSleep.Drop(r)
		case r.sleep.sent:
			if now > r.sleep.sleepBy+sleepGrace {
				s.fail(r, "it does not fall asleep", now)
			}
		case s.commands.inbox.inFlightOf(r.function, r.ID) > 0 && now < r.sleep.sleepBy:
			again = true
		case s.leadership.mayCommand(n):
			r.sleep.sent = true
			s.commands.sleep(ctx, r, n, r.sleep.level, r.reason)
		}
	})
	s.wakingUp.Each(func(r *replicaState) {
		switch {
		case !r.WakingUp || r.Stopping:
			s.wakingUp.Drop(r)
		case now > r.sleep.wokenAt+r.wakeTimeout():
			s.fail(r, "it does not wake", now)
			s.wakingUp.Drop(r)
		}
	})
	return again
}

// fail stops a replica that did not fall asleep or wake; its waiters get a cold
// start.
func (s *sleeping) fail(r *replicaState, why string, now placement.Instant) {
	s.goingToSleep.Drop(r)
	if r.WakingUp {
		s.counts.Add("thaw_sleep_wakeups_total", 1, "failed")
	}
	if c := r.coldStart; c != nil && !c.Over {
		c.Target, c.Decided, c.Placed, r.coldStart = nil, 0, 0, nil
	}
	s.event("sleep_failed", r.function.Name, r.ID, r.Node, "", why)
	s.stop(r, 0, "sleep_failed", "", now)
}

// wakeUp wakes a sleeping replica. The wake-up is recorded as a cold start.
func (s *sleeping) wakeUp(ctx context.Context, a *placement.Action, now placement.Instant) {
	r, n := s.replicas[a.Replica], s.nodes[a.Node]
	if r == nil || n == nil || r.Stopping {
		return
	}
	f := r.function
	r.WakingUp, r.sleep.wokenAt, r.cause = true, now, a.Reason
	s.wakingUp.Add(r)
	c := f.coldStart
	switch {
	case c != nil && !c.Over && c.Target == nil:
	case !slices.ContainsFunc(f.replicas, func(x *replicaState) bool { return x.ReadyAt > 0 && !x.Stopping && !x.sleep.goingToSleep }):
		c = s.coldStarts.begin(f, "", s.timeNow())
	default:
		c = s.coldStarts.beginExtra(f)
	}
	c.Decided, c.Placed, c.Target, c.Node, c.Tier = now, now, r, n.id, functions.TierSleeping
	c.FromDeepSleep = r.sleep.level == deepLevel
	r.coldStart = c
	f.failure = nil
	s.markChanged(f)
	s.event("wake_up", f.Name, r.ID, r.Node, a.Reason, "")
	s.commands.sleep(ctx, r, n, 0, a.Reason)
}

func (s *sleeping) onStatus(r *replicaState, st functions.ReplicaStatus, now placement.Instant) {
	switch {
	case st.State == functions.Sleeping && st.SleepLevel > 0:
		if r.WakingUp || r.SleptAt > 0 {
			return
		}
		r.sleep.goingToSleep, r.SleptAt = false, now
		if r.sleep.level == 0 { // it fell asleep before this process began
			if st.SleepLevel < deepLevel {
				r.SleepMemory = r.function.sleepMemory() // the planner knew it before its size was known
			}
			r.SleptAt = max(1, now-time.Duration(max(0, min(st.Since, 1e12)))*time.Millisecond)
		}
		r.sleep.level = st.SleepLevel
		s.goingToSleep.Drop(r)
		s.event("asleep", r.function.Name, r.ID, r.Node, r.reason, "")
	case st.State == functions.Loading:
		r.SleptAt, r.sleep.goingToSleep = 0, false // it woke up, with or without a command
	case st.State == functions.Ready && r.ReadyAt == 0:
		if r.WakingUp {
			s.counts.Add("thaw_sleep_wakeups_total", 1, "ready")
		}
		r.sleep = sleepState{}
		r.SleptAt, r.WakingUp, r.SleepMemory = 0, false, 0
	}
}

// asleep reports whether a replica sleeps or is falling asleep.
func (r *replicaState) asleep() bool {
	return r.sleep.goingToSleep || r.status.State == functions.Sleeping && !r.WakingUp
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
