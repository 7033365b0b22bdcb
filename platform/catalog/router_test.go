package catalog

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

const autoText = `apiVersion: thaw.dev/v1
kind: Router
metadata: {name: auto}
spec:
  rules:
  - {name: extract, when: {structuredOutput: true, code: false, tokensBelow: 800}, to: [tiny]}
  - {name: hard, when: {complexityAbove: 0.72, header: {x-tier: gold}}, to: ["tiny:pirate", cloud-mini]}
  - {name: billing, when: {intent: billing}, to: [ml/big]}
  - {name: general, to: [tiny, cloud-mini]}
  intents:
    threshold: 0.75
    classifier: builtin
    list: [{name: billing, examples: [where is my invoice]}]
  objective: {firstToken: 2s, costPerRequest: 1}
  retry: {escalate: true}
  data: public
  cache: {exact: {ttl: 10m, also: [tools]}}
`

const cloudText = `apiVersion: thaw.dev/v1
kind: Remote
metadata: {name: cloud-mini}
spec:
  url: https://api.example.com/v1
  keyFrom: {env: CLOUD_KEY}
  price: {input: 0.15, output: 1e-9}
  limits: {concurrent: 64, spendPerDay: 12.5}
  timeouts: {connect: 1s}
`

// replaced is text with its only old replaced by new.
func replaced(t *testing.T, text, old, new string) string {
	t.Helper()
	if strings.Count(text, old) != 1 {
		t.Fatalf("%q is there %d times", old, strings.Count(text, old))
	}
	return strings.Replace(text, old, new, 1)
}

