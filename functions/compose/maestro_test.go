package compose

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// FuzzAssignments: whatever the coordinator of a maestro replies, an agent is asked at most
// once, only agents that there are, and within the budget.
func FuzzAssignments(f *testing.F) {
	for _, text := range []string{
		`{"agents":[{"role":"code","task":"x"},{"role":"research","task":"y"}]}`, `{"agents":[{"role":"code","task":"x"},{"role":"code","task":"y"}]}`,
		`{"agents":[{"role":"critic","task":"x"}]}`, "```json\n{\"agents\":[{\"role\":\"code\",\"task\":\"x\"}]}\n```", `{"agents":null}`, strings.Repeat("[", 200), "",
	} {
		f.Add(text, uint8(0))
		f.Add(text, uint8(4))
	}
	f.Fuzz(func(t *testing.T, text string, calls uint8) {
		plan := planOf(Maestro)
		if calls > 2 {
			plan.Budget.Calls = int(calls)
		}
		s := &script{answer: func(q Call) (Reply, error) {
			if q.JSON != nil {
				return Reply{Text: text}, nil
			}
			return Reply{Text: "work of " + q.Role}, nil
		}}
		result, err := Run(t.Context(), plan, question("Do it."), s.ask, nil, nil)
		var e *Error
		if err != nil && !errors.As(err, &e) || plan.Budget.Calls > 0 && len(s.calls) > plan.Budget.Calls {
			t.Fatalf("%v, %d calls of %d", err, len(s.calls), plan.Budget.Calls)
		}
		asked := map[string]bool{}
		for _, m := range result.Calls {
			if m.Role == RoleCoordinator {
				continue
			}
			if asked[m.Role] || plan.Agents[m.Role] != m.Member {
				t.Fatalf("%s of %s is asked twice, or is none", m.Role, m.Member)
			}
			asked[m.Role] = true
		}
	})
}

