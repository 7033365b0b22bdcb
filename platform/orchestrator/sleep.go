package orchestrator

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

// Sleeper is a Node whose replicas can sleep. Sleep sends one to sleep, or with
// level 0 wakes it; it does not wait, heartbeats tell what became of it.
type Sleeper interface {
	Sleep(ctx context.Context, req functions.SleepRequest) error
}

const (
	deepLevel = 2                // weights are dropped, and read again by a rise; level 1 keeps them in host memory
	sinkGrace = 90 * time.Second // beyond its drain, until a replica told to sleep is given up
	riseGrace = 2 * time.Minute  // until one told to rise is given up; one that reads its weights again may take as long as a start
)

// nap is where a replica stands on the ladder between READY and its end.
type nap struct {
	sinking bool              // out of the routes, to be sent to sleep once nothing is in flight
	sent    bool              // it was told
	level   int               // how deep it sleeps, or is to; 0 it does not
	sinkEnd placement.Instant // in flight or not, it is told then
	rising  bool              // told to wake
	riseAt  placement.Instant
	slept   placement.Instant // since when it sleeps; 0 it does not
	held    functions.Bytes   // host memory that its sleep takes
}

// sink takes a replica out of the routes, to be sent to sleep.
func (s *Steer) sink(r *rep, a *placement.Action, now placement.Instant) {
	r.nap = nap{sinking: true, sinkEnd: now + a.Drain, level: max(a.Level, 1), held: r.fn.Asleep}
	if r.nap.level == deepLevel {
		r.nap.held = 0
	}
	r.reason = a.Reason
	s.sinks.add(r)
	s.soil(r.fn)
	s.happens("sleep", r, a.Reason, a.For)
	s.counts.sleeps.WithLabelValues(a.Reason).Inc()
}

// lull sends those to sleep that have nothing in flight. It reports whether it
// must look again soon.
func (s *Steer) lull(ctx context.Context, now placement.Instant) (again bool) {
	s.sinks.each(func(r *rep) {
		switch n := s.nodes[r.node]; {
		case r.stopping || !r.nap.sinking || s.reps[r.id] != r:
			s.sinks.drop(r)
		case r.nap.sent:
			if now > r.nap.sinkEnd+sinkGrace {
				s.sleepless(r, "it does not fall asleep", now)
			}
		case s.path.InFlightOf(r.fn.Name, r.id) > 0 && now < r.nap.sinkEnd:
			again = true
		case s.mine(n):
			r.nap.sent = true
			s.bed(ctx, r, n, r.nap.level, r.reason)
		}
	})
	s.rising.each(func(r *rep) {
		switch {
		case !r.nap.rising || r.stopping:
			s.rising.drop(r)
		case now > r.nap.riseAt+r.riseFor():
			s.sleepless(r, "it does not wake", now)
			s.rising.drop(r)
		}
	})
	return again
}

// sleepless ends a replica that does not do what its ladder says; what waits for
// it gets a cold start.
func (s *Steer) sleepless(r *rep, why string, now placement.Instant) {
	s.sinks.drop(r)
	if r.nap.rising {
		s.counts.rises.WithLabelValues("failed").Inc()
	}
	if c := r.cold; c != nil && !c.over {
		c.rep, c.decided, c.placed, r.cold = nil, 0, 0, nil
	}
	s.event("sleepless", r.fn.Name, r.id, r.node, "", why)
	s.stop(r, 0, "sleepless", "", now)
}

