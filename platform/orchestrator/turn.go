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
	stoodStill  = 3 * time.Second // a turn this late means that we stood still, not they
	secondLook  = 2 * time.Second // before a catalogue that lost half of itself is believed
	orphanFor   = 5 * time.Second // before a replica of an unknown model is ended
	hearsay     = 5 * time.Second // before a start that was found under way is one that nobody waits for
	nodePause   = 2 * time.Second // no new load on a node that just failed one
	progressFor = 500 * time.Millisecond
	refusals    = 3 // loads refused in a row before it is called a failure
	startGrace  = 6 * time.Second
	repeatFor   = 10 * time.Second // an unload that had no effect is sent again
)

// Turn takes the news, publishes what changed, decides and acts, in the caller's
// goroutine. It returns when it wants to be called again at the latest; 0: at the
// next tick, of which there is one a second. Run calls it; only who has given
// Options.Ring calls it himself, and then not Run. ctx is that of the commands it
// gives, where Options.Do does not carry them out.
func (s *Steer) Turn(ctx context.Context) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inboxMu.Lock()
	s.inbox, s.spare = s.spare, s.inbox
	s.inboxMu.Unlock()
	in := &s.spare
	defer in.clear()

	now := s.advance()
	s.turns++

	if in.changed || s.shrunk > 0 {
		s.readCatalog(now)
	}
	for i := range in.beats.list {
		s.hear(ctx, in.beats.list[i].val, now)
	}
	// Whoever became READY or failed is told before anything else is done.
	s.flush()

	for _, x := range in.loaded.list {
		s.onLoaded(ctx, x.key, x.val, now)
	}
	for _, x := range in.ended.list {
		if r := s.reps[x.key]; r != nil {
			s.heeded(r, x.val)
			r.again = now + tick
			if x.val.err == nil {
				r.again = now + repeatFor // it should be gone by then
			}
			s.again.add(r)
		}
	}
	s.again.each(func(r *rep) {
		if now >= r.again || s.reps[r.id] != r {
			r.unloading, r.calledOff = false, false
			s.stir(r.fn)
			s.again.drop(r)
		}
	})
	for _, x := range in.asks.list {
		s.verify(ctx, x.key, x.val)
	}
	for _, x := range in.uses.list {
		u := x.key
		s.command(ctx, func(ctx context.Context) { s.askAdapter(ctx, u.replica, u.adapter) })
	}
	for _, x := range in.wanted.list {
		s.wanted.add(x.key)
	}
	for _, x := range in.awake.list {
		if r := s.reps[x.key]; r != nil && !r.stopping {
			s.heeded(r, x.val)
			s.sleepless(r, x.val.err.Error(), now)
		}
	}
	for _, x := range in.stops.list {
		s.stopAll(x.key, now)
	}
	for _, x := range in.wakes.list {
		s.onWake(x.key, x.val, now)
	}
	s.ahead(ctx)
	all := s.ticked == 0 || now-s.ticked >= tick*9/10 // a tick that comes a little early is one
	if all {
		s.ticked = now
	}
	s.demand(now, all)
	if all {
		s.foresee(ctx, now)
	}
	for _, x := range in.nudges.list {
		if f := s.fns[x.key]; f != nil && f.Active+f.Queued == 0 && f.retry != 0 {
			f.retry = 0
			s.stir(f)
		}
	}
	next := s.decide(ctx, now, all)
	if s.progress > 0 && now-s.showed >= s.progress {
		s.showed = now
		for _, f := range s.starting.list {
			if f.cold.rep != nil {
				s.redraw(f)
			}
		}
	}
	s.flush()
	again := s.lull(ctx, now)
	if (s.drain(ctx, now) || again) && (next == 0 || next > drainLook) {
		next = drainLook
	}
	return next
}

