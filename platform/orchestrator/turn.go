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
func (o *Orchestrator) Turn(ctx context.Context) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	in := o.take()
	defer in.clear()

	if skipped := o.advance(); skipped > 0 {
		o.event("clock_jump", functions.Name{}, "", "", "", fmt.Sprintf("the server stood still for %v; agents' silence in that time does not count", skipped.Round(time.Second)))
	}
	now := o.lastTurn
	o.turns++

	if in.changed || o.catalogShrunkAt > 0 {
		o.readCatalog(now)
	}
	for _, x := range in.heartbeats.Entries() {
		o.onHeartbeat(ctx, x.Value, now)
	}
	// Waiters of functions that became READY or failed are released first.
	o.publishDirty()
	o.applyUpdates(ctx, in, now)
	o.loadWantedAdapters(ctx)
	all := o.lastTick == 0 || now-o.lastTick >= tick*9/10 // a tick may be a tenth early
	if all {
		o.lastTick = now
	}
	o.readDemand(now, all)
	if all {
		o.forecaster.run(ctx, now)
	}
	for _, x := range in.nudges.Entries() {
		if f := o.functions[x.Key]; f != nil && f.Active+f.Queued == 0 && f.wakeLease != 0 {
			f.wakeLease = 0
			o.enqueue(f)
		}
	}
	next := o.decide(ctx, now, all)
	if o.progress > 0 && now-o.progressAt >= o.progress {
		o.progressAt = now
		for _, f := range o.coldStarts.starting.List {
			if f.coldStart.replica != nil {
				o.markForPublish(f)
			}
		}
	}
	o.publishDirty()
	again := o.sleepWhenIdle(ctx, now)
	if (o.unloadDrained(ctx, now) || again) && (next == 0 || next > drainPoll) {
		next = drainPoll
	}
	return next
}

// applyUpdates applies the inbox, except for heartbeats and nudges.
func (o *Orchestrator) applyUpdates(ctx context.Context, in *updates, now placement.Instant) {
	for _, x := range in.loaded.Entries() {
		o.onLoaded(ctx, x.Key, x.Value, now)
	}
	for _, x := range in.unloaded.Entries() {
		if r := o.replicas[x.Key]; r != nil {
			o.noteStaleEpoch(r, x.Value)
			r.retryUnloadAt = now + tick
			if x.Value.err == nil {
				r.retryUnloadAt = now + unloadRetryAfter // the replica should be gone by then
			}
			o.unloadRetries.Add(r)
		}
	}
	o.unloadRetries.Each(func(r *replicaState) {
		if now >= r.retryUnloadAt || o.replicas[r.id] != r {
			r.unloading, r.cancelled = false, false
			o.enqueue(r.function)
			o.unloadRetries.Drop(r)
		}
	})
	for _, x := range in.healthReports.Entries() {
		o.sendVerify(ctx, x.Key, x.Value)
	}
	for _, x := range in.adapterUses.Entries() {
		u := x.Key
		o.commands.run(ctx, func(ctx context.Context) { o.requestAdapter(ctx, u.replica, u.adapter) })
	}
	for _, x := range in.wantedAdapters.Entries() {
		o.wantedAdapters.Add(x.Key)
	}
	for _, x := range in.sleepRefusals.Entries() {
		if r := o.replicas[x.Key]; r != nil && !r.stopping {
			o.noteStaleEpoch(r, x.Value)
			o.sleepFailed(r, x.Value.err.Error(), now)
		}
	}
	for _, x := range in.stops.Entries() {
		o.stopFunction(x.Key, now)
	}
	for _, x := range in.wakes.Entries() {
		o.onWake(x.Key, x.Value, now)
	}
}

// publishDirty publishes every function that changed.
func (o *Orchestrator) publishDirty() {
	defer func() { // after publishing: cut requests pick another replica from the new snapshots
		for _, url := range o.lostAgents {
			o.path.Cut(url)
		}
		o.lostAgents = nil
	}()
	if len(o.dirty) == 0 {
		return
	}
	out := make([]snapshot.Snapshot, 0, len(o.dirty))
	for _, f := range o.dirty {
		f.toPublish = false
		if !f.Gone {
			out = append(out, o.snapshotOf(f))
		}
	}
	clear(o.dirty)
	o.dirty = o.dirty[:0]
	if len(out) > 0 {
		o.path.Publish(out...)
		o.changes.send(struct{}{})
	}
}

