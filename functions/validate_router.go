package functions

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of one Router, so that a decision takes microseconds.
const (
	maxRules    = 128
	maxTargets  = 16
	maxIntents  = 256
	maxHeaders  = 8
	maxExample  = 4 << 10 // bytes of one example utterance
	maxHeader   = 1 << 10 // bytes of a value
	maxCacheTTL = 30 * 24 * 60 * 60 * 1_000_000_000
)

// ClassifierBuiltin is the classifier of intents in this program.
const ClassifierBuiltin = "builtin"

// Scopes of an exact cache.
const (
	CacheScopeTeam = "team"
	CacheScopeKey  = "key"
)

// CacheScopes in the order they are listed to people.
var CacheScopes = []string{CacheScopeTeam, CacheScopeKey}

// CacheAlso are what an exact cache may hold beyond the default.
var CacheAlso = []string{"tools", "images", "n"}

// ValidateRouter lists the problems of r, which are of the document alone: whether its
// targets exist, the catalog checks.
func ValidateRouter(r *Router) []Problem {
	var p problems
	p.checkFunction(r.APIVersion, r.Kind, KindRouter, r.Metadata)
	s := &r.Spec
	p.checkRules(r.FullName(), s.Rules, p.checkIntents(&s.Intents))
	if s.Objective.FirstToken < 0 {
		p.add("spec.objective.firstToken", "such as 2s; left out, there is no bound", "%s is no time to wait", s.Objective.FirstToken)
	}
	p.checkAmount("spec.objective.costPerRequest", s.Objective.CostPerRequest)
	checkWord(&p, "spec.cold", "policy", s.Cold, ColdPolicies)
	checkWord(&p, "spec.data", "class of data", s.Data, DataClasses)
	p.checkCache("spec.cache", s.Cache)
	return p
}

// checkRules checks the rules of the Router self; intents are the names of its intents.
func (p *problems) checkRules(self Name, rules []Rule, intents []string) {
	switch {
	case len(rules) == 0:
		p.add("spec.rules", "such as [{name: general, to: [NAME]}]", "a rule is needed")
		return
	case len(rules) > maxRules:
		p.add("spec.rules", fmt.Sprintf("at most %d rules", maxRules), "%d rules are too many", len(rules))
		return
	}
	seen := map[string]int{}
	for i, rule := range rules {
		at := fmt.Sprintf("spec.rules[%d]", i)
		p.checkUniqueLabel("rules", i, rule.Name, seen)
		p.checkWhen(at+".when", &rule.When, intents)
		p.checkTargets(at+".to", self, rule.To)
	}
	last := len(rules) - 1
	for i := range rules[:last] {
		if rules[i].When.IsZero() {
			var never []string
			for _, r := range rules[i+1:] {
				never = append(never, Clip(r.Name))
			}
			p.add(fmt.Sprintf("spec.rules[%d]", i), "give it a when, or move it to the end",
				"a rule without a condition always matches, so the rules after it are never reached: %s", Clip(strings.Join(never, ", ")))
			return
		}
	}
	if !rules[last].When.IsZero() {
		p.add(fmt.Sprintf("spec.rules[%d].when", last), "add a rule without when at the end, such as {name: general, to: [NAME]}",
			"the last rule has a condition, so a request that matches no rule would have no target")
	}
}

func (p *problems) checkTargets(path string, self Name, to []string) {
	switch {
	case len(to) == 0:
		p.add(path, "NAME, NAME:ADAPTER or TEAM/NAME of a Model, a Remote or a Composition", "a target is needed")
	case len(to) > maxTargets:
		p.add(path, fmt.Sprintf("at most %d targets", maxTargets), "%d targets are too many", len(to))
		return
	}
	for i, target := range to {
		at := fmt.Sprintf("%s[%d]", path, i)
		name, err := ParseName(target, DefaultTeam)
		if !strings.Contains(target, "/") {
			name.Team = self.Team
		}
		switch {
		case err != nil:
			p.add(at, "NAME, NAME:ADAPTER or TEAM/NAME of a Model, a Remote or a Composition", "%v", err)
		case name.Name == AutoRouter || name.WithoutAdapter() == self:
			p.add(at, "name its targets instead", "%q is a Router, and a Router is no target", Clip(target))
		case slices.Contains(to[:i], target):
			p.add(at, "a target stands once in a rule", "%q is already in this list", Clip(target))
		}
	}
}

