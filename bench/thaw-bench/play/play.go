// Package play runs Compositions (functions/compose) on the simulated fleet of platform/simulate
// for benchmark compose: calls are simulated requests, answers are made up, and a seed fixes the
// run.
//
// The clock of the simulation stands while a run decides: a run's goroutines are waited for
// until each has asked, or waits for an answer. Answers differ from member to member, so
// that members never agree. Bounds of time, which the pattern takes from the real clock, are
// refused, and so are budgets of cold starts.
package play

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/thaw-dev/thaw/activator/compositions"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/compose"
	"github.com/thaw-dev/thaw/platform/simulate"
)

// Player runs Compositions on one simulation, whose goroutine owns it.
type Player struct {
	ctx    context.Context
	st     *simulate.State
	input  int
	output int

	calls map[uint64]func(simulate.RequestEnd) // requests without an end
	early map[uint64]simulate.RequestEnd       // ended within Ask
	names map[string]functions.Name
}

// Tokens of each call: of its prompt and of its answer.
type Tokens struct{ Input, Output int }

// New makes a Player, and adds itself to st.OnRequestEnd. Members are the models' short names.
// The end of ctx ends runs that the simulation left.
func New(ctx context.Context, st *simulate.State, models []*functions.Model, each Tokens) *Player {
	p := &Player{
		ctx: ctx, st: st, input: each.Input, output: each.Output, names: map[string]functions.Name{},
		calls: map[uint64]func(simulate.RequestEnd){}, early: map[uint64]simulate.RequestEnd{},
	}
	for _, m := range models {
		p.names[m.Metadata.Name] = m.FullName()
	}
	before := st.OnRequestEnd
	st.OnRequestEnd = func(e simulate.RequestEnd) {
		if before != nil {
			before(e)
		}
		if ended, ok := p.calls[e.ID]; ok {
			delete(p.calls, e.ID)
			st.After(0, func() { ended(e) })
		} else {
			p.early[e.ID] = e
		}
	}
	return p
}

// Ask sends a request to a member. ended is called when it has ended.
func (p *Player) Ask(member string, ended func(simulate.RequestEnd)) {
	clear(p.early)
	id := p.st.Ask(simulate.Request{Function: p.names[member], Input: p.input, Output: p.output})
	if e, ok := p.early[id]; ok {
		p.st.After(0, func() { ended(e) })
		return
	}
	p.calls[id] = ended
}

// Outcome is the end of a run.
type Outcome struct {
	compose.Result
	Took time.Duration // on the simulation's clock
	Err  error
}

// Start begins a run now. done is called at its end.
func (p *Player) Start(plan compose.Plan, done func(Outcome)) {
	if plan.Patience != 0 || plan.Budget.Time != 0 || plan.Budget.ColdStarts != 0 {
		p.st.After(0, func() {
			done(Outcome{Err: errors.New("play: patience, budget.time and budget.coldStarts cannot be played: leave them out")})
		})
		return
	}
	r := &run{p: p, began: p.st.Now(), done: done, notes: make(chan note)}
	r.places = compositions.Places{Packing: p.st.Loop().Packing, State: r.state}
	go func() { // ends with Run: its calls end with ctx
		input := compose.Input{Messages: []compose.Message{{Role: "user", Content: "?"}}}
		result, err := compose.Run(p.ctx, &plan, input, r.ask, r.places.Ready, r.onEvent)
		r.send(note{result: &Outcome{Result: result, Err: err}})
	}()
	r.settle()
}

// run is one Composition under way.
type run struct {
	p      *Player
	began  time.Duration
	done   func(Outcome)
	notes  chan note
	places compositions.Places
	order  int // calls that have begun
}

// note is what a goroutine of the run reports: a call has begun, a call is made, the run
// waits, or it has ended.
type note struct {
	begun  string
	asked  *asked
	waits  *compose.Event
	result *Outcome
}

// asked is a call that waits for its answer.
type asked struct {
	call  compose.Call
	index int
	cold  bool
	reply chan reply
}

type reply struct {
	compose.Reply
	err error
}

// keyOf names a call within its run.
func keyOf(member, role, step string, round int) string {
	return fmt.Sprint(member, "/", role, "/", step, "/", round)
}

func (r *run) send(n note) {
	select {
	case r.notes <- n:
	case <-r.p.ctx.Done():
	}
}

// onEvent reports what decides when the clock goes on.
func (r *run) onEvent(e compose.Event) {
	switch e.Kind {
	case compose.EventBegin:
		r.send(note{begun: keyOf(e.Member, e.Role, e.Step, e.Round)})
	case compose.EventWait:
		r.send(note{waits: &e})
	}
}

// ask waits for a simulated answer. It is the Ask of the run.
func (r *run) ask(ctx context.Context, q compose.Call) (compose.Reply, error) {
	a := &asked{call: q, reply: make(chan reply, 1)}
	r.send(note{asked: a})
	select {
	case x := <-a.reply:
		return x.Reply, x.err
	case <-ctx.Done():
		return compose.Reply{}, ctx.Err()
	}
}

// state is the state of a member. The simulation stands while the run reads it.
func (r *run) state(member string) compositions.Function {
	f := compositions.Function{Name: r.p.names[member], Model: true}
	r.p.st.Functions(func(v simulate.FunctionView) bool {
		if v.Name != f.Name {
			return true
		}
		f.Ready = v.Ready > 0
		return false
	})
	return f
}

// settle waits until the run waits for answers or has ended, and then sends its calls in the
// order in which they began.
func (r *run) settle() {
	begun := map[string]int{}
	var calls []*asked
	var waits *compose.Event
	for waits == nil || len(calls) < len(begun) {
		var n note
		select {
		case n = <-r.notes:
		case <-r.p.ctx.Done():
			return
		}
		switch {
		case n.result != nil:
			n.result.Took = r.p.st.Now() - r.began
			r.done(*n.result)
			return
		case n.asked != nil:
			calls = append(calls, n.asked)
		case n.waits != nil:
			waits = n.waits
		default:
			r.order++
			begun[n.begun] = r.order
		}
	}
	for _, a := range calls {
		a.index = begun[keyOf(a.call.Member, a.call.Role, a.call.Step, a.call.Round)]
	}
	slices.SortFunc(calls, func(a, b *asked) int { return cmp.Compare(a.index, b.index) })
	for _, a := range calls {
		r.startNext(a.call.Next, false)
		a.cold = !r.state(a.call.Member).Ready
		r.p.Ask(a.call.Member, func(e simulate.RequestEnd) { r.answer(a, e) })
	}
	r.places.Use(waits.Busy)
	r.startNext(waits.Next, true)
}

// answer gives a call its answer, and lets the run go on.
func (r *run) answer(a *asked, e simulate.RequestEnd) {
	x := reply{Reply: compose.Reply{Text: fmt.Sprintf("The answer of %s in round %d", a.call.Member, a.call.Round), Cold: a.cold}}
	if e.Code != "" {
		x.err = fmt.Errorf("%s: %s", e.Code, e.Message)
	}
	a.reply <- x
	r.settle()
}

// prewarmFor is the lease of a prewarm, that of the data path.
const prewarmFor = 5 * time.Minute

// startNext starts members that are asked next, as activator/compositions does.
func (r *run) startNext(next []string, due bool) {
	for _, name := range r.places.Next(next, due) {
		if due {
			r.p.st.Loop().Wake(name)
		} else {
			_ = r.p.st.Prewarm(name, prewarmFor, "composition") // refused: its own request starts it
		}
	}
}
