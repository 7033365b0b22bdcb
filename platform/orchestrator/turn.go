package orchestrator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/placement"
)

const (
	clockJumpAfter        = 3 * time.Second // a turn this late means that this process did not run
	recheckAfter          = 2 * time.Second // until a catalogue that lost half of its functions is applied
	orphanGrace           = 5 * time.Second // before a replica of an unknown model is stopped
	adoptedStartLease     = 5 * time.Second // protects an adopted start until the activators have reported its waiters
	nodePauseAfterRefusal = 2 * time.Second // pause of loads on a node that just refused one
	progressEvery         = 500 * time.Millisecond
	maxRefusals           = 3 // consecutive refused loads that count as a failure
	startGrace            = 6 * time.Second
	unloadRetryAfter      = 10 * time.Second // an unload that had no effect is sent again
)

// Turn applies the inbox, publishes changes, plans and acts, in the caller's goroutine.
// It returns the time until the latest next call; 0: at the next tick, of which there
// is one a second. Run calls it, or instead the owner of Options.Ring. Commands run
// with ctx unless Options.Do executes them.
func (s *Orchestrator) Turn(ctx context.Context) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.take()
	defer in.clear()

	if skipped := s.advance(); skipped > 0 {
		s.event("clock_jump", functions.Name{}, "", "", "", fmt.Sprintf("the server stood still for %v; agents' silence in that time does not count", skipped.Round(time.Second)))
	}
	now := s.lastTurn
	s.turns++

	if in.changed || s.catalogShrunkAt > 0 {
		s.readCatalog(now)
	}
	for _, x := range in.heartbeats.Entries() {
		s.onHeartbeat(ctx, x.Value, now)
	}
	// Waiters of functions that became READY or failed are released first.
	s.publishDirty()
	s.applyUpdates(ctx, in, now)
	s.loadWantedAdapters(ctx)
	all := s.lastTick == 0 || now-s.lastTick >= tick*9/10 // a tick may be a tenth early
	if all {
		s.lastTick = now
	}
	s.readDemand(now, all)
	if all {
		s.forecaster.run(ctx, now)
	}
	for _, x := range in.nudges.Entries() {
		if f := s.functions[x.Key]; f != nil && f.Active+f.Queued == 0 && f.wakeLease != 0 {
			f.wakeLease = 0
			s.enqueue(f)
		}
	}
	next := s.decide(ctx, now, all)
	if s.progress > 0 && now-s.progressAt >= s.progress {
		s.progressAt = now
		for _, f := range s.coldStarts.starting.List {
			if f.coldStart.replica != nil {
				s.markForPublish(f)
			}
		}
	}
	s.publishDirty()
	again := s.sleepWhenIdle(ctx, now)
	if (s.unloadDrained(ctx, now) || again) && (next == 0 || next > drainPoll) {
		next = drainPoll
	}
	return next
}

// applyUpdates applies the inbox, except for heartbeats and nudges.
func (s *Orchestrator) applyUpdates(ctx context.Context, in *updates, now placement.Instant) {
	for _, x := range in.loaded.Entries() {
		s.onLoaded(ctx, x.Key, x.Value, now)
	}
	for _, x := range in.unloaded.Entries() {
		if r := s.replicas[x.Key]; r != nil {
			s.noteStaleEpoch(r, x.Value)
			r.retryUnloadAt = now + tick
			if x.Value.err == nil {
				r.retryUnloadAt = now + unloadRetryAfter // the replica should be gone by then
			}
			s.unloadRetries.Add(r)
		}
	}
	s.unloadRetries.Each(func(r *replicaState) {
		if now >= r.retryUnloadAt || s.replicas[r.id] != r {
			r.unloading, r.cancelled = false, false
			s.enqueue(r.function)
			s.unloadRetries.Drop(r)
		}
	})
	for _, x := range in.healthReports.Entries() {
		s.sendVerify(ctx, x.Key, x.Value)
	}
	for _, x := range in.adapterUses.Entries() {
		u := x.Key
		s.commands.run(ctx, func(ctx context.Context) { s.requestAdapter(ctx, u.replica, u.adapter) })
	}
	for _, x := range in.wantedAdapters.Entries() {
		s.wantedAdapters.Add(x.Key)
	}
	for _, x := range in.sleepRefusals.Entries() {
		if r := s.replicas[x.Key]; r != nil && !r.stopping {
			s.noteStaleEpoch(r, x.Value)
			s.sleepFailed(r, x.Value.err.Error(), now)
		}
	}
	for _, x := range in.stops.Entries() {
		s.stopFunction(x.Key, now)
	}
	for _, x := range in.wakes.Entries() {
		s.onWake(x.Key, x.Value, now)
	}
}

