package router

import (
	"cmp"
	"math"

	"github.com/thaw-dev/thaw/activator/router/category"
	"github.com/thaw-dev/thaw/activator/router/intents"
	"github.com/thaw-dev/thaw/functions"
)

// Input is what a decision depends on beside the Router and what [Router.Decide] calls.
// Features are those of [Router.Features]. Header returns a field of the request's head.
type Input struct {
	Features functions.RouteFeatures
	Typed    *intents.Typed // what is remembered of a text that is being typed; nil: nothing
	Header   func(name string) string
	Cold     functions.ColdPolicy // of the request (thaw-cold); "" is the Router's
	Data     functions.DataClass
}

// Decide chooses the target of a request: the first rule that holds, and of its targets
// the one that the objective and the policy for cold targets select. candidate returns
// the state of a target as it is now; its WhyNot is set where it does not exist, the
// caller may not use it, its circuit is open, its class of data forbids it, or budgets
// and limits have no room. text, which may be nil, returns the text that complexity and
// intents are judged by, as [Text] reads it; it is called at most once, and only if a rule
// asks. The result lacks ID, Time, After, Cache and Code, and Reason: see [Explain].
func (r *Router) Decide(in Input, candidate func(target string) functions.RouteCandidate, text func() []byte) functions.RouteRecord {
	f := in.Features
	f.Intent, f.Confidence = "", 0
	e := evaluation{router: r, features: f, header: in.Header, typed: in.Typed}
	return e.decide(candidate, text, cmp.Or(in.Cold, r.spec.Cold), in.Data, r.spec.Objective)
}

// Replay decides again from a record. Where header is nil, a condition on a header holds
// for the recorded rule and for no rule before it, and the stage is the recorded one: a
// rule that failed by its score may have passed by its header. A target that the record
// does not list is not eligible.
func (r *Router) Replay(rec functions.RouteRecord, header func(string) string) functions.RouteRecord {
	e := evaluation{router: r, features: rec.Features, header: header, replayed: true, rule: rec.Rule}
	again := e.decide(func(target string) functions.RouteCandidate {
		for _, c := range rec.Candidates {
			if c.Name == target {
				return c
			}
		}
		return functions.RouteCandidate{Name: target, ExpectedMS: -1, Cost: -1, WhyNot: "it is not in the record"}
	}, nil, rec.Cold, rec.Data, rec.Objective)
	if header == nil && again.Rule == rec.Rule {
		again.Stage = rec.Stage
	}
	again.ID, again.Time, again.After, again.Cache, again.Code, again.Currency = rec.ID, rec.Time, rec.After, rec.Cache, rec.Code, rec.Currency
	return again
}

// evaluation is one pass over the rules.
type evaluation struct {
	router   *Router
	features functions.RouteFeatures
	header   func(string) string
	typed    *intents.Typed

	replayed bool   // features are complete: nothing is computed
	rule     string // the rule of the record, where replayed

	scored, classified bool
	read               bool // text was called
	content            []byte
}

func (e *evaluation) decide(candidate func(string) functions.RouteCandidate, text func() []byte, cold functions.ColdPolicy,
	data functions.DataClass, objective functions.Objective) functions.RouteRecord {
	rule := e.match(text)
	rec := functions.RouteRecord{Router: e.router.name, Rule: rule.Name, Stage: functions.StageRules, Cold: cold, Data: data,
		Objective: objective}
	switch {
	case e.classified:
		rec.Stage = functions.StageIntent
	case e.scored:
		rec.Stage = functions.StageScore
	}
	rec.Features = e.features
	rec.Candidates = make([]functions.RouteCandidate, 0, len(rule.To))
	for _, target := range rule.To {
		c := candidate(target)
		c.Name = target
		rec.Candidates = append(rec.Candidates, c)
	}
	choose(&rec)
	return rec
}

// match returns the first rule that holds. The last rule of a compiled Router always
// does.
func (e *evaluation) match(text func() []byte) *functions.Rule {
	rules := e.router.spec.Rules
	for i := range rules[:len(rules)-1] {
		if e.holds(&rules[i], text) {
			return &rules[i]
		}
	}
	return &rules[len(rules)-1]
}