func TestDecodeRouterAndRemote(t *testing.T) {
	docs, err := Decode("dir/r.yaml", []byte(autoText+"---\n"+cloudText))
	if err != nil {
		t.Fatal(err)
	}
	router := functions.NewRouter()
	router.Metadata.Name, router.Dir, router.Origin = "auto", "dir", "dir/r.yaml:1"
	router.Spec.Rules = []functions.Rule{
		{Name: "extract", When: functions.When{StructuredOutput: new(true), Code: new(false), TokensBelow: new(800)}, To: []string{"tiny"}},
		{Name: "hard", When: functions.When{ComplexityAbove: new(0.72), Header: map[string]string{"x-tier": "gold"}}, To: []string{"tiny:pirate", "cloud-mini"}},
		{Name: "billing", When: functions.When{Intent: "billing"}, To: []string{"ml/big"}},
		{Name: "general", To: []string{"tiny", "cloud-mini"}},
	}
	router.Spec.Intents = functions.Intents{Threshold: 0.75, Classifier: "builtin", List: []functions.Intent{{Name: "billing", Examples: []string{"where is my invoice"}}}}
	router.Spec.Objective = functions.Objective{FirstToken: functions.Duration(2 * time.Second), CostPerRequest: 1}
	router.Spec.Retry.Escalate, router.Spec.Data = true, functions.DataPublic
	router.Spec.Cache.Exact = &functions.ExactCache{TTL: functions.Duration(10 * time.Minute), Also: []string{"tools"}}
	remote := functions.NewRemote()
	remote.Metadata.Name, remote.Dir, remote.Origin = "cloud-mini", "dir", "dir/r.yaml:19"
	remote.Spec.URL, remote.Spec.KeyFrom.Env = "https://api.example.com/v1", "CLOUD_KEY"
	remote.Spec.Price = functions.Price{Input: 0.15, Output: 1e-9}
	remote.Spec.Limits = functions.RemoteLimits{Concurrent: 64, SpendPerDay: 12.5}
	remote.Spec.Timeouts.Connect = functions.Duration(time.Second)
	if len(docs) != 2 || !reflect.DeepEqual(docs[0].Router, router) || !reflect.DeepEqual(docs[1].Remote, remote) {
		t.Errorf("got  %+v\n     %+v\nwant %+v\n     %+v", docs[0].Router, docs[1].Remote, router, remote)
	}
	for _, d := range docs {
		b, err := EncodeYAML(d.Value())
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode("dir/r.yaml", b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if d.Router != nil {
			again[0].Router.Origin = d.Router.Origin
		} else {
			again[0].Remote.Origin = d.Remote.Origin
		}
		if !reflect.DeepEqual(again[0].Value(), d.Value()) {
			t.Errorf("changed on the way: %+v\n%+v\n%s", again[0].Value(), d.Value(), b)
		}
	}
}

func TestDecodeRefusesRoutersAndRemotes(t *testing.T) {
	const general = "  - {name: general, to: [tiny, cloud-mini]}\n"
	for _, tt := range []struct{ name, text, want string }{
		{"last rule", replaced(t, autoText, general, ""), `f.yaml:8:21: spec.rules[2].when: the last rule has a condition, so a request that matches no rule would have no target (add a rule without when`},
		{"never reached", replaced(t, autoText, "when: {intent: billing}, ", ""), `f.yaml:8:5: spec.rules[2]: a rule without a condition always matches, so the rules after it are never reached: general`},
		{"unknown when", replaced(t, autoText, "code: false", "codes: false"), `f.yaml:6:52: spec.rules[0].when.codes: unknown key (did you mean code?)`},
		{"text for a bool", replaced(t, autoText, "code: false", `code: "no"`), `spec.rules[0].when.code: the text "no" where true or false is wanted`},
		{"nothing for a bool", replaced(t, autoText, "code: false", `code:`), `spec.rules[0].when.code: nothing where true or false is wanted`},
		{"complexity", replaced(t, autoText, "0.72", "72"), `f.yaml:7:25: spec.rules[1].when.complexityAbove: 72 is out of range (between 0 and 1, such as 0.7)`},
		{"text for a number", replaced(t, autoText, "0.72", "high"), `spec.rules[1].when.complexityAbove: the text "high" where a number is wanted`},
		{"quoted number", replaced(t, autoText, "0.72", `"0.72"`), `spec.rules[1].when.complexityAbove: the text "0.72" where a number is wanted (without quotes)`},
		{"no number", replaced(t, autoText, "0.72", ".nan"), `where a number is wanted`},
		{"endless", replaced(t, autoText, "0.72", ".inf"), `where a number is wanted`},
		{"huge", replaced(t, autoText, "0.72", "1e999"), `where a number is wanted`},
		{"intent", replaced(t, autoText, "{intent: billing}", "{intent: bill}"), `f.yaml:8:28: spec.rules[2].when.intent: "bill" is no intent of this Router (did you mean billing?)`},
		{"header", replaced(t, autoText, "x-tier: gold", "x-tier: 1"), `spec.rules[1].when.header.x-tier: the number 1 where text is wanted (put it in quotes: "1")`},
		{"cold", replaced(t, autoText, "retry:", "cold: heat\n  retry:"), `spec.cold: "heat" is no policy thaw knows`},
		{"semantic cache", replaced(t, autoText, "{exact:", "{semantic: {ttl: 1m}, exact:"), `f.yaml:17:11: spec.cache.semantic: not supported yet`},
		{"weights", autoText + "  weights: w.json\n", `f.yaml:18:3: spec.weights: not supported yet`},
		{"profiles", autoText + "  profiles: off\n", `spec.profiles: not supported yet`},
		{"another classifier", replaced(t, autoText, "classifier: builtin", "classifier: {onnx: m.onnx}"), `f.yaml:12:5: spec.intents.classifier: not supported yet`},
		{"empty cache", replaced(t, autoText, "{ttl: 10m, also: [tools]}", ""), `spec.cache.exact.ttl: 0s is no time to keep an answer (such as 10m`},
		{"two at once", replaced(t, replaced(t, autoText, "data: public", "data: all"), "[ml/big]", "[]"), "spec.rules[2].to: a target is needed"},
		{"model's batch", tiny + "  queue: {batch: {max: 4}}\n", `f.yaml:7:11: spec.queue.batch: not supported yet`},
		{"model's kinds", tiny + "  profiles: auto\n", `spec.profiles: not supported yet`},
		{"team's priority", "apiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: ml}\nspec: {priority: {max: hihg}}\n", `f.yaml:4:19: spec.priority.max: "hihg" is no priority thaw knows (did you mean high? one of high, normal, low)`},
		{"auto is no Remote", replaced(t, cloudText, "name: cloud-mini", "name: auto"), `f.yaml:3:12: metadata.name: "auto" is reserved for a Router`},
		{"plain http", replaced(t, cloudText, "https://", "http://"), `f.yaml:5:3: spec.url: plain http would send the key and the prompts readable`},
		{"two keys", replaced(t, cloudText, "{env: CLOUD_KEY}", "{env: CLOUD_KEY, file: /key}"), `f.yaml:6:3: spec.keyFrom: both env and file are given`},
		{"a Secret", replaced(t, cloudText, "{env: CLOUD_KEY}", "{secret: {name: a, key: b}}"), `f.yaml:6:13: spec.keyFrom.secret: not supported yet`},
		{"the key in keyFrom", replaced(t, cloudText, "{env: CLOUD_KEY}", "sk-hidden"), `f.yaml:6:12: spec.keyFrom: a value where keys and values are wanted`},
		{"the key as env", replaced(t, cloudText, "CLOUD_KEY", "sk-hidden"), `spec.keyFrom.env: this is no name of an environment variable (the name of the variable, not the key)`},
		{"a key of digits", replaced(t, cloudText, "CLOUD_KEY", "123456"), `f.yaml:6:18: spec.keyFrom.env: a value where text is wanted (put it in quotes)`},
		{"the key itself", cloudText + "  apiKey: sk-hidden\n", `f.yaml:10:3: spec.apiKey: unknown key (a file holds no key: keyFrom: {env: NAME} or {file: PATH})`},
		{"the key in the URL", replaced(t, cloudText, "https://", "https://u:sk-hidden@"), `spec.url: a URL carries no user and password`},
		{"negative price", replaced(t, cloudText, "0.15", "-0.15"), `f.yaml:7:11: spec.price.input: -0.15 is no amount of money`},
		{"allow", cloudText + "  allow: everything\n", `spec.allow: "everything" is no class of data thaw knows (one of public, internal, secret)`},
		{"misspelt limit", replaced(t, cloudText, "spendPerDay", "spendADay"), `spec.limits.spendADay: unknown key (did you mean spendPerDay?)`},
	} {
		docs, err := Reader{Plain: func(*url.URL) bool { return false }}.Decode("f.yaml", []byte(tt.text))
		if err == nil || docs != nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v\n    want %s", tt.name, err, tt.want)
		}
		if err != nil && (strings.Contains(err.Error(), "hidden") || strings.Contains(err.Error(), "123456")) {
			t.Errorf("%s: the key is in %v", tt.name, err)
		}
	}
}