// advance reads the clock. Time in which we stood still (a suspended laptop, a
// process that was stopped, a clock that was put forward) has not passed: nobody
// was silent or idle in it, no lease ran out. On a clock that is put back time
// goes on from where it was.
func (s *Steer) advance() placement.Instant {
	if s.last > 0 {
		switch gap := s.now() - s.last; {
		case gap > stoodStill:
			s.began = s.began.Add(gap - tick)
			s.event("stood_still", functions.Name{}, "", "", "", fmt.Sprintf("the server stood still for %v; nobody's silence is counted for that time", gap.Round(time.Second)))
		case gap < 0:
			s.began = s.began.Add(gap)
		}
	}
	s.last = s.now()
	return s.last
}

// stir notes that there is news of f for the core.
func (s *Steer) stir(f *fn) {
	if !f.stirred {
		f.stirred = true
		s.stirred = append(s.stirred, f)
	}
}

// soil notes that f has changed: for the core and for the data path.
func (s *Steer) soil(f *fn) {
	s.stir(f)
	s.redraw(f)
}

// redraw notes that the picture of f has changed, and nothing of it that matters
// to the core.
func (s *Steer) redraw(f *fn) {
	if !f.soiled {
		f.soiled = true
		s.dirty = append(s.dirty, f)
	}
}

// flush publishes every function that changed.
func (s *Steer) flush() {
	defer func() { // what is cut looks for another replica in the new pictures
		for _, url := range s.lost {
			s.path.Cut(url)
		}
		s.lost = nil
	}()
	if len(s.dirty) == 0 {
		return
	}
	out := make([]snapshot.Snapshot, 0, len(s.dirty))
	for _, f := range s.dirty {
		f.soiled = false
		if !f.Gone {
			out = append(out, s.picture(f))
		}
	}
	clear(s.dirty)
	s.dirty = s.dirty[:0]
	if len(out) > 0 {
		s.path.Publish(out...)
		s.tellWatchers()
	}
}

// readCatalog takes the catalogue over. One that has lost most of itself is
// read a second time before it is believed.
func (s *Steer) readCatalog(now placement.Instant) {
	models := s.catalog.Models()
	next := make(map[functions.Name]*functions.Model, len(models))
	for _, m := range models {
		next[m.FullName()] = m
	}
	missing, known := 0, 0
	for _, f := range s.list {
		if f.Gone {
			continue
		}
		known++
		if next[f.Name] == nil {
			missing++
		}
	}
	if s.loaded && missing > 1 && 2*missing > known {
		if s.shrunk == 0 {
			s.shrunk = now
			s.event("catalog_suspicious", functions.Name{}, "", "", "second_look", fmt.Sprintf("%d of %d functions are gone; looking again", missing, known))
		}
		if now-s.shrunk < secondLook {
			return
		}
	}
	s.shrunk, s.loaded = 0, true
	for _, m := range models {
		name := m.FullName()
		if next[name] != m {
			continue // of two that are called alike the later
		}
		f := s.fns[name]
		if f == nil {
			f = &fn{}
			s.fns[name] = f
			s.list = append(s.list, f)
			s.sched.Functions = append(s.sched.Functions, &f.Function)
		} else if f.model == m && !f.Gone {
			continue
		}
		was := f.recipe
		f.set(m, s.machine)
		if was != f.recipe {
			f.failures, f.deaths, f.refused, f.failure, f.RetryAt = 0, 0, 0, nil, 0
			f.history.forget()
			s.recall(f)
		}
		s.soil(f)
	}
	for _, f := range s.list {
		if next[f.Name] != nil || f.Gone {
			continue
		}
		f.Gone = true
		f.retry, f.held, f.once = 0, 0, false
		f.Active, f.Queued, f.Oldest = 0, 0, 0
		s.stir(f)
		s.path.Remove(f.Name)
		s.event("removed", f.Name, "", "", "", "")
	}
	for _, t := range s.payers {
		t.spec = functions.TeamSpec{}
	}
	for _, m := range models {
		s.teamOf(m.FullName().Team)
	}
	for _, t := range s.catalog.Teams() {
		s.teamOf(t.Metadata.Name).spec = t.Spec
	}
	s.account(now, true)
}

