package ember

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/runtime/ember/bpe"
	"github.com/thaw-dev/thaw/runtime/ember/llama"
	"github.com/thaw-dev/thaw/testkit"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
	"github.com/thaw-dev/thaw/testkit/gguf"
)

type llamaJob struct {
	Model    string          `json:"model"`
	Generate []llamaGenerate `json:"generate,omitempty"`
	Tokenize []string        `json:"tokenize,omitempty"`
}

type llamaGenerate struct {
	Prompt []int `json:"prompt"`
	N      int   `json:"n"`
}

type llamaResult struct {
	Generate [][]int `json:"generate"`
	Tokenize [][]int `json:"tokenize"`
}

// llamaCpp runs the jobs through real llama.cpp. THAW_NODE_LLAMA names a folder with
//
//	npm i --omit=optional --ignore-scripts node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1
//
// Without it the test is skipped, and with THAW_REQUIRE=all it fails.
func llamaCpp(t *testing.T, jobs []llamaJob) []llamaResult {
	t.Helper()
	modules := os.Getenv("THAW_NODE_LLAMA")
	jobsFile := filepath.Join(t.TempDir(), "jobs.json")
	b, err := json.Marshal(jobs)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(jobsFile, b, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var log bytes.Buffer
	resultsFile := filepath.Join(t.TempDir(), "results.json")
	cmd := exec.CommandContext(ctx, "node", "testdata/llama.mjs", jobsFile, resultsFile, modules)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("node: %v\n%s", err, log.String())
	}
	var rs []llamaResult
	if b, err = os.ReadFile(resultsFile); err == nil {
		err = json.Unmarshal(b, &rs)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(rs) != len(jobs) {
		t.Fatalf("%d results for %d jobs\n%s", len(rs), len(jobs), log.String())
	}
	return rs
}

func needLlamaCpp(t *testing.T) {
	t.Helper()
	if os.Getenv("THAW_NODE_LLAMA") != "" {
		return
	}
	testkit.Missing(t, "THAW_NODE_LLAMA is not set: no llama.cpp to compare with")
}

// greedy runs the model itself: the prompt in pieces, then one token at a time.
func greedy(t *testing.T, dir string, prompt []int, n int) []int {
	t.Helper()
	c, err := llama.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := llama.Open(dir, c, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	in := []llama.Input{{Cache: m.NewCache(64), Tokens: prompt, Logits: true}}
	var out []int
	for {
		m.Forward(in)
		id := argmax(in[0].Out)
		out = append(out, id)
		if len(out) == n {
			return out
		}
		in[0].Tokens = []int{id}
	}
}

func TestLlamaCppTokens(t *testing.T) {
	needLlamaCpp(t)
	llama3 := map[string]any{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
	with := func(change func(*checkpoint.Shape)) checkpoint.Shape {
		s := shape
		change(&s)
		return s
	}
	cases := []struct {
		name string
		dir  string
	}{
		{"llama, F32", folder(t, with(func(s *checkpoint.Shape) { s.DType = "F32" }))},
		{"llama, BF16 widened", folder(t, shape)},
		{"head of its own, one kv head", folder(t, with(func(s *checkpoint.Shape) { s.Untied, s.KVHeads = true, 1 }))},
		{"head_dim unlike hidden/heads", folder(t, with(func(s *checkpoint.Shape) { s.HeadDim = 32 }))},
		{"llama3 rope", folder(t, with(func(s *checkpoint.Shape) { s.Rope = llama3 }))},
		{"qwen2, biases", folder(t, with(func(s *checkpoint.Shape) { s.Family, s.DType = "qwen2", "F32" }))},
		{"the shipped one", "../../functions/shipped/tiny"},
	}
	const n = 48
	var jobs []llamaJob
	var prompts [][]int
	for i, c := range cases {
		tok, err := bpe.Load(filepath.Join(c.dir, "tokenizer.json"))
		if err != nil {
			t.Fatal(err)
		}
		long := tok.Encode(strings.Repeat(sample, 2), false)
		prompts = [][]int{tok.Encode("<|im_start|>user\nCount to five.<|im_end|>\n<|im_start|>assistant\n", false), {3}, long[:100]}
		out := filepath.Join(t.TempDir(), fmt.Sprintf("%d.gguf", i))
		if err := gguf.Write(out, c.dir, "gpt-2"); err != nil {
			t.Fatal(err)
		}
		j := llamaJob{Model: out}
		for _, p := range prompts {
			j.Generate = append(j.Generate, llamaGenerate{p, n})
		}
		jobs = append(jobs, j)
	}
	results := llamaCpp(t, jobs)
	for i, c := range cases {
		for k, want := range results[i].Generate {
			if got := greedy(t, c.dir, jobs[i].Generate[k].Prompt, n); !slices.Equal(got, want) {
				t.Errorf("%s, prompt %d:\n got %v\nwant %v", c.name, k, got, want)
			}
		}
	}
}

// The same for the shape of SmolLM-135M: sums over 1,536 numbers and a choice among
// 49,152 tokens leave more room to differ.
func TestLlamaCppTokens135M(t *testing.T) {
	needLlamaCpp(t)
	if testing.Short() {
		t.Skip("writes a gigabyte")
	}
	s := checkpoint.Smol
	s.DType = "F32"
	dir := folder(t, s)
	file := filepath.Join(t.TempDir(), "m.gguf")
	if err := gguf.Write(file, dir, "gpt-2"); err != nil {
		t.Fatal(err)
	}
	prompt := []int{300, 301, 17, 999, 20000, 45, 31000}
	want := llamaCpp(t, []llamaJob{{Model: file, Generate: []llamaGenerate{{prompt, 48}}}})[0].Generate[0]
	if got := greedy(t, dir, prompt, 48); !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// hardLines are texts at which tokenizers differ: cases, digits, space of all kinds,
// combined characters, contractions, marks inside text; and seeded mixtures of them.
func hardLines() []string {
	lines := []string{
		"Hello world", " leading", "trailing ", "  two  spaces  ", "\ttabs\tand\nnewlines\r\n\r\nmore\n", "\n\n\n", " \n \n x", "a\u00a0b\u2003c\u3000d",
		"don't DON'T I'LL we'Re 'tis 'S ''s 's't x'y", "1 12 123 1234 12345 3.14159 1,000,000 ½ ² Ⅷ ٣٤٥ 一二三", "price: $5.00!!! ... --- ___ ###", "foo_bar.baz(qux)[0] += 1; // comment",
		"Grüße aus München, naïve café", "日本語のテキスト。漢字とかな", "한국어 텍스트", "Привет, мир! Как дела?", "שלום עולם", "مرحبا بالعالم ١٢٣", "ไทยภาษา", "हिन्दी में", "🙂👍🏽👩‍👩‍👧‍👦🇩🇪", "e\u0301 combining a\u0308",
		"<|im_start|>user\nhi<|im_end|>\n", "a<|im_end|>b <|im_end|> c", "<|im_end", "|im_end|>", "<|endoftext|><|endoftext|>", "\u200bzero\u200dwidth\ufeff", "\u0085next\u2028line\u2029para", "mixed123abc456", "CamelCaseWords and snake_case_words", "http://example.org/path?x=1&y=%20", "\x00\x01\x7f", strings.Repeat("a", 200), strings.Repeat("ab ", 60), strings.Repeat(" ", 50) + "x", strings.Repeat("\n", 20) + "x", strings.Repeat("=", 80), "x" + strings.Repeat(" ", 20), "the quick-brown 'fox' \"jumped\"", "…—–“”‘’", "ﬁ ligature ǅ titlecase ª º", "\u1680ogham \u202fnarrow",
	}
	pieces := []string{" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "a", "B", "word", "The", "model", "'s", "'LL", "'", "\"", "7", "42", "123456", "½", "Ⅷ", "é", "ß", "Ж", "漢", "字", "ก", "ि", "🙂", "👍🏽", ".", ",", "!?", "--", "_", "$", "<|im_end|>", "\u0301", "\u200d", "x1y2", "e's", "\u0660"}
	rng := rand.New(rand.NewPCG(9, 9))
	for range 3000 {
		var b strings.Builder
		for range 1 + rng.IntN(12) {
			b.WriteString(pieces[rng.IntN(len(pieces))])
		}
		lines = append(lines, b.String())
	}
	return lines
}

func TestLlamaCppTokenizer(t *testing.T) {
	needLlamaCpp(t)
	lines := hardLines()
	names := map[bpe.Pattern]string{bpe.GPT2: "gpt-2", bpe.Digits: "smollm", bpe.Llama3: "llama-bpe", bpe.Qwen2: "qwen2"}
	patterns := []bpe.Pattern{bpe.GPT2, bpe.Digits, bpe.Llama3, bpe.Qwen2}
	var jobs []llamaJob
	var toks []*bpe.Tokenizer
	for _, p := range patterns {
		s := shape
		s.Pattern = p
		s.Learned = 600
		dir := t.TempDir()
		if _, err := checkpoint.Folder(dir, s, sample+strings.Join(lines[:60], "\n"), 7); err != nil {
			t.Fatal(err)
		}
		tok, err := bpe.Load(filepath.Join(dir, "tokenizer.json"))
		if err != nil {
			t.Fatal(err)
		}
		if tok.Pattern != p {
			t.Fatalf("pattern %v was read as %v", p, tok.Pattern)
		}
		toks = append(toks, tok)
		out := filepath.Join(dir, "m.gguf")
		if err := gguf.Write(out, dir, names[p]); err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, llamaJob{Model: out, Tokenize: lines})
	}
	for i, r := range llamaCpp(t, jobs) {
		wrong := 0
		for k, want := range r.Tokenize {
			if got := toks[i].Encode(lines[k], false); !slices.Equal(got, want) {
				if wrong++; wrong <= 5 {
					t.Errorf("%v %q:\n got %v %q\nwant %v %q", patterns[i], lines[k], got, parts(toks[i], got), want, parts(toks[i], want))
				}
			}
		}
		t.Logf("%v: %d lines, %d wrong", patterns[i], len(r.Tokenize), wrong)
	}
}

func parts(t *bpe.Tokenizer, ids []int) (out []string) {
	for _, id := range ids {
		out = append(out, string(t.Bytes(id)))
	}
	return out
}