// TestEmptyAllowIsPublic: an empty class would rank as secret, and so allow everything.
func TestEmptyAllowIsPublic(t *testing.T) {
	docs, err := Decode("f.yaml", []byte(cloudText+"  allow: \"\"\n"))
	if err != nil || docs[0].Remote.Spec.Allow != functions.DataPublic {
		t.Error(docs, err)
	}
}

// TestOneNameSpace: functions of all kinds share the names of a team; a team has its own.
func TestOneNameSpace(t *testing.T) {
	c, user, _ := openCatalog(t)
	r := filepath.Join(user, "r.yaml")
	write(t, r, replaced(t, cloudText, "name: cloud-mini", "name: a")+"---\napiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: a}\n")
	c.Reload()
	p := c.Problems()
	if len(p) != 1 || p[0].Error() != r+":1: metadata.name: default/a: the name of a Remote and a Model is here and at "+
		filepath.Join(user, "a.yaml")+":1; the other one counts (rename one, or remove it)" {
		t.Errorf("problems %v", p)
	}
	if d, ok := c.Lookup(named("a")); !ok || d.Model == nil || len(c.Remotes()) != 0 || len(c.Teams()) != 1 {
		t.Errorf("got %+v", d)
	}
	write(t, r, autoText+"---\n"+autoText)
	c.Reload()
	if p := c.Problems().Wrong(); len(p) != 1 ||
		!strings.Contains(p[0].Error(), r+":19: metadata.name: router default/auto is here and at "+r+":1; the other one counts") {
		t.Errorf("problems %v", p)
	}
}

