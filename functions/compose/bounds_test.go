package compose

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestNoMessages: a request without messages is refused before any call.
func TestNoMessages(t *testing.T) {
	if _, err := Run(t.Context(), planOf(Ensemble), Input{}, nil, nil, nil); err == nil || err.Error() != "request: no messages" {
		t.Error(err)
	}
}

// TestBudgets: no pattern makes more calls than its budget, whatever the budget is; it
// answers if the budget allows it.
func TestBudgets(t *testing.T) {
	for pattern, texts := range everyPattern {
		free := &script{answer: replies(texts)}
		if _, err := Run(t.Context(), planOf(pattern), question("?"), free.ask, nil, nil); err != nil {
			t.Fatal(err)
		}
		for calls := 3; calls <= len(free.calls); calls++ {
			s := &script{answer: replies(texts)}
			plan := planOf(pattern)
			plan.Budget.Calls = calls
			result, err := Run(t.Context(), plan, question("?"), s.ask, nil, nil)
			if len(s.calls) > calls {
				t.Errorf("%s: %d calls, %d are allowed: %v", pattern, len(s.calls), calls, s.names())
			}
			var e *Error
			if err != nil && (pattern != Maestro && pattern != Graph || !errors.As(err, &e) ||
				e.Kind != BudgetSpent && e.Kind != CoordinatorFailed) {
				t.Errorf("%s with %d calls: %v", pattern, calls, err)
			}
			if err == nil && result.Text != "end" {
				t.Errorf("%s with %d calls: %q", pattern, calls, result.Text)
			}
			if calls == len(free.calls) && err != nil {
				t.Errorf("%s with all of its %d calls: %v", pattern, calls, err)
			}
		}
	}
}

// TestSpent: a part of the budget that is spent ends the questions, not the answer.
func TestSpent(t *testing.T) {
	for _, c := range []struct {
		name   string
		plan   Plan
		calls  []string
		left   Reason
		reason Reason // of the error
		says   string
	}{
		{"tokens after the first round", Plan{Pattern: Debate, Budget: Budget{Tokens: 30}}, []string{"a/member/1", "b/member/1", "c/member/1", "j/coordinator/2/final"}, ReasonTokens, "", ""},
		{"cost after the first round", Plan{Pattern: Debate, Budget: Budget{Cost: 1.5}}, []string{"a/member/1", "b/member/1", "c/member/1", "j/coordinator/2/final"}, ReasonCost, "", ""},
		{"calls in the first round", Plan{Pattern: Ensemble, Budget: Budget{Calls: 3}}, []string{"a/member/1", "b/member/1", "j/coordinator/1/final"}, ReasonCalls, "", ""},
		{"calls for the revisions of one", Plan{Pattern: Debate, Budget: Budget{Calls: 5}}, []string{"a/member/1", "a/member/2", "b/member/1", "c/member/1", "j/coordinator/3/final"}, ReasonCalls, "", ""},
		{"cold starts", Plan{Pattern: Ensemble, Budget: Budget{ColdStarts: 3}}, []string{"a/member/1", "b/member/1", "j/coordinator/1/final"}, ReasonColdStarts, "", ""},
		{"cold starts below the quorum", Plan{Pattern: Ensemble, Budget: Budget{ColdStarts: 2}}, []string{"a/member/1"}, ReasonColdStarts, ReasonColdStarts, "budget: coldStarts is spent: 1 of 2 needed (b: budget: coldStarts; c: budget: coldStarts)"},
		{"cold starts over two rounds", Plan{Pattern: Debate, Budget: Budget{ColdStarts: 5}}, []string{"a/member/1", "a/member/2", "b/member/1", "c/member/1", "j/coordinator/2/final"}, ReasonColdStarts, "", ""},
		{"no cold starts", Plan{Pattern: Ensemble, Budget: Budget{ColdStarts: -1}}, nil, ReasonColdStarts, ReasonColdStarts, "0 of 2 needed"},
	} {
		s := &script{answer: replies(everyPattern[Debate])}
		var ready Ready
		if c.plan.Budget.ColdStarts != 0 {
			ready = func(_, want []string) []Group { return []Group{{Cold: want}} }
			s.answer = func(q Call) (Reply, error) { return Reply{Text: q.Member, Cold: true}, nil }
		}
		c.plan.Members, c.plan.Coordinator, c.plan.Rounds = []string{"a", "b", "c"}, "j", 2
		result, err := Run(t.Context(), &c.plan, question("?"), s.ask, ready, nil)
		var e *Error
		errors.As(err, &e)
		if (err != nil) != (c.reason != "") ||
			err != nil && (e == nil || e.Kind != BudgetSpent || e.Reason != c.reason || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.name, err)
		}
		if !slices.Equal(s.names(), c.calls) || len(result.LeftOut) == 0 || result.LeftOut[0].Reason != c.left {
			t.Errorf("%s: calls %v, left out %+v", c.name, s.names(), result.LeftOut)
		}
	}
}