// bury forgets functions that have left the catalogue and of which nothing runs.
func (s *Steer) bury(dead []*fn) {
	for _, f := range dead {
		s.finish(f.cold, functions.Unloaded, "removed")
		s.busy.drop(f)
		s.starting.drop(f)
		s.plan.Drop(f.Name)
		delete(s.fns, f.Name)
		s.unlearn(f)
	}
	s.list = slices.DeleteFunc(s.list, func(f *fn) bool { return s.fns[f.Name] != f })
	s.sched.Functions = s.sched.Functions[:0]
	for _, f := range s.list {
		s.sched.Functions = append(s.sched.Functions, &f.Function)
	}
}

// update takes the status of a replica in.
func (s *Steer) update(ctx context.Context, r *rep, st functions.ReplicaStatus, now placement.Instant) {
	f, before := r.fn, r.status.State
	if !slices.Equal(r.status.Adapters, st.Adapters) || r.status.Endpoint != st.Endpoint {
		s.redraw(f)
	}
	if weighty(&r.status) != weighty(&st) || r.calledOff {
		s.stir(f)
	}
	r.status, r.seen = st, true
	s.sized(f.Source, st.TotalBytes)
	if r.accepted == 0 {
		r.accepted = now
		if r.cold != nil {
			r.cold.placed = now
		}
	}
	if r.calledOff && spawned(st) && !st.State.Over() {
		r.calledOff = false // too late: it goes on
	}
	s.slumber(r, st, now)
	switch st.State {
	case functions.Ready:
		if r.readyAt == 0 {
			r.readyAt = now
			if before == "" && r.cold == nil { // adopted: it has been ready for a while
				r.readyAt = max(1, now-time.Duration(max(0, min(st.Since, 1e12)))*time.Millisecond)
				s.adopted(f, now)
			}
			f.failures, f.failure = 0, nil
			f.retry, f.once = 0, false // from now on its idle time holds it
			s.soil(f)
			if r.cold != nil {
				// Waiters first; the books are kept after.
				if !f.Gone { // it left the catalogue just now
					s.path.Publish(s.picture(f))
				}
				s.finish(r.cold, functions.Ready, "")
			}
			s.event("ready", f.Name, r.id, r.node, "", "")
		}
	case functions.Failed:
		s.failed(ctx, r, st.Error, now)
	case functions.Unloaded:
		s.gone(r, r.reason)
		if n := s.nodes[r.node]; s.mine(n) {
			s.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "forget"})
		}
	case functions.Draining:
	default:
		r.readyAt = 0
	}
	if before != st.State {
		s.soil(f)
	} else if r.cold != nil && !r.cold.over && s.progress > 0 {
		s.redraw(f)
	}
}

// weights are what the core sees of a status.
type weights struct {
	spawned bool
	level   int
	total   functions.Bytes
}

func weighty(st *functions.ReplicaStatus) weights {
	return weights{spawned(*st), st.SleepLevel, st.TotalBytes}
}

// enlist enters a new replica in the books.
func (s *Steer) enlist(r *rep, n *node) {
	s.reps[r.id] = r
	r.fn.reps = append(r.fn.reps, r)
	n.reps = append(n.reps, r)
}

// gone forgets a replica whose room is free.
func (s *Steer) gone(r *rep, why string) {
	f := r.fn
	delete(s.reps, r.id)
	r.forgotten = true
	s.drains.drop(r)
	s.sinks.drop(r)
	s.again.drop(r)
	s.rising.drop(r)
	if n := s.nodes[r.node]; n != nil {
		n.reps = slices.DeleteFunc(n.reps, func(x *rep) bool { return x == r })
	}
	f.reps = slices.DeleteFunc(f.reps, func(x *rep) bool { return x == r })
	s.soil(f)
	if why == "vanished" && r.reason != "" {
		why = r.reason // it has gone because it was told to
	}
	s.event("ended", f.Name, r.id, r.node, why, "")
	f.past.at, f.past.reason = s.last, why
	c := r.cold
	if c == nil || c.over {
		return
	}
	if r.stopping || r.calledOff {
		s.finish(c, functions.Unloaded, why)
		return
	}
	// Its node is lost to it: the same cold start looks for another place.
	c.rep, c.decided, c.placed = nil, 0, 0
}