func (o *Orchestrator) onWake(name functions.Name, w wakeRequest, now placement.Instant) {
	f := o.functions[name]
	if f == nil || f.Gone {
		o.dropStartID(name, w.id)
		return
	}
	o.enqueue(f)
	if w.held > 0 {
		f.userLease = max(f.userLease, o.instant(w.at)+w.held)
	}
	for _, r := range f.replicas {
		if r.serves() {
			o.dropStartID(name, w.id)
			return
		}
	}
	if w.once { // over the API, not by a request
		f.endPause()
		f.untilReady = true
	}
	if o.superseded {
		o.refuseStart(f, now)
		o.dropStartID(name, w.id)
		return
	}
	if w.retry > 0 {
		f.wakeLease = max(f.wakeLease, o.instant(w.at)+w.retry)
	}
	if f.coldStart != nil && !f.coldStart.over {
		return
	}
	c := o.coldStarts.begin(f, w.id, w.at)
	for _, r := range f.replicas { // an adopted replica that is starting
		if !r.stopping && !r.cancelled && r.coldStart == nil && !r.asleep() {
			r.coldStart, c.replica, c.decided, c.placed = c, r, now, now
			break
		}
	}
	o.markDirty(f)
}

// readDemand applies changed demand; with all it also verifies the other functions and
// advances the load windows of busy ones.
func (o *Orchestrator) readDemand(now placement.Instant, all bool) {
	o.path.Demand(all, func(d Demand) bool {
		f := o.functions[d.Name.WithoutAdapter()]
		if f == nil || f.Gone {
			return true
		}
		f.demandTurn = o.turns
		was := f.demandSummary()
		f.Active, f.Queued, f.Oldest = d.Active, d.Queued, 0
		f.LowActive, f.LowQueued, f.LowSince = d.Low.Active, d.Low.Queued, min(o.instant(d.Low.LastUse), now)
		if d.Queued > 0 && !d.Oldest.IsZero() {
			f.Oldest = min(o.instant(d.Oldest), now)
		}
		f.LastEnd = max(f.LastEnd, min(o.instant(d.LastEnd), now))
		if f.updateLoad(o.policy.Autoscale, now) {
			o.busyFunctions.Add(f)
		} else {
			o.busyFunctions.Drop(f)
		}
		// The same counts and no ended request: nothing changed.
		if was != f.demandSummary() || !all {
			o.enqueue(f)
		}
		return true
	})
	if !all {
		return
	}
	o.busyFunctions.Each(func(f *functionState) {
		if f.demandTurn != o.turns && f.Active+f.Queued > 0 {
			if f.Active > 0 {
				f.LastEnd = max(f.LastEnd, now)
			}
			f.clearDemand()
			o.enqueue(f)
		}
		if f.demandTurn == o.turns {
			return // the loop above has evaluated it
		}
		needed, desired := f.Needed, f.Desired
		if !f.updateLoad(o.policy.Autoscale, now) {
			o.busyFunctions.Drop(f)
		}
		if needed != f.Needed || desired != f.Desired {
			o.enqueue(f)
		}
	})
}

// forever is longer than any lease; adding to it does not overflow.
const forever = placement.Instant(math.MaxInt64 / 4)