// TestTime: at 3/4 of the time the questions end; the synthesis has the rest.
func TestTime(t *testing.T) {
	for _, c := range []struct {
		name  string
		took  map[string]time.Duration
		ends  time.Duration
		left  int
		says  string
		calls int
	}{
		{"in time", map[string]time.Duration{"c": 50 * time.Second, "j": 10 * time.Second}, 60 * time.Second, 0, "", 4},
		{"a slow member", map[string]time.Duration{"c": 80 * time.Second, "j": 10 * time.Second}, 85 * time.Second, 1, "", 4},
		{"a slow synthesis", map[string]time.Duration{"j": 101 * time.Second}, 100 * time.Second, 1, "budget: time is spent: no answer in time", 4},
		{"slow members", map[string]time.Duration{"b": 80 * time.Second, "c": 80 * time.Second}, 75 * time.Second, 2, "budget: time is spent: 1 of 2 needed (b: budget: time; c: budget: time)", 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{took: func(q Call) time.Duration { return c.took[q.Member] }, answer: replies(everyPattern[Ensemble])}
			plan, start := planOf(Ensemble), time.Now()
			plan.Budget.Time = 100 * time.Second
			result, err := Run(t.Context(), plan, question("?"), s.ask, nil, nil)
			if took := time.Since(start); took != c.ends || len(result.LeftOut) != c.left || len(result.Calls) != c.calls {
				t.Errorf("%s: ended after %v, %v; left out %+v; %d calls", c.name, took, err, result.LeftOut, len(result.Calls))
			}
			var e *Error
			if (err == nil) != (c.says == "") || err != nil && (err.Error() != c.says || !errors.As(err, &e) || e.Kind != BudgetSpent) {
				t.Errorf("%s: %v", c.name, err)
			}
		})
	}
}

// TestPatience: members that are still being loaded when patience ends are left out if the
// answers are enough, and only then.
func TestPatience(t *testing.T) {
	slow := map[string]time.Duration{"a": time.Second, "b": 2 * time.Second, "c": 60 * time.Second, "j": 0}
	for _, c := range []struct {
		name   string
		quorum int
		group  Group
		began  bool // c's model is loaded before patience ends
		ends   time.Duration
		left   string
		calls  int
	}{
		{"a cold one is left out", 2, Group{Warm: []string{"a", "b"}, Cold: []string{"c"}}, false, 20 * time.Second, "c: cold beyond patience", 4},
		{"a loaded one is waited for", 2, Group{Warm: []string{"a", "b"}, Cold: []string{"c"}}, true, 60 * time.Second, "", 4},
		{"a warm one is waited for", 2, Group{Warm: []string{"a", "b", "c"}}, false, 60 * time.Second, "", 4},
		{"the quorum needs it", 3, Group{Warm: []string{"a", "b"}, Cold: []string{"c"}}, false, 60 * time.Second, "", 4},
		{"a forecast beyond patience: it is not even asked", 2, Group{Warm: []string{"a", "b"}, Cold: []string{"c"}, Wait: 21 * time.Second}, false, 2 * time.Second, "c: cold beyond patience", 3},
		{"a forecast within patience", 2, Group{Warm: []string{"a", "b"}, Cold: []string{"c"}, Wait: 19 * time.Second}, false, 20 * time.Second, "c: cold beyond patience", 4},
		{"a forecast beyond patience that the quorum needs", 3, Group{Warm: []string{"a", "b"}, Cold: []string{"c"}, Wait: time.Hour}, false, 60 * time.Second, "", 4},
		{"the quorum comes late", 2, Group{Warm: []string{"c"}, Cold: []string{"a", "b"}}, true, 60 * time.Second, "", 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{took: func(q Call) time.Duration {
				if c.began && q.Began != nil {
					q.Began()
					q.Began() // a second one changes nothing
				}
				return slow[q.Member]
			}, answer: replies(everyPattern[Ensemble])}
			ready := func(busy, want []string) []Group { return []Group{c.group} }
			plan, start := planOf(Ensemble), time.Now()
			plan.Quorum, plan.Patience = c.quorum, 20*time.Second
			result, err := Run(t.Context(), plan, question("?"), s.ask, ready, nil)
			var left []string
			for _, l := range result.LeftOut {
				left = append(left, fmt.Sprintf("%s: %s", l.Member, l.Reason))
			}
			if took := time.Since(start); err != nil || took != c.ends || strings.Join(left, "; ") != c.left || len(result.Calls) != c.calls {
				t.Errorf("%s: %v after %v; left out %v; %d calls", c.name, err, took, left, len(result.Calls))
			}
			if s.ended != len(s.calls) {
				t.Errorf("%s: %d of %d calls ended", c.name, s.ended, len(s.calls))
			}
		})
	}
}