// failed ends a replica that broke, tells its waiters why, and sets the pause
// before the next start.
func (s *Steer) failed(ctx context.Context, r *rep, cause string, now placement.Instant) {
	f := r.fn
	if cause == "" {
		cause = "the engine ended"
	}
	if n := s.nodes[r.node]; s.mine(n) {
		s.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "failed"})
	}
	if r.stopping || r.calledOff {
		s.gone(r, "failed")
		return
	}
	if r.nap.rising || r.nap.sinking || r.nap.slept > 0 {
		// No fault of the model's: whoever waits gets a cold start, at once.
		if r.nap.rising {
			s.counts.rises.WithLabelValues("failed").Inc()
		}
		s.event("failed", f.Name, r.id, r.node, "sleep", cause)
		s.counts.broke(true, cause)
		s.gone(r, "failed")
		return
	}
	var pause time.Duration
	if r.readyAt > 0 {
		// It served. Once is an accident and is mended at once; soon after
		// READY again and again is a loop.
		if now-r.readyAt < quickDeath {
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
		s.pause(f, cause, pause, now)
	}
	s.event("failed", f.Name, r.id, r.node, "", cause)
	s.counts.broke(r.readyAt > 0, cause)
	s.finish(r.cold, functions.Failed, cause)
	s.gone(r, "failed")
}

// pause tells waiters why, and starts f no sooner.
func (s *Steer) pause(f *fn, cause string, pause time.Duration, now placement.Instant) {
	if pause <= 0 {
		return
	}
	f.RetryAt = now + pause
	f.failure = &snapshot.Failure{Reason: cause, At: s.clock(), Until: s.clock().Add(pause)}
	f.retry, f.once = 0, false
	s.soil(f)
}

// onLoaded is the answer to a load.
func (s *Steer) onLoaded(ctx context.Context, id string, o outcome, now placement.Instant) {
	r := s.reps[id]
	if r == nil || r.node != o.node {
		return
	}
	n := s.nodes[r.node]
	if o.err == nil {
		r.fn.refused = 0
		if r.accepted == 0 {
			r.accepted = s.instant(o.at)
			if r.cold != nil {
				r.cold.placed = r.accepted
			}
		}
		return
	}
	if r.seen {
		return // its heartbeat knows better than a lost answer
	}
	s.event("load_refused", r.fn.Name, r.id, r.node, "", o.err.Error())
	if n != nil {
		n.Avoid = now + nodePause
		s.plan.Node(n.Node)
		if s.heeded(r, o); !n.stale {
			// The load may have arrived though its answer did not.
			s.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: "lost"})
		}
	}
	// Once or twice it is a node's own trouble, and another is tried; again and
	// again it is the function's, and its waiters should hear of it.
	f := r.fn
	if f.refused++; f.refused >= refusals {
		f.failures++
		s.pause(f, "no agent takes it: "+o.err.Error(), placement.Backoff(f.failures), now)
		s.finish(r.cold, functions.Failed, o.err.Error())
	}
	s.gone(r, "load_refused")
}

// heeded takes in what the outcome of a command says of who commands.
func (s *Steer) heeded(r *rep, o outcome) {
	if n := s.nodes[r.node]; n != nil && n.id == o.node && errors.Is(o.err, functions.ErrStaleEpoch) {
		s.outrank(n, true, o.err.Error())
	}
}

func (s *Steer) verify(ctx context.Context, id string, a ask) {
	r := s.reps[id]
	if r == nil {
		return
	}
	s.event("suspected", a.name, id, r.node, a.problem, "")
	n := s.nodes[r.node]
	if n == nil {
		return
	}
	if v, ok := n.to.(Verifier); ok {
		s.command(ctx, func(ctx context.Context) { v.Verify(ctx, id, a.problem) })
	}
}

