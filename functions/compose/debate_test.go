package compose

import (
	"slices"
	"strings"
	"testing"
)

// TestDebate: members revise until nothing changes or the rounds are over.
func TestDebate(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers map[string]string
		rounds  int // of the plan
		begun   int
		calls   int
		text    string
		exact   bool
	}{
		{"agreed at once", map[string]string{"a": "4", "b": "4", "c": "4"}, 3, 1, 3, "4", true},
		{"two agree, the third gives in", map[string]string{"a": "4", "b": "4", "c/member/1": "5", "a/member/2": "KEEP", "b/member/2": "Keep.", "c/member/2": "4"}, 3, 2, 6, "4", true},
		{"none gives in", map[string]string{"a": "4", "b": "5", "c": "6", "j": "5"}, 3, 2, 7, "5", false},
		{"by the rounds", map[string]string{"a/member/1": "1", "a/member/2": "2", "a/member/3": "3", "b": "x", "c": "y", "j": "end"}, 2, 3, 10, "end", false},
		{"a change in one place only in spaces", map[string]string{"a": "1", "b": "2", "c/member/1": "three men", "c/member/2": " Three  men. ", "j": "end"}, 5, 2, 7, "end", false},
		{"a failed revision keeps the answer", map[string]string{"a": "4", "b/member/1": "4", "b/member/2": "!", "c/member/1": "5", "c/member/2": "4"}, 5, 2, 6, "4", true},
		{"a member without an answer does not take part", map[string]string{"a": "4", "b": "5", "c/member/1": "!", "c": "5", "j": "end"}, 5, 2, 6, "end", false},
		{"a revision is of the member that wrote it", map[string]string{"a/member/1": "!", "b": "4", "c/member/1": "5", "c/member/2": "4"}, 5, 2, 5, "4", true},
		{"no rounds", map[string]string{"a": "4", "b": "5", "c": "6", "j": "5"}, 0, 1, 4, "5", false},
	} {
		s := &script{answer: replies(c.answers)}
		result, err := Run(t.Context(), &Plan{Pattern: Debate, Members: []string{"a", "b", "c"}, Coordinator: "j", Rounds: c.rounds}, question("2+2?"), s.ask, nil, nil)
		if err != nil || result.Text != c.text || result.Rounds != c.begun || len(s.calls) != c.calls || result.Agreement.Exact != c.exact {
			t.Errorf("%s: %q, %v; %d rounds, %+v, calls %v", c.name, result.Text, err, result.Rounds, result.Agreement, s.names())
		}
	}
}

// TestRevision: a member sees its own answer as its own and every other one once.
func TestRevision(t *testing.T) {
	s := &script{answer: replies(everyPattern[Debate])}
	if _, err := Run(t.Context(), planOf(Debate), question("Which?"), s.ask, nil, nil); err != nil {
		t.Fatal(err)
	}
	text := last(t, s.find(t, "b/member/3"))
	for _, want := range []string{"Which?\n\nYou and other models", "Your answer:\n<<<begin ", ">>>\ntwo\n<<<end ", "Answer 1 of another model:\n", ">>>\nfour\n", "Answer 2 of another model:\n", ">>>\nthree\n", "single word KEEP"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	for member, next := range map[string]string{"a/member/1": "", "a/member/2": "", "a/member/3": "j"} {
		if got := strings.Join(s.find(t, member).Next, ""); got != next {
			t.Errorf("after %s: %q, want %q", member, got, next)
		}
	}
	if strings.Count(text, ">>>\ntwo\n") != 1 || strings.Contains(text, ">>>\none\n") {
		t.Errorf("the own answer twice, or a former one: %s", text)
	}
	if !slices.Contains(s.names(), "j/coordinator/3/final") {
		t.Errorf("calls %v", s.names())
	}
}
