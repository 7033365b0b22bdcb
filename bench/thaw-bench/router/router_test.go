package router

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/activator/router/category"
)

// writeSources writes a few prompts where the sources are looked for.
func writeSources(t *testing.T) (checkouts, texts string) {
	t.Helper()
	checkouts, texts = t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		"yizhongw/self-instruct/data/seed_tasks.jsonl":                              "{\"instruction\":\"Write a poem.\",\"instances\":[{\"input\":\"about the sea\"}]}\n\n",
		"lgw863/LogiQA-dataset/Test.txt":                                            "\na\nAnna is older than Ben.\nWho is the oldest?\nA.Anna\nB.Ben\n\nb\nx\ny\nA.z\n",
		"nlpxucan/WizardLM/WizardCoder/data/mbppplus.json":                          `{"Mbpp/2":"Write a python function to add two numbers.","Mbpp/3":"Write a function that sorts."}`,
		"lm-sys/FastChat/fastchat/llm_judge/data/mt_bench/question.jsonl":           "{\"category\":\"coding\",\"turns\":[\"Fix this Python code.\"]}\n{\"category\":\"stem\",\"turns\":[\"left out\"]}\n",
		"suzgunmirac/BIG-Bench-Hard/bbh/navigate.json":                              `{"canary":"x","examples":[{"input":"Take 2 steps."},{"input":"Take 3 steps."}]}`,
		"circle-hit/SAPT/CL_Benchmark/SuperNI/task181_outcome_extraction/test.json": `{"Definition":["Name the outcome."],"Instances":[{"input":"It was cured."},{"input":"It grew."}]}`,
		"google-research/url-nlp/mgsm/mgsm_zh.tsv":                                  "三加四是多少？\t7\nno answer\n",
		"qishenghu/CodeInstruct/edit_eval/edit_eval.jsonl":                          `{"instruction":"Fix this Python function.","input":"def f(): pass"}`,
		"csitfun/LogiEval/Data/fracas.jsonl":                                        `{"input":[{"content":"left out"},{"content":"Does it follow?"}]}` + "\n" + `{"input":[{"content":"left out"}]}`,
		"suzgunmirac/BIG-Bench-Hard/bbh/snarks.json":                                `{"examples":[{"input":"left out"}]}`,
		"kojima-takeshi188/zero_shot_cot/dataset/AQuA/test.json":                    "{\"question\":\"What is 2 + 2?\",\"options\":[\"A)3\",\"B)4\"]}\n{\"question\":\"And 3 + 3?\"}\n",
	} {
		file := filepath.Join(checkouts, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(texts, "clinc-train.jsonl"), []byte(`{"text":"set an alarm","intent":"alarm"}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return checkouts, texts
}

func TestSources(t *testing.T) {
	prompts, missing, err := Load(writeSources(t))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range prompts {
		got = append(got, p.Source.Name+"|"+p.Label+"|"+p.Text)
	}
	want := []string{
		"AQuA|reasoning|What is 2 + 2?\nA)3\nB)4",
		"AQuA|reasoning|And 3 + 3?",
		"LogiQA|reasoning|Anna is older than Ben.\nWho is the oldest?\nA.Anna\nB.Ben",
		"LogiQA|reasoning|x\ny\nA.z",
		"CLINC150 (train)|general|set an alarm",
		"self-instruct seeds|general|Write a poem.\nabout the sea",
		"MBPP+|code|Write a function that sorts.",
		"MBPP+|code|Write a python function to add two numbers.",
		"BIG-Bench Hard|reasoning|Take 2 steps.",
		"BIG-Bench Hard|reasoning|Take 3 steps.",
		"MT bench|code|Fix this Python code.",
		"FraCaS|reasoning|Does it follow?",
		"SAPT, task181_outcome_extraction|extraction|Name the outcome.\nIt was cured.",
		"SAPT, task181_outcome_extraction|extraction|Name the outcome.\nIt grew.",
		"MGSM, zh|reasoning|三加四是多少？",
		"EditEval|code|Fix this Python function.\ndef f(): pass",
	}
	a, _ := json.MarshalIndent(got, "", " ")
	b, _ := json.MarshalIndent(want, "", " ")
	if !bytes.Equal(a, b) {
		t.Errorf("%s, want\n%s", a, b)
	}
	if len(missing) != len(Sources)-11 {
		t.Errorf("missing: %v", missing)
	}
	held, seen := map[string]map[string]bool{}, map[string]bool{}
	for _, s := range Sources {
		for _, label := range append(slices.Collect(maps.Values(s.Labels)), s.Label) {
			if !s.Held {
				seen[s.Repository] = true
				continue
			}
			if held[label] == nil {
				held[label] = map[string]bool{}
			}
			held[label][s.Repository] = true
		}
	}
	for label, least := range map[string]int{Extraction: 5, Code: 4, Reasoning: 5, General: 4} {
		if len(held[label]) < least {
			t.Errorf("%s: %d repositories are held out, want %d", label, len(held[label]), least)
		}
		for r := range held[label] {
			if seen[r] {
				t.Errorf("%s is held out and fitted on", r)
			}
		}
	}
}

// TestForms: the examples of every label are made where their passages are, and every name in them stands for something.
func TestForms(t *testing.T) {
	named := formsFile // names are of this file and of the files after it
	for _, file := range []string{"", tasksFile, adviceFile, puzzlesFile} {
		named += "\n" + file
		for _, name := range regexp.MustCompile(`\{=\w+`).FindAllString(named, -1) {
			if !strings.Contains("\n"+named, "\n"+name[1:]+" ") {
				t.Errorf("%s} stands for nothing", name)
			}
		}
	}
	g := &generator{random: rand.New(rand.NewPCG(1, 1)), named: map[string]string{"x": "‹{b|{b|b}}›"}}
	if got, ok := g.expand(`a {=x} {c}\n`); got != "a {b} c\n" || !ok {
		t.Errorf("%q", got)
	}
	prompts, _, err := Load(writeSources(t))
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]int{}
	for _, p := range makeExamples(prompts) {
		if labels[p.Label]++; strings.ContainsAny(p.Text, "‹›") || strings.Contains(p.Text, "{=") {
			t.Errorf("%s: %s", p.Label, p.Text)
		}
	}
	for _, label := range Labels {
		if labels[label] < 100 {
			t.Errorf("%s: %d texts", label, labels[label])
		}
	}
}

// TestWrap: every form of wraps.txt has one place for a prompt, and a prompt in it is whole, whatever characters it has.
func TestWrap(t *testing.T) {
	w := newWrapper()
	const prompt = "a {b|c} @P \\n ‹d›"
	for _, form := range w.forms {
		w.forms = []string{form}
		for range 20 {
			got := w.wrap(prompt)
			if strings.Count(form, "@P") != 1 || strings.Count(got, prompt) != 1 || strings.Contains(got, "{=") {
				t.Errorf("%q: %q", form, got)
			}
		}
	}
}

// TestFit: the same prompts give the same weights, and held-out ones no other.
func TestFit(t *testing.T) {
	prompts, _, err := Load(writeSources(t))
	if err != nil {
		t.Fatal(err)
	}
	weights := Fit(prompts)
	var fitted []Prompt
	for _, p := range prompts {
		if !p.Source.Held {
			fitted = append(fitted, p)
		}
	}
	if _, err := category.Decode(weights); err != nil || !bytes.Equal(weights, Fit(fitted)) {
		t.Errorf("%v, or %d bytes are others without the held-out sources", err, len(weights))
	}
}

// TestCross: the prompts of each repository are judged by the model that is fitted without it, and held-out ones by none.
func TestCross(t *testing.T) {
	prompts, _, err := Load(writeSources(t))
	if err != nil {
		t.Fatal(err)
	}
	held := *prompts[0].Source
	held.Held, held.Repository = true, "a/held"
	prompts = append(prompts[:4], Prompt{&held, "Prove it.", Reasoning}) // of two repositories
	got, err := Cross(prompts, func(string) {})
	if err != nil || len(got) != 2 {
		t.Fatal(err, got)
	}
	for _, s := range got {
		others := slices.DeleteFunc(slices.Clone(prompts), func(p Prompt) bool { return p.Source.Repository == s.From })
		m, err := category.Decode(Fit(others))
		if err != nil {
			t.Fatal(err)
		}
		right := 0
		for _, p := range prompts[:4] {
			if p.Source.Repository == s.From && labelOf[m.Judge([]byte(p.Text)).Category()] == p.Label {
				right++
			}
		}
		if s.All != 2 || s.Right != right {
			t.Errorf("%+v, want %d of 2", s, right)
		}
	}
	if repositories, labels := CrossTables(got); len(repositories.Rows) != 2 || len(labels.Rows) != 1 {
		t.Errorf("%v, %v", repositories.Rows, labels.Rows)
	}
}

func TestRun(t *testing.T) {
	checkouts, texts := writeSources(t)
	r, err := Run(context.Background(), Options{Parts: map[string]bool{"decision": true, "labels": true}, Rounds: 20, Checkouts: checkouts, Texts: texts, Progress: func(string) {}}, Result{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Decisions) != 4 || len(r.Labels) != 11 || len(r.Goals) != 7 {
		t.Errorf("%+v", r)
	}
	for _, s := range r.Labels {
		if s.Label == Code && s.Right != s.All {
			t.Errorf("%+v", s)
		}
	}
	dir := t.TempDir()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	if page, err := os.ReadFile(filepath.Join(dir, "router.md")); err != nil || !bytes.Contains(page, []byte("held-out sources")) {
		t.Errorf("%v: %s", err, page)
	}
}

// TestEncode: a model judges by the weights that it was encoded from, and a file of another size is refused.
func TestEncode(t *testing.T) {
	words := []byte("prove the theorem")
	text := category.Read(words)
	var features []feature
	for i, hash := range slices.Compact(slices.Sorted(slices.Values(text.Features(category.Body)))) {
		features = append(features, feature{hash, [category.Categories]float64{category.Reasoning: 1, category.General: -float64(i)}})
	}
	var ofRanges [category.Ranges][category.Categories]float64
	ofRanges[text.Range(0)][category.Code] = 2
	file := encode(features, ofRanges)
	m, err := category.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	n := float64(len(features))
	value := category.PartValue(category.Body, len(features))
	want := category.SoftMax([category.Categories]float64{category.Code: 2 * category.RangeValue, category.Reasoning: n * value, category.General: -n * (n - 1) / 2 * value})
	for k, share := range m.Judge(words) {
		if math.Abs(share-want[k]) > 0.01 {
			t.Errorf("%d: %v, want %v", k, share, want[k])
		}
	}
	for _, bad := range [][]byte{nil, file[:len(file)-1], append(slices.Clone(file), 0)} {
		if _, err := category.Decode(bad); err == nil {
			t.Errorf("%d bytes are a model", len(bad))
		}
	}
}