// asked is why replicas stop that somebody has stopped.
const asked = "asked"

func (s *Steer) stopAll(name functions.Name, now placement.Instant) {
	f := s.fns[name]
	if f == nil {
		return
	}
	f.retry, f.held, f.once = 0, 0, false
	s.stir(f)
	for _, r := range f.reps {
		if !r.stopping {
			s.stop(r, f.Drain, asked, "", now)
		}
	}
}

func (s *Steer) stop(r *rep, drain time.Duration, reason, whom string, now placement.Instant) {
	r.stopping, r.reason = true, reason
	r.drainEnd = now + drain
	s.drains.add(r)
	s.soil(r.fn)
	s.happens("stop", r, reason, whom)
	s.counts.evictions.WithLabelValues(reason).Inc()
}

func (s *Steer) onWake(name functions.Name, w wake, now placement.Instant) {
	f := s.fns[name]
	forget := func() {
		s.inboxMu.Lock()
		if s.cold[name] == w.id {
			delete(s.cold, name)
		}
		s.inboxMu.Unlock()
	}
	if f == nil || f.Gone {
		forget()
		return
	}
	s.stir(f)
	if w.held > 0 {
		f.held = max(f.held, s.instant(w.at)+w.held)
	}
	for _, r := range f.reps {
		if r.serves() {
			forget()
			return
		}
	}
	f.once = f.once || w.once
	if s.superseded {
		s.deny(f, now)
		forget()
		return
	}
	if w.retry > 0 {
		f.retry = max(f.retry, s.instant(w.at)+w.retry)
	}
	if f.cold != nil && !f.cold.over {
		return
	}
	c := s.begin(f, w.id, w.at)
	for _, r := range f.reps { // one that was adopted on its way
		if !r.stopping && !r.calledOff && r.cold == nil && !r.asleep() {
			r.cold, c.rep, c.decided, c.placed = c, r, now, now
			break
		}
	}
	s.soil(f)
}

// demand reads what is asked of the functions of which that has changed; with all
// it makes sure of the others, and lets the windows of those that are busy move on.
func (s *Steer) demand(now placement.Instant, all bool) {
	s.path.Demand(all, func(d Demand) bool {
		f := s.fns[d.Name.Base()]
		if f == nil || f.Gone {
			return true
		}
		f.turn = s.turns
		was := [...]int64{int64(f.Active), int64(f.Queued), int64(f.Oldest), int64(f.LastEnd), int64(f.Needed), int64(f.Desired)}
		f.Active, f.Queued, f.Oldest = d.Active, d.Queued, 0
		if d.Queued > 0 && !d.Oldest.IsZero() {
			f.Oldest = min(s.instant(d.Oldest), now)
		}
		f.LastEnd = max(f.LastEnd, min(s.instant(d.LastEnd), now))
		if s.weigh(f, now) {
			s.busy.add(f)
		} else {
			s.busy.drop(f)
		}
		// As many as before, and none has ended: they are where they were.
		if was != [...]int64{int64(f.Active), int64(f.Queued), int64(f.Oldest), int64(f.LastEnd), int64(f.Needed), int64(f.Desired)} || !all {
			s.stir(f)
		}
		return true
	})
	if !all {
		return
	}
	s.busy.each(func(f *fn) {
		if f.turn != s.turns && f.Active+f.Queued > 0 {
			if f.Active > 0 {
				f.LastEnd = max(f.LastEnd, now)
			}
			f.Active, f.Queued, f.Oldest = 0, 0, 0
			s.stir(f)
		}
		if f.turn == s.turns {
			return // it was weighed just now
		}
		needed, desired := f.Needed, f.Desired
		if !s.weigh(f, now) {
			s.busy.drop(f)
		}
		if needed != f.Needed || desired != f.Desired {
			s.stir(f)
		}
	})
}

// always is longer than anything lasts, and can be added to.
const always = placement.Instant(math.MaxInt64 / 4)