// rise wakes a replica that sleeps: a cold start of the short kind.
func (s *Steer) rise(ctx context.Context, a *placement.Action, now placement.Instant) {
	r, n := s.reps[a.Replica], s.nodes[a.Node]
	if r == nil || n == nil || r.stopping {
		return
	}
	f := r.fn
	r.nap.rising, r.nap.riseAt, r.cause = true, now, a.Reason
	s.rising.add(r)
	c := f.cold
	switch {
	case c != nil && !c.over && c.rep == nil:
	case !slices.ContainsFunc(f.reps, func(x *rep) bool { return x.readyAt > 0 && !x.stopping && !x.nap.sinking }):
		c = s.begin(f, "", s.clock())
	default:
		c = s.aside(f)
	}
	c.decided, c.placed, c.rep, c.Node, c.Tier = now, now, r, n.id, functions.TierSleeping
	c.deep = r.nap.level == deepLevel
	r.cold = c
	f.failure = nil
	s.soil(f)
	s.event("rise", f.Name, r.id, r.node, a.Reason, "")
	s.bed(ctx, r, n, 0, a.Reason)
}

// bed commands a sleep or a rise; a refusal comes back as news.
func (s *Steer) bed(ctx context.Context, r *rep, n *node, level int, reason string) {
	to, node, id := n.to, n.id, r.id
	s.command(ctx, func(ctx context.Context) {
		err := errors.New("the agent of this replica cannot")
		if z, ok := to.(Sleeper); ok {
			err = z.Sleep(ctx, functions.SleepRequest{ID: id, Epoch: s.epoch, Level: level, Reason: reason})
		}
		if err == nil || errors.Is(err, context.Canceled) {
			return
		}
		s.inboxMu.Lock()
		s.inbox.awake.put(id, outcome{node, s.clock(), err})
		s.inboxMu.Unlock()
		s.ring()
	})
}

// slumber takes in what a status says of a replica's sleep.
func (s *Steer) slumber(r *rep, st functions.ReplicaStatus, now placement.Instant) {
	switch {
	case st.State == functions.Sleeping && st.SleepLevel > 0:
		if r.nap.rising || r.nap.slept > 0 {
			return
		}
		r.nap.sinking, r.nap.slept = false, now
		if r.nap.level == 0 { // it slept before we came
			if st.SleepLevel < deepLevel {
				r.nap.held = r.fn.bulk() // what schedule was told is from before it was known
			}
			r.nap.slept = max(1, now-time.Duration(max(0, min(st.Since, 1e12)))*time.Millisecond)
		}
		r.nap.level = st.SleepLevel
		s.sinks.drop(r)
		s.event("asleep", r.fn.Name, r.id, r.node, r.reason, "")
	case st.State == functions.Loading:
		r.nap.slept, r.nap.sinking = 0, false // it wakes, asked or not
	case st.State == functions.Ready && r.readyAt == 0:
		if r.nap.rising {
			s.counts.rises.WithLabelValues("ready").Inc()
		}
		r.nap = nap{}
	}
}

// asleep reports whether a replica is on its way down, or down.
func (r *rep) asleep() bool {
	return r.nap.sinking || r.status.State == functions.Sleeping && !r.nap.rising
}

// riseFor is how long a rise may take.
func (r *rep) riseFor() time.Duration {
	if r.nap.level == deepLevel && r.fn.model != nil {
		return max(riseGrace, r.fn.model.Spec.Deadlines.Start.Std())
	}
	return riseGrace
}

// bedtime says what schedule must know to send replicas of f to sleep.
func (f *fn) bedtime(atHand bool) {
	f.Asleep = f.bulk()
	f.Deep = max(f.history.deep(50), 0)
	f.Rise, f.ColdStart = max(f.history.rise(50), 0), max(f.history.forecast(atHand).P50, 0)
}

// bulk is the host memory that a sleeper of f takes: its weights go there, as
// large as the checkpoint and never larger than the GPUs' share.
func (f *fn) bulk() functions.Bytes {
	n := f.Resources.GPUs
	if n == 0 {
		return 0
	}
	most := f.Resources.GPUMemory * functions.Bytes(n)
	if most <= 0 {
		most = math.MaxInt64
	}
	size := f.Size
	for _, r := range f.reps {
		size = max(size, r.status.TotalBytes)
	}
	if size == 0 && most < math.MaxInt64 {
		size = most
	}
	return min(size, most)
}
