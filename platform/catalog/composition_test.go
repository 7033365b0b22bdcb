package catalog

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

const panelText = `apiVersion: thaw.dev/v1
kind: Composition
metadata: {name: panel}
spec:
  pattern: debate
  members: [tiny, "tiny:pirate", cloud-mini]
  coordinator: tiny
  rounds: 3
  quorum: 2
  patience: 30s
  budget: {calls: 12, coldStarts: 2, tokens: 20000, cost: 0.05, time: 5m}
  show: steps
`

const maestroText = `apiVersion: thaw.dev/v1
kind: Composition
metadata: {name: maestro, namespace: ml}
spec:
  pattern: maestro
  members: {reasoning: big, critic: default/tiny}
  coordinator: big
`

func TestDecodeComposition(t *testing.T) {
	docs, err := Decode("f.yaml", []byte(panelText+"---\n"+maestroText))
	if err != nil || len(docs) != 2 {
		t.Fatal(docs, err)
	}
	panel := functions.NewComposition()
	panel.Metadata.Name, panel.Origin = "panel", "f.yaml:1"
	panel.Spec = functions.CompositionSpec{
		Pattern: functions.PatternDebate, Members: functions.Members{List: []string{"tiny", "tiny:pirate", "cloud-mini"}}, Coordinator: "tiny", Rounds: 3, Quorum: 2, Patience: functions.Duration(30 * time.Second),
		Budget: functions.CompositionBudget{Calls: 12, ColdStarts: 2, Tokens: 20000, Cost: 0.05, Time: functions.Duration(5 * time.Minute)},
		Show:   functions.ShowSteps,
	}
	maestro := functions.NewComposition()
	maestro.Metadata.Name, maestro.Metadata.Namespace, maestro.Origin = "maestro", "ml", "f.yaml:14"
	maestro.Spec.Pattern, maestro.Spec.Coordinator = functions.PatternMaestro, "big"
	maestro.Spec.Members.Agents = functions.Agents{Reasoning: "big", Critic: "default/tiny"}
	for i, want := range []*functions.Composition{panel, maestro} {
		want.Dir = "."
		d := docs[i]
		if !reflect.DeepEqual(d.Composition, want) || d.Kind() != functions.KindComposition || d.FullName() != want.FullName() ||
			d.Value() != any(d.Composition) {
			t.Errorf("got  %+v\nwant %+v", d.Composition, want)
		}
		// What is kept reads as it was.
		text, err := EncodeYAML(d.Value())
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode("f.yaml", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		again[0].Composition.Origin = want.Origin
		if !reflect.DeepEqual(again[0].Composition, want) {
			t.Errorf("again %+v\n%s", again[0].Composition, text)
		}
	}
	if s := docs[0].Composition.Spec; s.Answers() != 2 || len(s.Parts()) != 4 {
		t.Errorf("%+v", s.Parts())
	}
	// The defaults: more than half answer, and all are waited for.
	docs, err = Decode("f.yaml",
		[]byte(replaced(t, replaced(t, panelText, "  rounds: 3\n  quorum: 2\n  patience: 30s\n", ""), "  show: steps\n", "  show: \"\"\n")))
	if err != nil {
		t.Fatal(err)
	}
	if s := docs[0].Composition.Spec; s.Rounds != 2 || s.Answers() != 2 || s.Patience != 0 || s.Show != functions.ShowProgress {
		t.Errorf("%+v", s)
	}
}

func TestDecodeRefusesCompositions(t *testing.T) {
	ensemble := replaced(t, replaced(t, panelText, "debate", "ensemble"), "  rounds: 3\n", "")
	few := replaced(t, ensemble, "  quorum: 2\n  patience: 30s\n", "")
	graph := replaced(t, few, "ensemble", "graph")
	members := func(text, list string) string {
		return replaced(t, text, `[tiny, "tiny:pirate", cloud-mini]`, list)
	}
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "apiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: panel}\n", []string{"spec.pattern: a pattern is needed (one of ensemble, debate, maestro, graph)", "spec.coordinator: a coordinator is needed: it writes the answer"}},
		{"pattern", replaced(t, panelText, "debate", "debat"), []string{`f.yaml:5:3: spec.pattern: "debat" is no pattern thaw knows (did you mean debate?`}},
		{"unknown key", panelText + "  member: [a]\n", []string{"f.yaml:13:3: spec.member: unknown key (did you mean members?)"}},
		{"unknown agent", replaced(t, maestroText, "reasoning", "reasoner"), []string{"f.yaml:6:13: spec.members.reasoner: unknown key (did you mean reasoning?)"}},
		{"not built", panelText + "  pass: [tools]\n", []string{"f.yaml:13:3: spec.pass: not supported yet"}},
		{"auto", replaced(t, panelText, "name: panel", "name: auto"), []string{`"auto" is reserved for a Router`}},
		{"a list for a maestro", replaced(t, maestroText, "{reasoning: big, critic: default/tiny}", "[big]"), []string{"f.yaml:6:3: spec.members: a maestro's members are named by what they are for: research, reasoning, creative, code and critic"}},
		{"agents of a debate", members(panelText, "{reasoning: tiny}"), []string{"spec.members: keys and values where a list is wanted: only a maestro's members have roles"}},
		{"a critic alone", replaced(t, maestroText, "reasoning: big, ", ""), []string{"spec.members: a maestro needs an agent that answers"}},
		{"text for members", members(panelText, "tiny"), []string{`spec.members: the text "tiny" where keys and values are wanted`}},
		{"itself", members(panelText, "[tiny, panel, \"panel:x\"]"), []string{"f.yaml:6:19: spec.members[1]: a Composition cannot ask itself", "spec.members[2]: a Composition cannot ask itself"}},
		{"itself as coordinator", replaced(t, panelText, "coordinator: tiny", "coordinator: default/panel"), []string{"spec.coordinator: a Composition cannot ask itself"}},
		{"twice", members(panelText, "[tiny, tiny, cloud-mini]"), []string{`spec.members[1]: "tiny" is already in this list`}},
		{"no name", members(panelText, "[tiny, Tiny, cloud-mini]"), []string{`spec.members[1]: "Tiny" is no function name`}},
		{"one member", members(few, "[tiny]"), []string{"spec.members: an ensemble of 1 member has no answers to compare"}},
		{"no member", members(graph, "[]"), []string{"spec.members: a member is needed"}},
		{"many", members(few, "["+strings.Repeat("a, ", 17)+"b]"), []string{"spec.members: 18 members are too many (at most 16 members)"}},
		{"rounds of an ensemble", ensemble + "  rounds: 2\n", []string{"spec.rounds: an ensemble has no rounds, a debate has (leave it out)"}},
		{"rounds", replaced(t, panelText, "rounds: 3", "rounds: 9"), []string{"spec.rounds: 9 is out of range (between 1 and 8)"}},
		{"quorum", replaced(t, panelText, "quorum: 2", "quorum: 4"), []string{"f.yaml:9:3: spec.quorum: 4 answers of 3 members cannot be had (at most 3)"}},
		{"quorum of a graph", replaced(t, graph, "coordinator: tiny", "coordinator: tiny\n  quorum: 1"), []string{"spec.quorum: a graph does not ask all its members, so there is no quorum (leave it out)"}},
		{"patience of a graph", graph + "  patience: 5s\n", []string{"spec.patience: a graph waits for each answer that it needs (leave it out)"}},
		{"patience", replaced(t, panelText, "patience: 30s", "patience: 6m"), []string{"spec.patience: 6m is longer than the whole request may take, which is 5m"}},
		{"few calls", replaced(t, panelText, "calls: 12", "calls: 2"), []string{"spec.budget.calls: 2 calls are too few for an answer, with the coordinator's (3 or more)"}},
		{"budget", replaced(t, panelText, "calls: 12, coldStarts: 2, tokens: 20000, cost: 0.05, time: 5m",
			"calls: 1000, coldStarts: -1, tokens: -1, cost: -2, time: 0s"), []string{
			"spec.budget.calls: 1000 is out of range (between 1 and 256)", "spec.budget.coldStarts: -1 is out of range", "spec.budget.tokens: -1 is out of range", "spec.budget.cost: -2 is no amount of money", "spec.budget.time: 0s is no time for an answer",
		}},
		{"show", replaced(t, panelText, "steps", "step"), []string{`spec.show: "step" is no way to show progress thaw knows (did you mean steps?`}},
	} {
		docs, err := Decode("f.yaml", []byte(tt.text))
		if err == nil || docs != nil {
			t.Errorf("%s: it was read", tt.name)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v\n    want %s", tt.name, err, want)
			}
		}
	}
}

