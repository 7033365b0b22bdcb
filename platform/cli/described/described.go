// Package described writes the specs of functions that are no models, for people.
package described

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
)

// Rows writes the rows of a Router, a Remote or a Composition; false: f is none.
func Rows(row func(key, format string, args ...any), f api.Function) bool {
	switch {
	case f.Router != nil:
		describeRouter(row, f.Router)
	case f.Remote != nil:
		describeRemote(row, f)
	case f.Composition != nil:
		describeComposition(row, f.Composition)
	default:
		return false
	}
	return true
}

// describeRouter writes the rows of a Router.
func describeRouter(row func(key, format string, args ...any), s *functions.RouterSpec) {
	row("Kind", "router")
	for _, r := range s.Rules {
		when := "always"
		if !r.When.IsZero() {
			b, _ := json.Marshal(r.When) // it was read from such a text
			when = string(b)
		}
		row("Rule", "%s: %s to %s", r.Name, when, strings.Join(r.To, ", "))
	}
	for _, in := range s.Intents.List {
		words := fmt.Sprintf("%d examples", len(in.Examples))
		if in.ExamplesFrom != "" {
			words += " and those of " + in.ExamplesFrom
		}
		row("Intent", "%s, %s", in.Name, words)
	}
	if o := s.Objective; o != (functions.Objective{}) {
		var bounds []string
		if o.FirstToken > 0 {
			bounds = append(bounds, "first token within "+o.FirstToken.String())
		}
		if o.CostPerRequest > 0 {
			bounds = append(bounds, Money(o.CostPerRequest)+" per request")
		}
		row("Objective", "%s", strings.Join(bounds, ", "))
	}
	cold := string(cmp.Or(s.Cold, functions.ColdWait))
	if s.Retry.Escalate {
		cold += "; a failed target is followed by the next"
	}
	row("Cold", "%s", cold)
	row("Data", "%s", cmp.Or(s.Data, "as the team's"))
	if e := s.Cache.Exact; e != nil {
		row("Cache", "exact, %s, per %s", e.TTL, cmp.Or(e.Scope, functions.CacheScopeTeam))
	}
}

// describeRemote writes the rows of a Remote. Where the key is read only admins learn.
func describeRemote(row func(key, format string, args ...any), f api.Function) {
	s := f.Remote
	row("Kind", "remote")
	row("URL", "%s", s.URL)
	row("Model", "%s", cmp.Or(s.Model, f.Model))
	switch {
	case s.KeyFrom.Env != "":
		row("Key", "from the variable %s", s.KeyFrom.Env)
	case s.KeyFrom.File != "":
		row("Key", "from the file %s", s.KeyFrom.File)
	}
	row("Data", "%s at most", s.Allow)
	if s.Price != (functions.Price{}) {
		row("Price", "%s and %s per million tokens in and out", Money(s.Price.Input), Money(s.Price.Output))
	}
	var limits []string
	for _, l := range []struct {
		n    float64
		unit string
	}{{float64(s.Limits.Concurrent), "at once"}, {float64(s.Limits.RequestsPerMinute), "requests a minute"}, {float64(s.Limits.TokensPerMinute), "tokens a minute"}, {s.Limits.SpendPerDay, "spent a day"}} {
		if l.n > 0 {
			limits = append(limits, Money(l.n)+" "+l.unit)
		}
	}
	row("Limits", "%s", cmp.Or(strings.Join(limits, ", "), "none"))
	row("Timeouts", "connect %s, first token %s, idle %s", s.Timeouts.Connect, s.Timeouts.FirstToken, s.Timeouts.Idle)
}

// describeComposition writes the rows of a Composition.
func describeComposition(row func(key, format string, args ...any), s *functions.CompositionSpec) {
	row("Kind", "composition")
	pattern := string(s.Pattern)
	if s.Rounds > 0 {
		pattern += fmt.Sprintf(", %d rounds", s.Rounds)
	}
	row("Pattern", "%s", pattern)
	for _, p := range s.Parts() {
		key, what := "Member", p.Target
		if role, ok := strings.CutPrefix(p.Path, "spec.members."); ok {
			what = role + ": " + what
		}
		if p.Path == "spec.coordinator" {
			key = "Coordinator"
		}
		row(key, "%s", what)
	}
	if n := len(s.Members.List); n > 0 && s.Pattern != functions.PatternGraph {
		words := ""
		if s.Patience > 0 {
			words = "; then cold members are waited for " + s.Patience.String()
		}
		row("Quorum", "%d of %d answers%s", s.Answers(), n, words)
	}
	var bounds []string
	for _, b := range []struct {
		n    float64
		unit string
	}{{float64(s.Budget.Calls), "calls"}, {float64(s.Budget.ColdStarts), "cold starts"}, {float64(s.Budget.Tokens), "tokens"}, {s.Budget.Cost, "spent"}} {
		if b.n > 0 {
			bounds = append(bounds, Money(b.n)+" "+b.unit)
		}
	}
	row("Budget", "%s", strings.Join(append(bounds, s.Budget.Time.String()), ", "))
	row("Shows", "%s", s.Show)
}

// Money is an amount without trailing zeros.
func Money(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
