package functions

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// checkProblems fails unless got is one problem at path that has the text, or none for "".
func checkProblems(t *testing.T, got []Problem, path, text string) {
	t.Helper()
	if path == "" {
		if len(got) != 0 {
			t.Fatalf("unexpected %v", got)
		}
		return
	}
	if len(got) != 1 || got[0].Path != path || !strings.Contains(got[0].String(), text) {
		t.Fatalf("got %v, want one problem at %s that says %q", got, path, text)
	}
}

func validRouter() *Router {
	r := NewRouter()
	r.Metadata.Name = AutoRouter
	r.Spec.Intents.List = []Intent{{Name: "billing", Examples: []string{"where is my invoice"}}, {Name: "card_arrival", ExamplesFrom: "./bank.jsonl"}}
	r.Spec.Rules = []Rule{
		{Name: "extract", When: When{StructuredOutput: new(true), TokensBelow: new(800)}, To: []string{"extract-1b"}},
		{Name: "billing", When: When{Intent: "billing"}, To: []string{"base:billing", "ml/base"}},
		{Name: "general", To: []string{"general-3b", "cloud-mini"}},
	}
	return r
}

func TestValidateRouter(t *testing.T) {
	rule := func(edit func(*Rule)) func(*Router) { return func(r *Router) { edit(&r.Spec.Rules[0]) } }
	when := func(w When) func(*Router) { return func(r *Router) { r.Spec.Rules[0].When = w } }
	exact := func(c ExactCache) func(*Router) { return func(r *Router) { r.Spec.Cache.Exact = &c } }
	minute := Duration(time.Minute)
	tests := []struct {
		name     string
		edit     func(*Router)
		path     string // "" when nothing is wrong
		wantText string
	}{
		{"good", func(*Router) {}, "", ""},
		{"another name", func(r *Router) { r.Metadata.Name = "chat" }, "", ""},
		{"kind", func(r *Router) { r.Kind = "Model" }, "kind", "Router"},
		{"team", func(r *Router) { r.Metadata.Namespace = "A" }, "metadata.namespace", "DNS label"},
		{"no rules", func(r *Router) { r.Spec.Rules = nil }, "spec.rules", "a rule is needed"},
		{"many rules", func(r *Router) { r.Spec.Rules = make([]Rule, 129) }, "spec.rules", "at most 128"},
		{"last rule with a condition", func(r *Router) { r.Spec.Rules[2].When.Code = new(true) }, "spec.rules[2].when", "the last rule has a condition"},
		{"last rule asks for no code", func(r *Router) { r.Spec.Rules[2].When.Code = new(false) }, "spec.rules[2].when", "the last rule has a condition"},
		{"last rule with no header", func(r *Router) { r.Spec.Rules[2].When.Header = map[string]string{} }, "", ""},
		{"rules never reached", rule(func(r *Rule) { r.When = When{} }), "spec.rules[0]", "never reached: billing, general"},
		{"rule twice", rule(func(r *Rule) { r.Name = "general" }), "spec.rules[2].name", "already the name of spec.rules[0]"},
		{"rule name", rule(func(r *Rule) { r.Name = "Extract JSON" }), "spec.rules[0].name", "no DNS label"},
		{"no target", rule(func(r *Rule) { r.To = nil }), "spec.rules[0].to", "a target is needed"},
		{"many targets", rule(func(r *Rule) { r.To = make([]string, 17) }), "spec.rules[0].to", "at most 16"},
		{"target", rule(func(r *Rule) { r.To = []string{"Big Model"} }), "spec.rules[0].to[0]", "no function name"},
		{"target twice", rule(func(r *Rule) { r.To = []string{"a", "b", "a"} }), "spec.rules[0].to[2]", "already in this list"},
		{"two adapters", rule(func(r *Rule) { r.To = []string{"a", "a:x", "a:y"} }), "", ""},
		{"target auto", rule(func(r *Rule) { r.To = []string{"ml/auto"} }), "spec.rules[0].to[0]", "name its targets instead"},
		{"target itself", func(r *Router) { r.Metadata.Name = "extract-1b" }, "spec.rules[0].to[0]", "a Router is no target"},
		{"language", when(When{Language: "xx"}), "spec.rules[0].when.language", "such as en or de"},
		{"language with a region", when(When{Language: "en-US"}), "spec.rules[0].when.language", "did you mean en?"},
		{"language in capitals", when(When{Language: "DE"}), "spec.rules[0].when.language", "did you mean de?"},
		{"language good", when(When{Language: "zh"}), "", ""},
		{"tokens", when(When{TokensBelow: new(0)}), "spec.rules[0].when.tokensBelow", "1 or more"},
		{"tokens negative", when(When{TokensAbove: new(-1)}), "spec.rules[0].when.tokensAbove", "0 or more"},
		{"tokens empty", when(When{TokensAbove: new(99), TokensBelow: new(100)}), "spec.rules[0].when.tokensAbove", "no request has"},
		{"complexity above 1", when(When{ComplexityAbove: new(1.5)}), "spec.rules[0].when.complexityAbove", "between 0 and 1"},
		{"complexity below 0", when(When{ComplexityBelow: new(-0.1)}), "spec.rules[0].when.complexityBelow", "between 0 and 1"},
		{"complexity empty", when(When{ComplexityAbove: new(0.7), ComplexityBelow: new(0.3)}), "spec.rules[0].when.complexityAbove", "no complexity"},
		{"intent", when(When{Intent: "biling"}), "spec.rules[0].when.intent", "did you mean billing?"},
		{"intent far off", when(When{Intent: "weather"}), "spec.rules[0].when.intent", "there is billing, card_arrival"},
		{"header", when(When{Header: map[string]string{"x-tier": "gold"}}), "", ""},
		{"header name", when(When{Header: map[string]string{"x tier": "gold"}}), "spec.rules[0].when.header", "no name of a header"},
		{"header colon", when(When{Header: map[string]string{"x-tier:": "gold"}}), "spec.rules[0].when.header", "no name of a header"},
		{"header twice", when(When{Header: map[string]string{"X-Tier": "a", "x-tier": "b"}}), "spec.rules[0].when.header.x-tier", "already here as X-Tier"},
		{"header with a key", when(When{Header: map[string]string{"Authorization": "Bearer sk-1"}}), "spec.rules[0].when.header.Authorization", "a file holds none"},
		{"header value", when(When{Header: map[string]string{"x-a": "a\nb"}}), "spec.rules[0].when.header.x-a", "control character"},
		{"header blank", when(When{Header: map[string]string{"x-a": " a"}}), "spec.rules[0].when.header.x-a", "blank"},
		{"threshold", func(r *Router) { r.Spec.Intents.Threshold = 75 }, "spec.intents.threshold", "between 0 and 1"},
		{"classifier", func(r *Router) { r.Spec.Intents.Classifier = "built-in" }, "spec.intents.classifier", "did you mean builtin?"},
		{"intent twice", func(r *Router) { r.Spec.Intents.List[1].Name = "billing" }, "spec.intents.list[1].name", "already the name"},
		{"intent name", func(r *Router) { r.Spec.Intents.List[1].Name = "a b" }, "spec.intents.list[1].name", "no name of an intent"},
		{"no examples", func(r *Router) { r.Spec.Intents.List[0].Examples = nil }, "spec.intents.list[0].examples", "there is none"},
		{"empty example", func(r *Router) { r.Spec.Intents.List[0].Examples = []string{"a", " "} }, "spec.intents.list[0].examples[1]", "teaches nothing"},
		{"long example", func(r *Router) { r.Spec.Intents.List[0].Examples = []string{strings.Repeat("a", 5000)} }, "spec.intents.list[0].examples[0]", "longer than 4096"},
		{"examples from a URL", func(r *Router) { r.Spec.Intents.List[1].ExamplesFrom = "https://u:p@x/y" }, "spec.intents.list[1].examplesFrom", "no path"},
		{"cost", func(r *Router) { r.Spec.Objective.CostPerRequest = -1 }, "spec.objective.costPerRequest", "0 or more"},
		{"cold", func(r *Router) { r.Spec.Cold = "waits" }, "spec.cold", "did you mean wait?"},
		{"data", func(r *Router) { r.Spec.Data = "privat" }, "spec.data", "one of public, internal, secret"},
		{"cache", exact(ExactCache{TTL: minute, Scope: "key", Also: []string{"tools", "n"}}), "", ""},
		{"cache without time", exact(ExactCache{}), "spec.cache.exact.ttl", "such as 10m"},
		{"cache for ever", exact(ExactCache{TTL: 1000 * 60 * minute}), "spec.cache.exact.ttl", "at most 720h"},
		{"cache scope", exact(ExactCache{TTL: minute, Scope: "keys"}), "spec.cache.exact.scope", "did you mean key?"},
		{"cache also", exact(ExactCache{TTL: minute, Also: []string{"tool"}}), "spec.cache.exact.also[0]", "did you mean tools?"},
		{"cache also twice", exact(ExactCache{TTL: minute, Also: []string{"n", "n"}}), "spec.cache.exact.also[1]", "already in this list"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := validRouter()
			tt.edit(r)
			checkProblems(t, ValidateRouter(r), tt.path, tt.wantText)
		})
	}
	r := validRouter()
	r.Spec.Cold, r.Spec.Data, r.Spec.Rules[0].To, r.Spec.Rules[1].When.Intent = "x", "x", nil, "x"
	if got := ValidateRouter(r); len(got) != 4 {
		t.Errorf("not all problems at once: %v", got)
	}
}

