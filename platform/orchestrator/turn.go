package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/platform/placement"
)

const (
	clockJumpAfter        = 3 * time.Second // a turn this late means that we stood still, not they
	recheckAfter          = 2 * time.Second // before a catalogue that lost half of itself is believed
	orphanGrace           = 5 * time.Second // before a replica of an unknown model is ended
	adoptedStartLease     = 5 * time.Second // before a start that was found under way is one that nobody waits for
	nodePauseAfterRefusal = 2 * time.Second // no new load on a node that just failed one
	progressEvery         = 500 * time.Millisecond
	maxRefusals           = 3 // loads refused in a row before it is called a failure
	startGrace            = 6 * time.Second
	unloadRetryAfter      = 10 * time.Second // an unload that had no effect is sent again
)

// Turn takes the news, publishes what changed, decides and acts, in the caller's
// goroutine. It returns when it wants to be called again at the latest; 0: at the
// next tick, of which there is one a second. Run calls it; only who has given
// Options.Ring calls it himself, and then not Run. ctx is that of the commands it
// gives, where Options.Do does not carry them out.
func (s *Orchestrator) Turn(ctx context.Context) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inboxMu.Lock()
	s.inbox, s.spareInbox = s.spareInbox, s.inbox
	s.inboxMu.Unlock()
	in := &s.spareInbox
	defer in.clear()

	now := s.advanceClock()
	s.turns++

	if in.changed || s.catalogShrunkAt > 0 {
		s.readCatalog(now)
	}
	for _, x := range in.heartbeats.Entries() {
		s.onHeartbeat(ctx, x.Value, now)
	}
	// Whoever became READY or failed is told before anything else is done.
	s.publishDirty()

	for _, x := range in.loaded.Entries() {
		s.onLoaded(ctx, x.Key, x.Value, now)
	}
	for _, x := range in.unloaded.Entries() {
		if r := s.replicas[x.Key]; r != nil {
			s.noteStaleEpoch(r, x.Value)
			r.retryUnloadAt = now + tick
			if x.Value.err == nil {
				r.retryUnloadAt = now + unloadRetryAfter // it should be gone by then
			}
			s.unloadRetries.add(r)
		}
	}
	s.unloadRetries.each(func(r *replicaState) {
		if now >= r.retryUnloadAt || s.replicas[r.id] != r {
			r.unloading, r.cancelled = false, false
			s.enqueue(r.function)
			s.unloadRetries.drop(r)
		}
	})
	for _, x := range in.healthReports.Entries() {
		s.sendVerify(ctx, x.Key, x.Value)
	}
	for _, x := range in.adapterUses.Entries() {
		u := x.Key
		s.command(ctx, func(ctx context.Context) { s.requestAdapter(ctx, u.replica, u.adapter) })
	}
	for _, x := range in.wantedAdapters.Entries() {
		s.wantedAdapters.add(x.Key)
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
	s.loadWantedAdapters(ctx)
	all := s.lastTick == 0 || now-s.lastTick >= tick*9/10 // a tick that comes a little early is one
	if all {
		s.lastTick = now
	}
	s.readDemand(now, all)
	if all {
		s.runForecasts(ctx, now)
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
		for _, f := range s.starting.list {
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

// advanceClock reads the clock. Time in which we stood still (a suspended laptop, a
// process that was stopped, a clock that was put forward) has not passed: nobody
// was silent or idle in it, no lease ran out. On a clock that is put back time
// goes on from where it was.
func (s *Orchestrator) advanceClock() placement.Instant {
	if s.lastTurn > 0 {
		switch gap := s.now() - s.lastTurn; {
		case gap > clockJumpAfter:
			s.began = s.began.Add(gap - tick)
			s.event("clock_jump", functions.Name{}, "", "", "", fmt.Sprintf("the server stood still for %v; nobody's silence is counted for that time", gap.Round(time.Second)))
		case gap < 0:
			s.began = s.began.Add(gap)
		}
	}
	s.lastTurn = s.now()
	return s.lastTurn
}

// enqueue notes that there is news of f for the core.
func (s *Orchestrator) enqueue(f *functionState) {
	if !f.enqueued {
		f.enqueued = true
		s.pending = append(s.pending, f)
	}
}

// markDirty notes that f has changed: for the core and for the data path.
func (s *Orchestrator) markDirty(f *functionState) {
	s.enqueue(f)
	s.markForPublish(f)
}

// markForPublish notes that the picture of f has changed, and nothing of it that matters
// to the core.
func (s *Orchestrator) markForPublish(f *functionState) {
	if !f.toPublish {
		f.toPublish = true
		s.dirty = append(s.dirty, f)
	}
}

// publishDirty publishes every function that changed.
func (s *Orchestrator) publishDirty() {
	defer func() { // what is cut looks for another replica in the new pictures
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
		s.notifyWatchers()
	}
}

// readCatalog takes the catalogue over. One that has lost most of itself is
// read a second time before it is believed.
func (s *Orchestrator) readCatalog(now placement.Instant) {
	models := s.catalog.Models()
	next := make(map[functions.Name]*functions.Model, len(models))
	for _, m := range models {
		next[m.FullName()] = m
	}
	missing, known := 0, 0
	for _, f := range s.functionList {
		if f.Gone {
			continue
		}
		known++
		if next[f.Name] == nil {
			missing++
		}
	}
	if s.catalogRead && missing > 1 && 2*missing > known {
		if s.catalogShrunkAt == 0 {
			s.catalogShrunkAt = now
			s.event("catalog_suspicious", functions.Name{}, "", "", "recheck", fmt.Sprintf("%d of %d functions are gone; looking again", missing, known))
		}
		if now-s.catalogShrunkAt < recheckAfter {
			return
		}
	}
	s.catalogShrunkAt, s.catalogRead = 0, true
	for _, m := range models {
		name := m.FullName()
		if next[name] != m {
			continue // of two that are called alike the later
		}
		f := s.functions[name]
		if f == nil {
			f = &functionState{}
			s.functions[name] = f
			s.functionList = append(s.functionList, f)
			s.placementWorld.Functions = append(s.placementWorld.Functions, &f.Function)
		} else if f.model == m && !f.Gone {
			continue
		}
		was := f.recipe
		f.setModel(m, s.machine)
		if was != f.recipe {
			f.failures, f.deaths, f.refusals, f.failure, f.RetryAt = 0, 0, 0, nil, 0
			f.starts.Clear()
			s.restoreStarts(f)
		}
		s.markDirty(f)
	}
	for _, f := range s.functionList {
		if next[f.Name] != nil || f.Gone {
			continue
		}
		f.Gone = true
		f.wakeLease, f.userLease, f.untilReady = 0, 0, false
		f.Active, f.Queued, f.Oldest = 0, 0, 0
		s.enqueue(f)
		s.path.Remove(f.Name)
		s.event("removed", f.Name, "", "", "", "")
	}
	for _, t := range s.accounts.All() {
		t.Spec = functions.TeamSpec{}
	}
	for _, m := range models {
		s.accountOf(m.FullName().Team)
	}
	for _, t := range s.catalog.Teams() {
		s.accountOf(t.Metadata.Name).Spec = t.Spec
	}
	s.settleTeams(now, true)
}

// deleteFunctions forgets functions that have left the catalogue and of which nothing runs.
func (s *Orchestrator) deleteFunctions(dead []*functionState) {
	for _, f := range dead {
		s.finishColdStart(f.coldStart, functions.Unloaded, "removed")
		s.busyFunctions.drop(f)
		s.starting.drop(f)
		s.planner.Drop(f.Name)
		delete(s.functions, f.Name)
		s.forgetHistory(f)
	}
	s.functionList = slices.DeleteFunc(s.functionList, func(f *functionState) bool { return s.functions[f.Name] != f })
	s.placementWorld.Functions = s.placementWorld.Functions[:0]
	for _, f := range s.functionList {
		s.placementWorld.Functions = append(s.placementWorld.Functions, &f.Function)
	}
}

// onStatus takes the status of a replica in.
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
		r.cancelled = false // too late: it goes on
	}
	s.onSleepStatus(r, st, now)
	switch st.State {
	case functions.Ready:
		if r.readyAt == 0 {
			r.readyAt = now
			if before == "" && r.coldStart == nil { // adopted: it has been ready for a while
				r.readyAt = max(1, now-time.Duration(max(0, min(st.Since, 1e12)))*time.Millisecond)
				s.adoptLoad(f, now)
			}
			f.failures, f.failure = 0, nil
			f.wakeLease, f.untilReady = 0, false // from now on its idle time holds it
			s.markDirty(f)
			if r.coldStart != nil {
				// Waiters first; the books are kept after.
				if !f.Gone { // it left the catalogue just now
					s.path.Publish(s.snapshotOf(f))
				}
				s.finishColdStart(r.coldStart, functions.Ready, "")
			}
			s.event("ready", f.Name, r.id, r.node, "", "")
		}
	case functions.Failed:
		s.onFailure(ctx, r, st.Error, now)
	case functions.Unloaded:
		s.removeReplica(r, r.reason)
		if n := s.nodes[r.node]; s.mayCommand(n) {
			s.sendUnload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "forget"})
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

// plannedStatus are what the core sees of a status.
type plannedStatus struct {
	spawned bool
	level   int
	total   functions.Bytes
}

func plannedStatusOf(st *functions.ReplicaStatus) plannedStatus {
	return plannedStatus{hasProcess(*st), st.SleepLevel, st.TotalBytes}
}

// addReplica enters a new replica in the books.
func (s *Orchestrator) addReplica(r *replicaState, n *nodeState) {
	s.replicas[r.id] = r
	r.function.replicas = append(r.function.replicas, r)
	n.replicas = append(n.replicas, r)
}

// removeReplica forgets a replica whose room is free.
func (s *Orchestrator) removeReplica(r *replicaState, why string) {
	f := r.function
	delete(s.replicas, r.id)
	r.forgotten = true
	s.draining.drop(r)
	s.goingToSleep.drop(r)
	s.unloadRetries.drop(r)
	s.wakingUp.drop(r)
	if n := s.nodes[r.node]; n != nil {
		n.replicas = slices.DeleteFunc(n.replicas, func(x *replicaState) bool { return x == r })
	}
	f.replicas = slices.DeleteFunc(f.replicas, func(x *replicaState) bool { return x == r })
	s.markDirty(f)
	if why == "vanished" && r.reason != "" {
		why = r.reason // it has gone because it was told to
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
	// Its node is lost to it: the same cold start looks for another place.
	c.replica, c.decided, c.placed = nil, 0, 0
}

// onFailure ends a replica that broke, tells its waiters why, and sets the pause
// before the next start.
func (s *Orchestrator) onFailure(ctx context.Context, r *replicaState, cause string, now placement.Instant) {
	f := r.function
	if cause == "" {
		cause = "the engine ended"
	}
	if n := s.nodes[r.node]; s.mayCommand(n) {
		s.sendUnload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "failed"})
	}
	if r.stopping || r.cancelled {
		s.removeReplica(r, "failed")
		return
	}
	if r.sleep.wakingUp || r.sleep.goingToSleep || r.sleep.asleepSince > 0 {
		// No fault of the model's: whoever waits gets a cold start, at once.
		if r.sleep.wakingUp {
			s.counts.wakeups.WithLabelValues("failed").Inc()
		}
		s.event("failed", f.Name, r.id, r.node, "sleep", cause)
		s.counts.recordFailure(true, cause)
		s.removeReplica(r, "failed")
		return
	}
	var pause time.Duration
	if r.readyAt > 0 {
		// It served. Once is an accident and is mended at once; soon after
		// READY again and again is a loop.
		if now-r.readyAt < earlyDeath {
			f.deaths++
		} else {
			f.deaths = 1
		}
		pause = placement.Backoff(f.deaths - 1)
	} else {
		f.failures++
		pause = placement.Backoff(f.failures)
	}
	if r.recipe == f.recipe {
		s.backOff(f, cause, pause, now)
	}
	s.event("failed", f.Name, r.id, r.node, "", cause)
	s.counts.recordFailure(r.readyAt > 0, cause)
	s.finishColdStart(r.coldStart, functions.Failed, cause)
	s.removeReplica(r, "failed")
}

// backOff tells waiters why, and starts f no sooner.
func (s *Orchestrator) backOff(f *functionState, cause string, backOff time.Duration, now placement.Instant) {
	if backOff <= 0 {
		return
	}
	f.RetryAt = now + backOff
	f.failure = &snapshot.Failure{Reason: cause, At: s.timeNow(), Until: s.timeNow().Add(backOff)}
	f.wakeLease, f.untilReady = 0, false
	s.markDirty(f)
}

// onLoaded is the answer to a load.
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
		return // its heartbeat knows better than a lost answer
	}
	s.event("load_refused", r.function.Name, r.id, r.node, "", o.err.Error())
	if n != nil {
		n.AvoidUntil = now + nodePauseAfterRefusal
		s.planner.Node(n.Node)
		if s.noteStaleEpoch(r, o); !n.stale {
			// The load may have arrived though its answer did not.
			s.sendUnload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "lost"})
		}
	}
	// Once or twice it is a node's own trouble, and another is tried; again and
	// again it is the function's, and its waiters should hear of it.
	f := r.function
	if f.refusals++; f.refusals >= maxRefusals {
		f.failures++
		s.backOff(f, "no agent takes it: "+o.err.Error(), placement.Backoff(f.failures), now)
		s.finishColdStart(r.coldStart, functions.Failed, o.err.Error())
	}
	s.removeReplica(r, "load_refused")
}