// TestForecastAfterWait: what is left of patience counts when a later group begins.
func TestForecastAfterWait(t *testing.T) {
	for _, c := range []struct {
		wait  time.Duration
		calls int
	}{{4 * time.Second, 4}, {6 * time.Second, 3}} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{answer: replies(everyPattern[Ensemble]), took: func(q Call) time.Duration {
				return map[string]time.Duration{"a": time.Second, "b": 15 * time.Second}[q.Member]
			}}
			ready := func(busy, want []string) []Group {
				switch {
				case len(want) == 3:
					return []Group{{Warm: []string{"a", "b"}}, {Cold: []string{"c"}}}
				case len(busy) > 0:
					return []Group{{}}
				}
				return []Group{{Cold: want, Wait: c.wait}}
			}
			plan := planOf(Ensemble)
			plan.Patience = 20 * time.Second
			if result, err := Run(t.Context(), plan, question("?"), s.ask, ready, nil); err != nil || len(result.Calls) != c.calls {
				t.Errorf("%v: %v, %d calls", c.wait, err, len(result.Calls))
			}
		})
	}
}

// TestLateAnswer: an answer that arrives although its call was given up counts.
func TestLateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{answer: replies(everyPattern[Ensemble])}
		ask := func(ctx context.Context, q Call) (Reply, error) {
			if q.Member == "c" {
				<-ctx.Done()
			}
			return s.ask(ctx, q)
		}
		plan := planOf(Ensemble)
		plan.Patience = time.Second
		ready := func(_, want []string) []Group { return []Group{{Cold: want}} }
		result, err := Run(t.Context(), plan, question("?"), ask, ready, nil)
		if err != nil || len(result.LeftOut) > 0 || result.Agreement.Answers != 3 {
			t.Errorf("%v, left out %+v, %+v", err, result.LeftOut, result.Agreement)
		}
	})
}

// TestForecastIsWrong: a member that was put off is asked after all when the others fail.
func TestForecastIsWrong(t *testing.T) {
	s := &script{answer: replies(map[string]string{"a": "42", "b": "!", "c": "42"})}
	ready := func(busy, want []string) []Group {
		return []Group{{Warm: []string{"a", "b"}, Cold: []string{"c"}, Wait: time.Hour}}
	}
	plan := planOf(Ensemble)
	plan.Patience = time.Second
	result, err := Run(t.Context(), plan, question("?"), s.ask, ready, nil)
	if err != nil || result.Text != "42" || len(result.LeftOut) > 0 {
		t.Errorf("%q, %v, left out %+v", result.Text, err, result.LeftOut)
	}
}

