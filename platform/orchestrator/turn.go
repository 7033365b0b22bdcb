package orchestrator

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/orchestrator/foresight"
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

// loop is what a turn works on. Each part owns its state.
type loop struct {
	*world
	inbox      *inbox
	commands   *commander
	adapters   adapters
	policy     placement.Policy
	alone      func() bool // see Options.Alone
	publisher  publisher
	catalog    catalogReader
	leadership leadership
	lifecycle  lifecycle
	sleeping   sleeping
	teams      teamAccounts
	coldStarts coldStartLog
	forecaster *foresight.Forecaster // nil: none

	lastTick       placement.Instant // the last turn that evaluated all busy functions
	turns          uint64
	startGraceOver bool // earlier agents have had time for a heartbeat
}

// Turn applies the inbox, publishes changes, plans and acts, in the caller's goroutine.
// It returns the time until the latest next call; 0: at the next tick, of which there
// is one a second. Run calls it, or instead the owner of Options.OnUpdate. Commands run
// with ctx unless Options.RunCommand executes them.
func (o *Orchestrator) Turn(ctx context.Context) time.Duration {
	o.loop.Lock()
	defer o.loop.Unlock()
	return o.loop.turn(ctx)
}

func (l *loop) turn(ctx context.Context) time.Duration {
	in := l.inbox.take()
	defer in.clear()

	if skipped := l.advance(); skipped > 0 {
		l.event("clock_jump", functions.Name{}, "", "", "",
			fmt.Sprintf("the server stood still for %v; agents' silence in that time does not count", skipped.Round(time.Second)))
	}
	now := l.lastTurn
	l.turns++

	if in.changed || l.catalog.shrunkAt > 0 {
		l.catalog.read(now)
	}
	for _, e := range in.heartbeats.Entries() {
		l.onHeartbeat(ctx, e.Value, now)
	}
	// Waiters of functions that became READY or failed are released first.
	l.publisher.publishChanged()
	l.applyUpdates(ctx, in, now)
	l.adapters.loadWanted(ctx)
	all := l.lastTick == 0 || now-l.lastTick >= tick*9/10 // a tick may be a tenth early
	if all {
		l.lastTick = now
	}
	l.readDemand(now, all)
	if all {
		l.forecaster.Run(ctx, now)
	}
	for _, e := range in.nudges.Entries() {
		if f := l.functions[e.Key]; f != nil && f.Active+f.Queued == 0 && f.wakeLease != 0 {
			f.wakeLease = 0
			l.enqueue(f)
		}
	}
	next := l.decide(ctx, now, all)
	l.publisher.publishProgress(l.coldStarts.starting.List, now)
	l.publisher.publishChanged()
	again := l.sleeping.sleepWhenIdle(ctx, now)
	if (l.lifecycle.unloadDrained(ctx, now) || again) && (next == 0 || next > drainPoll) {
		next = drainPoll
	}
	return next
}

// applyUpdates applies the inbox, except for heartbeats and nudges.
func (l *loop) applyUpdates(ctx context.Context, in *updates, now placement.Instant) {
	for _, e := range in.loaded.Entries() {
		l.lifecycle.onLoaded(ctx, e.Key, e.Value, now)
	}
	l.lifecycle.retryUnloads(in.unloaded.Entries(), now)
	for _, e := range in.healthReports.Entries() {
		l.lifecycle.sendVerify(ctx, e.Key, e.Value)
	}
	for _, e := range in.adapterUses.Entries() {
		u := e.Key
		l.commands.run(ctx, func(ctx context.Context) { l.adapters.request(ctx, u.replica, u.adapter) })
	}
	for _, e := range in.wantedAdapters.Entries() {
		l.adapters.wanted.Add(e.Key)
	}
	for _, e := range in.sleepRefusals.Entries() {
		if r := l.replicas[e.Key]; r != nil && !r.Stopping {
			l.leadership.noteStaleEpoch(r, e.Value)
			l.sleeping.fail(r, e.Value.err.Error(), now)
		}
	}
	for _, e := range in.stops.Entries() {
		if f := l.functions[e.Key]; f != nil {
			l.forecaster.End(f, "")
			l.lifecycle.stopFunction(f, now)
		}
	}
	for _, e := range in.releases.Entries() {
		if f := l.functions[e.Key]; f != nil {
			f.Released = now
			l.enqueue(f)
		}
	}
	for _, e := range in.wakes.Entries() {
		l.onWake(e.Key, e.Value, now)
	}
}

