package compose

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// task is a call to be made.
type task struct {
	call  Call
	needs []int // tasks of the phase that must have ended before
	// messages, if not nil, makes the call's messages when it begins.
	messages func([]outcome) []Message
}

// outcome is what became of a task.
type outcome struct {
	member string // that was asked
	reply  Reply
	text   string // the answer without a model's reasoning
	err    error
	left   Reason // why it was not asked, or given up
	ended  bool

	key   string // of text, once it was compared
	exact bool
}

func (o *outcome) answered() bool { return o.ended && o.err == nil && o.left == "" }

func (o *outcome) normalForm() (key string, exact bool) {
	if o.key == "" {
		o.key, o.exact = normalForm(o.text)
	}
	return o.key, o.exact
}

// phase makes a set of calls, in the order that Ready and their dependencies allow. One
// goroutine per call asks; gather's goroutine decides.
type phase struct {
	*run
	tasks    []task
	need     int           // answers that are enough
	patience time.Duration // 0: no bound
	next     []string      // members asked after the phase
	decided  func([]outcome) bool

	flights  []flight
	outcomes []outcome
	notes    chan note
	calls    sync.WaitGroup
	began    time.Time
	late     bool // patience is over
	flying   int
	got      int
}

// flight is the state of a task's call.
type flight struct {
	begun  bool // the call was made
	cold   bool // its member was not loaded then
	load   bool // the call is the first one to that member: a cold start is counted for it
	loaded bool // the member has the request
	cancel context.CancelCauseFunc
	made   int // index of its record
	start  time.Time
}

// note is what a call's goroutine reports.
type note struct {
	task  int
	ended bool // else the member is loaded
	reply Reply
	err   error

	panicked any // what ask panicked with: gather panics with it, where the caller of Run can recover
}

// gather makes the calls and returns their outcomes once every call has returned.
func (p *phase) gather(ctx context.Context) []outcome {
	defer p.calls.Wait() // after a panic too
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !p.collectUntil.IsZero() && !p.tasks[0].call.Final {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, p.collectUntil, errTime)
		defer stop()
	}
	n := len(p.tasks)
	p.flights, p.outcomes, p.notes = make([]flight, n), make([]outcome, n), make(chan note, 2*n)
	p.began = time.Now()
	var patience <-chan time.Time
	if p.patience > 0 {
		patience = time.After(p.patience)
	}
	done := ctx.Done()
	for {
		if ctx.Err() != nil { // also when an answer came at the same time: no call begins after the end
			p.stop(ctx)
			done = nil
		}
		p.giveUp()
		p.begin(ctx)
		if p.flying == 0 {
			break
		}
		p.on(Event{Kind: EventWait, Round: p.round, Busy: p.busy(), Next: p.following()})
		select {
		case m := <-p.notes:
			p.accept(m)
		case <-patience:
			p.late = true
		case <-done:
		}
	}
	return p.outcomes
}

// answers makes the calls and returns their outcomes if enough of them are answers.
func (p *phase) answers(ctx context.Context) ([]outcome, error) {
	outcomes := p.gather(ctx)
	if err := stopped(ctx); err != nil {
		return nil, err
	}
	if p.got < p.need {
		return nil, tooFew(p.tasks, outcomes, p.need)
	}
	return outcomes, nil
}

// begin starts every call that may begin now. Afterwards a call is in flight, or every
// task has an outcome.
func (p *phase) begin(ctx context.Context) {
	for {
		free := p.free()
		if len(free) == 0 {
			return
		}
		busy := p.busy()
		inUse := func(m string) bool { return slices.Contains(busy, m) }
		groups := []Group{{}}
		if want := slices.DeleteFunc(p.members(free), inUse); len(want) > 0 {
			// Members that are asked again after the phase come last: they are still loaded then.
			slices.SortStableFunc(want, func(a, b string) int { return cmp.Compare(slices.Index(p.next, a), slices.Index(p.next, b)) })
			groups = p.groups(busy, want)
		}
		for _, i := range free {
			if m := p.tasks[i].call.Member; inUse(m) && !slices.Contains(groups[0].Warm, m) {
				groups[0].Warm = append(groups[0].Warm, m)
			}
		}
		chosen, deferred := p.choose(groups[0], free)
		if len(chosen) == 0 && p.flying == 0 && len(deferred) > 0 {
			if p.got >= p.need {
				for _, i := range deferred {
					p.leave(i, ReasonPatience)
				}
				continue
			}
			chosen = deferred
		}
		p.launch(ctx, chosen, groups)
		if p.flying > 0 {
			return
		}
	}
}