// publishDirty publishes every function that changed.
func (s *Orchestrator) publishDirty() {
	defer func() { // after publishing: cut requests pick another replica from the new snapshots
		for _, url := range s.lostAgents {
			s.path.Cut(url)
		}
		s.lostAgents = nil
	}()
	if len(s.dirty) == 0 {
		return
	}
	out := make([]snapshot.Snapshot, 0, len(s.dirty))
	for _, f := range s.dirty {
		f.toPublish = false
		if !f.Gone {
			out = append(out, s.snapshotOf(f))
		}
	}
	clear(s.dirty)
	s.dirty = s.dirty[:0]
	if len(out) > 0 {
		s.path.Publish(out...)
		s.changes.send(struct{}{})
	}
}

func (s *Orchestrator) onWake(name functions.Name, w wakeRequest, now placement.Instant) {
	f := s.functions[name]
	if f == nil || f.Gone {
		s.dropStartID(name, w.id)
		return
	}
	s.enqueue(f)
	if w.held > 0 {
		f.userLease = max(f.userLease, s.instant(w.at)+w.held)
	}
	for _, r := range f.replicas {
		if r.serves() {
			s.dropStartID(name, w.id)
			return
		}
	}
	if w.once { // over the API, not by a request
		f.endPause()
		f.untilReady = true
	}
	if s.superseded {
		s.refuseStart(f, now)
		s.dropStartID(name, w.id)
		return
	}
	if w.retry > 0 {
		f.wakeLease = max(f.wakeLease, s.instant(w.at)+w.retry)
	}
	if f.coldStart != nil && !f.coldStart.over {
		return
	}
	c := s.coldStarts.begin(f, w.id, w.at)
	for _, r := range f.replicas { // an adopted replica that is starting
		if !r.stopping && !r.cancelled && r.coldStart == nil && !r.asleep() {
			r.coldStart, c.replica, c.decided, c.placed = c, r, now, now
			break
		}
	}
	s.markDirty(f)
}

// readDemand applies changed demand; with all it also verifies the other functions and
// advances the load windows of busy ones.
func (s *Orchestrator) readDemand(now placement.Instant, all bool) {
	s.path.Demand(all, func(d Demand) bool {
		f := s.functions[d.Name.WithoutAdapter()]
		if f == nil || f.Gone {
			return true
		}
		f.demandTurn = s.turns
		was := f.demandSummary()
		f.Active, f.Queued, f.Oldest = d.Active, d.Queued, 0
		f.LowActive, f.LowQueued, f.LowSince = d.Low.Active, d.Low.Queued, min(s.instant(d.Low.LastUse), now)
		if d.Queued > 0 && !d.Oldest.IsZero() {
			f.Oldest = min(s.instant(d.Oldest), now)
		}
		f.LastEnd = max(f.LastEnd, min(s.instant(d.LastEnd), now))
		if f.updateLoad(s.policy.Autoscale, now) {
			s.busyFunctions.Add(f)
		} else {
			s.busyFunctions.Drop(f)
		}
		// The same counts and no ended request: nothing changed.
		if was != f.demandSummary() || !all {
			s.enqueue(f)
		}
		return true
	})
	if !all {
		return
	}
	s.busyFunctions.Each(func(f *functionState) {
		if f.demandTurn != s.turns && f.Active+f.Queued > 0 {
			if f.Active > 0 {
				f.LastEnd = max(f.LastEnd, now)
			}
			f.clearDemand()
			s.enqueue(f)
		}
		if f.demandTurn == s.turns {
			return // the loop above has evaluated it
		}
		needed, desired := f.Needed, f.Desired
		if !f.updateLoad(s.policy.Autoscale, now) {
			s.busyFunctions.Drop(f)
		}
		if needed != f.Needed || desired != f.Desired {
			s.enqueue(f)
		}
	})
}