func TestAccessors(t *testing.T) {
	c, user, _ := openCatalog(t)
	write(t, filepath.Join(user, "r.yaml"),
		autoText+"---\n"+cloudText+"---\n"+replaced(t, cloudText, "{name: cloud-mini}", "{name: b, namespace: a}"))
	c.Reload()
	routers, remotes := c.Routers(), c.Remotes()
	if len(routers) != 1 || routers[0].FullName().String() != "default/auto" || len(remotes) != 2 || remotes[0].FullName().String() != "a/b" {
		t.Fatalf("%v %v", routers, remotes)
	}
	for name, kind := range map[string]string{"default/a": "Model", "default/auto": "Router", "default/cloud-mini:x": "Remote"} {
		n, err := functions.ParseName(name, "")
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := c.Lookup(n); !ok || d.Kind() != kind || d.FullName() != n.WithoutAdapter() {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if d, ok := c.Lookup(named("none")); ok {
		t.Errorf("got %+v", d)
	}
	// What is not read again stays the same.
	c.Reload()
	if c.Routers()[0] != routers[0] || c.Remotes()[0] != remotes[0] {
		t.Error("made anew")
	}
}

func TestTargets(t *testing.T) {
	const models = tiny + "  adapters: [{name: pirate, source: ./p}]\n---\n"
	const team = "---\napiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: default}\nspec: {data: DATA}\n"
	router := func(to, data string) string {
		return "---\napiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: chat}\nspec:\n  rules:\n  - {name: all, to: [" + to +
			"]}\n  data: " + data + "\n"
	}
	unset := func(to string) string { return strings.Replace(router(to, ""), "  data: \n", "", 1) }
	for _, tt := range []struct{ name, text, want string }{
		{"all there", models + cloudText + router("tiny, \"tiny:pirate\", default/tiny, cloud-mini", "public"), ""},
		{"unknown", models + cloudText + router("tiny, cloud-mni", "public"), "f.yaml:24:28: warning: spec.rules[0].to[1]: there is no function default/cloud-mni (did you mean cloud-mini?)"},
		{"a url without a path", models + replaced(t, cloudText, "example.com/v1", "example.com/") + router("tiny", "public"), "warning: spec.url: the url has no path, so chats are asked for at /chat/completions; most servers have them at /v1/chat/completions (did you mean https://api.example.com/v1?)"},
		{"of another team", models + cloudText + router("ml/tiny", "public"), "warning: spec.rules[0].to[0]: there is no function ml/tiny"},
		{"adapter", models + cloudText + router("\"tiny:pirat\", tiny", "public"), "warning: spec.rules[0].to[0]: the model default/tiny has no adapter pirat (did you mean pirate?)"},
		{"adapter of a Remote", models + cloudText + router("\"cloud-mini:x\"", "public"), "default/cloud-mini is a Remote, and a Remote has no adapters"},
		{"a Router", models + cloudText + router("tiny, other", "public") + strings.Replace(router("tiny", "public"), "name: chat", "name: other", 1), "f.yaml:24:28: spec.rules[0].to[1]: other is a Router, and a Router is no target (name its targets instead)"},
		{"forbidden", models + cloudText + router("tiny, cloud-mini", "internal"), "warning: spec.rules[0].to[1]: the Remote cloud-mini takes public data at most, and the data of this Router is internal, so cloud-mini is never chosen (data: public on the Router or its team, or allow: internal on the Remote)"},
		{"no target left", models + cloudText + router("cloud-mini", "secret"), "so cloud-mini is never chosen; the rule all has no target left (data: public on the Router or its team, or allow: secret on the Remote)"},
		{"unset is internal", models + cloudText + unset("cloud-mini"), "the data of this Router is internal"},
		{"as the team", models + cloudText + unset("cloud-mini") + strings.Replace(team, "DATA", "public", 1), ""},
		{"as the team, secret", models + cloudText + unset("cloud-mini") + strings.Replace(team, "DATA", "secret", 1), "the data of this Router is secret"},
		{"allowed", models + cloudText + "  allow: internal\n" + unset("cloud-mini"), ""},
		{"auto of other teams", models + strings.NewReplacer("name: chat", "name: auto").Replace(router("big", "public")) + "---\n" + strings.Replace(tiny, "{name: tiny}", "{name: big, namespace: ml}", 1), ""},
		{"chat of other teams", models + router("big", "public") + "---\n" + strings.Replace(tiny, "{name: tiny}", "{name: big, namespace: ml}", 1), "there is no function default/big"},
	} {
		docs, err := Decode("f.yaml", []byte(tt.text))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := CheckTargets(docs)
		if tt.want == "" && len(got) != 0 || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0].Error(), tt.want)) {
			t.Errorf("%s: %v\n    want %s", tt.name, got, tt.want)
		}
	}
}

