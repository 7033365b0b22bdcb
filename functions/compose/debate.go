package compose

import (
	"context"
	"fmt"
	"strings"
)

// keepWord is the reply of a member that keeps its answer.
const keepWord = "KEEP"

// debate asks all members, lets each revise its answer in the light of the others', and
// closes like an ensemble. A revision that fails leaves the member's former answer.
func (r *run) debate(ctx context.Context) error {
	answers, err := r.first(ctx, nil)
	if err != nil {
		return err
	}
	for range r.plan.Rounds {
		// no revision could change the end: all answers are equal, or there is only one
		if _, a := majority(answers, 0); a.Answers == 1 || a.Exact && a.Agree == a.Answers {
			break
		}
		changed, err := r.revise(ctx, answers)
		if err != nil {
			return err
		}
		if !changed {
			break
		}
	}
	return r.close(ctx, answers, promptDebate)
}

// revise runs one round of critique and revision. It reports whether an answer changed.
func (r *run) revise(ctx context.Context, answers []outcome) (changed bool, err error) {
	r.nextRound()
	var tasks []task
	var owners []int // of tasks: index in answers
	for i, m := range r.plan.Members {
		if !answers[i].answered() {
			continue
		}
		owners = append(owners, i)
		tasks = append(tasks, task{call: Call{Member: m, Role: RoleMember, Round: r.round, Messages: r.messages(r.revision(answers, i)),
			JSON: r.input.JSON, Sampling: r.input.Sampling}})
	}
	p := phase{
		run: r, tasks: tasks, need: quorumOf(r.plan.Quorum, len(tasks)), patience: r.plan.Patience,
		next: r.afterRound(),
	}
	for i, o := range p.gather(ctx) {
		if !o.answered() || strings.EqualFold(strings.Trim(o.text, " \t\r\n.!*`\"'"), keepWord) {
			continue
		}
		before, _ := answers[owners[i]].normalForm()
		after, _ := o.normalForm()
		changed = changed || before != after
		answers[owners[i]] = o
	}
	return changed, stopped(ctx)
}

// afterRound returns the coordinator in the last round. Before that it would take the
// place of a member that is asked again.
func (r *run) afterRound() []string {
	if r.plan.Pattern == Debate && r.round <= r.plan.Rounds {
		return nil
	}
	return []string{r.plan.Coordinator}
}

// revision returns the text that shows a member the answers.
func (r *run) revision(answers []outcome, own int) string {
	list := []quotation{{"Your answer", answers[own].text}}
	for i := range answers {
		if i != own && answers[i].answered() {
			list = append(list, quotation{fmt.Sprintf("Answer %d of another model", len(list)), answers[i].text})
		}
	}
	return r.quoteIn(promptRevise, list, "keep", keepWord)
}
