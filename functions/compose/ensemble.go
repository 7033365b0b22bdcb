package compose

import (
	"context"
	"encoding/json/jsontext"
	"fmt"
	"slices"
)

// ensemble asks all members and closes with their majority or the synthesis.
func (r *run) ensemble(ctx context.Context) error {
	answers, err := r.first(ctx, func(o []outcome) bool {
		best, _ := majority(o, len(o)) // of all members: no later answer changes it
		return best >= 0 && r.fits(o[best])
	})
	if err != nil {
		return err
	}
	return r.close(ctx, answers, promptEnsemble)
}

// first asks all members the client's request.
func (r *run) first(ctx context.Context, decided func([]outcome) bool) ([]outcome, error) {
	r.nextRound()
	tasks := make([]task, len(r.plan.Members))
	for i, m := range r.plan.Members {
		tasks[i].call = Call{Member: m, Role: RoleMember, Round: r.round, Messages: slices.Clone(r.input.Messages), JSON: r.input.JSON,
			Sampling: r.input.Sampling}
	}
	p := phase{
		run: r, tasks: tasks, need: quorumOf(r.plan.Quorum, len(tasks)), patience: r.plan.Patience,
		next: r.afterRound(), decided: decided,
	}
	return p.answers(ctx)
}

// close gives the composition the answer that more than half of the answers agree on, or
// else lets the coordinator write one.
func (r *run) close(ctx context.Context, answers []outcome, prompt string) error {
	best, agreement := majority(answers, 0)
	if best >= 0 && !r.fits(answers[best]) {
		best, agreement.Exact = -1, false
	}
	r.result.Agreement = agreement
	r.on(Event{Kind: EventAgreement, Round: r.round, Agreement: agreement})
	if best >= 0 {
		r.adopt(answers[best])
		return nil
	}
	var list []quotation
	for i := range answers {
		if answers[i].answered() {
			list = append(list, quotation{fmt.Sprintf("Answer %d", len(list)+1), answers[i].text})
		}
	}
	return r.synthesise(ctx, r.quoteIn(prompt, list), answers)
}

// fits reports whether the answer can stand for the synthesis: it is JSON where the client
// asked for JSON, and within the client's max_tokens.
func (r *run) fits(o outcome) bool {
	if r.input.JSON != nil && !jsontext.Value(unwrapFence(o.text)).IsValid() {
		return false
	}
	return r.input.MaxTokens == 0 || o.reply.Usage.Completion <= int64(r.input.MaxTokens)
}
