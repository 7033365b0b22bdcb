package compose

import (
	"encoding/json/v2"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// decomposition writes subtasks as "id<need,need"; the members are a, b, c in turn.
func decomposition(list ...string) string {
	var d struct {
		Subtasks []subtask `json:"subtasks"`
	}
	for i, s := range list {
		id, needs, _ := strings.Cut(s, "<")
		n := subtask{ID: id, Task: "do " + id, Member: string('a' + rune(i%3)), Needs: []string{}}
		if needs != "" {
			n.Needs = strings.Split(needs, ",")
		}
		d.Subtasks = append(d.Subtasks, n)
	}
	raw, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// TestGraphOrder: a subtask begins when the last one that it needs has ended, whatever else
// is still in flight, and reads their results and no others.
func TestGraphOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := map[string]time.Duration{"w": 1 * time.Second, "x": 10 * time.Second, "y": 2 * time.Second, "z": 1 * time.Second}
		s := &script{took: func(q Call) time.Duration { return took[q.Step] }}
		s.answer = func(q Call) (Reply, error) {
			if q.JSON != nil {
				return Reply{Text: decomposition("w", "x", "y<w", "z<x,y")}, nil
			}
			return Reply{Text: "result " + q.Step}, nil
		}
		result, err := Run(t.Context(), planOf(Graph), question("Do it."), s.ask, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		var began []string
		for _, m := range result.Calls {
			began = append(began, fmt.Sprintf("%s@%v", m.Step, m.Began))
		}
		if want := []string{"@0s", "w@0s", "x@0s", "y@1s", "z@10s", "@11s"}; !slices.Equal(began, want) {
			t.Errorf("%v, want %v", began, want)
		}
		y, z := last(t, s.find(t, "c/member/1/y")), last(t, s.find(t, "a/member/1/z"))
		if !strings.Contains(y, "result w") || strings.Contains(y, "result x") || !strings.Contains(y, ">>>\ndo y\n<<<") {
			t.Errorf("y reads %s", y)
		}
		if !strings.Contains(z, "result x") || !strings.Contains(z, "result y") || strings.Contains(z, "result w") {
			t.Errorf("z reads %s", z)
		}
		if next := s.find(t, "a/member/1/w").Next; strings.Join(next, "") != "c" { // y's; z's member is a itself
			t.Errorf("after w: %v", next)
		}
	})
}

// TestMemberInUse: a subtask whose member has a call in flight does not wait for its end.
func TestMemberInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		took := map[string]time.Duration{"w": 1 * time.Second, "x": 10 * time.Second, "v": 1 * time.Second, "y": 2 * time.Second}
		s := &script{took: func(q Call) time.Duration { return took[q.Step] }}
		s.answer = func(q Call) (Reply, error) {
			if q.JSON != nil {
				return Reply{Text: decomposition("w", "x", "v", "u<w", "y<w")}, nil // a, b, c, a, b
			}
			return Reply{Text: "result " + q.Step}, nil
		}
		ready := func(busy, want []string) []Group {
			for _, m := range want {
				if slices.Contains(busy, m) {
					t.Errorf("asked for %v beside %v", want, busy)
				}
			}
			return []Group{{Warm: want}}
		}
		result, err := Run(t.Context(), planOf(Graph), question("Do it."), s.ask, ready, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range result.Calls {
			if m.Step == "y" && m.Began != time.Second {
				t.Errorf("y began after %v", m.Began)
			}
		}
	})
}

// TestGraphOnPlaces: free subtasks of loaded members go first.
func TestGraphOnPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPlaces(1)
		s.text = func(q Call) string {
			if q.JSON != nil {
				return decomposition("p", "q", "r", "s", "t", "u") // a, b, c, a, b, c
			}
			return "result"
		}
		if _, err := Run(t.Context(), planOf(Graph), question("Do it."), s.ask, s.ready, nil); err != nil {
			t.Fatal(err)
		}
		for m, n := range s.loads {
			if want := map[string]int{"j": 2}[m]; n != max(want, 1) {
				t.Errorf("%s was loaded %d times", m, n)
			}
		}
	})
}