// TestDecided: a member that is being loaded is not waited for once more than half of all
// members agree, and no earlier.
func TestDecided(t *testing.T) {
	for _, c := range []struct {
		name      string
		members   string
		loaded    string
		maxTokens int
		ends      time.Duration
		left      int
	}{
		{"two of three", "abc", "ab", 0, time.Second, 1},
		{"two of three, too long for the client", "abc", "ab", 1, 12 * time.Second, 0},
		{"two of five", "abcde", "ab", 0, 11 * time.Second, 0},
		{"three of five", "abcde", "abc", 0, time.Second, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, start := newPlaces(6), time.Now()
			s.loaded = append(strings.Split(c.loaded, ""), "j")
			s.text = func(q Call) string { return "42" }
			plan, in := planOf(Ensemble), question("?")
			plan.Members, plan.Quorum, in.MaxTokens = strings.Split(c.members, ""), 2, c.maxTokens
			ask := func(ctx context.Context, q Call) (Reply, error) {
				reply, err := s.ask(ctx, q)
				reply.Usage.Completion = 2
				if err != nil {
					err = context.Cause(ctx)
				}
				return reply, err
			}
			result, err := Run(t.Context(), plan, in, ask, s.ready, nil)
			for _, m := range result.Calls {
				if m.Err != nil && (m.Err.Error() != "given up: decided without it" || !errors.Is(m.Err, context.Canceled)) {
					t.Errorf("%s: %s ended with %v", c.name, m.Member, m.Err)
				}
			}
			if err != nil || result.Text != "42" || time.Since(start) != c.ends || len(result.LeftOut) != c.left {
				t.Errorf("%s: %q, %v after %v, left out %+v", c.name, result.Text, err, time.Since(start), result.LeftOut)
			}
			for _, l := range result.LeftOut {
				if l.Reason != ReasonDecided {
					t.Errorf("%s: %+v", c.name, l)
				}
			}
		})
	}
}

// TestBudgetOrFailures: a run that the budget alone did not fail is no spent budget; a plan
// that cannot be repaired within it is replaced.
func TestBudgetOrFailures(t *testing.T) {
	ready := func(_, want []string) []Group {
		if len(want) == 3 {
			return []Group{{Warm: want[:2], Cold: want[2:]}}
		}
		return []Group{{Warm: want}}
	}
	for _, c := range []struct {
		texts  map[string]string
		quorum int
		kind   ErrorKind
	}{
		{map[string]string{"a": "1", "b": "2"}, 3, BudgetSpent},
		{map[string]string{"a": "1", "b": "!"}, 2, BudgetSpent},
		{map[string]string{"a": "1", "b": "!"}, 3, NoQuorum},
	} {
		s := &script{answer: replies(c.texts)}
		plan := planOf(Ensemble)
		plan.Quorum, plan.Budget.ColdStarts = c.quorum, -1
		var e *Error
		if _, err := Run(t.Context(), plan, question("?"), s.ask, ready, nil); !errors.As(err, &e) || e.Kind != c.kind ||
			(e.Reason != "") != (c.kind == BudgetSpent) {
			t.Errorf("%v with quorum %d: %v", c.texts, c.quorum, err)
		}
	}
	for _, pattern := range []Pattern{Maestro, Graph} {
		s := &script{answer: replies(everyPattern[pattern])} // a plan of two parts
		plan := planOf(pattern)
		plan.Budget.Calls = 3
		result, err := Run(t.Context(), plan, question("?"), s.ask, nil, nil)
		if err != nil || !strings.Contains(result.PlanError, "no call to repair it") || len(s.calls) != 3 {
			t.Errorf("%s: %v, %+v; calls %v", pattern, err, result, s.names())
		}
	}
}

// TestCancel: the end of ctx ends every call, and Run returns after the last one.
func TestCancel(t *testing.T) {
	errGone := errors.New("the client went away")
	for pattern, texts := range everyPattern {
		for at := range 6 {
			synctest.Test(t, func(t *testing.T) {
				s := &script{took: func(Call) time.Duration { return time.Second }, answer: replies(texts)}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				time.AfterFunc(time.Duration(at)*time.Second+time.Second/2, func() { cancel(errGone) })
				start := time.Now()
				result, err := Run(ctx, planOf(pattern), question("?"), s.ask, nil, nil)
				if s.ended != len(s.calls) {
					t.Errorf("%s: %d of %d calls ended", pattern, s.ended, len(s.calls))
				}
				gone := ctx.Err() != nil
				if gone != errors.Is(err, errGone) || gone && time.Since(start) != time.Duration(at)*time.Second+time.Second/2 {
					t.Errorf("%s, cancelled %v in second %d: %v after %v", pattern, gone, at, err, time.Since(start))
				}
				var lost int
				for _, m := range result.Calls {
					if m.Err != nil {
						lost++
					}
				}
				if gone == (lost == 0) || gone && result.Usage.Prompt == 0 || len(result.Calls) != len(s.calls) {
					t.Errorf("%s: %d calls failed: %+v", pattern, lost, result.Calls)
				}
			})
		}
	}
}