// holds evaluates a condition, the cheap parts first.
func (e *evaluation) holds(rule *functions.Rule, text func() []byte) bool {
	w, f := &rule.When, &e.features
	for _, c := range [...]struct {
		want *bool
		have bool
	}{
		{w.StructuredOutput, f.StructuredOutput}, {w.Code, f.Code}, {w.Safety, f.Safety}, {w.Tools, f.Tools},
		{w.Images, f.Images}, {w.RepeatedPrefix, f.RepeatedPrefix},
	} {
		if c.want != nil && *c.want != c.have {
			return false
		}
	}
	if w.Language != "" && w.Language != f.Language ||
		w.TokensBelow != nil && f.TokenCount >= *w.TokensBelow ||
		w.TokensAbove != nil && f.TokenCount <= *w.TokensAbove ||
		!e.headersHold(rule) {
		return false
	}
	if w.ComplexityAbove != nil || w.ComplexityBelow != nil {
		c := e.complexity(text)
		if c < 0 || w.ComplexityAbove != nil && c <= *w.ComplexityAbove || w.ComplexityBelow != nil && c >= *w.ComplexityBelow {
			return false
		}
	}
	return w.Intent == "" || w.Intent == e.intent(text)
}

func (e *evaluation) headersHold(rule *functions.Rule) bool {
	if len(rule.When.Header) > 0 && e.header == nil {
		return e.replayed && rule.Name == e.rule
	}
	for name, value := range rule.When.Header {
		if e.header(name) != value {
			return false
		}
	}
	return true
}

func (e *evaluation) complexity(text func() []byte) float64 {
	if !e.scored && !e.replayed && e.features.Complexity < 0 && e.readText(text) {
		e.features.Complexity = category.Judge(e.content).Complexity()
	}
	e.scored = true
	return e.features.Complexity
}

// intent returns the intent of the text, "" below the threshold. The confidence of what
// was below it stays in the features.
func (e *evaluation) intent(text func() []byte) string {
	if !e.classified && !e.replayed && e.router.intents != nil && e.readText(text) {
		intent, confidence := e.router.intents.ClassifyTyped(e.typed, string(e.content))
		e.features.Confidence = confidence
		if confidence >= e.router.threshold {
			e.features.Intent = intent
		}
	}
	e.classified = true
	return e.features.Intent
}

func (e *evaluation) readText(text func() []byte) bool {
	if !e.read && text != nil {
		e.content = text()
	}
	e.read = true
	return len(e.content) > 0
}

// choose sets Target and Prewarm from Candidates, Objective and Cold, and returns why.
func choose(rec *functions.RouteRecord) (why string) {
	first, fit, soonest, ready := -1, -1, -1, false
	for _, c := range rec.Candidates {
		ready = ready || c.WhyNot == "" && isReady(c)
	}
	for i, c := range rec.Candidates {
		if c.WhyNot != "" {
			continue
		}
		if first < 0 {
			first = i
		}
		if fit < 0 && meets(c, rec.Objective) && (rec.Cold == functions.ColdWait || isReady(c) || !ready) {
			fit = i
		}
		if soonest < 0 || expected(c) < expected(rec.Candidates[soonest]) {
			soonest = i
		}
	}
	if first < 0 {
		return "none of its targets is eligible"
	}
	at, why := fit, "is the first eligible target that meets the objective"
	switch {
	case fit >= 0 && rec.Objective == (functions.Objective{}):
		why = "is the first eligible target"
		if fit != first {
			why = "is the first eligible target that is ready"
		}
	case fit < 0 && rec.Cold == functions.ColdWait:
		at, why = first, "is the first eligible target; none meets the objective"
	case fit < 0:
		at, why = soonest, "answers soonest; no eligible target meets the objective"
	}
	rec.Target = rec.Candidates[at].Name
	if c := rec.Candidates[first]; rec.Cold == functions.ColdHedge && at != first && !isReady(c) && c.Kind != functions.KindRemote &&
		c.Kind != functions.KindComposition {
		rec.Prewarm = c.Name
	}
	return why
}

// Explain returns the reason of a decision as a sentence. Few records are read, so that it is
// made then.
func Explain(rec functions.RouteRecord) string {
	prewarm := rec.Prewarm
	why := choose(&rec)
	switch {
	case rec.Target == "":
		return "Rule " + rec.Rule + " matched, and " + why + "."
	case prewarm != "":
		why += ", and " + prewarm + " is prewarmed"
	}
	return "Rule " + rec.Rule + " matched; " + rec.Target + " " + why + "."
}

func isReady(c functions.RouteCandidate) bool { return c.State == functions.Ready.Word() }

// meets reports whether a candidate is within the objective. The unknown cost of a
// candidate counts as within; its unknown time does where it is ready, because only a
// request measures it.
func meets(c functions.RouteCandidate, o functions.Objective) bool {
	if o.CostPerRequest > 0 && c.Cost > o.CostPerRequest {
		return false
	}
	return o.FirstToken <= 0 || expected(c) <= float64(o.FirstToken.Std().Microseconds())/1e3
}

// expected is the expected time to the first token in milliseconds. Unknown is now for a
// candidate that is ready, and never for any other.
func expected(c functions.RouteCandidate) float64 {
	if c.ExpectedMS >= 0 {
		return c.ExpectedMS
	}
	if isReady(c) {
		return 0
	}
	return math.Inf(1)
}