// TestProblemsAtOnce: what a document means is checked although some of its values do not
// decode, and what may only follow from those is not reported.
func TestProblemsAtOnce(t *testing.T) {
	const head = "apiVersion: thaw.dev/v1\n"
	router := func(spec string) string { return head + "kind: Router\nmetadata: {name: auto}\nspec:\n" + spec }
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"of both", router("  retry: 7\n  cold: warm\n  data: open\n  rules: [{name: all, to: [a]}]\n"), []string{"spec.retry: ", "spec.cold: ", "spec.data: "}},
		{"a misspelt key is not also missing", router("  rles: [{name: all, to: [a]}]\n  cold: warm\n"), []string{"spec.rles: unknown key", "spec.cold: "}},
		{"in one rule of three", router("  rules:\n  - {name: x, when: {codee: true}, to: [a]}\n  - {name: y, to: [b]}\n  - {name: y, to: []}\n"), []string{"spec.rules[0].when.codee: unknown key", "spec.rules[2].name: ", "spec.rules[2].to: "}},
		{"intents that did not decode", router("  intents: [billing]\n  rules: [{name: x, when: {intent: billing}, to: [a]}, {name: all, to: []}]\n"), []string{"spec.intents: ", "spec.rules[1].to: "}},
		{"a condition beside one that is misspelt", router("  rules: [{name: x, when: {codee: true, tokensBelow: -1}, to: [a]}, {name: all, to: [a]}]\n"), []string{"spec.rules[0].when.codee: unknown key", "spec.rules[0].when.tokensBelow: -1 is no number"}},
		{"a limit beside one that is no number", head + "kind: Remote\nmetadata: {name: cloud}\nspec: {url: \"https://a.example/v1\", limits: {concurrent: -1, spendPerDay: x}}\n", []string{"spec.limits.spendPerDay: ", "spec.limits.concurrent: -1 is below 0"}},
		{"a misspelt lifetime is not also missing", router("  cache: {exact: {tll: 1m}}\n  rules: [{name: all, to: [a]}]\n"), []string{"spec.cache.exact.tll: unknown key"}},
		{"a misspelt key beside its other", head + "kind: Remote\nmetadata: {name: cloud}\nspec: {url: \"https://a.example/v1\", keyFrom: {envv: A, file: f}}\n", []string{"spec.keyFrom.envv: "}},
		{"a bound and what it bounds", head + "kind: Model\nmetadata: {name: auto}\nspec: {engine: vllm, source: \"hf://a/b\", scale: {min: 5, max: two}}\n", []string{"spec.scale.max: ", "metadata.name: \"auto\" is reserved"}},
	} {
		_, err := Decode("f.yaml", []byte(tt.text))
		problems, _ := errors.AsType[Problems](err)
		var paths []string
		for _, p := range problems {
			paths = append(paths, p.Path+": "+p.Message)
		}
		for _, want := range tt.want {
			if !slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p, want) }) {
				t.Errorf("%s: nothing about %s", tt.name, want)
			}
		}
		if len(problems) != len(tt.want) {
			t.Errorf("%s: %q", tt.name, paths)
		}
	}
}

