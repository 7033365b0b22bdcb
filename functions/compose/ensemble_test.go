package compose

import (
	"encoding/json/jsontext"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestEnsemble: the majority of short or structured answers is the answer, else the
// coordinator writes it.
func TestEnsemble(t *testing.T) {
	long := strings.Repeat("a long answer ", 40)
	for _, c := range []struct {
		name      string
		answers   map[string]string
		quorum    int
		schema    string
		maxTokens int
		text      string
		agreement Agreement
		left      bool   // the coordinator was asked
		by        string // the member whose answer stands for the synthesis
		kind      ErrorKind
	}{
		{name: "all agree", answers: map[string]string{"a": "Paris.", "b": "paris", "c": "**Paris**"}, text: "Paris.", agreement: Agreement{3, 3, true}},
		{name: "two of three agree", answers: map[string]string{"a": "41", "b": "42", "c": "42."}, text: "42", agreement: Agreement{3, 2, true}},
		{name: "none agree", answers: map[string]string{"a": "41", "b": "42", "c": "43", "j": "42!"}, text: "42!", agreement: Agreement{3, 1, false}, left: true},
		{name: "one fails, the others agree", answers: map[string]string{"a": "!", "b": "42", "c": "42"}, text: "42", agreement: Agreement{2, 2, true}},
		{name: "one fails, the others differ", answers: map[string]string{"a": "!", "b": "42", "c": "41", "j": "41"}, text: "41", agreement: Agreement{2, 1, false}, left: true},
		{name: "an empty answer is none", answers: map[string]string{"a": " \n", "b": "42", "c": "42"}, text: "42", agreement: Agreement{2, 2, true}},
		{name: "one answer is no agreement", answers: map[string]string{"a": "!", "b": "42", "c": "!", "j": "7"}, quorum: 1, text: "7", agreement: Agreement{1, 1, false}, left: true},
		{name: "equal and long", answers: map[string]string{"a": long, "b": long, "c": long, "j": "short"}, text: "short", agreement: Agreement{3, 3, false}, left: true},
		{name: "structured", answers: map[string]string{"a": `{"x":1.0,"y":[2]}`, "b": "```json\n{\"y\":[2], \"x\":1}\n```", "c": "{}"}, text: `{"x":1.0,"y":[2]}`, agreement: Agreement{3, 2, true}},
		{name: "structured in a fence for a schema", answers: map[string]string{"a": "```json\n{\"x\":1}\n```", "b": `{"x":1}`, "c": "!"}, schema: `{}`, text: `{"x":1}`, agreement: Agreement{2, 2, true}},
		{name: "no JSON for a schema", answers: map[string]string{"a": "yes", "b": "yes", "c": "yes", "j": "{}"}, schema: `{}`, text: "{}", agreement: Agreement{3, 3, false}, left: true},
		{name: "longer than max_tokens", answers: map[string]string{"a": "forty-two", "b": "forty-two", "c": "forty-two", "j": "42"}, maxTokens: 5, text: "42", agreement: Agreement{3, 3, false}, left: true},
		{name: "reasoning does not count", answers: map[string]string{"a": "<think>6*7</think>\n\n42", "b": "42", "c": "!"}, text: "42", agreement: Agreement{2, 2, true}},
		{name: "below the quorum", answers: map[string]string{"a": "!", "b": "!", "c": "42", "j": "42"}, kind: NoQuorum},
		{name: "no coordinator", answers: map[string]string{"a": "1", "b": "2", "c": "3", "j": "!"}, kind: CoordinatorFailed, agreement: Agreement{3, 1, false}, left: true},
		{name: "a silent coordinator", answers: map[string]string{"a": "!", "b": "2", "c": "3", "j": " \n"}, text: "2", by: "b", agreement: Agreement{2, 1, false}, left: true},
		{name: "a silent coordinator, one answer fits", answers: map[string]string{"a": "no", "b": "none", "c": "```\n{}\n```", "j": ""}, schema: `{}`, text: "{}", by: "c", agreement: Agreement{3, 1, false}, left: true},
		{name: "a silent coordinator, no answer fits", answers: map[string]string{"a": "no", "b": "none", "c": "not"}, schema: `{}`, kind: CoordinatorFailed, agreement: Agreement{3, 1, false}, left: true},
	} {
		s := &script{answer: replies(c.answers)}
		in := question("?")
		in.MaxTokens, in.JSON = c.maxTokens, jsontext.Value(c.schema)
		if c.schema == "" {
			in.JSON = nil
		}
		result, err := Run(t.Context(), &Plan{Pattern: Ensemble, Members: []string{"a", "b", "c"}, Coordinator: "j", Quorum: c.quorum}, in, s.ask, nil, nil)
		var e *Error
		if errors.As(err, &e); err != nil && (e == nil || e.Kind != c.kind) || (err == nil) != (c.kind == "") {
			t.Errorf("%s: error %v, want kind %q", c.name, err, c.kind)
		}
		if result.Text != c.text || result.Agreement != c.agreement || result.AnsweredBy != c.by {
			t.Errorf("%s: %q with %+v by %q, want %q with %+v by %q", c.name,
				result.Text, result.Agreement, result.AnsweredBy, c.text, c.agreement, c.by)
		}
		asked := slices.Contains(s.names(), "j/coordinator/1/final")
		if asked != c.left || result.Streamed != (asked && err == nil && c.by == "") || len(result.Calls) != len(s.calls) {
			t.Errorf("%s: calls %v, streamed %v, %d recorded", c.name, s.names(), result.Streamed, len(result.Calls))
		}
		var usage Usage
		var cost float64
		for _, m := range result.Calls {
			usage.Prompt += m.Usage.Prompt
			usage.Completion += m.Usage.Completion
			cost += m.Cost
		}
		if usage != result.Usage || cost != result.Cost || usage.Prompt == 0 {
			t.Errorf("%s: usage %+v, cost %v; of the calls %+v, %v", c.name, result.Usage, result.Cost, usage, cost)
		}
	}
}

// TestSilentCoordinator: where the synthesis is empty, the first answer to the whole request
// stands for it; an answer to a part does not.
func TestSilentCoordinator(t *testing.T) {
	for _, c := range []struct {
		pattern Pattern
		plan    string
		by      string
	}{
		{Ensemble, "", "a"}, {Debate, "", "a"}, {Maestro, "prose", "a"}, {Graph, "prose", "a"},
		{Maestro, everyPattern[Maestro]["j/coordinator/1"], ""}, {Graph, everyPattern[Graph]["j/coordinator/1"], ""},
	} {
		s := &script{answer: replies(map[string]string{"j/coordinator/1": c.plan, "j": "", "a": "one", "b": "two", "c": "three"})}
		var replaced []string
		result, err := Run(t.Context(), planOf(c.pattern), question("?"), s.ask, nil, func(e Event) {
			if e.Kind == EventReplaced {
				replaced = append(replaced, e.Member)
			}
		})
		if c.by == "" {
			if want := "coordinator j failed: no synthesis: the answer is empty"; err == nil || err.Error() != want || replaced != nil {
				t.Errorf("%s: %v with %v, want %s", c.pattern, err, replaced, want)
			}
			continue
		}
		if err != nil || result.AnsweredBy != c.by || result.Text != "one" || result.Streamed || !slices.Equal(replaced, []string{c.by}) {
			t.Errorf("%s: %+v, %v, %v", c.pattern, result, err, replaced)
		}
	}
}

// TestErrorsName: an error names every missing answer and wraps the first cause.
func TestErrorsName(t *testing.T) {
	s := &script{answer: replies(map[string]string{"a": "!", "b": "", "c": "42"})}
	_, err := Run(t.Context(), &Plan{Pattern: Ensemble, Members: []string{"a", "b", "c"}, Coordinator: "j"}, question("?"), s.ask, nil, nil)
	if want := "too few answers: 1 of 2 needed (a: connection reset by peer; b: the answer is empty)"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if !errors.Is(err, errBroken) {
		t.Errorf("%v does not wrap its cause", err)
	}
	s = &script{answer: replies(map[string]string{"a": "1", "b": "2", "c": "3", "j": "!"})}
	_, err = Run(t.Context(), &Plan{Pattern: Ensemble, Members: []string{"a", "b", "c"}, Coordinator: "j"}, question("?"), s.ask, nil, nil)
	if want := "coordinator j failed: no synthesis: connection reset by peer"; err == nil || err.Error() != want ||
		!errors.Is(err, errBroken) {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestConversationIsKept: every call has the client's messages, in order and unchanged, and
// no other message of the system or the assistant; what is ours follows in a user message.
func TestConversationIsKept(t *testing.T) {
	for _, behind := range []Message{{"user", "And now?"}, {"assistant", "So far:"}} {
		client := []Message{{"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello"}, behind}
		for pattern, texts := range everyPattern {
			s := &script{answer: replies(texts)}
			in := Input{Messages: slices.Clone(client), Sampling: jsontext.Value(`{"temperature":0}`), MaxTokens: 99}
			if _, err := Run(t.Context(), planOf(pattern), in, s.ask, nil, nil); err != nil {
				t.Fatalf("%s: %v", pattern, err)
			}
			if !reflect.DeepEqual(in.Messages, client) {
				t.Errorf("%s changed the client's messages: %v", pattern, in.Messages)
			}
			for _, q := range s.calls {
				n := len(client)
				if len(q.Messages) < n || !reflect.DeepEqual(q.Messages[:n-1], client[:n-1]) ||
					!strings.HasPrefix(q.Messages[n-1].Content, behind.Content) {
					t.Errorf("%s: %s lost the conversation: %q", pattern, name(q), q.Messages)
				}
				if len(q.Messages) > n+1 || len(q.Messages) == n+1 && (behind.Role == "user" || q.Messages[n].Role != "user") {
					t.Errorf("%s: %s has roles beyond the client's: %q", pattern, name(q), q.Messages)
				}
				if q.Final != (q.MaxTokens == 99) || q.Final && q.Sampling == nil {
					t.Errorf("%s: %s has max_tokens %d, sampling %s", pattern, name(q), q.MaxTokens, q.Sampling)
				}
			}
		}
	}
}

// everyPattern has, for each pattern, the answers of a whole run with planOf.
var everyPattern = map[Pattern]map[string]string{
	Ensemble: {"a": "one", "b": "two", "c": "three", "j": "end"},
	Debate:   {"a": "one", "b": "two", "c": "three", "a/member/2": "four", "j": "end"},
	Maestro:  {"j/coordinator/1": `{"agents":[{"role":"code","task":"write it"},{"role":"research","task":"look it up"}]}`, "a": "found", "c": "written", "b": "fine", "j": "end"},
	Graph: {"j/coordinator/1": `{"subtasks":[{"id":"x","task":"first","member":"a","needs":[]},{"id":"y","task":"then","member":"b","needs":["x"]}]}`,
		"a": "one", "b": "two", "j": "end"},
}

func planOf(p Pattern) *Plan {
	return &Plan{
		Pattern: p, Members: []string{"a", "b", "c"}, Coordinator: "j", Rounds: 2, Mark: seeded(),
		Agents: map[string]string{RoleResearch: "a", RoleCode: "c", RoleCritic: "b"},
	}
}