func (l *loop) onWake(name functions.Name, w wakeRequest, now placement.Instant) {
	f := l.functions[name]
	if f == nil || f.Gone {
		l.inbox.dropStartID(name, w.id)
		return
	}
	l.enqueue(f)
	if w.userLease > 0 {
		f.userLease = max(f.userLease, l.instant(w.at)+w.userLease)
	}
	if f.serving() > 0 {
		l.inbox.dropStartID(name, w.id)
		return
	}
	if w.untilReady { // over the API, not by a request
		f.endPause()
		f.untilReady = true
	}
	if l.leadership.superseded {
		l.lifecycle.refuseStart(f, now)
		l.inbox.dropStartID(name, w.id)
		return
	}
	if w.waitersLease > 0 {
		f.wakeLease = max(f.wakeLease, l.instant(w.at)+w.waitersLease)
	}
	if f.coldStart != nil && !f.coldStart.Over {
		return
	}
	c := l.coldStarts.begin(f, w.id, w.at)
	for _, r := range f.replicas { // an adopted replica that is starting
		if !r.Stopping && !r.Cancelled && r.coldStart == nil && !r.asleep() {
			r.coldStart, c.Target, c.Decided, c.Placed = c, r, now, now
			break
		}
	}
	l.markChanged(f)
}

// readDemand applies the demand that was reported; with all it also advances the load windows of
// the other busy functions.
func (l *loop) readDemand(now placement.Instant, all bool) {
	for _, d := range l.inbox.takeDemand() {
		f := l.functions[d.Name.WithoutAdapter()]
		if f == nil {
			continue // its first publication has it reported again
		}
		if f.inFlight = d.InFlight; f.Gone {
			continue
		}
		f.demandTurn = l.turns
		f.Active, f.Queued, f.Oldest = d.Active, d.Queued, 0
		f.LowActive, f.LowQueued, f.LowSince = d.Low.Active, d.Low.Queued, min(l.instant(d.Low.LastUse), now)
		if d.Queued > 0 && !d.Oldest.IsZero() {
			f.Oldest = min(l.instant(d.Oldest), now)
		}
		f.LastEnd = max(f.LastEnd, min(l.instant(d.LastEnd), now))
		if f.updateLoad(l.policy.Autoscale, now) {
			l.busyFunctions.Add(f)
		} else {
			l.busyFunctions.Drop(f)
		}
		l.enqueue(f)
	}
	if !all {
		return
	}
	l.busyFunctions.Each(func(f *functionState) {
		if f.demandTurn == l.turns {
			return // the loop above has evaluated it
		}
		needed, desired := f.Needed, f.Desired
		if !f.updateLoad(l.policy.Autoscale, now) {
			l.busyFunctions.Drop(f)
		}
		if needed != f.Needed || desired != f.Desired {
			l.enqueue(f)
		}
	})
}

// forever is longer than any lease; adding to it does not overflow.
const forever = placement.Instant(math.MaxInt64 / 4)