// noteStaleEpoch takes in what the outcome of a command says of who commands.
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
		s.command(ctx, func(ctx context.Context) { v.Verify(ctx, id, a.problem) })
	}
}

// reasonUser is why replicas stop that somebody has stopped.
const reasonUser = "asked"

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

func (s *Orchestrator) stopReplica(r *replicaState, drain time.Duration, reason, whom string, now placement.Instant) {
	r.stopping, r.reason = true, reason
	r.drainEnd = now + drain
	s.draining.add(r)
	s.markDirty(r.function)
	s.replicaEvent("stop", r, reason, whom)
	s.counts.evictions.WithLabelValues(reason).Inc()
}

func (s *Orchestrator) onWake(name functions.Name, w wakeRequest, now placement.Instant) {
	f := s.functions[name]
	forget := func() {
		s.inboxMu.Lock()
		if s.startIDs[name] == w.id {
			delete(s.startIDs, name)
		}
		s.inboxMu.Unlock()
	}
	if f == nil || f.Gone {
		forget()
		return
	}
	s.enqueue(f)
	if w.held > 0 {
		f.userLease = max(f.userLease, s.instant(w.at)+w.held)
	}
	for _, r := range f.replicas {
		if r.serves() {
			forget()
			return
		}
	}
	f.untilReady = f.untilReady || w.once
	if s.superseded {
		s.refuseStart(f, now)
		forget()
		return
	}
	if w.retry > 0 {
		f.wakeLease = max(f.wakeLease, s.instant(w.at)+w.retry)
	}
	if f.coldStart != nil && !f.coldStart.over {
		return
	}
	c := s.beginColdStart(f, w.id, w.at)
	for _, r := range f.replicas { // one that was adopted on its way
		if !r.stopping && !r.cancelled && r.coldStart == nil && !r.asleep() {
			r.coldStart, c.replica, c.decided, c.placed = c, r, now, now
			break
		}
	}
	s.markDirty(f)
}