// forever is longer than any lease; adding to it does not overflow.
const forever = placement.Instant(math.MaxInt64 / 4)

// decide passes changes to the planner and performs its plan. Its cost depends on the
// changes.
func (s *Orchestrator) decide(ctx context.Context, now placement.Instant, all bool) time.Duration {
	if s.superseded {
		return 0
	}
	s.extendSilentNodes(now)
	s.teams.settle(now, false)
	news := s.pending
	s.pending, s.sparePending = s.sparePending[:0], nil
	var dead []*functionState
	for _, f := range news {
		f.enqueued = false
		if f.Gone && len(f.replicas) == 0 {
			f.copyReplicas(s.path.InFlightOf)
			s.teams.charge(f, now)
			dead = append(dead, f)
			continue
		}
		f.Size, f.Expect = s.sizes[f.Source], f.starts.Expected()
		s.forecaster.recordUse(f, now)
		f.Lease = max(f.wakeLease, f.userLease)
		if f.untilReady {
			f.Lease = forever
		}
		f.copyReplicas(s.path.InFlightOf)
		s.teams.charge(f, now)
		if f.Sleeps {
			f.canSleep(s.bytesAtHand(f))
		}
		s.planner.Touch(&f.Function)
	}
	if len(dead) > 0 {
		s.deleteFunctions(dead)
	}
	plan := s.planner.Plan(now)
	for i := range plan.Actions {
		s.perform(ctx, &plan.Actions[i], now)
	}
	if now > startGrace { // before, not all agents have sent a heartbeat
		turned := plan.Changed
		if !s.startGraceOver {
			s.startGraceOver = true
			turned = slices.SortedFunc(maps.Keys(plan.Blocked), func(a, b functions.Name) int {
				return cmp.Or(cmp.Compare(a.Team, b.Team), cmp.Compare(a.Name, b.Name))
			})
		}
		for _, name := range turned {
			if f := s.functions[name]; f != nil {
				v, ok := plan.Blocked[name]
				s.onVerdict(f, v, ok)
			}
		}
	}
	for _, f := range news {
		s.endUnwantedStart(f, now)
	}
	if all {
		s.coldStarts.starting.Each(func(f *functionState) { s.endUnwantedStart(f, now) })
	}
	clear(news)
	s.sparePending = news[:0]
	if plan.Next == 0 {
		return 0
	}
	return max(plan.Next-now, time.Millisecond)
}

// onVerdict records that f cannot be placed, or can be again.
func (s *Orchestrator) onVerdict(f *functionState, v placement.Verdict, blocked bool) {
	switch {
	case !blocked && f.blocked == nil:
	case !blocked:
		f.blocked = nil
		s.markForPublish(f)
	default:
		news := f.blocked == nil || f.blocked.Code != v.Code || f.blocked.Message != v.Message
		at := s.timeNow()
		if !news { // publish only if the ETA changed by more than the passed time
			left := f.blocked.Remaining(at)
			if d := left - v.ETA; (left < 0) == (v.ETA <= 0) && max(d, -d) <= max(time.Second, left/8) {
				return
			}
		}
		f.blocked, f.unplaced = &snapshot.Blocked{Code: v.Code, Message: v.Message, ETA: v.ETA, At: at}, v.Message
		s.markForPublish(f)
		if news {
			s.event("blocked", f.Name, "", "", v.Code, v.Message)
		}
	}
}

// endUnwantedStart ends the cold start of f if it has no replica and no demand left.
func (s *Orchestrator) endUnwantedStart(f *functionState, now placement.Instant) {
	if c := f.coldStart; c != nil && !c.over && f.Active+f.Queued == 0 && f.Lease <= now && f.Scale.Min == 0 &&
		!slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return !r.asleep() }) {
		s.finishColdStart(c, functions.Unloaded, "called_off")
		s.markForPublish(f)
	}
}