// decide passes changes to the planner and performs its plan. Its cost depends on the
// changes.
func (o *Orchestrator) decide(ctx context.Context, now placement.Instant, all bool) time.Duration {
	if o.superseded {
		return 0
	}
	o.extendSilentNodes(now)
	o.teams.settle(now, false)
	news := o.pending
	o.pending, o.sparePending = o.sparePending[:0], nil
	var dead []*functionState
	for _, f := range news {
		f.enqueued = false
		if f.Gone && len(f.replicas) == 0 {
			f.copyReplicas(o.path.InFlightOf)
			o.teams.charge(f, now)
			dead = append(dead, f)
			continue
		}
		f.Size, f.Expect = o.sizes[f.Source], f.starts.Expected()
		o.forecaster.recordUse(f, now)
		f.Lease = max(f.wakeLease, f.userLease)
		if f.untilReady {
			f.Lease = forever
		}
		f.copyReplicas(o.path.InFlightOf)
		o.teams.charge(f, now)
		if f.Sleeps {
			f.canSleep(o.bytesAtHand(f))
		}
		o.planner.Touch(&f.Function)
	}
	if len(dead) > 0 {
		o.deleteFunctions(dead)
	}
	plan := o.planner.Plan(now)
	for i := range plan.Actions {
		o.perform(ctx, &plan.Actions[i], now)
	}
	if now > startGrace { // before, not all agents have sent a heartbeat
		turned := plan.Changed
		if !o.startGraceOver {
			o.startGraceOver = true
			turned = slices.SortedFunc(maps.Keys(plan.Blocked), func(a, b functions.Name) int {
				return cmp.Or(cmp.Compare(a.Team, b.Team), cmp.Compare(a.Name, b.Name))
			})
		}
		for _, name := range turned {
			if f := o.functions[name]; f != nil {
				v, ok := plan.Blocked[name]
				o.onVerdict(f, v, ok)
			}
		}
	}
	for _, f := range news {
		o.endUnwantedStart(f, now)
	}
	if all {
		o.coldStarts.starting.Each(func(f *functionState) { o.endUnwantedStart(f, now) })
	}
	clear(news)
	o.sparePending = news[:0]
	if plan.Next == 0 {
		return 0
	}
	return max(plan.Next-now, time.Millisecond)
}

// onVerdict records that f cannot be placed, or can be again.
func (o *Orchestrator) onVerdict(f *functionState, v placement.Verdict, blocked bool) {
	switch {
	case !blocked && f.blocked == nil:
	case !blocked:
		f.blocked = nil
		o.markForPublish(f)
	default:
		news := f.blocked == nil || f.blocked.Code != v.Code || f.blocked.Message != v.Message
		at := o.timeNow()
		if !news { // publish only if the ETA changed by more than the passed time
			left := f.blocked.Remaining(at)
			if d := left - v.ETA; (left < 0) == (v.ETA <= 0) && max(d, -d) <= max(time.Second, left/8) {
				return
			}
		}
		f.blocked, f.unplaced = &snapshot.Blocked{Code: v.Code, Message: v.Message, ETA: v.ETA, At: at, Final: o.isFinal(f, v)}, v.Message
		o.markForPublish(f)
		if news {
			o.event("blocked", f.Name, "", "", v.Code, v.Message)
		}
	}
}

// isFinal reports whether no node could hold f even if it were empty, and none may join.
func (o *Orchestrator) isFinal(f *functionState, v placement.Verdict) bool {
	if v.Code != placement.CodeCapacity || o.alone == nil || !o.alone() {
		return false
	}
	nodes := make([]functions.Node, 0, len(o.nodes))
	for _, n := range o.nodes {
		nodes = append(nodes, functions.Node{GPUs: n.last.GPUs, Memory: n.last.Memory})
	}
	return f.Resources.Unmet(nodes) != ""
}

// endUnwantedStart ends the cold start of f if it has no replica and no demand left, or no
// node can ever hold it.
func (o *Orchestrator) endUnwantedStart(f *functionState, now placement.Instant) {
	c := f.coldStart
	if c == nil || c.over || slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return !r.asleep() }) {
		return
	}
	if f.blocked != nil && f.blocked.Final {
		f.untilReady = false
		o.finishColdStart(c, functions.Failed, f.blocked.Message)
		o.markDirty(f)
	} else if f.Active+f.Queued == 0 && f.Lease <= now && f.Scale.Min == 0 {
		o.finishColdStart(c, functions.Unloaded, "called_off")
		o.markForPublish(f)
	}
}