// readDemand reads what is asked of the functions of which that has changed; with all
// it makes sure of the others, and lets the windows of those that are busy move on.
func (s *Orchestrator) readDemand(now placement.Instant, all bool) {
	s.path.Demand(all, func(d Demand) bool {
		f := s.functions[d.Name.WithoutAdapter()]
		if f == nil || f.Gone {
			return true
		}
		f.demandTurn = s.turns
		was := [...]int64{int64(f.Active), int64(f.Queued), int64(f.Oldest), int64(f.LastEnd), int64(f.Needed), int64(f.Desired)}
		f.Active, f.Queued, f.Oldest = d.Active, d.Queued, 0
		if d.Queued > 0 && !d.Oldest.IsZero() {
			f.Oldest = min(s.instant(d.Oldest), now)
		}
		f.LastEnd = max(f.LastEnd, min(s.instant(d.LastEnd), now))
		if s.updateLoad(f, now) {
			s.busyFunctions.add(f)
		} else {
			s.busyFunctions.drop(f)
		}
		// As many as before, and none has ended: they are where they were.
		if was != [...]int64{int64(f.Active), int64(f.Queued), int64(f.Oldest), int64(f.LastEnd), int64(f.Needed), int64(f.Desired)} || !all {
			s.enqueue(f)
		}
		return true
	})
	if !all {
		return
	}
	s.busyFunctions.each(func(f *functionState) {
		if f.demandTurn != s.turns && f.Active+f.Queued > 0 {
			if f.Active > 0 {
				f.LastEnd = max(f.LastEnd, now)
			}
			f.Active, f.Queued, f.Oldest = 0, 0, 0
			s.enqueue(f)
		}
		if f.demandTurn == s.turns {
			return // it was weighed just now
		}
		needed, desired := f.Needed, f.Desired
		if !s.updateLoad(f, now) {
			s.busyFunctions.drop(f)
		}
		if needed != f.Needed || desired != f.Desired {
			s.enqueue(f)
		}
	})
}

