package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// routerFiles writes a folder with a Router, its examples and a Remote.
func routerFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"auto.yaml": "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: auto}\nspec:\n  rules:\n  - {name: billing, when: {intent: " +
			"billing}, to: [tiny]}\n  - {name: all, to: [tiny, cloud]}\n" +
			"  intents: {list: [{name: billing, examples: [mine], examplesFrom: billing.jsonl}]}\n  objective: {firstToken: 2s}\n  retry: " +
			"{escalate: true}\n",
		"billing.jsonl": `{"text": "where is my invoice", "intent": "billing"}` + "\n",
		"a-panel.yaml": "apiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: panel}\nspec: {pattern: debate, members: [tiny, auto], " +
			"coordinator: tiny, quorum: 1}\n---\n" +
			"apiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: maestro}\nspec: {pattern: maestro, members: {code: tiny, critic: " +
			"auto}, coordinator: tiny}\n",
		"cloud.yaml": "apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: cloud}\nspec: {url: \"https://api.example.com/v1\", keyFrom: {file: ./key}, price: {input: 0.15, output: 0.6}, limits: {concurrent: 4}}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDeployRouterAndRemote(t *testing.T) {
	s := start(t)
	dir := routerFiles(t)
	const forbidden = "warning: spec.rules[1].to[1]: the Remote cloud takes public data at most"
	alone := filepath.Join(dir, "auto.yaml")
	if _, errs, exit := s.thaw(t, "", "deploy", "-f", alone); exit == 0 ||
		!strings.Contains(errs, "error: "+alone+":1: spec.rules[1].to[1]: there is no function default/cloud (deploy it before, or together") ||
		len(s.cat.Routers()) != 0 {
		t.Errorf("%d %s", exit, errs)
	}
	if out, errs, exit := s.thaw(t, "", "deploy", "--dry-run", "-f", dir); exit != 0 ||
		out != "default/cloud would be created\ndefault/auto would be created\n"+
			"default/panel would be created\ndefault/maestro would be created\n" || len(s.cat.Remotes()) != 0 {
		t.Errorf("%d %s%s", exit, out, errs)
	}
	out, errs, exit := s.thaw(t, "", "deploy", "-f", dir)
	if exit != 0 || out != "default/cloud created\ndefault/auto created\ndefault/panel created\ndefault/maestro created\n" ||
		!strings.Contains(errs, "default/auto: "+forbidden) {
		t.Fatalf("%d %s%s", exit, out, errs)
	}
	if got := s.cat.Remotes()[0].Spec.KeyFrom.File; got != filepath.Join(dir, "key") {
		t.Errorf("the key is read from %q", got)
	}
	in := s.cat.Routers()[0].Spec.Intents.List[0]
	if !slices.Equal(in.Examples, []string{"mine", "where is my invoice"}) || in.ExamplesFrom != "" {
		t.Errorf("got %+v", in)
	}
	for line, wants := range map[string][]string{
		"models":                      {"auto       ready        router", "cloud      ready        remote", "https://api.example.com/v1"},
		"describe panel":              {"Kind:       composition", "Pattern:    debate, 2 rounds", "Member:     tiny\nMember:     auto\nCoordinator: tiny", "Quorum:     1 of 2 answers; then cold members are waited for 20s", "Budget:     24 calls, 10m", "Shows:      progress"},
		"describe maestro":            {"Member:     code: tiny\nMember:     critic: auto"},
		"get functions panel -o json": {`"type": "Composition"`, `"members": [`},
		"get functions auto -o json":  {`"type": "Router"`, `"escalate": true`},
		"describe auto":               {"Kind:       router", `Rule:       billing: {"intent":"billing"} to tiny`, "Rule:       all: always to tiny, cloud", "Intent:     billing, 2 examples", "Objective:  first token within 2s", "Cold:       wait; a failed target is followed by the next"},
		"describe cloud":              {"URL:        https://api.example.com/v1", "Key:        from the file " + dir, "Data:       public at most", "Price:      0.15 and 0.6 per million", "Limits:     4 at once", "Spent:      0.75 today"},
		"describe cloud -o json":      {`"spent_today": 0.75`},
		"describe team default":       {"Spent today:    1.5"},
	} {
		checkSays(t, s, line, wants)
	}
	if _, errs, exit := s.thaw(t, "", "logs", "auto"); exit != kit.ExitUsage ||
		!strings.Contains(errs, "default/auto is a Router: it has no engine, so no log") || strings.Contains(errs, "wake") {
		t.Errorf("logs of a Router: %d %s", exit, errs)
	}
	if _, errs, exit := s.thaw(t, "", "logs", "panel"); exit != kit.ExitUsage ||
		!strings.Contains(errs, "default/panel is a Composition: it has no engine") {
		t.Errorf("logs of a Composition: %d %s", exit, errs)
	}
	checkSays(t, s, "rm panel maestro auto cloud", []string{"default/panel removed\ndefault/maestro removed\ndefault/auto removed\ndefault/cloud removed\n"})

	// What is wrong is told before anything is sent.
	if err := os.WriteFile(filepath.Join(dir, "billing.jsonl"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, exit := s.thaw(t, "", "deploy", "-f", dir); exit != kit.ExitUsage ||
		!strings.Contains(errs, "billing.jsonl, line 1: there is no text") || len(s.cat.Remotes()) != 0 {
		t.Errorf("%d %s", exit, errs)
	}
	large := strings.Repeat(`{"text": "where is my invoice", "intent": "billing"}`+"\n", catalog.MaxFile/20)
	if err := os.WriteFile(filepath.Join(dir, "billing.jsonl"), []byte(large), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, exit := s.thaw(t, "", "deploy", "-f", dir); exit != kit.ExitUsage ||
		!strings.Contains(errs, "the router is too large to be sent") ||
		!strings.Contains(errs, "hint: put its file and the examples into the server's --functions folder") || len(s.cat.Remotes()) != 0 {
		t.Errorf("%d %.500s", exit, errs)
	}
}

// checkSays runs thaw and fails unless it succeeds and prints every text.
// spending is what was spent today.
type spending struct{}

func (spending) SpentToday(functions.Name) float64  { return 0.75 }
func (spending) TeamSpentToday(team string) float64 { return 1.5 }

// TestGetKinds: each kind of function is listed by its word.
func TestGetKinds(t *testing.T) {
	s := start(t)
	if _, errs, exit := s.thaw(t, "", "deploy", "-f", routerFiles(t)); exit != 0 {
		t.Fatal(errs)
	}
	for line, want := range map[string]string{
		"get routers -o name":        "default/auto\n",
		"get router auto -o name":    "default/auto\n",
		"get remotes -o name":        "default/cloud\n",
		"get models -o name":         "default/tiny\nml/broken\nml/llama\n",
		"cache forget cloud":         "NAME   DROPPED\ncloud  5\n",
		"cache forget cloud -o name": "default/cloud\n",
	} {
		if out, errs, exit := s.thaw(t, "", strings.Fields(line)...); exit != 0 || out != want {
			t.Errorf("thaw %s: %d %q%s", line, exit, out, errs)
		}
	}
	if _, errs, exit := s.thaw(t, "", "cache", "forget", "auto"); exit == 0 ||
		!strings.Contains(errs, "default/auto is a Router: its answers are kept for its targets") {
		t.Errorf("%d %s", exit, errs)
	}
}

// TestDeployRemoteAdvice: what to try after the deployment of a Remote is not refused.
func TestDeployRemoteAdvice(t *testing.T) {
	s := start(t)
	file := filepath.Join(t.TempDir(), "cloud.yaml")
	for _, tt := range []struct{ allow, want, not string }{
		{"public", "a request by its name is refused: the team's data is internal, and it takes public data at most. Set allow: internal in its file, or name it in a Router with data: public", "thaw run"},
		{"internal", "thaw run cloud", "refused"},
	} {
		if err := os.WriteFile(file,
			[]byte("apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: cloud}\nspec: {url: \"https://api.example.com/v1\", allow: "+tt.allow+
				"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, errs, exit := s.thaw(t, "", "deploy", "-f", file); exit != 0 || !strings.Contains(errs, tt.want) || strings.Contains(errs, tt.not) {
			t.Errorf("%s: %d %s", tt.allow, exit, errs)
		}
	}
}

func checkSays(t *testing.T, s *server, line string, wants []string) {
	t.Helper()
	out, errs, exit := s.thaw(t, "", strings.Fields(line)...)
	for _, want := range wants {
		if exit != 0 || !strings.Contains(out, want) {
			t.Errorf("thaw %s: exit %d, want %q\n%s%s", line, exit, want, out, errs)
		}
	}
}

func TestCheckRouterAndRemote(t *testing.T) {
	s := start(t)
	dir := routerFiles(t)
	shippedToo := []string{"check", dir, filepath.Join(s.dir, "functions")}
	out, errs, exit := s.thaw(t, "", shippedToo...)
	if exit != 0 || !strings.HasPrefix(out,
		"composition default/panel\ncomposition default/maestro\nrouter default/auto\nremote default/cloud\nmodel default/tiny\n") ||
		!strings.Contains(errs, "auto.yaml:7:28: warning: spec.rules[1].to[1]: the Remote cloud takes public data at most") ||
		!strings.Contains(errs, "data: public on the Router or its team, or allow: internal on the Remote") ||
		!strings.HasSuffix(errs, "8 good\n") {
		t.Errorf("%d %s%s", exit, out, errs)
	}
	if out, _, exit := s.thaw(t, "", append(shippedToo, "-o", "json")...); exit != 0 || !strings.Contains(out, `"warning": true`) {
		t.Errorf("%d %s", exit, out)
	}
	if _, errs, exit := s.thaw(t, "", "check", dir); exit != kit.ExitFailed || strings.Count(errs, "there is no function default/tiny") != 6 {
		t.Errorf("a folder: %d %s", exit, errs)
	}
	if _, errs, exit := s.thaw(t, "", "check", filepath.Join(dir, "auto.yaml")); exit != 0 ||
		strings.Count(errs, "there is no function default/tiny") != 2 {
		t.Errorf("one of its files: %d %s", exit, errs)
	}
	// Plain http, and the way out.
	plain := filepath.Join(dir, "plain.yaml")
	if err := os.WriteFile(plain,
		[]byte("apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: lan}\nspec: {url: \"http://models.lan:8000/v1\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, exit := s.thaw(t, "", "check", plain); exit != kit.ExitFailed || !strings.Contains(errs, "THAW_SOURCE_HOSTS") {
		t.Errorf("%d %s", exit, errs)
	}
	s.env["THAW_SOURCE_HOSTS"] = "models.lan"
	if _, errs, exit := s.thaw(t, "", "check", plain); exit != 0 {
		t.Errorf("%d %s", exit, errs)
	}
	// One name in two kinds.
	if err := os.WriteFile(plain,
		[]byte("apiVersion: thaw.dev/v1\nkind: Remote\nmetadata: {name: tiny}\nspec: {url: \"https://x.example/v1\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, exit := s.thaw(t, "", shippedToo...); exit != kit.ExitFailed ||
		!strings.Contains(errs, "default/tiny: the name of a Model and a Remote is here and at "+plain+":1") {
		t.Errorf("%d %s", exit, errs)
	}
}