// choose returns the free tasks of the members of group, loaded ones first, without those
// that wait to see whether the others are enough: their members would not be loaded within
// patience.
func (p *phase) choose(group Group, free []int) (chosen, deferred []int) {
	of := func(members []string) (list []int) {
		for _, m := range members {
			for _, i := range free {
				if p.tasks[i].call.Member == m {
					list = append(list, i)
				}
			}
		}
		return list
	}
	chosen = of(group.Warm)
	for _, i := range chosen {
		p.flights[i].cold = false
	}
	cold := of(group.Cold)
	for _, i := range cold {
		p.flights[i].cold = true
	}
	soon := p.patience == 0 || group.Wait <= p.patience-time.Since(p.began)
	if !soon && p.got+p.flying+len(chosen) >= p.need {
		return chosen, cold
	}
	return append(chosen, cold...), nil
}

// free lists the tasks that have no outcome, are not begun and need no other's end.
func (p *phase) free() []int {
	return p.list(func(i int) bool { return p.waiting(i) && !slices.ContainsFunc(p.tasks[i].needs, p.open) })
}

// waiting reports whether task i has no outcome and is not begun.
func (p *phase) waiting(i int) bool { return p.open(i) && !p.flights[i].begun }

// open reports whether task i has no outcome yet.
func (p *phase) open(i int) bool {
	return !p.outcomes[i].ended && p.outcomes[i].left == "" || p.inFlight(i)
}

func (p *phase) inFlight(i int) bool { return p.flights[i].begun && !p.outcomes[i].ended }

// busy lists the members with calls in flight.
func (p *phase) busy() []string { return p.members(p.list(p.inFlight)) }

// list lists the tasks that f accepts.
func (p *phase) list(f func(i int) bool) (list []int) {
	for i := range p.tasks {
		if f(i) {
			list = append(list, i)
		}
	}
	return list
}

// loading reports whether a call in flight has a cold start of the member counted.
func (p *phase) loading(member string) bool {
	return slices.Contains(p.members(p.list(func(i int) bool { return p.flights[i].load && p.inFlight(i) })), member)
}

// members lists the members of tasks, each once.
func (p *phase) members(tasks []int) (list []string) {
	for _, i := range tasks {
		if m := p.tasks[i].call.Member; !slices.Contains(list, m) {
			list = append(list, m)
		}
	}
	return list
}

// launch begins the calls of tasks, or gives them up for a spent budget.
func (p *phase) launch(ctx context.Context, tasks []int, groups []Group) {
	next := p.after(tasks, groups)
	for _, i := range tasks {
		t, f := &p.tasks[i], &p.flights[i]
		f.load = f.cold && !p.loading(t.call.Member)
		if reason := p.exhausted(&t.call, f.load); reason != "" {
			p.leave(i, reason)
			continue
		}
		q := t.call
		if t.messages != nil {
			q.Messages = t.messages(p.outcomes)
		}
		q.Next = slices.DeleteFunc(slices.Clone(next), func(m string) bool { return m == q.Member })
		var began atomic.Bool
		q.Began = func() {
			if began.CompareAndSwap(false, true) {
				p.notes <- note{task: i}
			}
		}
		f.begun, f.made, f.start = true, len(p.result.Calls), time.Now()
		if f.load {
			p.coldFlying++
		}
		p.flying++
		p.result.Calls = append(p.result.Calls, Made{
			Member: q.Member, Role: q.Role, Step: q.Step, Round: q.Round, Final: q.Final, Began: f.start.Sub(p.start),
		})
		p.on(Event{Kind: EventBegin, Member: q.Member, Role: q.Role, Step: q.Step, Round: q.Round, Final: q.Final, Cold: f.cold})
		var own context.Context
		own, f.cancel = context.WithCancelCause(ctx)
		p.calls.Go(func() {
			m := note{task: i, ended: true, err: errNoReturn}
			defer func() {
				m.panicked = recover()
				p.notes <- m
			}()
			m.reply, m.err = p.ask(own, q)
		})
	}
}

// after lists the members that are asked after tasks: those of the next group, as far as
// the budget goes, or those of tasks that wait for others, or the members after the phase.
func (p *phase) after(tasks []int, groups []Group) []string {
	cold := 0 // of tasks: they come first
	for _, i := range tasks {
		if p.flights[i].cold {
			cold++
		}
	}
	for _, g := range groups[1:] {
		if len(g.Warm)+len(g.Cold) == 0 {
			continue
		}
		list := slices.Concat(g.Warm, g.Cold[:max(p.coldLeft(cold+len(g.Cold))-cold, 0)])
		if list = list[:max(p.callsLeft(len(tasks)+len(list))-len(tasks), 0)]; len(list) > 0 {
			return list
		}
		return p.next
	}
	if waiting := p.list(func(i int) bool { return p.waiting(i) && !slices.Contains(tasks, i) }); len(waiting) > 0 {
		return p.members(waiting)
	}
	return p.next
}

// following lists the members after the phase once all of its calls have begun, as far as the
// number of calls allows.
func (p *phase) following() []string {
	if len(p.list(p.waiting)) > 0 {
		return nil
	}
	return p.next
}