func TestWhenIsZero(t *testing.T) {
	for _, w := range []When{{Code: new(false)}, {Language: "en"}, {TokensAbove: new(0)}, {Header: map[string]string{"a": ""}}} {
		if w.IsZero() {
			t.Errorf("%+v is a condition", w)
		}
	}
	if (When{}).IsZero() != true {
		t.Error("no condition always holds")
	}
}

func validRemote() *Remote {
	r := NewRemote()
	r.Metadata.Name = "cloud-mini"
	r.Spec.URL = "https://api.example.com/v1"
	r.Spec.KeyFrom.Env = "CLOUD_KEY"
	return r
}

func TestValidateRemote(t *testing.T) {
	at := func(u string) func(*Remote) { return func(r *Remote) { r.Spec.URL = u } }
	tests := []struct {
		name     string
		edit     func(*Remote)
		path     string // "" when nothing is wrong
		wantText string
	}{
		{"good", func(*Remote) {}, "", ""},
		{"without a key", func(r *Remote) { r.Spec.KeyFrom = KeyFrom{} }, "", ""},
		{"the name of Routers", func(r *Remote) { r.Metadata.Name = AutoRouter }, "metadata.name", "reserved for a Router"},
		{"kind", func(r *Remote) { r.Kind = "remote" }, "kind", "write kind: Remote"},
		{"no URL", at(""), "spec.url", "such as https://"},
		{"port and slash", at("https://api.example.com:8443/v1/"), "", ""},
		{"loopback", at("http://127.0.0.1:8080/v1"), "", ""},
		{"loopback by name", at("http://localhost:8080/v1"), "", ""},
		{"loopback of IPv6", at("http://[::1]:8080/v1"), "", ""},
		{"operator's host", at("http://models.lan:8000/v1"), "", ""},
		{"plain http", at("http://api.example.com/v1"), "spec.url", "THAW_SOURCE_HOSTS"},
		{"plain http to what looks like loopback", at("http://127.0.0.1.example.com/v1"), "spec.url", "THAW_SOURCE_HOSTS"},
		{"no scheme", at("api.example.com/v1"), "spec.url", "did you mean https://api.example.com/v1?"},
		{"scheme", at("ftp://api.example.com/v1"), "spec.url", "not ftp"},
		{"user", at("https://user:sk-secret@api.example.com/v1"), "spec.url", "no user and password"},
		{"user without a scheme", at("user:sk-secret@api.example.com/v1"), "spec.url", "no URL"},
		{"query", at("https://api.example.com/v1?key=sk-secret"), "spec.url", "no query"},
		{"empty query", at("https://api.example.com/v1?"), "spec.url", "no query"},
		{"fragment", at("https://api.example.com/v1#sk-secret"), "spec.url", "no fragment"},
		{"no host", at("https:///v1"), "spec.url", "no host"},
		{"port", at("https://api.example.com:99999/v1"), "spec.url", "a port that is none"},
		{"port missing", at("https://api.example.com:/v1"), "spec.url", "a port that is none"},
		{"port no number", at("https://u:sk-secret@api.example.com:x/v1"), "spec.url", "no URL"},
		{"blank", at("https://api.example.com/v1 "), "spec.url", "blank"},
		{"control", at("https://api.example.com/\x1b"), "spec.url", "control"},
		{"Anthropic's endpoint", at("https://api.example.com/v1/messages"), "spec.url", "did you mean https://api.example.com/v1?"},
		{"a query of Azure", at("https://a.example.com/openai/deployments/d?api-version=1"), "spec.url", "Azure's base, https://NAME"},
		{"one endpoint", at("https://api.example.com/v1/chat/completions"), "spec.url", "did you mean https://api.example.com/v1?"},
		{"long", at("https://x/" + strings.Repeat("a", 3000)), "spec.url", "longer than 2048"},
		{"model", func(r *Remote) { r.Spec.Model = "a\nb" }, "spec.model", "control"},
		{"two keys", func(r *Remote) { r.Spec.KeyFrom.File = "/run/key" }, "spec.keyFrom", "both env and file"},
		{"the key itself", func(r *Remote) { r.Spec.KeyFrom.Env = "sk-secret" }, "spec.keyFrom.env", "not the key"},
		{"key file", func(r *Remote) { r.Spec.KeyFrom = KeyFrom{File: "sk-secret\n"} }, "spec.keyFrom.file", "no path"},
		{"price", func(r *Remote) { r.Spec.Price.Input = -0.1 }, "spec.price.input", "0 or more"},
		{"price of answers", func(r *Remote) { r.Spec.Price.Output = -0.1 }, "spec.price.output", "0 or more"},
		{"concurrent", func(r *Remote) { r.Spec.Limits.Concurrent = -1 }, "spec.limits.concurrent", "below 0"},
		{"requests", func(r *Remote) { r.Spec.Limits.RequestsPerMinute = -1 }, "spec.limits.requestsPerMinute", "below 0"},
		{"tokens", func(r *Remote) { r.Spec.Limits.TokensPerMinute = -1 }, "spec.limits.tokensPerMinute", "below 0"},
		{"spend", func(r *Remote) { r.Spec.Limits.SpendPerDay = -1 }, "spec.limits.spendPerDay", "0 or more"},
		{"connect", func(r *Remote) { r.Spec.Timeouts.Connect = 0 }, "spec.timeouts.connect", "bound"},
		{"first token", func(r *Remote) { r.Spec.Timeouts.FirstToken = 0 }, "spec.timeouts.firstToken", "bound"},
		{"idle", func(r *Remote) { r.Spec.Timeouts.Idle = 0 }, "spec.timeouts.idle", "bound"},
		{"allow", func(r *Remote) { r.Spec.Allow = "intern" }, "spec.allow", "did you mean internal?"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := validRemote()
			tt.edit(r)
			got := ValidateRemote(r, func(u *url.URL) bool { return u.Hostname() == "models.lan" })
			checkProblems(t, got, tt.path, tt.wantText)
			if slices.ContainsFunc(got, func(p Problem) bool { return strings.Contains(p.String(), "sk-secret") }) {
				t.Errorf("a key is in %v", got)
			}
		})
	}
	r := validRemote()
	r.Spec.URL = "http://api.example.com/v1"
	checkProblems(t, ValidateRemote(r, nil), "", "") // the server checks
}

func TestKeyPath(t *testing.T) {
	for file, want := range map[string]string{"": "", "/run/key": "/run/key", "key": "/w/key", "../key": "/key"} {
		r := validRemote()
		r.Dir, r.Spec.KeyFrom = "/w", KeyFrom{File: file}
		if got := r.KeyPath(); got != want {
			t.Errorf("%q: %q, want %q", file, got, want)
		}
	}
}