// decide tells the core the news, asks it, and does what it says. What it costs
// is what has changed, not what there is.
func (s *Steer) decide(ctx context.Context, now placement.Instant, all bool) time.Duration {
	if s.superseded {
		return 0
	}
	s.silence(now)
	s.account(now, false)
	news := s.stirred
	s.stirred, s.settling = s.settling[:0], nil
	var dead []*fn
	for _, f := range news {
		f.stirred = false
		if f.Gone && len(f.reps) == 0 {
			f.sync(s.path.InFlightOf)
			s.charge(f, now)
			dead = append(dead, f)
			continue
		}
		f.Size, f.Expect = s.sizes[f.Source], f.history.expect()
		s.noticed(f, now)
		f.Lease = max(f.retry, f.held)
		if f.once {
			f.Lease = always
		}
		f.sync(s.path.InFlightOf)
		s.charge(f, now)
		if f.Sleeps {
			f.bedtime(s.atHand(f))
		}
		s.plan.Touch(&f.Function)
	}
	if len(dead) > 0 {
		s.bury(dead)
	}
	plan := s.plan.Plan(now)
	for i := range plan.Actions {
		s.act(ctx, &plan.Actions[i], now)
	}
	if now > startGrace { // before it, agents that were there have not all been heard
		turned := plan.Turned
		if !s.graced {
			s.graced = true
			turned = slices.SortedFunc(maps.Keys(plan.Blocked), func(a, b functions.Name) int {
				return cmp.Or(cmp.Compare(a.Team, b.Team), cmp.Compare(a.Name, b.Name))
			})
		}
		for _, name := range turned {
			if f := s.fns[name]; f != nil {
				v, ok := plan.Blocked[name]
				s.verdict(f, v, ok)
			}
		}
	}
	for _, f := range news {
		s.forgo(f, now)
	}
	if all {
		s.starting.each(func(f *fn) { s.forgo(f, now) })
	}
	clear(news)
	s.settling = news[:0]
	if plan.Next == 0 {
		return 0
	}
	return max(plan.Next-now, time.Millisecond)
}

// verdict takes in that f cannot be placed, or that nothing stands in its way any
// more.
func (s *Steer) verdict(f *fn, v placement.Verdict, blocked bool) {
	switch {
	case !blocked && f.blocked == nil:
	case !blocked:
		f.blocked = nil
		s.redraw(f)
	default:
		news := f.blocked == nil || f.blocked.Code != v.Code || f.blocked.Message != v.Message
		at := s.clock()
		if !news { // an ETA that only comes nearer is known
			left := f.blocked.Remaining(at)
			if d := left - v.ETA; (left < 0) == (v.ETA <= 0) && max(d, -d) <= max(time.Second, left/8) {
				return
			}
		}
		f.blocked = &snapshot.Blocked{Code: v.Code, Message: v.Message, ETA: v.ETA, At: at}
		s.redraw(f)
		if news {
			s.event("blocked", f.Name, "", "", v.Code, v.Message)
		}
	}
}

// forgo ends a cold start that nobody wants any more and that has come to nothing.
func (s *Steer) forgo(f *fn, now placement.Instant) {
	if c := f.cold; c != nil && !c.over && f.Active+f.Queued == 0 && f.Lease <= now && f.Scale.Min == 0 &&
		!slices.ContainsFunc(f.reps, func(r *rep) bool { return !r.asleep() }) {
		s.finish(c, functions.Unloaded, "called_off")
		s.redraw(f)
	}
}

