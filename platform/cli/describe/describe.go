// Package describe prints for the command line the settings of a Router, Remote or Composition and
// what a Composition did for a request, and says why requests for a Remote are refused.
package describe

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/api"
)

// A Row writes one row.
type Row func(key, format string, args ...any)

// WriteKind writes the rows of a Router, a Remote or a Composition; false: f is none.
func WriteKind(row Row, f api.Function) bool {
	switch {
	case f.Router != nil:
		WriteRouter(row, f.Router)
	case f.Remote != nil:
		WriteRemote(row, f)
	case f.Composition != nil:
		WriteComposition(row, f.Composition)
	default:
		return false
	}
	return true
}

func WriteRouter(row Row, s *functions.RouterSpec) {
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
			bounds = append(bounds, FormatMoney(o.CostPerRequest)+" per request")
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

// WriteRemote writes the rows of a Remote. Where the key is read only admins learn.
func WriteRemote(row Row, f api.Function) {
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
		row("Price", "%s and %s per million tokens in and out", FormatMoney(s.Price.Input), FormatMoney(s.Price.Output))
	}
	row("Spent", "%s today", FormatMoney(f.Spent))
	limits := boundTexts([]bound{{float64(s.Limits.Concurrent), "at once"}, {float64(s.Limits.RequestsPerMinute), "requests a minute"}, {float64(s.Limits.TokensPerMinute), "tokens a minute"}, {s.Limits.SpendPerDay, "spent a day"}})
	row("Limits", "%s", cmp.Or(strings.Join(limits, ", "), "none"))
	row("Timeouts", "connect %s, first token %s, idle %s", s.Timeouts.Connect, s.Timeouts.FirstToken, s.Timeouts.Idle)
}

// bound is a limit on a number of things; 0 is none.
type bound struct {
	most float64
	unit string
}

// boundTexts returns the bounds that limit something, in words.
func boundTexts(bounds []bound) (texts []string) {
	for _, b := range bounds {
		if b.most > 0 {
			texts = append(texts, FormatMoney(b.most)+" "+b.unit)
		}
	}
	return texts
}

func WriteComposition(row Row, s *functions.CompositionSpec) {
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
	bounds := boundTexts([]bound{{float64(s.Budget.Calls), "calls"}, {float64(s.Budget.ColdStarts), "cold starts"}, {float64(s.Budget.Tokens), "tokens"}, {s.Budget.Cost, "spent"}})
	row("Budget", "%s", strings.Join(append(bounds, s.Budget.Time.String()), ", "))
	row("Shows", "%s", s.Show)
}

// WhyRefused returns why a request for a Remote by its name is refused, and the ways out;
// "" where it is not. data is the class of the team's data, "" the default.
func WhyRefused(r *functions.RemoteSpec, data functions.DataClass) string {
	data = cmp.Or(data, functions.DataInternal)
	if (&functions.Remote{Spec: *r}).Allows(data) {
		return ""
	}
	allow := cmp.Or(r.Allow, functions.DataPublic)
	return fmt.Sprintf("a request by its name is refused: the team's data is %s, and it takes %s data at most. Set allow: %[1]s in its "+
		"file, or name it in a Router with data: %[2]s", data, allow)
}

// FormatMoney is an amount without trailing zeros.
func FormatMoney(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
