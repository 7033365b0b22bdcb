package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/thaw-dev/thaw/testkit"
)

// suite is a part of the tests that a client's authors wrote for a server: they send fixed
// requests and check the types of the answers. deploy/clients/suites has the table of tests
// that this server answers otherwise; each line names its reason.
type suite struct {
	project string   // on PyPI
	table   string   // in deploy/clients/suites
	files   []string // in tests/api_resources
	names   []string // in the files, and what stands for them here, in pairs
	passes  int      // at least so many tests
}

// run runs the suite against the server at base.
func (s suite) run(t *testing.T, base string) {
	t.Helper()
	where := os.Getenv("THAW_PYTHON_SUITES")
	if where == "" {
		testkit.Missing(t, "THAW_PYTHON_SUITES", `is not set: eval "$(.ci/components)" sets it`)
	}
	found, err := filepath.Glob(filepath.Join(where, "sources", s.project+"-*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the tests of %s: %q %v", s.project, found, err)
	}
	dir := t.TempDir()
	settings, err := os.ReadFile(filepath.Join(found[0], "pyproject.toml"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "pyproject.toml"), settings, 0o600)
	}
	if err == nil {
		err = os.CopyFS(filepath.Join(dir, "tests"), os.DirFS(filepath.Join(found[0], "tests")))
	}
	if err != nil {
		t.Fatal(err)
	}
	ours, err := filepath.Abs(filepath.Join("..", "..", "deploy", "clients", "suites"))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-m", "pytest", "-q", "--tb=short", "-rfE", "-p", "no:cacheprovider", "-p", "thaw_suite", "-o", "addopts="}
	if s.project == "anthropic" {
		args = append(args, "-p", "tests._alias_httpx")
	}
	rename := strings.NewReplacer(s.names...)
	for _, f := range s.files {
		path := filepath.Join(dir, "tests", "api_resources", f)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(rename.Replace(string(b))), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, filepath.Join("tests", "api_resources", f))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(where, "bin", "python"), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TEST_API_BASE_URL="+base, "THAW_DEVIATIONS="+filepath.Join(ours, s.table),
		"PYTHONPATH="+dir+string(os.PathListSeparator)+ours, "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	passed := regexp.MustCompile(`(\d+) passed`).FindSubmatch(out)
	if passed == nil {
		t.Fatalf("%s", out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if n, _ := strconv.Atoi(string(passed[1])); n < s.passes {
		t.Errorf("%d tests pass, want %d: %s", n, s.passes, lines[len(lines)-1])
	}
	t.Logf("%s: %s", s.project, lines[len(lines)-1])
}

// TestSuiteOfOpenAI runs the tests of the official client for Python whose endpoints ember and
// the server itself have.
func TestSuiteOfOpenAI(t *testing.T) {
	files := map[string]string{}
	for _, name := range []string{"gpt-6-astra", "gpt-35-turbo-instruct", "text-embedding-3-small"} {
		files[name+".yaml"] = tiny(t, name, "resources: {memory: 64Mi}\nscale: {idle: 1h}\n")
	}
	p := start(t, files)
	c := openai.NewClient(option.WithBaseURL(p.url+"/v1"), option.WithAPIKey("none"))
	file, err := c.Files.New(t.Context(), openai.FileNewParams{Purpose: openai.FilePurposeBatch,
		File: openai.File(strings.NewReader(batchLines("s", 1, "gpt-6-astra")), "lines.jsonl", "application/jsonl")})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := c.Batches.New(t.Context(), openai.BatchNewParams{InputFileID: file.ID,
		Endpoint: openai.BatchNewParamsEndpointV1ChatCompletions, CompletionWindow: openai.BatchNewParamsCompletionWindow24h})
	if err != nil {
		t.Fatal(err)
	}
	suite{
		project: "openai", table: "openai.tsv", passes: 200,
		files: []string{"chat/test_completions.py", "test_completions.py", "test_embeddings.py", "test_models.py", "test_files.py",
			"test_batches.py"},
		names: []string{"gpt-3.5-turbo-instruct", "gpt-35-turbo-instruct", `"file_id"`, strconv.Quote(file.ID),
			`"input_file_id"`, strconv.Quote(file.ID), `"batch_id"`, strconv.Quote(batch.ID)},
	}.run(t, p.url+"/v1")
}

// TestSuitesVLLM runs the tests of the official clients whose endpoints a real vLLM has: those of
// Anthropic's client, and OpenAI's responses. One engine serves them by the names that they send.
func TestSuitesVLLM(t *testing.T) {
	files := map[string]string{"suite.yaml": modelFile("suite", "  source: "+realVLLM(t)+`
  engine: vllm
  args: [--dtype, float32, --enforce-eager, --max-model-len, "2048", --max-num-seqs, "16", --kv-cache-memory-bytes, "33554432",
    --enable-auto-tool-choice, --tool-call-parser, hermes]
  env: {TORCHDYNAMO_DISABLE: "1", VLLM_TARGET_DEVICE: cpu}
  resources: {memory: 1000Mi}
  scale: {idle: 1h}
`)}
	for _, name := range []string{"claude-opus-5-5", "claude-mythos-preview", "gpt-6-astra"} {
		files[name+".yaml"] = "apiVersion: thaw.dev/v1\nkind: Router\nmetadata: {name: " + name + "}\n" +
			"spec:\n  rules: [{name: all, to: [suite]}]\n"
	}
	p := start(t, files)
	suite{
		project: "anthropic", table: "anthropic.tsv", passes: 200,
		files: []string{"test_messages.py", "test_models.py", "beta/test_messages.py", "beta/test_models.py"},
		names: []string{`"model_id"`, `"suite"`, "max_tokens=1024", "max_tokens=4"},
	}.run(t, p.url)
	const more = `model="gpt-6-astra", input="hi", max_output_tokens=4` // they send none of it
	suite{
		project: "openai", table: "openai-vllm.tsv", passes: 40, files: []string{"test_responses.py"},
		names: []string{"responses.create()", "responses.create(" + more + ")",
			"with_raw_response.create()", "with_raw_response.create(" + more + ")",
			"with_streaming_response.create()", "with_streaming_response.create(" + more + ")",
			"create(\n            stream=True,\n        )", "create(" + more + ", stream=True)"},
	}.run(t, p.url+"/v1")
}