// forever is longer than anything lasts, and can be added to.
const forever = placement.Instant(math.MaxInt64 / 4)

// decide tells the core the news, asks it, and does what it says. What it costs
// is what has changed, not what there is.
func (s *Orchestrator) decide(ctx context.Context, now placement.Instant, all bool) time.Duration {
	if s.superseded {
		return 0
	}
	s.extendSilentNodes(now)
	s.settleTeams(now, false)
	news := s.pending
	s.pending, s.sparePending = s.sparePending[:0], nil
	var dead []*functionState
	for _, f := range news {
		f.enqueued = false
		if f.Gone && len(f.replicas) == 0 {
			f.copyReplicas(s.path.InFlightOf)
			s.chargeTeam(f, now)
			dead = append(dead, f)
			continue
		}
		f.Size, f.Expect = s.sizes[f.Source], f.starts.Expected()
		s.recordUse(f, now)
		f.Lease = max(f.wakeLease, f.userLease)
		if f.untilReady {
			f.Lease = forever
		}
		f.copyReplicas(s.path.InFlightOf)
		s.chargeTeam(f, now)
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
	if now > startGrace { // before it, agents that were there have not all been heard
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
		s.starting.each(func(f *functionState) { s.endUnwantedStart(f, now) })
	}
	clear(news)
	s.sparePending = news[:0]
	if plan.Next == 0 {
		return 0
	}
	return max(plan.Next-now, time.Millisecond)
}

// onVerdict takes in that f cannot be placed, or that nothing stands in its way any
// more.
func (s *Orchestrator) onVerdict(f *functionState, v placement.Verdict, blocked bool) {
	switch {
	case !blocked && f.blocked == nil:
	case !blocked:
		f.blocked = nil
		s.markForPublish(f)
	default:
		news := f.blocked == nil || f.blocked.Code != v.Code || f.blocked.Message != v.Message
		at := s.timeNow()
		if !news { // an ETA that only comes nearer is known
			left := f.blocked.Remaining(at)
			if d := left - v.ETA; (left < 0) == (v.ETA <= 0) && max(d, -d) <= max(time.Second, left/8) {
				return
			}
		}
		f.blocked = &snapshot.Blocked{Code: v.Code, Message: v.Message, ETA: v.ETA, At: at}
		s.markForPublish(f)
		if news {
			s.event("blocked", f.Name, "", "", v.Code, v.Message)
		}
	}
}

// endUnwantedStart ends a cold start that nobody wants any more and that has come to nothing.
func (s *Orchestrator) endUnwantedStart(f *functionState, now placement.Instant) {
	if c := f.coldStart; c != nil && !c.over && f.Active+f.Queued == 0 && f.Lease <= now && f.Scale.Min == 0 &&
		!slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return !r.asleep() }) {
		s.finishColdStart(c, functions.Unloaded, "called_off")
		s.markForPublish(f)
	}
}