// TestGraphFailures: a subtask that fails is a missing result for those that need it.
func TestGraphFailures(t *testing.T) {
	for _, c := range []struct {
		name   string
		fails  string
		quorum int
		ok     bool
	}{
		{"one of three", "x", 0, true},
		{"two of three", "xy", 0, false},
		{"two of three, one is enough", "xy", 1, true},
		{"all must", "z", 3, false},
		{"a quorum beyond the number of subtasks", "", 9, true},
	} {
		s := &script{answer: func(q Call) (Reply, error) {
			switch {
			case q.JSON != nil:
				return Reply{Text: decomposition("x", "y<x", "z<y")}, nil
			case q.Step != "" && strings.Contains(c.fails, q.Step):
				return Reply{}, errBroken
			}
			return Reply{Text: "result " + q.Step}, nil
		}}
		plan := planOf(Graph)
		plan.Quorum = c.quorum
		result, err := Run(t.Context(), plan, question("Do it."), s.ask, nil, nil)
		var e *Error
		if (err == nil) != c.ok || err != nil && (!errors.As(err, &e) || e.Kind != NoQuorum) {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.ok && c.fails == "x" {
			for _, call := range []string{"b/member/1/y", "j/coordinator/1/final"} {
				if text := last(t, s.find(t, call)); !strings.Contains(text, "Part x has no result. It was:\n") {
					t.Errorf("%s: %s reads %s", c.name, call, text)
				}
			}
		}
		if c.ok && !result.Streamed {
			t.Errorf("%s: no synthesis", c.name)
		}
	}
}

// TestDecomposition: what is refused, and what the coordinator is told.
func TestDecomposition(t *testing.T) {
	one := decomposition("x")
	many := make([]string, 13)
	for i := range many {
		many[i] = fmt.Sprint("s", i)
	}
	for _, c := range []struct{ name, text, says string }{
		{"valid", one, ""},
		{"in the wrong order", decomposition("z<y", "y<x", "x<w", "w"), ""},
		{"twelve", decomposition(many[:12]...), ""},
		{"in a fence", "```json\n" + one + "\n```", ""},
		{"in a fence without a language", " \n```\n" + one + "\n```\n", ""},
		{"behind reasoning", "<think>{\"a\":1}</think>\n" + one, ""},
		{"nothing", "", "empty"},
		{"prose", "Here is the plan.", "no valid JSON"},
		{"prose before", "Here it is: " + one, "no valid JSON"},
		{"prose behind", one + " That is all.", "no valid JSON"},
		{"two values", one + one, "no valid JSON"},
		{"two fences", "```json\n" + one + "\n```\n```json\n" + one + "\n```", "no valid JSON"},
		{"not an object", `["x"]`, "no valid JSON"},
		{"null", "null", "0 entries"},
		{"cut off", one[:len(one)-3], "no valid JSON"},
		{"a key twice", `{"subtasks":[],"subtasks":[{"id":"x","task":"t","member":"a","needs":[]}]}`, "no valid JSON"},
		{"an unknown key", strings.Replace(one, `"id"`, `"model":"z","id"`, 1), "model"},
		{"a key in capitals", strings.Replace(one, `"id"`, `"ID"`, 1), "ID"},
		{"a number for an id", strings.Replace(one, `"x"`, `1`, 1), "no valid JSON"},
		{"invalid UTF-8", strings.Replace(one, "do x", "do \xff", 1), "UTF-8"},
		{"none", `{"subtasks":[]}`, "0 entries, not 1 to 12"},
		{"thirteen", decomposition(many...), "13 entries, not 1 to 12"},
		{"an id twice", decomposition("x", "x"), "x was used before"},
		{"an id of several lines", decomposition("x\ny"), `subtasks[0].id is "x y"`},
		{"no id", decomposition(""), `subtasks[0].id is ""`},
		{"a long id", decomposition(strings.Repeat("x", 33)), "1 to 32 small letters"},
		{"no task", strings.Replace(one, "do x", " ", 1), "task has 0 bytes"},
		{"a long task", strings.Replace(one, "do x", strings.Repeat("x", 4001), 1), "task has 4001 bytes"},
		{"an unknown member", strings.Replace(one, `"member":"a"`, `"member":"z"`, 1), `member is "z", not one of a, b, c`},
		{"no member", strings.Replace(one, `"member":"a",`, ``, 1), `member is ""`},
		{"an unknown need", decomposition("x<y"), `there is no subtask "y"`},
		{"itself", decomposition("x<x"), "x needs itself"},
		{"a need twice", decomposition("x", "y<x,x"), "x is named twice"},
		{"a cycle of two", decomposition("x<y", "y<x"), "circle, or one of those: x, y"},
		{"a cycle of three behind one", decomposition("w", "x<w,z", "y<x", "z<y"), "circle, or one of those: x, y, z"},
		{"huge", `{"subtasks":[` + strings.Repeat(" ", maxPlanBytes) + `]}`, "at most 65536 are allowed"},
		{"deep", strings.Repeat("[", 20_000), "no valid JSON"},
		{"deep inside", `{"subtasks":[{"id":` + strings.Repeat(`{"id":`, 5_000) + "1", "no valid JSON"},
	} {
		subtasks, err := parseDecomposition(c.text, []string{"a", "b", "c"}, MaxSubtasks)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) || err == nil && len(subtasks) == 0 {
			t.Errorf("%s: %d subtasks, %v; want %q", c.name, len(subtasks), err, c.says)
		}
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("%s: the error has %d bytes", c.name, len(err.Error()))
		}
	}
}