// TestCancelledBefore: no call is made for a client that is gone.
func TestCancelledBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for pattern := range everyPattern {
		s := &script{answer: replies(everyPattern[pattern])}
		if _, err := Run(ctx, planOf(pattern), question("?"), s.ask, nil, nil); !errors.Is(err, context.Canceled) || len(s.calls) > 0 {
			t.Errorf("%s: %v, calls %v", pattern, err, s.names())
		}
	}
}

// TestEvents: every call begins and ends once in the events, in one goroutine.
func TestEvents(t *testing.T) {
	for pattern, texts := range everyPattern {
		s := &script{answer: replies(texts)}
		open, inside := map[string]int{}, false
		var kinds []EventKind
		result, err := Run(t.Context(), planOf(pattern), question("?"), s.ask, nil, func(e Event) {
			if inside {
				t.Error("two events at once")
			}
			inside = true
			defer func() { inside = false }()
			kinds = append(kinds, e.Kind)
			key := fmt.Sprintf("%s %s %s %d %v", e.Member, e.Role, e.Step, e.Round, e.Final)
			switch e.Kind {
			case EventBegin:
				open[key]++
			case EventEnd:
				if open[key]--; e.Text == "" && e.Err == nil {
					t.Errorf("%s: %+v", pattern, e)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for key, n := range open {
			if n != 0 {
				t.Errorf("%s: %s is %d calls open", pattern, key, n)
			}
		}
		if kinds[0] != EventRound || slices.Contains(kinds, EventPlan) != (pattern == Maestro || pattern == Graph) ||
			slices.Contains(kinds, EventAgreement) != (pattern == Ensemble || pattern == Debate) {
			t.Errorf("%s: %v", pattern, kinds)
		}
		if result.Prompts != "v1" {
			t.Errorf("prompts %q", result.Prompts)
		}
	}
}

// TestPanic: a panic of ask reaches the caller of Run, once every other call has ended.
func TestPanic(t *testing.T) {
	for _, from := range []string{"ask", "on"} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{took: func(q Call) time.Duration { return time.Minute }}
			ask := func(ctx context.Context, q Call) (Reply, error) {
				if q.Member == "b" && from == "ask" {
					panic("broken")
				}
				return s.ask(ctx, q)
			}
			on := func(e Event) {
				if e.Member == "c" && from == "on" {
					panic("broken")
				}
			}
			start := time.Now()
			defer func() {
				if p := recover(); p != "broken" || s.ended != len(s.calls) || len(s.calls) == 0 || time.Since(start) > 0 {
					t.Errorf("%v; %d of %d calls ended after %v", p, s.ended, len(s.calls), time.Since(start))
				}
			}()
			_, err := Run(t.Context(), planOf(Ensemble), question("?"), ask, nil, on)
			t.Errorf("returned %v", err)
		})
	}
	ask := func(_ context.Context, q Call) (Reply, error) {
		if q.Member == "b" {
			runtime.Goexit()
		}
		return Reply{Text: "42"}, nil
	}
	if result, err := Run(t.Context(), planOf(Ensemble), question("?"), ask, nil, nil); err != nil || result.Calls[1].Err != errNoReturn {
		t.Errorf("%v, %+v", err, result.Calls)
	}
}

// TestSharedMember: two agents of one member are one cold start, and the second does not
// wait until the first has ended.
func TestSharedMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{took: func(q Call) time.Duration { return time.Second }}
		texts := replies(everyPattern[Maestro])
		s.answer = func(q Call) (Reply, error) {
			reply, err := texts(q)
			reply.Cold = q.Member == "a"
			return reply, err
		}
		var wanted []string
		ready := func(busy, want []string) []Group {
			wanted = append(wanted, strings.Join(busy, "")+">"+strings.Join(want, ""))
			if want[0] == "a" {
				return []Group{{Cold: want}}
			}
			return []Group{{Warm: want}}
		}
		plan := planOf(Maestro)
		plan.Agents = map[string]string{RoleCode: "a", RoleResearch: "a"}
		plan.Budget.ColdStarts = 1
		start := time.Now()
		result, err := Run(t.Context(), plan, question("?"), s.ask, ready, nil)
		if err != nil || len(result.LeftOut) > 0 || time.Since(start) != 3*time.Second {
			t.Errorf("%v after %v, left out %+v; asked for %v", err, time.Since(start), result.LeftOut, wanted)
		}
	})
}