// TestSurvey: the name of a document with problems counts, and it is no target's problem.
func TestSurvey(t *testing.T) {
	docs, named, err := Reader{}.Survey("f.yaml",
		[]byte(strings.Replace(tiny, "spec:", "spec:\n  scal: {}", 1)+
			"---\napiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto}\nspec: {rules: [{name: all, to: [\"tiny:x\", gone]}]}\n"))
	if err == nil || !named || len(docs) != 2 {
		t.Fatal(docs, named, err)
	}
	if p := CheckTargets(docs); len(p) != 1 || !p[0].Warning || len(p.RequireTargets().Wrong()) != 1 ||
		!strings.Contains(p[0].Message, "default/gone") {
		t.Error(p)
	}
	// Targets of a document that has other problems.
	docs, _, err = Reader{}.Survey("f.yaml", []byte(strings.Replace(tiny, "spec:", "spec:\n  scal: {}", 1)+
		"---\napiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto}\n"+
		"spec: {cold: warm, rules: [{name: all, to: [tiny, gone, \"a b\"]}]}\n"+
		"---\napiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: panel}\n"+
		"spec: {pattern: ensemble, quorum: -1, members: [tiny, gone], coordinator: tiny}\n"))
	if p := CheckTargets(docs).RequireTargets().Wrong(); err == nil || len(p) != 2 ||
		p[0].Path != "spec.rules[0].to[1]" || p[0].Line != 12 || p[1].Path != "spec.members[1]" {
		t.Errorf("%v %q", err, p)
	}
	if _, named, _ := (Reader{}).Survey("f.yaml", []byte("kind: Modell\nmetadata: {name: gone}\n")); named {
		t.Error("a document without a kind has a name")
	}
}

// TestUnknownTargetKeepsRouter: a target that is not there is told, and the Router serves;
// the warning goes when the target comes.
func TestUnknownTargetKeepsRouter(t *testing.T) {
	c, user, _ := openCatalog(t)
	write(t, filepath.Join(user, "r.yaml"),
		"apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto}\nspec: {rules: [{name: all, to: [b]}]}\n")
	c.Reload()
	if p := c.Problems(); len(p) != 1 || !p[0].Warning || len(p.Wrong()) != 0 || len(c.Routers()) != 1 {
		t.Fatalf("%v %v", p, c.Routers())
	}
	write(t, filepath.Join(user, "b.yaml"), modelText("b"))
	c.Reload()
	if p := c.Problems(); len(p) != 0 {
		t.Error(p)
	}
}