// TestGraphReplaced: where no plan can be used each member gets the whole request, as many as
// the budget allows, and the event says why.
func TestGraphReplaced(t *testing.T) {
	for calls, want := range map[int]string{
		0: "j/coordinator/1 j/coordinator/1 a/member/1/whole-1 b/member/1/whole-2 c/member/1/whole-3 j/coordinator/1/final",
		4: "j/coordinator/1 j/coordinator/1 a/member/1/whole-1 j/coordinator/1/final",
		3: "j/coordinator/1 a/member/1/whole-1 j/coordinator/1/final",
	} {
		plan := planOf(Graph)
		plan.Budget.Calls = calls
		s := &script{answer: func(q Call) (Reply, error) { return Reply{Text: "no plan"}, nil }}
		var replaced []Event
		result, err := Run(t.Context(), plan, question("Do it."), s.ask, nil, func(e Event) {
			if e.Kind == EventPlan {
				replaced = append(replaced, e)
			}
		})
		got := s.names()
		for _, name := range strings.Fields(want) {
			if i := slices.Index(got, name); i >= 0 {
				got = slices.Delete(got, i, i+1)
			} else {
				t.Errorf("%d calls: no %s", calls, name)
			}
		}
		if err != nil || len(got) > 0 || result.Text != "no plan" || !strings.Contains(result.PlanError, "no valid JSON") ||
			len(replaced) != 1 || replaced[0].Err == nil {
			t.Errorf("%d calls: %+v, %v; more calls %v; events %+v", calls, result, err, got, replaced)
		}
		if text := last(t, s.find(t, "a/member/1/whole-1")); !strings.Contains(text, ">>>\n"+wholeTask+"\n<<<end") {
			t.Errorf("%s", text)
		}
	}
}

// FuzzDecomposition: whatever the coordinator writes, a run ends, asks only members of the
// plan and within its bounds, and each subtask after those that it needs.
func FuzzDecomposition(f *testing.F) {
	for _, text := range []string{
		decomposition("x"), decomposition("w", "x", "y<w", "z<x,y"), decomposition("x<y", "y<x"), decomposition("x", "x"), "```json\n" + decomposition("x") + "\n```",
		`{"subtasks":[{"id":"x","task":"t","member":"a","needs":null}]}`, strings.Repeat("[", 200), `{"subtasks":[{}]} and more`, "",
	} {
		f.Add(text, uint8(0))
		f.Add(text, uint8(5))
	}
	f.Fuzz(func(t *testing.T, text string, calls uint8) {
		plan := planOf(Graph)
		if calls > 2 {
			plan.Budget.Calls = int(calls)
		}
		s := &script{answer: func(q Call) (Reply, error) {
			if q.JSON != nil {
				return Reply{Text: text}, nil
			}
			return Reply{Text: "result " + q.Step}, nil
		}}
		result, err := Run(t.Context(), plan, question("Do it."), s.ask, nil, nil)
		most := 1 + 2 + MaxSubtasks
		if c := plan.Budget.Calls; c > 0 {
			most = min(most, c)
		}
		if len(s.calls) > most || len(result.Calls) != len(s.calls) {
			t.Fatalf("%d calls of at most %d, %d recorded", len(s.calls), most, len(result.Calls))
		}
		subtasks, invalid := parseDecomposition(text, plan.Members, MaxSubtasks)
		var e *Error
		if err != nil && !errors.As(err, &e) || err == nil && invalid != nil && result.PlanError == "" {
			t.Fatalf("%v after %v", err, invalid)
		}
		if err != nil {
			return
		}
		at := map[string]int{}
		for i, m := range result.Calls {
			if m.Step != "" {
				at[m.Step] = i
				if !slices.Contains(plan.Members, m.Member) {
					t.Fatalf("asked %q", m.Member)
				}
			}
		}
		for _, s := range subtasks {
			for _, need := range s.Needs {
				mine, asked := at[s.ID]
				if theirs, ok := at[need]; asked && ok && theirs > mine {
					t.Fatalf("%s was asked before %s", s.ID, need)
				}
			}
		}
	})
}
