package compose

import (
	"context"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// MaxSubtasks bounds a decomposition.
const MaxSubtasks = 12

// subtask is one node of a decomposition.
type subtask struct {
	ID     string   `json:"id"`
	Task   string   `json:"task"`
	Member string   `json:"member"`
	Needs  []string `json:"needs"`
}

// wholeTask is the task of each member where the coordinator's plan cannot be used.
const wholeTask = "Answer the whole request above."

// idForm is the form of an id: short, and plain in a heading.
var idForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// graph lets the coordinator split the request, runs the parts and lets the coordinator
// write the answer.
func (r *run) graph(ctx context.Context) error {
	r.nextRound()
	limit := r.callsLeft(MaxSubtasks+1) - 1 // the decomposition takes one
	schema := decompositionSchema(r.plan.Members, limit)
	var subtasks []subtask
	text := fillPrompt(promptDecompose, "limit", fmt.Sprint(limit), "members", strings.Join(r.plan.Members, ", "), "schema", string(schema))
	err := r.askPlan(ctx, text, schema, r.plan.Members, func(text string) (err error) {
		subtasks, err = parseDecomposition(text, r.plan.Members, limit)
		return err
	})
	if err != nil {
		return err
	}
	if r.result.PlanError != "" { // each member does all of it
		for i, m := range r.plan.Members[:r.callsLeft(min(len(r.plan.Members), MaxSubtasks))] {
			subtasks = append(subtasks, subtask{ID: fmt.Sprintf("whole-%d", i+1), Task: wholeTask, Member: m})
		}
	}
	steps := make([]Step, len(subtasks))
	for i, s := range subtasks {
		steps[i] = Step{ID: s.ID, Role: RoleMember, Member: s.Member, Task: s.Task, Needs: s.Needs}
	}
	r.reportPlan(steps)
	tasks := r.graphTasks(subtasks)
	p := phase{run: r, tasks: tasks, need: quorumOf(r.plan.Quorum, len(tasks)), next: []string{r.plan.Coordinator}}
	outcomes, err := p.answers(ctx)
	if err != nil {
		return err
	}
	all := make([]int, len(subtasks))
	for i := range all {
		all[i] = i
	}
	text = r.quoteIn(promptGraph, quoteSubtasks(subtasks, outcomes, all))
	if r.result.PlanError == "" {
		outcomes = nil // each answers a part
	}
	return r.synthesise(ctx, text, outcomes)
}

func decompositionSchema(members []string, limit int) jsontext.Value {
	return jsontext.Value(fmt.Sprintf(`{"type":"object","properties":{"subtasks":{"type":"array","minItems":1,"maxItems":%d,"items":{"type":"object","properties":{`+
		`"id":{"type":"string","pattern":%q},"task":{"type":"string"},"member":{"type":"string","enum":%s},`+
		`"needs":{"type":"array","items":{"type":"string"}}},"required":["id","task","member","needs"],"additionalProperties":false}}},`+
		`"required":["subtasks"],"additionalProperties":false}`, limit, idForm, jsonList(members)))
}

// parseDecomposition decodes and checks a decomposition: at most limit subtasks, ids and
// members that exist once, dependencies that are known and form no cycle.
func parseDecomposition(text string, members []string, limit int) ([]subtask, error) {
	var d struct {
		Subtasks []subtask `json:"subtasks"`
	}
	if err := decodeStrict(text, &d); err != nil {
		return nil, err
	}
	if n := len(d.Subtasks); n == 0 || n > limit {
		return nil, fmt.Errorf("subtasks has %d entries, not 1 to %d", n, limit)
	}
	ids := map[string]bool{}
	for i, s := range d.Subtasks {
		switch {
		case !idForm.MatchString(s.ID):
			return nil, fmt.Errorf("subtasks[%d].id is %q: 1 to 32 small letters, digits, - or _", i, clipLine(s.ID, 40))
		case ids[s.ID]:
			return nil, fmt.Errorf("subtasks[%d].id: %s was used before", i, s.ID)
		case strings.TrimSpace(s.Task) == "" || len(s.Task) > maxTask:
			return nil, fmt.Errorf("subtasks[%d].task has %d bytes, not 1 to %d", i, len(strings.TrimSpace(s.Task)), maxTask)
		case !slices.Contains(members, s.Member):
			return nil, fmt.Errorf("subtasks[%d].member is %q, not one of %s", i, clipLine(s.Member, 40), strings.Join(members, ", "))
		}
		ids[s.ID] = true
	}
	for i, s := range d.Subtasks {
		for j, need := range s.Needs {
			switch {
			case need == s.ID:
				return nil, fmt.Errorf("subtasks[%d].needs: %s needs itself", i, s.ID)
			case !ids[need]:
				return nil, fmt.Errorf("subtasks[%d].needs[%d]: there is no subtask %q", i, j, clipLine(need, 40))
			case slices.Contains(s.Needs[:j], need):
				return nil, fmt.Errorf("subtasks[%d].needs[%d]: %s is named twice", i, j, need)
			}
		}
	}
	if cycle := findCycle(d.Subtasks); len(cycle) > 0 {
		return nil, errors.New("subtasks that need each other in a circle, or one of those: " + strings.Join(cycle, ", "))
	}
	return d.Subtasks, nil
}

// findCycle returns the ids that remain when subtasks without open needs are removed again
// and again (Kahn 1962): none if there is no cycle.
func findCycle(subtasks []subtask) (rest []string) {
	done := map[string]bool{}
	for range subtasks {
		for _, s := range subtasks {
			if !slices.ContainsFunc(s.Needs, func(id string) bool { return !done[id] }) {
				done[s.ID] = true
			}
		}
	}
	for _, s := range subtasks {
		if !done[s.ID] {
			rest = append(rest, s.ID)
		}
	}
	return rest
}

// graphTasks returns the calls of subtasks. Their messages are made when they begin,
// because they quote the answers of others.
func (r *run) graphTasks(subtasks []subtask) []task {
	at := map[string]int{}
	for i, s := range subtasks {
		at[s.ID] = i
	}
	tasks := make([]task, len(subtasks))
	for i, s := range subtasks {
		var needs []int
		for _, id := range s.Needs {
			needs = append(needs, at[id])
		}
		tasks[i] = task{
			call:  Call{Member: s.Member, Role: RoleMember, Round: r.round, Step: s.ID, Sampling: r.input.Sampling},
			needs: needs,
			messages: func(outcomes []outcome) []Message {
				parts := append([]quotation{{"Part " + s.ID, s.Task}}, quoteSubtasks(subtasks, outcomes, needs)...)
				return r.messages(r.quoteIn(promptSubtask, parts))
			},
		}
	}
	return tasks
}

// quoteSubtasks returns the answers of the subtasks of list; a missing one is said to be.
func quoteSubtasks(subtasks []subtask, outcomes []outcome, list []int) (quoted []quotation) {
	for _, i := range list {
		text := outcomes[i].text
		title := "Result of part " + subtasks[i].ID
		if !outcomes[i].answered() {
			title, text = "Part "+subtasks[i].ID+" has no result. It was", subtasks[i].Task
		}
		quoted = append(quoted, quotation{title, text})
	}
	return quoted
}