func TestExamples(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		write(t, filepath.Join(dir, name), text)
		return name
	}
	router := func(from string) string {
		return "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto}\nspec:\n  rules: [{name: all, to: [tiny]}]\n  intents:\n    " +
			"list:\n    - {name: billing, examplesFrom: " + from + "}\n    - {name: card_arrival, examples: [mine], examplesFrom: " + from + "}\n"
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	line := `{"text": "where is it", "intent": "card_arrival"}` + "\n"
	for _, tt := range []struct{ name, from, want string }{
		{"good", file("good", "\xef\xbb\xbf"+`{"text": "my invoice", "intent": "billing", "id": 7}`+"\r\n\n"+line+line+`{"text": "hi", "intent": "other"}`), ""},
		{"absolute", filepath.Join(dir, "good"), ""},
		{"missing", "none", "f.yaml:8:23: spec.intents.list[0].examplesFrom: cannot be read: "},
		{"a folder", ".", "no regular file"},
		{"a pipe", "pipe", "no regular file"},
		{"no JSON", file("bad", line+"text, intent\n"), "line 2: no JSON object with text and intent as strings"},
		{"a number", file("number", `{"text": 1, "intent": "billing"}`), "line 1: no JSON object"},
		{"no text", file("notext", line+"\n"+`{"txt": "a", "intent": "billing"}`), "line 3: there is no text"},
		{"empty text", file("empty", `{"text": " ", "intent": "billing"}`), "line 1: an empty example teaches nothing"},
		{"no intent", file("nointent", `{"text": "a"}`), "line 1: there is no intent"},
		{"other intents", file("others", line), "f.yaml:8:23: spec.intents.list[0].examplesFrom: no line of others has the intent billing (its intents are card_arrival)"},
		{"misspelt intent", file("misspelt", line+`{"text": "a", "intent": "biling"}`), "no line of misspelt has the intent billing (did you mean biling?)"},
		{"too large", file("large", strings.Repeat(line, MaxExamples/len(line)+1)), "at most 8 MiB together"},
	} {
		docs, err := Reader{Examples: true}.Decode(filepath.Join(dir, "f.yaml"), []byte(router(tt.from)))
		if tt.want != "" {
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v\n    want %s", tt.name, err, tt.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		list := docs[0].Router.Spec.Intents.List
		if strings.Join(list[0].Loaded, "|") != "my invoice" || strings.Join(list[1].Loaded, "|") != "where is it|where is it" ||
			list[1].Examples[0] != "mine" {
			t.Errorf("%s: %+v", tt.name, list)
		}
	}
	// Who does not ask for examples opens no file.
	if docs, err := Decode(filepath.Join(dir, "f.yaml"), []byte(router("none"))); err != nil ||
		docs[0].Router.Spec.Intents.List[0].Loaded != nil {
		t.Error(docs, err)
	}
}

// TestExamplesAreWatched: a change of a file of examples changes the Router once it has
// stood still for one look; a bad one keeps what was read before.
func TestExamplesAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, user, _ := openCatalog(t)
		from := filepath.Join(user, "billing.jsonl")
		write(t, filepath.Join(user, "r.yaml"), "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto}\nspec: {rules: [{name: all, "+
			"to: [a]}], intents: {list: [{name: billing, examplesFrom: billing.jsonl}]}}\n")
		loaded := func() string {
			if len(c.Routers()) == 0 {
				return "none"
			}
			return strings.Join(c.Routers()[0].Spec.Intents.List[0].Loaded, "|")
		}
		c.Reload()
		if p := c.Problems(); loaded() != "none" || len(p) != 1 || !strings.Contains(p[0].Error(), "cannot be read") {
			t.Fatal(loaded(), p)
		}
		write(t, from, `{"text": "one", "intent": "billing"}`)
		c.Scan()
		if loaded() != "none" {
			t.Error("read while it may still be written")
		}
		c.Scan()
		if loaded() != "one" || len(c.Problems()) != 0 {
			t.Error(loaded(), c.Problems())
		}
		model := c.Model(named("a"))
		write(t, from, `{"text": "two, longer", "intent": "billing"}`)
		c.Scan()
		c.Scan()
		if loaded() != "two, longer" || c.Model(named("a")) != model {
			t.Error(loaded())
		}
		before := c.Routers()[0]
		write(t, from, "nonsense")
		c.Reload()
		if p := c.Problems(); c.Routers()[0] != before || len(p) != 1 || !strings.Contains(p[0].Error(), "line 1") {
			t.Error(loaded(), p)
		}
		if err := os.Remove(from); err != nil {
			t.Fatal(err)
		}
		c.Reload()
		if p := c.Problems(); c.Routers()[0] != before || len(p) != 1 || !strings.Contains(p[0].Error(), "cannot be read") {
			t.Error(loaded(), p)
		}
		write(t, from, `{"text": "three", "intent": "billing"}`)
		c.Reload()
		if loaded() != "three" || len(c.Problems()) != 0 {
			t.Error(loaded(), c.Problems())
		}
	})
}