// decide passes changes to the planner and performs its plan. Its cost depends on the
// changes.
func (l *loop) decide(ctx context.Context, now placement.Instant, all bool) time.Duration {
	if l.leadership.superseded {
		return 0
	}
	l.leadership.extendSilentNodes(now)
	l.teams.settle(now, false)
	news := l.pending
	l.pending, l.sparePending = l.sparePending[:0], nil
	var dead []*functionState
	for _, f := range news {
		f.enqueued = false
		if f.Gone && len(f.replicas) == 0 {
			f.copyReplicas(l.inbox)
			l.teams.charge(f, now)
			dead = append(dead, f)
			continue
		}
		f.Size, f.Expect = l.sizes[f.Source], f.starts.Expected()
		l.forecaster.RecordUse(f, now)
		f.Lease = max(f.wakeLease, f.userLease)
		if f.untilReady {
			f.Lease = forever
		}
		f.copyReplicas(l.inbox)
		l.teams.charge(f, now)
		if f.Sleeps {
			f.canSleep(l.bytesAtHand(f))
		}
		l.planner.FunctionChanged(&f.Function)
	}
	if len(dead) > 0 {
		l.catalog.deleteFunctions(dead)
	}
	plan := l.planner.Plan(now)
	for i := range plan.Actions {
		l.perform(ctx, &plan.Actions[i], now)
	}
	if now > startGrace { // before, not all agents have sent a heartbeat
		turned := plan.Changed
		if !l.startGraceOver {
			l.startGraceOver = true
			turned = slices.SortedFunc(maps.Keys(plan.Blocked), functions.Name.Compare)
		}
		for _, name := range turned {
			if f := l.functions[name]; f != nil {
				v, ok := plan.Blocked[name]
				l.setBlocked(f, v, ok)
			}
		}
	}
	for _, f := range news {
		l.endUnwantedStart(f, now)
	}
	if all {
		l.coldStarts.starting.Each(func(f *functionState) { l.endUnwantedStart(f, now) })
	}
	clear(news)
	l.sparePending = news[:0]
	if plan.Next == 0 {
		return 0
	}
	return max(plan.Next-now, time.Millisecond)
}

// setBlocked sets f.blocked, or clears it where f can be placed.
func (l *loop) setBlocked(f *functionState, v placement.Verdict, blocked bool) {
	switch {
	case !blocked && f.blocked == nil:
	case !blocked:
		f.blocked = nil
		l.markUnpublished(f)
	default:
		news := f.blocked == nil || f.blocked.Code != v.Code || f.blocked.Message != v.Message
		at := l.timeNow()
		if !news { // publish only if the ETA changed by more than the passed time
			left := f.blocked.Remaining(at)
			if d := left - v.ETA; (left < 0) == (v.ETA <= 0) && max(d, -d) <= max(time.Second, left/8) {
				return
			}
		}
		f.blocked, f.unplaced = &snapshot.Blocked{Code: v.Code, Message: v.Message, ETA: v.ETA, At: at, Final: l.isFinal(f, v)}, v.Message
		l.markUnpublished(f)
		if news {
			l.event("blocked", f.Name, "", "", v.Code, v.Message)
		}
	}
}

// isFinal reports whether no node could hold f even if it were empty, and none may join.
func (l *loop) isFinal(f *functionState, v placement.Verdict) bool {
	if v.Code != placement.CodeCapacity || l.alone == nil || !l.alone() {
		return false
	}
	nodes := make([]functions.Node, 0, len(l.nodes))
	for _, n := range l.nodes {
		nodes = append(nodes, functions.Node{GPUs: n.last.GPUs, Memory: n.last.Memory})
	}
	return f.Resources.Unmet(nodes) != ""
}

// endUnwantedStart ends the cold start of f if it has no replica and no demand left, or no
// node can ever hold it.
func (l *loop) endUnwantedStart(f *functionState, now placement.Instant) {
	c := f.coldStart
	if c == nil || c.Over || slices.ContainsFunc(f.replicas, func(r *replicaState) bool { return !r.asleep() }) {
		return
	}
	if f.blocked != nil && f.blocked.Final {
		f.untilReady = false
		l.coldStarts.finish(c, functions.Failed, f.blocked.Message)
		l.markChanged(f)
	} else if f.Active+f.Queued == 0 && f.Lease <= now && f.Scale.Min == 0 {
		l.coldStarts.finish(c, functions.Unloaded, "called_off")
		l.markUnpublished(f)
	}
}
