package router

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

func compile(t *testing.T, spec functions.RouterSpec) *Router {
	t.Helper()
	r, err := Compile(&functions.Router{Metadata: functions.Metadata{Namespace: "default", Name: "auto"}, Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func candidates(list ...functions.RouteCandidate) func(string) functions.RouteCandidate {
	return func(target string) functions.RouteCandidate {
		for _, c := range list {
			if c.Name == target {
				return c
			}
		}
		return functions.RouteCandidate{WhyNot: "it does not exist", ExpectedMS: -1, Cost: -1}
	}
}

// TestChoose: the objective and the policy for cold targets.
func TestChoose(t *testing.T) {
	at := func(name, state string, ms float64) functions.RouteCandidate {
		return functions.RouteCandidate{Name: name, Kind: functions.KindModel, State: state, ExpectedMS: ms, Cost: -1}
	}
	remote := func(c functions.RouteCandidate) functions.RouteCandidate { c.Kind = functions.KindRemote; return c }
	refused := func(c functions.RouteCandidate) functions.RouteCandidate { c.WhyNot = "its circuit is open"; return c }
	cost := func(c functions.RouteCandidate, v float64) functions.RouteCandidate { c.Cost = v; return c }
	second := functions.Objective{FirstToken: functions.Duration(time.Second)}
	for _, c := range []struct {
		name      string
		cold      functions.ColdPolicy
		objective functions.Objective
		a, b      functions.RouteCandidate
		want      string // the target and what is prewarmed
	}{
		{"the first is ready", "wait", second, at("a", "ready", 20), at("b", "ready", 10), "a"},
		{"the first is cold, without an objective", "wait", functions.Objective{}, at("a", "cold", 9000), at("b", "ready", 10), "a"},
		{"the first is too slow", "wait", second, at("a", "cold", 9000), at("b", "ready", 10), "b"},
		{"just within", "wait", second, at("a", "cold", 1000), at("b", "ready", 10), "a"},
		{"both are too slow", "wait", second, at("a", "cold", 9000), at("b", "ready", 2000), "a"},
		{"both are too slow", "other", second, at("a", "cold", 9000), at("b", "ready", 2000), "b"},
		{"both are too slow", "hedge", second, at("a", "cold", 9000), at("b", "ready", 2000), "b+a"},
		{"the sibling meets the objective", "hedge", second, at("a", "cold", 9000), at("b", "ready", 10), "b+a"},
		{"cold beside ready, without an objective", "hedge", functions.Objective{}, at("a", "cold", 100), at("b", "ready", 500), "b+a"},
		{"cold beside ready, without an objective", "other", functions.Objective{}, at("a", "cold", 100), at("b", "ready", 500), "b"},
		{"a cold one answers sooner than a full one", "other", second, at("a", "ready", 9000), at("b", "cold", 1500), "b"},
		{"the first is ready but full: nothing to prewarm", "hedge", second, at("a", "ready", 9000), at("b", "ready", 1500), "b"},
		{"both are cold", "hedge", functions.Objective{}, at("a", "cold", 100), at("b", "cold", 50), "a"},
		{"both are cold and too slow", "hedge", second, at("a", "cold", 9000), at("b", "staging", 5000), "b+a"},
		{"the first may not be used", "hedge", second, refused(at("a", "cold", 9000)), at("b", "ready", 10), "b"},
		{"only a cold one is eligible", "other", second, at("a", "cold", 9000), refused(at("b", "ready", 10)), "a"},
		{"none is eligible", "hedge", second, refused(at("a", "cold", 9000)), refused(at("b", "ready", 10)), ""},
		{"a remote is not prewarmed", "hedge", second, remote(at("a", "cold", 9000)), at("b", "ready", 2000), "b"},
		{"a remote answers", "hedge", functions.Objective{}, at("a", "cold", 9000), remote(at("b", "ready", 300)), "b+a"},
		{"an unknown start is too slow", "wait", second, at("a", "cold", -1), at("b", "ready", 10), "b"},
		{"an unknown time of a ready one is none", "wait", second, at("a", "ready", -1), at("b", "ready", 10), "a"},
		{"too expensive", "wait", functions.Objective{CostPerRequest: 0.01}, cost(at("a", "ready", 1), 0.02), cost(at("b", "ready", 1), 0.005), "b"},
		{"unknown cost", "wait", functions.Objective{CostPerRequest: 0.01}, at("a", "ready", 1), cost(at("b", "ready", 1), 0.005), "a"},
	} {
		t.Run(string(c.cold)+" "+c.name, func(t *testing.T) {
			r := compile(t, functions.RouterSpec{Rules: []functions.Rule{{Name: "all", To: []string{"a", "b"}}}, Objective: c.objective, Cold: c.cold})
			rec := r.Decide(Input{Data: functions.DataInternal}, candidates(c.a, c.b), nil)
			reason := Explain(rec)
			got := rec.Target
			if rec.Prewarm != "" {
				got += "+" + rec.Prewarm
			}
			if got != c.want {
				t.Errorf("%q, want %q: %s", got, c.want, reason)
			}
			if !strings.HasPrefix(reason, "Rule all matched") || strings.Count(reason, ".") != 1 ||
				strings.Contains(reason, " is prewarmed") != (rec.Prewarm != "") {
				t.Errorf("reason: %s", reason)
			}
			if len(rec.Candidates) != 2 || rec.Router != "default/auto" || rec.Rule != "all" || rec.Data != functions.DataInternal {
				t.Errorf("%+v", rec)
			}
		})
	}
}

// TestColdOfRequest: the request's own policy replaces the Router's.
func TestColdOfRequest(t *testing.T) {
	r := compile(t, functions.RouterSpec{Rules: []functions.Rule{{Name: "all", To: []string{"a", "b"}}}, Cold: functions.ColdHedge})
	all := candidates(functions.RouteCandidate{Name: "a", State: "cold"}, functions.RouteCandidate{Name: "b", State: "ready"})
	if rec := r.Decide(Input{}, all, nil); rec.Target != "b" || rec.Prewarm != "a" || rec.Cold != functions.ColdHedge {
		t.Errorf("%+v", rec)
	}
	if rec := r.Decide(Input{Cold: functions.ColdWait}, all, nil); rec.Target != "a" || rec.Prewarm != "" || rec.Cold != functions.ColdWait {
		t.Errorf("%+v", rec)
	}
}

// TestWhen: each key of a condition alone, on a request that meets it and on one that
// does not.
func TestWhen(t *testing.T) {
	yes, no, n, half := true, false, 100, 0.5
	for _, c := range []struct {
		name string
		when functions.When
		has  functions.RouteFeatures
		not  functions.RouteFeatures
	}{
		{"structuredOutput", functions.When{StructuredOutput: &yes}, functions.RouteFeatures{StructuredOutput: true}, functions.RouteFeatures{}},
		{"code", functions.When{Code: &yes}, functions.RouteFeatures{Code: true}, functions.RouteFeatures{}},
		{"no code", functions.When{Code: &no}, functions.RouteFeatures{}, functions.RouteFeatures{Code: true}},
		{"safety", functions.When{Safety: &yes}, functions.RouteFeatures{Safety: true}, functions.RouteFeatures{}},
		{"tools", functions.When{Tools: &yes}, functions.RouteFeatures{Tools: true}, functions.RouteFeatures{}},
		{"images", functions.When{Images: &yes}, functions.RouteFeatures{Images: true}, functions.RouteFeatures{}},
		{"repeatedPrefix", functions.When{RepeatedPrefix: &yes}, functions.RouteFeatures{RepeatedPrefix: true}, functions.RouteFeatures{}},
		{"language", functions.When{Language: "de"}, functions.RouteFeatures{Language: "de"}, functions.RouteFeatures{Language: "en"}},
		{"tokensBelow", functions.When{TokensBelow: &n}, functions.RouteFeatures{TokenCount: 99}, functions.RouteFeatures{TokenCount: 100}},
		{"tokensAbove", functions.When{TokensAbove: &n}, functions.RouteFeatures{TokenCount: 101}, functions.RouteFeatures{TokenCount: 100}},
		{"all of two", functions.When{Code: &yes, TokensBelow: &n}, functions.RouteFeatures{Code: true, TokenCount: 1}, functions.RouteFeatures{Code: true, TokenCount: 200}},
		{"complexityAbove", functions.When{ComplexityAbove: &half}, functions.RouteFeatures{Complexity: 0.6}, functions.RouteFeatures{Complexity: 0.5}},
		{"complexityBelow", functions.When{ComplexityBelow: &half}, functions.RouteFeatures{Complexity: 0.4}, functions.RouteFeatures{Complexity: 0.5}},
		{"complexity unknown", functions.When{ComplexityBelow: &half}, functions.RouteFeatures{Complexity: 0}, functions.RouteFeatures{Complexity: -1}},
		{"intent", functions.When{Intent: "billing"}, functions.RouteFeatures{Intent: "billing"}, functions.RouteFeatures{Intent: "travel"}},
	} {
		r := compile(t, functions.RouterSpec{Rules: []functions.Rule{{Name: "it", When: c.when, To: []string{"a"}}, {Name: "rest", To: []string{"b"}}}})
		for rule, f := range map[string]functions.RouteFeatures{"it": c.has, "rest": c.not} {
			// A replay takes what is computed elsewhere from the features.
			rec := r.Replay(functions.RouteRecord{Features: f, Rule: "rest"}, nil)
			if rec.Rule != rule {
				t.Errorf("%s: rule %s, want %s", c.name, rec.Rule, rule)
			}
		}
	}
	r := compile(t, functions.RouterSpec{Rules: []functions.Rule{
		{Name: "it", When: functions.When{Header: map[string]string{"x-tier": "gold"}}, To: []string{"a"}}, {Name: "rest", To: []string{"a"}}}})
	for value, rule := range map[string]string{"gold": "it", "Gold": "rest", "": "rest"} {
		header := func(name string) string {
			if name == "x-tier" {
				return value
			}
			return ""
		}
		rec := r.Decide(Input{Header: header}, candidates(), nil)
		if rec.Rule != rule || r.Replay(rec, nil).Rule != rule || r.Replay(rec, header).Rule != rule {
			t.Errorf("x-tier %q: rule %s, want %s", value, rec.Rule, rule)
		}
	}
	if rec := r.Decide(Input{}, candidates(), nil); rec.Rule != "rest" {
		t.Errorf("without a head: %s", rec.Rule)
	}
}

// TestLazy: text is read, scored and classified only if a rule that is reached asks.
func TestLazy(t *testing.T) {
	yes, n, high := true, 10, 0.99
	r := compile(t, functions.RouterSpec{
		Rules: []functions.Rule{
			{Name: "code", When: functions.When{Code: &yes}, To: []string{"a"}},
			{Name: "hard", When: functions.When{ComplexityAbove: &high, TokensAbove: &n}, To: []string{"a"}},
			{Name: "billing", When: functions.When{Intent: "billing", Images: &yes}, To: []string{"a"}},
			{Name: "rest", To: []string{"a"}},
		},
		Intents: functions.Intents{List: []functions.Intent{{Name: "billing", Examples: []string{"where is my invoice", "why was my card charged twice", "I want a refund for this bill"}}}},
	})
	for _, c := range []struct {
		f     functions.RouteFeatures
		rule  string
		stage functions.RouteStage
		reads int
	}{
		{functions.RouteFeatures{Code: true, TokenCount: 50}, "code", functions.StageRules, 0},
		{functions.RouteFeatures{TokenCount: 5}, "rest", functions.StageRules, 0},
		{functions.RouteFeatures{TokenCount: 50}, "rest", functions.StageScore, 1},
		{functions.RouteFeatures{TokenCount: 5, Images: true}, "billing", functions.StageIntent, 1},
		{functions.RouteFeatures{TokenCount: 50, Images: true}, "billing", functions.StageIntent, 1},
	} {
		reads := 0
		c.f.Complexity = -1 // not judged yet
		rec := r.Decide(Input{Features: c.f}, candidates(), func() []byte { reads++; return []byte("Where is my invoice?") })
		if rec.Rule != c.rule || rec.Stage != c.stage || reads != c.reads {
			t.Errorf("%+v: rule %s, stage %s, %d reads", c, rec.Rule, rec.Stage, reads)
		}
		if computed := rec.Features.Complexity >= 0; computed != (c.f.TokenCount > n && !c.f.Code) {
			t.Errorf("%+v: complexity %v", c, rec.Features.Complexity)
		}
		if named := rec.Features.Intent != ""; named != (c.stage == functions.StageIntent) {
			t.Errorf("%+v: intent %q", c, rec.Features.Intent)
		}
		if raw, _ := json.Marshal(rec); strings.Contains(string(raw), "invoice") {
			t.Errorf("text of the prompt in the record: %s", raw)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	yes := true
	for want, spec := range map[string]functions.RouterSpec{
		"last rule":       {},
		"last rule must":  {Rules: []functions.Rule{{Name: "code", When: functions.When{Code: &yes}, To: []string{"a"}}}},
		"has no examples": {Rules: []functions.Rule{{Name: "all", To: []string{"a"}}}, Intents: functions.Intents{List: []functions.Intent{{Name: "billing"}}}},
	} {
		if _, err := Compile(&functions.Router{Spec: spec}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestFeatures: a form has no features, a body has those of package prompt.
func TestFeatures(t *testing.T) {
	r := compile(t, functions.RouterSpec{Rules: []functions.Rule{{Name: "all", To: []string{"a"}}}})
	body := []byte(`{"model":"auto","messages":[{"role":"user","content":"Write a Python function.\nPlease."}]}`)
	env, err := openai.Peek(body)
	if err != nil {
		t.Fatal(err)
	}
	f := r.Features(&env, body, "/v1/chat/completions")
	if !f.Code || f.TokenCount < 8 || f.TokenCount > 16 || f.Language != "en" || f.Complexity < 0 || f.Complexity > 1 {
		t.Errorf("%+v", f)
	}
	if text := string(Text(&env, body, "/v1/chat/completions")); text != "Write a Python function.\nPlease." {
		t.Errorf("%q", text)
	}
	if f := r.Features(&env, body, "/v1/audio/transcriptions"); f != (functions.RouteFeatures{Complexity: -1}) {
		t.Errorf("%+v", f)
	}
}

// world makes random Routers, requests and candidates.
type world struct{ *rand.Rand }

func (w world) bool() *bool {
	if w.IntN(3) > 0 {
		return nil
	}
	b := w.IntN(2) == 0
	return &b
}

func (w world) router() functions.RouterSpec {
	spec := functions.RouterSpec{Cold: functions.ColdPolicies[w.IntN(3)]}
	if w.IntN(2) == 0 {
		spec.Objective.FirstToken = functions.Duration(w.IntN(3000)) * functions.Duration(time.Millisecond)
	}
	if w.IntN(3) == 0 {
		spec.Objective.CostPerRequest = w.Float64()
	}
	for i := range 1 + w.IntN(5) {
		rule := functions.Rule{Name: fmt.Sprint("rule", i)}
		for range 1 + w.IntN(4) {
			if target := fmt.Sprint("m", w.IntN(6)); !slices.Contains(rule.To, target) {
				rule.To = append(rule.To, target)
			}
		}
		rule.When = functions.When{StructuredOutput: w.bool(), Code: w.bool(), Tools: w.bool()}
		if w.IntN(3) == 0 {
			rule.When.Header = map[string]string{"x-tier": fmt.Sprint(w.IntN(2))}
		}
		if w.IntN(3) == 0 {
			n := w.IntN(1000)
			rule.When.TokensAbove = &n
		}
		if w.IntN(3) == 0 {
			x := w.Float64()
			rule.When.ComplexityAbove = &x
		}
		if w.IntN(4) == 0 {
			rule.When.Intent = "billing"
		}
		spec.Rules = append(spec.Rules, rule)
	}
	spec.Rules[len(spec.Rules)-1].When = functions.When{}
	if w.IntN(100) == 0 {
		spec.Intents.List = []functions.Intent{{Name: "billing", Examples: []string{"where is my invoice", "refund the bill"}}}
	}
	return spec
}

func (w world) candidate(name string) functions.RouteCandidate {
	c := functions.RouteCandidate{Name: name, Kind: functions.KindModel, State: []string{"ready", "ready", "cold", "staging", "loading", "sleeping", "failed"}[w.IntN(7)], ExpectedMS: -1, Cost: -1}
	if w.IntN(4) == 0 {
		c.Kind = functions.KindRemote
	}
	if w.IntN(4) > 0 {
		c.ExpectedMS = w.Float64() * 4000
	}
	if w.IntN(2) == 0 {
		c.Cost = w.Float64()
	}
	if w.IntN(3) == 0 {
		c.WhyNot = "the class of data forbids it"
	}
	return c
}

// TestReplay: over random Routers, requests and candidates, a replay of the record as JSON
// is the record, with and without the head, and a target that is not eligible is neither
// chosen nor prewarmed.
func TestReplay(t *testing.T) {
	for seed := range uint64(3000) {
		w := world{rand.New(rand.NewPCG(seed, 26))}
		r := compile(t, w.router())
		all := map[string]functions.RouteCandidate{}
		for i := range 6 {
			name := fmt.Sprint("m", i)
			all[name] = w.candidate(name)
		}
		tier := fmt.Sprint(w.IntN(3))
		header := func(string) string { return tier }
		text := []string{"", "where is my invoice?", "Prove that there are infinitely many primes."}[w.IntN(3)]
		rec := r.Decide(Input{
			Features: functions.RouteFeatures{TokenCount: w.IntN(1000), Code: w.IntN(2) == 0, Tools: w.IntN(2) == 0,
				StructuredOutput: w.IntN(2) == 0},
			Header: header,
			Cold:   append(functions.ColdPolicies, "")[w.IntN(4)],
			Data:   functions.DataSecret,
		}, func(target string) functions.RouteCandidate { return all[target] }, func() []byte { return []byte(text) })
		rec.ID, rec.Time = "r1", "now"
		raw, err := json.Marshal(rec)
		if err != nil {
			t.Fatal(err)
		}
		var read functions.RouteRecord
		if err := json.Unmarshal(raw, &read); err != nil {
			t.Fatal(err)
		}
		for _, head := range []func(string) string{nil, header} {
			if again := r.Replay(read, head); !reflect.DeepEqual(again, rec) {
				t.Fatalf("seed %d:\n%+v\n%+v", seed, rec, again)
			}
			edited := *r // since the decision
			edited.spec.Objective, edited.spec.Cold = functions.Objective{CostPerRequest: 1e-9}, functions.ColdOther
			if again := edited.Replay(read, head); !reflect.DeepEqual(again, rec) {
				t.Fatalf("seed %d, by the edited Router:\n%+v\n%+v", seed, rec, again)
			}
		}
		eligible := 0
		for _, c := range rec.Candidates {
			if c.WhyNot == "" {
				eligible++
			}
		}
		for _, name := range []string{rec.Target, rec.Prewarm} {
			if name != "" && all[name].WhyNot != "" {
				t.Fatalf("seed %d: %s is not eligible: %+v", seed, name, rec)
			}
		}
		if (rec.Target != "") != (eligible > 0) || rec.Prewarm != "" && (rec.Cold != functions.ColdHedge || rec.Prewarm == rec.Target) {
			t.Fatalf("seed %d: %+v", seed, rec)
		}
	}
}