func TestMaestro(t *testing.T) {
	valid := `{"agents":[{"role":"code","task":"write it"},{"role":"research","task":"look it up"}]}`
	whole := []string{"a/research/1", "b/critic/1", "c/code/1", "j/coordinator/1", "j/coordinator/1/final"}
	replaced := []string{"a/research/1", "b/critic/1", "c/code/1", "j/coordinator/1", "j/coordinator/1", "j/coordinator/1/final"}
	for _, c := range []struct {
		name    string
		answers map[string]string
		calls   []string
		kind    ErrorKind
		says    string
	}{
		{name: "whole", answers: map[string]string{"j/coordinator/1": valid, "a": "found", "b": "fine", "c": "written", "j": "end"}, calls: whole},
		{name: "in a fence", answers: map[string]string{"j/coordinator/1": "```json\n" + valid + "\n```", "a": "found", "b": "fine", "c": "written", "j": "end"}, calls: whole},
		{name: "no critic's answer", answers: map[string]string{"j/coordinator/1": valid, "a": "found", "b": "!", "c": "written", "j": "end"}, calls: whole},
		{name: "one agent fails", answers: map[string]string{"j/coordinator/1": valid, "a": "!", "b": "fine", "c": "written", "j": "end"}, kind: NoQuorum, says: "1 of 2 needed (a: connection reset"},
		{name: "no analysis", answers: map[string]string{"j/coordinator/1": "!"}, kind: CoordinatorFailed, says: "coordinator j failed: no plan: connection reset"},
		{name: "prose twice", answers: map[string]string{"a": "found", "b": "fine", "c": "written", "j": "end", "j/coordinator/1": "I would ask research."}, calls: replaced, says: "invalid twice: no valid JSON"},
		{name: "a role without a member", answers: map[string]string{"a": "found", "b": "fine", "c": "written", "j": "end", "j/coordinator/1": `{"agents":[{"role":"creative","task":"x"}]}`}, calls: replaced, says: `agents[0].role is "creative", not one of research, code`},
		{name: "the critic as an agent", answers: map[string]string{"a": "found", "b": "fine", "c": "written", "j": "end", "j/coordinator/1": `{"agents":[{"role":"critic","task":"x"}]}`}, calls: replaced, says: `"critic", not one of`},
		{name: "a role twice", answers: map[string]string{"a": "found", "b": "fine", "c": "written", "j": "end", "j/coordinator/1": `{"agents":[{"role":"code","task":"x"},{"role":"code","task":"y"}]}`}, calls: replaced, says: "code was chosen before"},
		{name: "no task", answers: map[string]string{"a": "found", "b": "fine", "c": "written", "j": "end", "j/coordinator/1": `{"agents":[{"role":"code","task":" "}]}`}, calls: replaced, says: "agents[0].task has 0 bytes"},
		{name: "no agents", answers: map[string]string{"a": "found", "b": "fine", "c": "written", "j": "end", "j/coordinator/1": `{"agents":[]}`}, calls: replaced, says: "agents has 0 entries"},
		{name: "a key of its own", answers: map[string]string{"a": "found", "b": "fine", "c": "written", "j": "end", "j/coordinator/1": `{"agents":[{"role":"code","task":"x","calls":99}]}`}, calls: replaced, says: "calls"},
	} {
		s := &script{answer: replies(c.answers)}
		plan := planOf(Maestro)
		result, err := Run(t.Context(), plan, question("Do it."), s.ask, nil, nil)
		var e *Error
		errors.As(err, &e)
		if c.kind != "" {
			if e == nil || e.Kind != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || result.Text != "end" || !slices.Equal(s.names(), c.calls) {
			t.Errorf("%s: %q, %v; calls %v", c.name, result.Text, err, s.names())
		}
		if (result.PlanError != "") != (c.says != "") || !strings.Contains(result.PlanError, c.says) {
			t.Errorf("%s: the plan: %s", c.name, result.PlanError)
		}
		final := last(t, s.find(t, "j/coordinator/1/final"))
		if reviewed := strings.Contains(final, "Review by the critic"); reviewed != (c.answers["b"] == "fine") {
			t.Errorf("%s: %s", c.name, final)
		}
		if analysis := s.find(t, "j/coordinator/1"); !analysis.JSON.IsValid() || strings.Join(analysis.Next, "") != "ac" {
			t.Errorf("%s: schema %s, next %v", c.name, analysis.JSON, analysis.Next)
		}
		task := "write it"
		if c.says != "" {
			task = wholeTask
		}
		if agent := s.find(t, "c/code/1"); strings.Join(agent.Next, "") != "bj" || !strings.Contains(last(t, agent), ">>>\n"+task+"\n<<<end") {
			t.Errorf("%s: next %v: %s", c.name, agent.Next, last(t, agent))
		}
	}
}

// TestRepair: an invalid plan is quoted to the coordinator once, with its error.
func TestRepair(t *testing.T) {
	plans := []string{`{"subtasks":[{"id":"x","task":"first","member":"z","needs":[]}]}`, `{"subtasks":[{"id":"x","task":"first","member":"a","needs":[]}]}`}
	s := &script{}
	n := 0
	s.answer = func(q Call) (Reply, error) {
		if q.JSON != nil {
			n++
			return Reply{Text: plans[n-1]}, nil
		}
		return Reply{Text: "done"}, nil
	}
	result, err := Run(t.Context(), planOf(Graph), question("Do it."), s.ask, nil, nil)
	if err != nil || len(result.Calls) != 4 {
		t.Fatalf("%v, calls %v", err, s.names())
	}
	first, second := last(t, s.calls[0]), last(t, s.calls[1])
	if !strings.HasPrefix(second, first) || !strings.Contains(second, `subtasks[0].member is "z", not one of a, b, c`) || !strings.Contains(second, plans[0]) {
		t.Errorf("%s", second)
	}
}