func TestPutOtherKinds(t *testing.T) {
	c, user, deployed := openCatalog(t)
	put := func(name, text string) (bool, error) { return c.Put(named(name), []byte(text)) }
	if created, err := put("cloud-mini", cloudText); err != nil || !created {
		t.Fatal(created, err)
	}
	auto := strings.NewReplacer("[ml/big]", "[a]", `"tiny:pirate", `, "", "[tiny, cloud-mini]", "[a, cloud-mini]", "to: [tiny]", "to: [a]").Replace(autoText)
	unknown := []byte(replaced(t, auto, "[a, cloud-mini]", "[a, none]"))
	if _, err := c.Check(named("auto"), unknown); err == nil ||
		!strings.Contains(err.Error(), "there is no function default/none (deploy it before, or together with this") || len(c.Routers()) != 0 {
		t.Fatal(err)
	}
	if checked, err := c.Check(named("auto"), unknown, named("none")); err != nil || !checked.Created || len(checked.Warnings) != 0 ||
		len(c.Routers()) != 0 {
		t.Fatal(checked, err)
	}
	if created, err := put("auto", auto); err != nil || !created || len(c.Problems()) != 0 {
		t.Fatal(created, err, c.Problems())
	}
	if created, err := put("auto", auto); err != nil || created {
		t.Fatal("the same again", created, err)
	}
	// What was kept reads again as what was given.
	again, err := Open(Options{Deployed: deployed})
	if err != nil || len(again.Routers()) != 1 || len(again.Remotes()) != 1 ||
		!reflect.DeepEqual(again.Routers()[0].Spec, c.Routers()[0].Spec) || again.Remotes()[0].Spec.KeyFrom.Env != "CLOUD_KEY" {
		t.Fatal(err, again.Routers(), again.Remotes(), again.Problems())
	}
	for _, tt := range []struct{ what, name, text, want string }{
		{"auto as target", "chat", strings.NewReplacer("name: auto", "name: chat", "[a, cloud-mini]", "[auto]").Replace(auto), "a Router is no target"},
		{"another kind, deployed", "cloud-mini", strings.Replace(auto, "name: auto", "name: cloud-mini", 1), "a Router is no target"},
		{"another kind", "cloud-mini", strings.NewReplacer("name: auto", "name: cloud-mini", ", cloud-mini]", "]", "[cloud-mini]", "[a]").Replace(auto), "default/cloud-mini: the name is taken by a deployed Remote, and this is a Router"},
		{"a name of the user's folder", "a", strings.Replace(cloudText, "name: cloud-mini", "name: a", 1), "the name is taken by "},
		{"another name", "b", cloudText, "the document is about default/cloud-mini, the path about default/b"},
		{"a relative key", "b", strings.NewReplacer("name: cloud-mini", "name: b", "{env: CLOUD_KEY}", "{file: ./key}").Replace(cloudText), "spec.keyFrom.file: a relative file has no folder to count from here (thaw deploy -f FILE makes it absolute)"},
		{"examples elsewhere", "auto", replaced(t, auto, "examples: [where is my invoice]", "examplesFrom: /etc/passwd"), "spec.intents.list[0].examplesFrom: a deployed document has its examples in itself"},
		{"a team", "ml", "apiVersion: thaw.dev/v1\nkind: Team\nmetadata: {name: ml}\n", "exactly one Model, Router, Remote or Composition is wanted"},
	} {
		_, err := put(tt.name, tt.text)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v\n    want %s", tt.what, err, tt.want)
		}
	}
	// chat, in the folder, targets a name that is free; a Router of that name is told as a problem.
	write(t, filepath.Join(user, "chat.yaml"), strings.NewReplacer("name: auto", "name: chat", "[a, cloud-mini]", "[a, chat2]").Replace(auto))
	c.Reload()
	if _, err := put("chat2", strings.Replace(auto, "name: auto", "name: chat2", 1)); err != nil {
		t.Fatal(err)
	}
	if p := c.Problems().Wrong(); len(p) != 1 || !strings.Contains(p[0].Error(), "chat2 is a Router, and a Router is no target") {
		t.Errorf("problems %v", p)
	}
	if _, err := put("chat", strings.NewReplacer("name: auto", "name: chat", "[a, cloud-mini]", "[chat2]").Replace(auto)); err == nil ||
		!strings.Contains(err.Error(), "chat2 is a Router") {
		t.Errorf("a Router as target: %v", err)
	}
	if err := c.Delete(named("cloud-mini")); err != nil || len(c.Remotes()) != 0 {
		t.Error(err)
	}
	if err := c.Delete(named("cloud-mini")); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// TestWatchOtherKinds: a change of a Router or a Remote alone notifies.
func TestWatchOtherKinds(t *testing.T) {
	c, _, _ := openCatalog(t)
	var seen []int
	watching, done := make(chan struct{}, 10), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		_ = c.Watch(ctx, func(ch Change) {
			seen = append(seen, len(c.Remotes()))
			watching <- struct{}{}
		})
	}()
	<-watching
	for range 2 {
		if _, err := c.Put(named("cloud-mini"), []byte(cloudText)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Delete(named("cloud-mini")); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-done
	if n := len(seen); n < 2 || seen[n-1] != 0 || seen[n-2] != 1 {
		t.Errorf("seen %v", seen)
	}
}

func TestPlainHTTPByOperator(t *testing.T) {
	user := t.TempDir()
	write(t, filepath.Join(user, "r.yaml"), replaced(t, cloudText, "https://api.example.com", "http://models.lan:8000"))
	for allowed, want := range map[string]int{"models.lan": 1, "other.lan": 0} {
		c, err := Open(Options{Folder: user, Plain: func(u *url.URL) bool { return u.Hostname() == allowed }})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Remotes()) != want || len(c.Problems()) != 1-want {
			t.Errorf("%s: %v %v", allowed, c.Remotes(), c.Problems())
		}
	}
}
