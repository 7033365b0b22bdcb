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
// is one a second. Run calls it, or instead the owner of Options.OnUpdate. Commands run
// with ctx unless Options.RunCommand executes them.
func (o *Orchestrator) Turn(ctx context.Context) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	in := o.take()
	defer in.clear()

	if skipped := o.advance(); skipped > 0 {
		o.event("clock_jump", functions.Name{}, "", "", "",
			fmt.Sprintf("the server stood still for %v; agents' silence in that time does not count", skipped.Round(time.Second)))
	}
	now := o.lastTurn
	o.turns++

	if in.changed || o.catalog.shrunkAt > 0 {
		o.catalog.read(now)
	}
	for _, x := range in.heartbeats.Entries() {
		o.onHeartbeat(ctx, x.Value, now)
	}
	// Waiters of functions that became READY or failed are released first.
	o.publisher.publishChanged()
	o.applyUpdates(ctx, in, now)
	o.loadWanted(ctx)
	all := o.lastTick == 0 || now-o.lastTick >= tick*9/10 // a tick may be a tenth early
	if all {
		o.lastTick = now
	}
	o.readDemand(now, all)
	if all {
		o.forecaster.Run(ctx, now)
	}
	for _, x := range in.nudges.Entries() {
		if f := o.functions[x.Key]; f != nil && f.Active+f.Queued == 0 && f.wakeLease != 0 {
			f.wakeLease = 0
			o.enqueue(f)
		}
	}
	next := o.decide(ctx, now, all)
	o.publisher.publishProgress(o.coldStarts.starting.List, now)
	o.publisher.publishChanged()
	again := o.sleeping.sleepWhenIdle(ctx, now)
	if (o.lifecycle.unloadDrained(ctx, now) || again) && (next == 0 || next > drainPoll) {
		next = drainPoll
	}
	return next
}

// applyUpdates applies the inbox, except for heartbeats and nudges.
func (o *Orchestrator) applyUpdates(ctx context.Context, in *updates, now placement.Instant) {
	for _, x := range in.loaded.Entries() {
		o.lifecycle.onLoaded(ctx, x.Key, x.Value, now)
	}
	o.lifecycle.retryUnloads(in.unloaded.Entries(), now)
	for _, x := range in.healthReports.Entries() {
		o.lifecycle.sendVerify(ctx, x.Key, x.Value)
	}
	for _, x := range in.adapterUses.Entries() {
		u := x.Key
		o.commands.run(ctx, func(ctx context.Context) { o.request(ctx, u.replica, u.adapter) })
	}
	for _, x := range in.wantedAdapters.Entries() {
		o.wanted.Add(x.Key)
	}
	for _, x := range in.sleepRefusals.Entries() {
		if r := o.replicas[x.Key]; r != nil && !r.Stopping {
			o.leadership.noteStaleEpoch(r, x.Value)
			o.sleeping.fail(r, x.Value.err.Error(), now)
		}
	}
	for _, x := range in.stops.Entries() {
		if f := o.functions[x.Key]; f != nil {
			o.forecaster.End(f, "")
			o.lifecycle.stopFunction(f, now)
		}
	}
	for _, x := range in.releases.Entries() {
		if f := o.functions[x.Key]; f != nil {
			f.Released = now
			o.enqueue(f)
		}
	}
	for _, x := range in.wakes.Entries() {
		o.onWake(x.Key, x.Value, now)
	}
}

func (o *Orchestrator) onWake(name functions.Name, w wakeRequest, now placement.Instant) {
	f := o.functions[name]
	if f == nil || f.Gone {
		o.dropStartID(name, w.id)
		return
	}
	o.enqueue(f)
	if w.userLease > 0 {
		f.userLease = max(f.userLease, o.instant(w.at)+w.userLease)
	}
	for _, r := range f.replicas {
		if r.serves() {
			o.dropStartID(name, w.id)
			return
		}
	}
	if w.untilReady { // over the API, not by a request
		f.endPause()
		f.untilReady = true
	}
	if o.leadership.superseded {
		o.lifecycle.refuseStart(f, now)
		o.dropStartID(name, w.id)
		return
	}
	if w.waitersLease > 0 {
		f.wakeLease = max(f.wakeLease, o.instant(w.at)+w.waitersLease)
	}
	if f.coldStart != nil && !f.coldStart.Over {
		return
	}
	c := o.coldStarts.begin(f, w.id, w.at)
	for _, r := range f.replicas { // an adopted replica that is starting
		if !r.Stopping && !r.Cancelled && r.coldStart == nil && !r.asleep() {
			r.coldStart, c.Target, c.Decided, c.Placed = c, r, now, now
			break
		}
	}
	o.markChanged(f)
}

// readDemand applies the demand that was reported; with all it also advances the load windows of
// the other busy functions.
func (o *Orchestrator) readDemand(now placement.Instant, all bool) {
	for _, d := range o.takeDemand() {
		f := o.functions[d.Name.WithoutAdapter()]
		if f == nil {
			continue // its first publication has it reported again
		}
		if f.inFlight = d.InFlight; f.Gone {
			continue
		}
		f.demandTurn = o.turns
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
		o.enqueue(f)
	}
	if !all {
		return
	}
	o.busyFunctions.Each(func(f *functionState) {
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
	if o.leadership.superseded {
		return 0
	}
	o.leadership.extendSilentNodes(now)
	o.teams.settle(now, false)
	news := o.pending
	o.pending, o.sparePending = o.sparePending[:0], nil
	var dead []*functionState
	for _, f := range news {
		f.enqueued = false
		if f.Gone && len(f.replicas) == 0 {
			f.copyReplicas(&o.inbox)
			o.teams.charge(f, now)
			dead = append(dead, f)
			continue
		}
		f.Size, f.Expect = o.sizes[f.Source], f.starts.Expected()
		o.forecaster.RecordUse(f, now)
		f.Lease = max(f.wakeLease, f.userLease)
		if f.untilReady {
			f.Lease = forever
		}
		f.copyReplicas(&o.inbox)
		o.teams.charge(f, now)
		if f.Sleeps {
			f.canSleep(o.bytesAtHand(f))
		}
		o.planner.FunctionChanged(&f.Function)
	}
	if len(dead) > 0 {
		o.catalog.deleteFunctions(dead)
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
				o.setBlocked(f, v, ok)
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

// setBlocked sets f.blocked, or clears it where f can be placed.
func (o *Orchestrator) setBlocked(f *functionState, v placement.Verdict, blocked bool) {
	switch {
	case !blocked && f.blocked == nil:
	case !blocked:
		f.blocked = nil
		o.markUnpublished(f)
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
		o.markUnpublished(f)
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
	if c == nil || c.Over || slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return !r.asleep() }) {
		return
	}
	if f.blocked != nil && f.blocked.Final {
		f.untilReady = false
		o.coldStarts.finish(c, functions.Failed, f.blocked.Message)
		o.markChanged(f)
	} else if f.Active+f.Queued == 0 && f.Lease <= now && f.Scale.Min == 0 {
		o.coldStarts.finish(c, functions.Unloaded, "called_off")
		o.markUnpublished(f)
	}
}