func (s *Orchestrator) perform(ctx context.Context, a *placement.Action, now placement.Instant) {
	switch a.Kind {
	case placement.Start:
		s.startReplica(ctx, a, now)
		if f := s.functions[a.Function]; f != nil {
			s.recordRestart(f, now)
		}
	case placement.Stop:
		if r := s.replicas[a.Replica]; r != nil && !r.stopping {
			s.recordEviction(a, now)
			s.stopReplica(r, a.Drain, a.Reason, a.For, now)
		}
	case placement.Sleep:
		if r := s.replicas[a.Replica]; r != nil && !r.stopping {
			s.recordEviction(a, now)
			s.beginSleep(r, a, now)
		}
	case placement.WakeUp:
		s.wakeUp(ctx, a, now)
		if f := s.functions[a.Function]; f != nil {
			s.recordRestart(f, now)
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
		s.sendUnload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: functions.ReasonCalledOff})
	case placement.MarkNodeLost:
		n := s.nodes[a.Node]
		if n == nil {
			return
		}
		delete(s.nodes, a.Node)
		if n.last.URL != "" {
			s.lostAgents = append(s.lostAgents, n.last.URL)
		}
		s.placementWorld.Nodes = slices.DeleteFunc(s.placementWorld.Nodes, func(x *placement.Node) bool { return x == n.Node })
		s.planner.DropNode(a.Node)
		s.dropAllCachedSources(n)
		if s.superseded {
			s.updateSuperseded()
		}
		s.event("node_lost", functions.Name{}, "", a.Node, a.Reason, "")
		for _, r := range n.replicas {
			s.removeReplica(r, "node_lost")
		}
	}
}

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
			c = s.beginColdStart(f, "", s.timeNow())
		} else { // one more beside those that serve: a cold start nobody asked by name
			c = s.beginExtraStart(f)
		}
	} else if c.replica != nil {
		c = s.beginExtraStart(f)
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
	f.failure = nil
	s.markDirty(f)
	s.event("start", f.Name, r.id, r.node, a.Reason, "")
	dir := f.model.Dir
	if n.Borrows && n.Machine != s.machine {
		// What is a path in the model file is one of this machine.
		dir = loader.PeerLocation(s.here, cmp.Or(dir, "/"))
	}
	s.sendLoad(ctx, r.id, n, functions.LoadRequest{
		ID: r.id, Team: f.Name.Team, Model: f.Name.Name, Spec: f.model.Spec, Dir: dir, Epoch: s.epoch, GPUs: a.GPUs,
	})
}

// unloadDrained unloads what has left the routes and has nothing in flight, or whose
// time is over. It reports whether it must look again soon.
func (s *Orchestrator) unloadDrained(ctx context.Context, now placement.Instant) (again bool) {
	for _, r := range s.draining.list {
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
		s.sendUnload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: r.reason, DrainSeconds: max(0, (r.drainEnd - now).Seconds())})
	}
	return again
}
