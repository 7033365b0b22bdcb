package compose

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"
)

// run is one run of a composition. The goroutine of Run owns it.
type run struct {
	plan  *Plan
	input Input
	ask   Ask
	ready Ready
	on    func(Event)

	start        time.Time
	collectUntil time.Time // after it only the synthesis is asked; zero: no bound
	round        int
	coldFlying   int // calls in flight to members that were not loaded
	coldSpent    int
	result       Result
}

func newRun(p *Plan, in Input, ask Ask, ready Ready, on func(Event)) *run {
	r := &run{plan: new(*p), input: in, ask: ask, ready: ready, on: on, start: time.Now()}
	r.result.Prompts = promptVersion
	if p.Mark == nil {
		r.plan.Mark = rand.Text
	}
	if r.on == nil {
		r.on = func(Event) {}
	}
	return r
}

func (r *run) nextRound() {
	r.round++
	r.on(Event{Kind: EventRound, Round: r.round})
}

// callsLeft returns how many calls but the synthesis the budget allows, 0 to limit.
func (r *run) callsLeft(limit int) int {
	if c := r.plan.Budget.Calls; c > 0 {
		limit = max(min(limit, c-1-len(r.result.Calls)), 0)
	}
	return limit
}

// coldLeft returns how many cold starts the budget allows, 0 to limit.
func (r *run) coldLeft(limit int) int {
	if c := r.plan.Budget.ColdStarts; c != 0 {
		limit = max(min(limit, c-r.coldSpent-r.coldFlying), 0)
	}
	return limit
}

// groups calls Ready and repairs its answer: each member of want is in it exactly once, and
// the first group is not empty unless a member is busy.
func (r *run) groups(busy, want []string) []Group {
	if r.ready == nil {
		return []Group{{Warm: want}}
	}
	seen := map[string]bool{}
	keep := func(list []string) (kept []string) {
		for _, m := range list {
			if !seen[m] && slices.Contains(want, m) {
				seen[m] = true
				kept = append(kept, m)
			}
		}
		return kept
	}
	var groups []Group
	for _, g := range r.ready(busy, slices.Clone(want)) {
		g = Group{Warm: keep(g.Warm), Cold: keep(g.Cold), Wait: g.Wait}
		if len(g.Warm)+len(g.Cold) > 0 || len(groups) == 0 && len(busy) > 0 {
			groups = append(groups, g)
		}
	}
	if len(groups) == 0 && len(busy) > 0 {
		groups = []Group{{}}
	}
	if rest := keep(want); len(rest) > 0 {
		groups = append(groups, Group{Cold: rest})
	}
	return groups
}

// messages returns the client's messages and behind them text, as the end of the last
// message if that is the user's: templates of some models refuse two in a row.
func (r *run) messages(text string) []Message {
	list := slices.Clone(r.input.Messages)
	if last := &list[len(list)-1]; last.Role == "user" {
		last.Content += "\n\n" + text
		return list
	}
	return append(list, Message{Role: "user", Content: text})
}

// one makes a single call to the coordinator.
func (r *run) one(ctx context.Context, q Call, next []string) outcome {
	q.Round = r.round
	p := phase{run: r, tasks: []task{{call: q}}, need: 1, next: next}
	return p.gather(ctx)[0]
}

// synthesise lets the coordinator write the composition's answer. If that is empty, the first
// of answers, which answer the whole request, that the client can use stands for it.
func (r *run) synthesise(ctx context.Context, text string, answers []outcome) error {
	o := r.one(ctx, Call{
		Member: r.plan.Coordinator, Role: RoleCoordinator, Messages: r.messages(text),
		JSON: r.input.JSON, MaxTokens: r.input.MaxTokens, Sampling: r.input.Sampling, Final: true,
	}, nil)
	if o.answered() {
		r.result.Text, r.result.Streamed = o.reply.Text, true
		return nil
	}
	i := slices.IndexFunc(answers, func(a outcome) bool { return a.answered() && r.fits(a) })
	if o.err != errEmpty || i < 0 {
		return r.coordinatorError(ctx, o, "no synthesis")
	}
	r.adopt(answers[i])
	r.result.AnsweredBy = answers[i].member
	r.on(Event{Kind: EventReplaced, Member: answers[i].member, Round: r.round})
	return nil
}

// adopt makes a member's answer the composition's.
func (r *run) adopt(o outcome) {
	if r.result.Text = o.text; r.input.JSON != nil {
		r.result.Text = unwrapFence(o.text)
	}
}

// coordinatorError returns the error of a call to the coordinator that has no answer.
func (r *run) coordinatorError(ctx context.Context, o outcome, detail string) error {
	if err := stopped(ctx); err != nil {
		return err
	}
	if strings.HasPrefix(string(o.left), "budget") {
		return &Error{Kind: BudgetSpent, Reason: o.left, Detail: detail}
	}
	return &Error{Kind: CoordinatorFailed, Member: r.plan.Coordinator, Detail: detail, Err: o.err}
}