// TestCompositionParts: what a Composition names is there, may get its data, and does not
// lead back to it.
func TestCompositionParts(t *testing.T) {
	const models = tiny + "  adapters: [{name: pirate, source: ./p}]\n---\n" + cloudText + "  allow: internal\n---\n"
	composition := func(name, members, more string) string {
		return "apiVersion: thaw.dev/v1\nkind: Composition\nmetadata: {name: " + name + "}\nspec: {pattern: ensemble, members: [" + members +
			"], coordinator: tiny" + more + "}\n---\n"
	}
	router := func(name, to string) string {
		return "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: " + name + "}\nspec: {rules: [{name: all, to: [" + to +
			"]}], data: public}\n---\n"
	}
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"all there", models + router("auto", "tiny") + panelText, nil},
		{"a Router", models + router("auto", "tiny") + composition("a", "auto, cloud-mini", ""), nil},
		{"unknown", models + composition("a", "tiny, cloud-mni", ""), []string{"f.yaml:23:43: warning: spec.members[1]: there is no function default/cloud-mni; of 2 members 2 must answer, and that many are not left (did you mean cloud-mini?)"}},
		{"unknown, with a quorum", models + composition("a", "tiny, cloud-mni, cloud-mini", ", quorum: 2"), []string{"warning: spec.members[1]: there is no function default/cloud-mni (did you mean cloud-mini?)"}},
		{"no coordinator", models + strings.Replace(composition("a", "tiny, cloud-mini", ""), "coordinator: tiny", "coordinator: tinny", 1), []string{"warning: spec.coordinator: there is no function default/tinny; without its coordinator a Composition cannot answer (did you mean tiny?)"}},
		{"adapter", models + composition("a", "\"tiny:pirat\", cloud-mini, tiny", ", quorum: 1"), []string{"warning: spec.members[0]: the model default/tiny has no adapter pirat (did you mean pirate?)"}},
		{"adapter of a Router", models + router("auto", "tiny") + composition("a", "\"auto:x\", tiny, cloud-mini", ", quorum: 1"), []string{"warning: spec.members[0]: default/auto is a Router, and a Router has no adapters"}},
		{"data", tiny + "---\n" + cloudText + "---\n" + composition("a", "tiny, cloud-mini", ", quorum: 1"), []string{"warning: spec.members[1]: the Remote cloud-mini takes public data at most, and the data of this team is internal, so cloud-mini is never asked (data: public on the team, or allow: internal on the Remote)"}},
		{"a Composition as target", models + router("auto", "a, tiny") + composition("a", "tiny, cloud-mini", ""), nil},
		{"an adapter of one as target", models + router("auto", "\"a:x\", tiny") + composition("a", "tiny, cloud-mini", ""), []string{"warning: spec.rules[0].to[0]: default/a is a Composition, and a Composition has no adapters"}},
		{"a target that asks its Router", models + router("pick", "a, tiny") + composition("a", "tiny, pick", ""), []string{
			"spec.members: the members lead back to this Composition: default/a asks default/pick asks default/a", "spec.rules: the targets lead back to this Router: default/pick asks default/a asks default/pick",
		}},
		{"a target too deep",
			models + router("pick", "a, tiny") + composition("a", "tiny, b", "") + composition("b", "tiny, c", "") +
				composition("c", "tiny, cloud-mini", ""), []string{
				"spec.members: a request would go through 4", "spec.rules: a request would go through 4 Compositions and Remotes, one behind the other (at most 3)",
			}},
		{"each other", models + composition("a", "tiny, b", "") + composition("b", "tiny, a", ""), []string{
			"spec.members: the members lead back to this Composition: default/a asks default/b asks default/a (a Composition asks functions that do not ask it)", "default/b asks default/a asks default/b",
		}},
		{"a circle that is not its own", models + composition("a", "tiny, b", "") + composition("b", "tiny, c", "") + composition("c", "tiny, b", ""), []string{"default/b asks default/c asks default/b", "default/c asks default/b asks default/c"}},
		{"depth", models + composition("a", "tiny, b", "") + composition("b", "tiny, c", "") + composition("c", "tiny, cloud-mini", ""), []string{"f.yaml:23:27: spec.members: a request would go through 4 Compositions and Remotes, one behind the other (at most 3, this one counted)"}},
		{"deep enough", models + composition("a", "tiny, b", "") + composition("b", "tiny, c", "") + composition("c", "tiny, \"tiny:pirate\"", ""), nil},
	} {
		docs, err := Decode("f.yaml", []byte(strings.TrimSuffix(tt.text, "---\n")))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		got := CheckTargets(docs)
		if len(got) != len(tt.want) {
			t.Errorf("%s: %v", tt.name, got)
			continue
		}
		for i, want := range tt.want {
			if !strings.Contains(got[i].Error(), want) || got[i].Warning != strings.Contains(got[i].Error(), "warning: ") {
				t.Errorf("%s: %v\n    want %s", tt.name, got[i], want)
			}
		}
	}
}