func (s *Steer) act(ctx context.Context, a *placement.Action, now placement.Instant) {
	switch a.Kind {
	case placement.Start:
		s.start(ctx, a, now)
		if f := s.fns[a.Function]; f != nil {
			s.returned(f, now)
		}
	case placement.Stop:
		if r := s.reps[a.Replica]; r != nil && !r.stopping {
			s.ousted(a, now)
			s.stop(r, a.Drain, a.Reason, a.For, now)
		}
	case placement.Sleep:
		if r := s.reps[a.Replica]; r != nil && !r.stopping {
			s.ousted(a, now)
			s.sink(r, a, now)
		}
	case placement.Rise:
		s.rise(ctx, a, now)
		if f := s.fns[a.Function]; f != nil {
			s.returned(f, now)
		}
	case placement.CallOff:
		r := s.reps[a.Replica]
		n := s.nodes[a.Node]
		if r == nil || n == nil {
			return
		}
		r.calledOff, r.reason = true, a.Reason
		s.soil(r.fn)
		s.event("call_off", r.fn.Name, r.id, r.node, a.Reason, "")
		s.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: functions.ReasonCalledOff})
	case placement.Lose:
		n := s.nodes[a.Node]
		if n == nil {
			return
		}
		delete(s.nodes, a.Node)
		if n.hb.URL != "" {
			s.lost = append(s.lost, n.hb.URL)
		}
		s.sched.Nodes = slices.DeleteFunc(s.sched.Nodes, func(x *placement.Node) bool { return x == n.Node })
		s.plan.DropNode(a.Node)
		s.bare(n)
		if s.superseded {
			s.rank()
		}
		s.event("node_lost", functions.Name{}, "", a.Node, a.Reason, "")
		for _, r := range n.reps {
			s.gone(r, "node_lost")
		}
	}
}

func (s *Steer) start(ctx context.Context, a *placement.Action, now placement.Instant) {
	f, n := s.fns[a.Function], s.nodes[a.Node]
	if f == nil || n == nil {
		return
	}
	r := &rep{id: s.newID(f.Name.Name), fn: f, node: n.id, cause: a.Reason, recipe: f.recipe, take: f.Resources, gpus: a.GPUs, asked: now}
	r.status = functions.ReplicaStatus{ID: r.id, Team: f.Name.Team, Model: f.Name.Name, State: functions.Downloading, Percent: -1}
	c := f.cold
	if c == nil || c.over {
		if zero := !slices.ContainsFunc(f.reps, func(r *rep) bool { return r.readyAt > 0 && !r.stopping }); zero {
			c = s.begin(f, "", s.clock())
		} else { // one more beside those that serve: a cold start nobody asked by name
			c = s.aside(f)
		}
	} else if c.rep != nil {
		c = s.aside(f)
	}
	c.decided, c.rep, c.Node = now, r, n.id
	c.Tier = functions.TierRemote
	if t, ok := n.Tiers[f.Source]; ok {
		c.Tier = t
	} else if f.Machine != "" && f.Machine == n.Machine || f.Source == "" || n.Cached[f.Source] {
		c.Tier = functions.TierNVMe
	}
	r.cold = c
	s.enlist(r, n)
	f.failure = nil
	s.soil(f)
	s.event("start", f.Name, r.id, r.node, a.Reason, "")
	dir := f.model.Dir
	if n.Borrows && n.Machine != s.machine {
		// What is a path in the model file is one of this machine.
		dir = loader.Lent(s.here, cmp.Or(dir, "/"))
	}
	s.load(ctx, r.id, n, functions.LoadRequest{
		ID: r.id, Team: f.Name.Team, Model: f.Name.Name, Spec: f.model.Spec, Dir: dir, Epoch: s.epoch, GPUs: a.GPUs,
	})
}

// drain unloads what has left the routes and has nothing in flight, or whose
// time is over. It reports whether it must look again soon.
func (s *Steer) drain(ctx context.Context, now placement.Instant) (again bool) {
	for _, r := range s.drains.list {
		if r.unloading {
			continue
		}
		if s.path.InFlightOf(r.fn.Name, r.id) > 0 && now < r.drainEnd {
			again = true
			continue
		}
		n := s.nodes[r.node]
		if !s.mine(n) {
			continue
		}
		r.unloading = true
		s.unload(ctx, n, functions.UnloadRequest{ID: r.id, Reason: r.reason, DrainSeconds: max(0, (r.drainEnd - now).Seconds())})
	}
	return again
}