// TestNextWithinBudget: no member is prepared that the budget does not allow to be asked.
func TestNextWithinBudget(t *testing.T) {
	ready := func(busy, want []string) []Group {
		if want[0] == "j" {
			return []Group{{Warm: want}}
		}
		if len(busy) > 0 {
			return []Group{{}, {Cold: want}}
		}
		return []Group{{Cold: want[:1]}, {Cold: want[1:]}}
	}
	for _, c := range []struct {
		budget Budget
		next   string
	}{{Budget{}, "bcd"}, {Budget{Calls: 4}, "bc"}, {Budget{ColdStarts: 2}, "b"}, {Budget{ColdStarts: 1}, "j"}} {
		s := &script{answer: replies(map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "j": "end"})}
		plan := &Plan{Pattern: Ensemble, Members: []string{"a", "b", "c", "d"}, Coordinator: "j", Quorum: 1, Budget: c.budget}
		if _, err := Run(t.Context(), plan, question("?"), s.ask, ready, nil); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.find(t, "a/member/1").Next, ""); got != c.next {
			t.Errorf("%+v: after a %q, want %q", c.budget, got, c.next)
		}
	}
}

// TestNextBesideColdStart: a cold start that is under way counts in the budget of what is
// prepared next.
func TestNextBesideColdStart(t *testing.T) {
	for starts, want := range map[int]string{0: "d", 1: "j", 2: "d"} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{answer: replies(map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "j": "end"})}
			s.took = func(q Call) time.Duration {
				if q.Member == "b" { // it is loaded for so long
					return time.Minute
				}
				return time.Second
			}
			ready := func(busy, want []string) []Group {
				switch {
				case want[0] == "j":
					return []Group{{Warm: want}}
				case len(busy) == 0:
					return []Group{{Warm: []string{"a"}, Cold: []string{"b"}}, {Warm: []string{"c"}}, {Cold: []string{"d"}}}
				case slices.Contains(want, "c"):
					return []Group{{Warm: []string{"c"}}, {Cold: []string{"d"}}}
				}
				return []Group{{}, {Cold: want}}
			}
			plan := &Plan{Pattern: Ensemble, Members: []string{"a", "b", "c", "d"}, Coordinator: "j", Quorum: 2, Budget: Budget{ColdStarts: starts}}
			if _, err := Run(t.Context(), plan, question("?"), s.ask, ready, nil); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(s.find(t, "c/member/1").Next, ""); got != want {
				t.Errorf("%d cold starts: after c %q, want %q", starts, got, want)
			}
		})
	}
}

// TestColdCritic: a critic that would not be loaded within patience is done without.
func TestColdCritic(t *testing.T) {
	for _, c := range []struct {
		wait time.Duration
		ends time.Duration
		call int // number of calls
	}{{time.Hour, 3 * time.Second, 4}, {0, 23 * time.Second, 5}} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{answer: replies(everyPattern[Maestro])}
			s.took = func(q Call) time.Duration {
				if q.Role == RoleCritic {
					return time.Minute
				}
				return time.Second
			}
			ready := func(_, want []string) []Group {
				if want[0] == "b" {
					return []Group{{Cold: want, Wait: c.wait}}
				}
				return []Group{{Warm: want}}
			}
			plan, start := planOf(Maestro), time.Now()
			plan.Patience = 20 * time.Second
			result, err := Run(t.Context(), plan, question("?"), s.ask, ready, nil)
			if err != nil || time.Since(start) != c.ends || len(result.Calls) != c.call || len(result.LeftOut) != 1 ||
				result.LeftOut[0].Reason != ReasonPatience {
				t.Errorf("%v after %v, %d calls, left out %+v", err, time.Since(start), len(result.Calls), result.LeftOut)
			}
		})
	}
}