func (p *problems) checkWhen(path string, w *When, intents []string) {
	p.checkLanguage(path+".language", w.Language)
	for _, x := range []struct {
		key     string
		tokens  *int
		minimum int
	}{{"tokensBelow", w.TokensBelow, 1}, {"tokensAbove", w.TokensAbove, 0}} {
		if x.tokens != nil && (*x.tokens < x.minimum || *x.tokens > math.MaxInt32) {
			p.add(path+"."+x.key, fmt.Sprintf("%d or more", x.minimum), "%d is no number of tokens", *x.tokens)
		}
	}
	if w.TokensAbove != nil && w.TokensBelow != nil && *w.TokensAbove >= *w.TokensBelow-1 {
		p.add(path+".tokensAbove", "", "no request has more than %d and fewer than %d tokens", *w.TokensAbove, *w.TokensBelow)
	}
	for _, x := range []struct {
		key   string
		value *float64
	}{{"complexityAbove", w.ComplexityAbove}, {"complexityBelow", w.ComplexityBelow}} {
		if x.value != nil {
			p.checkShare(path+"."+x.key, *x.value)
		}
	}
	if w.ComplexityAbove != nil && w.ComplexityBelow != nil && *w.ComplexityAbove >= *w.ComplexityBelow {
		p.add(path+".complexityAbove", "", "no complexity is above %g and below %g", *w.ComplexityAbove, *w.ComplexityBelow)
	}
	if w.Intent != "" && !slices.Contains(intents, w.Intent) {
		hint := "add it to spec.intents.list"
		if len(intents) > 0 {
			hint += "; there is " + Clip(strings.Join(intents, ", "))
		}
		p.add(path+".intent", cmp.Or(DidYouMean(w.Intent, intents, 1), hint), "%q is no intent of this Router", Clip(w.Intent))
	}
	p.checkHeaders(path+".header", w.Header)
}

// secretHeaders carry keys, which a file must not hold.
var secretHeaders = []string{"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"}

func (p *problems) checkHeaders(path string, header map[string]string) {
	if len(header) > maxHeaders {
		p.add(path, fmt.Sprintf("at most %d", maxHeaders), "%d headers are too many", len(header))
		return
	}
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(header)) {
		low := strings.ToLower(name)
		value := header[name]
		switch {
		case !isToken(name):
			p.add(path, "letters, digits and '-'", "%q is no name of a header", Clip(name))
		case slices.Contains(secretHeaders, low):
			p.add(path+"."+name, "choose by another header", "%s carries a secret, and a file holds none", name)
		case seen[low] != "":
			p.add(path+"."+name, "the case of a header's name means nothing", "%s is already here as %s", name, seen[low])
		case len(value) > maxHeader || !printable(value):
			p.add(path+"."+name, fmt.Sprintf("at most %d printable characters", maxHeader), "the value is too long or holds a control character")
		case strings.TrimSpace(value) != value:
			p.add(path+"."+name, "leave out the blanks", "no value of a header begins or ends with a blank")
		}
		seen[low] = name
	}
}

// isToken reports whether s can be the name of a header (RFC 9110).
func isToken(s string) bool {
	return s != "" && len(s) <= 128 && strings.Trim(s, lettersAndDigits+"!#$%&'*+-.^_`|~") == ""
}

// languages are the codes of ISO 639-1.
const languages = ` aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu `

// IsLanguage reports whether s is a code of ISO 639-1, such as en.
func IsLanguage(s string) bool { return len(s) == 2 && strings.Contains(languages, " "+s+" ") }

func (p *problems) checkLanguage(path, s string) {
	if s == "" || IsLanguage(s) {
		return
	}
	hint := "a code of ISO 639-1 in small letters, such as en or de"
	if code, _, _ := strings.Cut(strings.ReplaceAll(strings.ToLower(s), "_", "-"), "-"); IsLanguage(code) {
		hint = "did you mean " + code + "?"
	}
	p.add(path, hint, "%q is no code of a language", Clip(s))
}

func (p *problems) checkIntents(in *Intents) (names []string) {
	p.checkShare("spec.intents.threshold", in.Threshold)
	checkWord(p, "spec.intents.classifier", "classifier", in.Classifier, []string{ClassifierBuiltin})
	if len(in.List) > maxIntents {
		p.add("spec.intents.list", fmt.Sprintf("at most %d intents", maxIntents), "%d intents are too many", len(in.List))
	}
	for i, x := range in.List {
		at := fmt.Sprintf("spec.intents.list[%d]", i)
		switch {
		case x.Name == "" || len(x.Name) > 63 || strings.Trim(x.Name, lettersAndDigits+"-_.") != "":
			p.add(at+".name", "1 to 63 letters, digits, '-', '_' and '.'", "%q is no name of an intent", Clip(x.Name))
		case slices.Contains(names, x.Name):
			p.add(at+".name", "names of intents are unique", "%q is already the name of spec.intents.list[%d]", x.Name, slices.Index(names, x.Name))
		}
		names = append(names, x.Name)
		if len(x.Examples) == 0 && x.ExamplesFrom == "" {
			p.add(at+".examples", "a few sentences as people write them, or examplesFrom: FILE",
				"an intent is recognised by its examples, and there is none")
		}
		for j, e := range x.Examples {
			if problem := CheckExample(e); problem != "" {
				p.add(fmt.Sprintf("%s.examples[%d]", at, j), "", "%s", problem)
			}
		}
		if from := x.ExamplesFrom; from != "" && (strings.Contains(from, "://") || !printable(from)) {
			p.add(at+".examplesFrom", "such as ./billing.jsonl", "%q is no path of a file", Clip(noSecret(from)))
		}
	}
	return names
}

// CheckExample returns what is wrong with an example utterance; nothing if it can be used.
func CheckExample(s string) string {
	switch {
	case strings.TrimSpace(s) == "":
		return "an empty example teaches nothing"
	case len(s) > maxExample:
		return fmt.Sprintf("the example is longer than %d bytes", maxExample)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		return "the example is not text in UTF-8"
	}
	return ""
}

func (p *problems) checkCache(path string, c Cache) {
	if c.Exact == nil {
		return
	}
	path += ".exact"
	if ttl := c.Exact.TTL; ttl <= 0 || ttl > maxCacheTTL {
		p.add(path+".ttl", "such as 10m, at most 720h", "%s is no time to keep an answer", ttl)
	}
	checkWord(p, path+".scope", "scope", c.Exact.Scope, CacheScopes)
	checkWords(p, path+".also", "part of a request", c.Exact.Also, CacheAlso)
}

// checkShare checks a number from 0 to 1.
func (p *problems) checkShare(path string, v float64) {
	if !(v >= 0 && v <= 1) {
		p.add(path, "between 0 and 1, such as 0.7", "%g is out of range", v)
	}
}

// checkAmount checks an amount of money; 0 is none.
func (p *problems) checkAmount(path string, v float64) {
	if !(v >= 0 && v <= 1e12) {
		p.add(path, "0 or more, such as 0.15", "%g is no amount of money", v)
	}
}

func (p *problems) checkPrice(path string, price Price) {
	p.checkAmount(path+".input", price.Input)
	p.checkAmount(path+".output", price.Output)
}