// TestCompositionsAreServed: they are read from the folder, deployed, watched, and share the
// names of their team.
func TestCompositionsAreServed(t *testing.T) {
	c, user, _ := openCatalog(t)
	write(t, filepath.Join(user, "p.yaml"), replaced(t, panelText, `[tiny, "tiny:pirate", cloud-mini]`, "[a, b]"))
	c.Reload()
	if all := c.Compositions(); len(all) != 1 || all[0].FullName() != named("panel") {
		t.Fatalf("%v %v", all, c.Problems())
	}
	if d, ok := c.Lookup(named("panel")); !ok || d.Composition == nil {
		t.Errorf("%+v", d)
	}
	second := strings.NewReplacer("name: panel", "name: second", `[tiny, "tiny:pirate", cloud-mini]`, "[a, panel]", "coordinator: tiny", "coordinator: a").Replace(panelText)
	if created, err := c.Put(named("second"), []byte(second)); err != nil || !created || len(c.Compositions()) != 2 {
		t.Fatal(created, err)
	}
	third := []byte(strings.NewReplacer("name: second", "name: third", "panel]", "none]").Replace(second))
	if _, err := c.Check(named("third"), third); err == nil || !strings.Contains(err.Error(), "there is no function default/none") {
		t.Error(err)
	}
	if checked, err := c.Check(named("third"), third, named("none")); err != nil || len(checked.Warnings) != 0 ||
		checked.Composition.Origin != "" {
		t.Error(checked.Warnings, err)
	}
	if _, err := c.Put(named("a"), []byte(strings.Replace(second, "name: second", "name: a", 1))); err == nil {
		t.Error("the name of a model was taken")
	}
	if err := c.Delete(named("second")); err != nil || len(c.Compositions()) != 1 {
		t.Error(err)
	}
	// A deployed document that closes a circle is refused.
	write(t, filepath.Join(user, "p.yaml"), replaced(t, panelText, `[tiny, "tiny:pirate", cloud-mini]`, "[a, second]"))
	c.Reload()
	if _, err := c.Put(named("second"), []byte(second)); err == nil ||
		!strings.Contains(err.Error(), "default/second asks default/panel asks default/second") {
		t.Error(err)
	}
}