// accept records what a call's goroutine reports.
func (p *phase) accept(m note) {
	f, o := &p.flights[m.task], &p.outcomes[m.task]
	if !m.ended {
		f.loaded = true
		return
	}
	if m.panicked != nil {
		panic(m.panicked)
	}
	f.cancel(nil)
	p.flying--
	o.ended, o.member, o.reply, o.err, o.text = true, p.tasks[m.task].call.Member, m.reply, m.err, visible(m.reply.Text)
	if o.err == nil && strings.TrimSpace(o.text) == "" {
		o.err = errEmpty
	}
	if o.err == nil {
		o.left = "" // it came although it was given up
		p.got++
	}
	if f.load {
		p.coldFlying--
	}
	if m.reply.Cold && (f.load || !f.cold) || f.load && m.err != nil {
		p.coldSpent++
	}
	made := &p.result.Calls[f.made]
	made.Usage, made.Cost, made.Cold, made.Err = m.reply.Usage, m.reply.Cost, m.reply.Cold, o.err
	made.Took = cmp.Or(m.reply.Took, time.Since(f.start))
	p.result.Usage.Prompt += m.reply.Usage.Prompt
	p.result.Usage.Completion += m.reply.Usage.Completion
	p.result.Cost += m.reply.Cost
	p.on(Event{
		Kind: EventEnd, Member: made.Member, Role: made.Role, Step: made.Step, Round: made.Round, Final: made.Final,
		Text: m.reply.Text, Cold: made.Cold, Over: p.over(made.Member), Took: made.Took, Err: o.err, Reason: o.left,
	})
	if o.left != "" {
		p.report(m.task, o.left)
	}
}

// over reports whether the run asks a member no more. A phase without members after it is a
// round that the same members are asked again after, or the last call.
func (p *phase) over(member string) bool {
	if p.next == nil || member == p.plan.Coordinator || slices.Contains(p.next, member) {
		return false
	}
	return !slices.Contains(p.members(p.list(p.open)), member)
}

// giveUp leaves out the calls whose members are not loaded, once patience is over and the
// answers are enough, or once the others decide.
func (p *phase) giveUp() {
	if p.got < p.need {
		return
	}
	var reason Reason
	switch {
	case p.decided != nil && p.decided(p.outcomes):
		reason = ReasonDecided
	case p.late:
		reason = ReasonPatience
	default:
		return
	}
	p.leaveAll(reason, func(i int) bool { return !p.flights[i].begun || p.flights[i].cold && !p.flights[i].loaded })
}

// leaveAll gives up the tasks without an outcome that f accepts.
func (p *phase) leaveAll(reason Reason, f func(i int) bool) {
	for i := range p.tasks {
		if p.outcomes[i].left == "" && p.open(i) && f(i) {
			p.leave(i, reason)
		}
	}
}

// stop leaves out every task without an outcome, because ctx has ended.
func (p *phase) stop(ctx context.Context) {
	reason := ReasonCancelled
	if context.Cause(ctx) == errTime {
		reason = ReasonTime
	}
	p.leaveAll(reason, func(int) bool { return true })
}

// leave gives task i up: it is cancelled if it is in flight, and reported when it has ended.
func (p *phase) leave(i int, reason Reason) {
	p.outcomes[i].left = reason
	if p.inFlight(i) {
		p.flights[i].cancel(givenUp(reason))
		return
	}
	p.report(i, reason)
}

// report records that task i has no answer for the reason.
func (p *phase) report(i int, reason Reason) {
	q := &p.tasks[i].call
	p.result.LeftOut = append(p.result.LeftOut, LeftOut{Member: q.Member, Role: q.Role, Step: q.Step, Round: q.Round, Reason: reason})
	p.on(Event{Kind: EventLeftOut, Member: q.Member, Role: q.Role, Step: q.Step, Round: q.Round, Reason: reason})
}

// exhausted returns which part of the budget forbids another call, or "". The synthesis is
// bound by the number of calls only, and one call is reserved for it.
func (p *phase) exhausted(q *Call, cold bool) Reason {
	b, used := p.plan.Budget, p.result.Usage
	reserved := 1
	if q.Final {
		reserved = 0
	}
	switch {
	case b.Calls > 0 && len(p.result.Calls)+reserved >= b.Calls:
		return ReasonCalls
	case q.Final:
		return ""
	case b.Tokens > 0 && used.Prompt+used.Completion >= b.Tokens:
		return ReasonTokens
	case b.Cost > 0 && p.result.Cost >= b.Cost:
		return ReasonCost
	case cold && b.ColdStarts != 0 && p.coldSpent+p.coldFlying+p.coldReserved(q) >= max(b.ColdStarts, 0):
		return ReasonColdStarts
	}
	return ""
}

// coldReserved returns 1 if the coordinator is not loaded and has no call in flight, for its
// own later cold start.
func (p *phase) coldReserved(q *Call) int {
	busy := p.busy()
	if q.Member == p.plan.Coordinator || slices.Contains(busy, p.plan.Coordinator) {
		return 0
	}
	for _, g := range p.groups(busy, []string{p.plan.Coordinator}) {
		if len(g.Cold) > 0 {
			return 1
		}
	}
	return 0
}
