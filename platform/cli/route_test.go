package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/routes"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/openai"
)

// exampleDecision is one whose second target answered after the first had failed.
func exampleDecision() functions.RouteRecord {
	score := 0.75
	return functions.RouteRecord{
		ID: "req-1", Time: "2026-11-21T11:59:00Z", Router: "ml/auto", Rule: "hard", Stage: functions.StageScore, Target: "cloud-big",
		Prewarm: "reasoner", Cold: functions.ColdHedge, Data: functions.DataPublic,
		Objective: functions.Objective{FirstToken: functions.Duration(2e9), CostPerRequest: 0.01},
		After:     "small", Cache: "miss", Code: 200, Outcome: &score, Currency: "EUR",
		Candidates: []functions.RouteCandidate{
			{Name: "reasoner", Kind: "Model", State: "cold", ExpectedMS: 21500, Cost: -1},
			{Name: "small", Kind: "Model", State: "ready", ExpectedMS: 80.25, Cost: -1, WhyNot: "it failed this request: \x1b[31mboom"},
			{Name: "cloud-big", Kind: "Remote", State: "ready", ExpectedMS: -1, Cost: 0.0000125},
		},
		Features: functions.RouteFeatures{TokenCount: 420, Code: true, Tools: true, Language: "en", Complexity: 0.8125, Intent: "billing",
			Confidence: 0.9},
	}
}

func decisions() *routes.Log {
	log := &routes.Log{}
	rec := exampleDecision()
	log.Put(nil, "ml", "mine", &rec)
	return log
}

func dryRoute(id auth.Identity, router, path string, _ func(string) string, body []byte) (functions.RouteRecord, *openai.Error) {
	rec := exampleDecision()
	switch {
	case router == "lama":
		return rec, openai.New(openai.NotFound, "The Router lama does not exist.")
	case path != "/v1/chat/completions":
		return rec, openai.New(openai.InvalidValue, "path is one of the endpoints.")
	}
	rec.ID, rec.Time, rec.Code, rec.Outcome, rec.After, rec.Target = "", "", 0, nil, "", ""
	rec.Reason = "Rule hard matched; cloud-big answers soonest."
	rec.Features = functions.RouteFeatures{TokenCount: len(body), Complexity: -1, Confidence: 0.25}
	return rec, nil
}

// TestRouteBody: a text is the only message of a chat, a file is sent as it is.
func TestRouteBody(t *testing.T) {
	s := start(t)
	text, file := `{"messages":[{"content":"say \"x\"","role":"user"}]}`, `{"model":"auto", "prompt": 1}`
	for _, c := range []struct {
		stdin string
		args  []string
		want  int
	}{{"", []string{"route", `say "x"`}, len(text)}, {file, []string{"route", "-f", "-"}, len(file)}} {
		out, errs, exit := s.thaw(t, c.stdin, append(c.args, "-o", "json")...)
		var rec functions.RouteRecord
		if err := json.Unmarshal([]byte(out), &rec); err != nil || exit != 0 || rec.Features.TokenCount != c.want {
			t.Errorf("%v: %d %s %s", c.args, exit, out, errs)
		}
	}
	if out, _, exit := s.thaw(t, strings.Repeat("x", 32<<20+1), "route", "-f", "-"); exit != 2 {
		t.Errorf("%d %s", exit, out)
	}
}
