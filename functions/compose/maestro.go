package compose

import (
	"cmp"
	"context"
	"encoding/json/jsontext"
	"fmt"
	"slices"
	"strings"
)

// maxTask bounds the text of a task in bytes.
const maxTask = 4000

// assignment is one agent's part of the request.
type assignment struct {
	Role string `json:"role"`
	Task string `json:"task"`
}

// maestro lets the coordinator choose agents, asks them, lets the critic review and lets
// the coordinator write the answer.
func (r *run) maestro(ctx context.Context) error {
	r.nextRound()
	roles := r.plan.roles()
	limit := r.callsLeft(len(roles)+1) - 1 // the analysis takes one
	var chosen []assignment
	schema := jsontext.Value(fmt.Sprintf(`{"type":"object","properties":{"agents":{"type":"array","minItems":1,"maxItems":%d,"items":{"type":"object",`+
		`"properties":{"role":{"type":"string","enum":%s},"task":{"type":"string"}},"required":["role","task"],"additionalProperties":false}}},`+
		`"required":["agents"],"additionalProperties":false}`, limit, jsonList(roles)))
	var pool []string
	for _, role := range roles {
		pool = append(pool, r.plan.Agents[role])
	}
	err := r.askPlan(ctx, fillPrompt(promptAnalyse, "roles", strings.Join(roles, ", "), "schema", string(schema)), schema, distinct(pool),
		func(text string) (err error) {
			chosen, err = parseAssignments(text, roles, limit)
			return err
		})
	if err != nil {
		return err
	}
	if r.result.PlanError != "" { // each agent does all of it
		for _, role := range roles[:r.callsLeft(len(roles))] {
			chosen = append(chosen, assignment{Role: role, Task: wholeTask})
		}
	}
	steps := make([]Step, len(chosen))
	for i, a := range chosen {
		steps[i] = Step{Role: a.Role, Member: r.plan.Agents[a.Role], Task: a.Task}
	}
	r.reportPlan(steps)
	list, whole, err := r.askAgents(ctx, steps)
	if err != nil {
		return err
	}
	review, err := r.review(ctx, list)
	if err != nil {
		return err
	}
	return r.synthesise(ctx, r.quoteIn(promptMaestro, append(list, review...)), whole)
}

// parseAssignments decodes and checks the coordinator's choice.
func parseAssignments(text string, roles []string, limit int) ([]assignment, error) {
	var choice struct {
		Agents []assignment `json:"agents"`
	}
	if err := decodeStrict(text, &choice); err != nil {
		return nil, err
	}
	if n := len(choice.Agents); n == 0 || n > limit {
		return nil, fmt.Errorf("agents has %d entries, not 1 to %d", n, limit)
	}
	seen := map[string]bool{}
	for i, a := range choice.Agents {
		switch {
		case !slices.Contains(roles, a.Role):
			return nil, fmt.Errorf("agents[%d].role is %q, not one of %s", i, clipLine(a.Role, 40), strings.Join(roles, ", "))
		case seen[a.Role]:
			return nil, fmt.Errorf("agents[%d].role: %s was chosen before", i, a.Role)
		case strings.TrimSpace(a.Task) == "" || len(a.Task) > maxTask:
			return nil, fmt.Errorf("agents[%d].task has %d bytes, not 1 to %d", i, len(strings.TrimSpace(a.Task)), maxTask)
		}
		seen[a.Role] = true
	}
	return choice.Agents, nil
}

// askAgents returns the agents' answers as quotations, and those that answer the whole request.
func (r *run) askAgents(ctx context.Context, steps []Step) (list []quotation, whole []outcome, err error) {
	tasks := make([]task, len(steps))
	for i, s := range steps {
		text := r.quoteIn(promptAgent, []quotation{{"Task", s.Task}}, "role", s.Role)
		tasks[i].call = Call{Member: s.Member, Role: s.Role, Round: r.round, Messages: r.messages(text), Sampling: r.input.Sampling}
	}
	next := []string{r.plan.Coordinator}
	if critic := r.plan.Agents[RoleCritic]; critic != "" {
		next = distinct([]string{critic, r.plan.Coordinator})
	}
	p := phase{run: r, tasks: tasks, need: quorumOf(r.plan.Quorum, len(tasks)), patience: r.plan.Patience, next: next}
	outcomes, err := p.answers(ctx)
	if err != nil {
		return nil, nil, err
	}
	if r.result.PlanError != "" {
		whole = outcomes
	}
	for i, o := range outcomes {
		if o.answered() {
			list = append(list, quotation{fmt.Sprintf("Answer of the %s agent", steps[i].Role), o.text})
		}
	}
	return list, whole, nil
}

// review asks the critic, if there is one. Without its answer the run goes on: patience
// bounds how long its member is loaded.
func (r *run) review(ctx context.Context, list []quotation) ([]quotation, error) {
	critic := r.plan.Agents[RoleCritic]
	if critic == "" {
		return nil, nil
	}
	call := Call{Member: critic, Role: RoleCritic, Round: r.round, Messages: r.messages(r.quoteIn(promptCritic, list))}
	p := phase{run: r, tasks: []task{{call: call}}, patience: r.plan.Patience, next: []string{r.plan.Coordinator}}
	o := p.gather(ctx)[0]
	if err := stopped(ctx); err != nil || !o.answered() {
		return nil, err
	}
	return []quotation{{"Review by the critic", o.text}}, nil
}

// agentRoles are the roles that a maestro's coordinator chooses among, in the order in
// which they are shown to it. The critic is not chosen: it reviews.
var agentRoles = []string{RoleResearch, RoleReasoning, RoleCreative, RoleCode}

// roles lists the agents that the coordinator of a maestro chooses among.
func (p *Plan) roles() (list []string) {
	for _, role := range agentRoles {
		if p.Agents[role] != "" {
			list = append(list, role)
		}
	}
	return list
}

// quorumOf returns how many of n answers are enough: quorum, or without one more than half.
func quorumOf(quorum, n int) int { return min(cmp.Or(quorum, n/2+1), n) }
