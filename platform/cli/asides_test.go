package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/activator/httpserver"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// An answer without text is not nothing: reasoning, calls of tools and refusals are shown.
func TestRunWithoutText(t *testing.T) {
	chunk := func(delta string) string { return `data: {"choices":[{"delta":` + delta + `}]}` + "\n\n" }
	const end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	s := start(t)
	for _, tc := range []struct {
		name, stream, out, errs string
		exit                    int
	}{
		{"reasoning alone", chunk(`{"reasoning_content":"Hm"}`) + chunk(`{"reasoning":"m."}`), "", "4 bytes of reasoning alone", 0},
		{"reasoning, then text", chunk(`{"reasoning_content":"Hm."}`) + chunk(`{"content":"Ice."}`), "Ice.\n", "", 0},
		{"tools", chunk(`{"tool_calls":[{"index":0,"function":{"name":"look","arguments":""}}]}`) + chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}]}`) +
			chunk(`{"tool_calls":[{"index":1,"function":{"name":"go","arguments":"{}"}},{"index":0,"function":{"arguments":"1}"}}]}`), "look({\"a\":1})\ngo({})\n", "", 0},
		{"text and a tool", chunk(`{"content":"I look."}`) + chunk(`{"tool_calls":[{"index":0,"function":{"name":"look","arguments":"{}"}}]}`), "I look.\nlook({})\n", "", 0},
		{"a refusal", chunk(`{"refusal":"I will "}`) + chunk(`{"refusal":"not."}`), "", "the model refused: I will not.", kit.ExitFailed},
		{"null everywhere", chunk(`{"content":null,"reasoning_content":null,"refusal":null,"tool_calls":null}`) + chunk(`{"content":"x"}`), "x\n", "", 0},
	} {
		s.chat = func(_ *httpserver.Request, res *httpserver.Response) {
			res.Set("content-type", "text/event-stream")
			res.Stream, res.Length = io.NopCloser(strings.NewReader(tc.stream+end)), -1
		}
		out, errs, exit := s.thaw(t, "", "run", "tiny", "x")
		if out != tc.out || exit != tc.exit || !strings.Contains(errs, tc.errs) || tc.errs == "" && errs != "" {
			t.Errorf("%s: %d, %q, %q", tc.name, exit, out, errs)
		}
	}
}

// - is standard input, as a file and as a prompt; what is deployed twice is unchanged.
func TestStdin(t *testing.T) {
	s := start(t)
	text := strings.Replace(aModel, "name: tiny", "name: piped", 1)
	if out, errs, exit := s.thaw(t, text, "check", "-"); exit != 0 || !strings.Contains(out, "default/piped") {
		t.Errorf("%d, %q, %q", exit, out, errs)
	}
	if _, errs, exit := s.thaw(t, "kind: Model\nspec: {sauce: x}\n", "check", "-"); exit != kit.ExitFailed ||
		!strings.Contains(errs, "stdin:2:") {
		t.Errorf("%d, %q", exit, errs)
	}
	for i, want := range []string{"default/piped created\n", "default/piped unchanged\n"} {
		if out, errs, exit := s.thaw(t, text, "deploy", "-f", "-"); exit != 0 || out != want {
			t.Errorf("%d: %d, %q, %q", i, exit, out, errs)
		}
	}
	if out, _, exit := s.thaw(t, text, "deploy", "-f", "-", "--dry-run"); exit != 0 || out != "default/piped would be unchanged\n" {
		t.Errorf("%d, %q", exit, out)
	}
	file := filepath.Join(t.TempDir(), "m.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(text, "spec:", "spec:\n  scale: {max: 3}", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errs, exit := s.thaw(t, "", "deploy", "-f", file); exit != 0 || out != "default/piped changed\n" {
		t.Errorf("%d, %q, %q", exit, out, errs)
	}
	if _, errs, exit := s.thaw(t, text, "check", "-", "-"); exit != kit.ExitUsage || !strings.Contains(errs, "once") {
		t.Errorf("%d, %q", exit, errs)
	}
	var body string
	s.chat = func(req *httpserver.Request, res *httpserver.Response) {
		body = string(req.Body)
		res.Set("content-type", "text/event-stream")
		res.Stream, res.Length = io.NopCloser(strings.NewReader(answered)), -1
	}
	if _, errs, exit := s.thaw(t, "from a pipe\n", "run", "tiny", "-"); exit != 0 || !strings.Contains(body, `"from a pipe"`) {
		t.Errorf("%d, %q, %s", exit, errs, body)
	}
}

const aModel = `apiVersion: thaw.dev/v1
kind: Model
metadata: {name: tiny}
spec:
  source: az://account/container/model
  engine: vllm
  resources: {gpus: 1, gpuMemory: 1Gi}
`

// A file without an object is not good: check says so, and other files beside it count.
func TestCheckEmpty(t *testing.T) {
	s := start(t)
	dir := t.TempDir()
	empty, comments, good := filepath.Join(dir, "empty.yaml"), filepath.Join(dir, "comments.yaml"), filepath.Join(dir, "good.yaml")
	for path, text := range map[string]string{empty: "", comments: "# nothing yet\n---\n", good: aModel} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{empty, comments} {
		if out, errs, exit := s.thaw(t, "", "check", path); exit != kit.ExitFailed || out != "" ||
			!strings.Contains(errs, path+": the file has no object") || strings.Contains(errs, "good") {
			t.Errorf("%s: %d, %q, %q", path, exit, out, errs)
		}
	}
	if out, errs, exit := s.thaw(t, "", "check", "-"); exit != kit.ExitFailed || out != "" ||
		!strings.Contains(errs, "stdin: the file has no object") {
		t.Errorf("%d, %q, %q", exit, out, errs)
	}
	if out, errs, exit := s.thaw(t, "", "check", "-o", "json", empty); exit != kit.ExitFailed ||
		!strings.Contains(out, "the file has no object") || !strings.Contains(errs, "1 problems") {
		t.Errorf("%d, %q, %q", exit, out, errs)
	}
	if out, errs, exit := s.thaw(t, "", "check", dir); exit != 0 || !strings.Contains(out, "model default/tiny") ||
		!strings.Contains(errs, "empty.yaml: warning: the file has no object") || !strings.Contains(errs, "1 good") {
		t.Errorf("%d, %q, %q", exit, out, errs)
	}
}

// TestCheckGPUs: a number of GPUs that the heads of a checkpoint in a folder cannot be divided
// among is a problem of the file.
func TestCheckGPUs(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"config.json":       `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":4096,"num_hidden_layers":2,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"max_position_embeddings":4096,"vocab_size":32000,"torch_dtype":"bfloat16"}`,
		"model.safetensors": "\x02\x00\x00\x00\x00\x00\x00\x00{}",
		"m3.yaml":           strings.NewReplacer("az://account/container/model", "./", "gpus: 1", "gpus: 3").Replace(aModel),
		"m4.yaml":           strings.NewReplacer("az://account/container/model", "./", "gpus: 1", "gpus: 4").Replace(aModel),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := Programs{Sources: func() (map[string]loader.Source, func()) {
		return map[string]loader.Source{"file": dir.Source{}}, func() {}
	}}
	_, errs, exit := runCLI(t, p, nil, "check", filepath.Join(folder, "m3.yaml"))
	if exit != kit.ExitFailed || !strings.Contains(errs,
		"spec.resources.gpus: the model's 32 attention heads cannot be divided among 3 GPUs (gpus: 1, 2, 4, 8, 16, 32)") {
		t.Errorf("exit %d, %s", exit, errs)
	}
	if _, errs, exit := runCLI(t, p, nil, "check", filepath.Join(folder, "m4.yaml")); exit != 0 {
		t.Errorf("exit %d, %s", exit, errs)
	}
}

// TestUpperCaseExtension: a folder's .YAML files count as its .yaml files do.
func TestUpperCaseExtension(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "M.YML"), []byte(aModel), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errs, exit := runCLI(t, Programs{}, nil, "check", folder); exit != 0 || !strings.Contains(errs, "1 good") {
		t.Errorf("exit %d, %s%s", exit, out, errs)
	}
}

// TestLinkWithoutItsFile: a file of a folder that cannot be read is told with the other problems.
func TestLinkWithoutItsFile(t *testing.T) {
	folder := t.TempDir()
	if err := os.Symlink("nowhere", filepath.Join(folder, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "b.yaml"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs, exit := runCLI(t, Programs{}, nil, "check", folder); exit == 0 || !strings.Contains(errs, "b.yaml:1:1: the text") ||
		!strings.Contains(errs, "a.yaml: cannot be read: no such file or directory") {
		t.Errorf("exit %d, %s", exit, errs)
	}
}

// TestJSONInFolder: a .json file of a function counts, others do not.
func TestJSONInFolder(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{"m.yaml": aModel, "n.json": `{"apiVersion":"thaw.dev/v1","kind":"Model","metadata":{"name":"n"},` +
		`"spec":{"source":"az://account/container/n","engine":"vllm"}}`, "config.json": `{"model_type":"llama"}`} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(folder, "d.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, errs, exit := runCLI(t, Programs{}, nil, "check", folder); exit != 0 || !strings.Contains(errs, "2 good") {
		t.Errorf("exit %d, %s%s", exit, out, errs)
	}
}

// TestCheckMissingFolder: a source that is not on this machine is a warning.
func TestCheckMissingFolder(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "m.yaml")
	text := strings.Replace(aModel, "az://account/container/model", "Org/Repo", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, exit := runCLI(t, Programs{}, nil, "check", file)
	if exit != 0 || !strings.Contains(errs, "m.yaml:1: warning: spec.source: "+filepath.Join(folder, "Org/Repo")+" is not on this machine") ||
		!strings.Contains(errs, "a repository of Hugging Face is hf://ORG/REPO") {
		t.Errorf("exit %d, %s", exit, errs)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(text, "Org/Repo", `'.\w'`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, _ = runCLI(t, Programs{}, nil, "check", file)
	if !strings.Contains(errs, "(a backslash is part of the name here: leave it out)") {
		t.Error(errs)
	}
}

// TestCheckFolderOfAnotherName: a folder whose name differs in capitals is named.
func TestCheckFolderOfAnotherName(t *testing.T) {
	folder := t.TempDir()
	file, there := filepath.Join(folder, "m.yaml"), filepath.Join(folder, "Mode\u0301le")
	if err := os.Mkdir(there, 0o700); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(aModel, "az://account/container/model", "./mod\u00e8le", 1)
	if err := os.WriteFile(file, []byte(strings.Replace(text, "\u00e8", "\u00e9", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, _ := runCLI(t, Programs{}, nil, "check", file)
	if want := fmt.Sprintf("there is %q, whose name is written otherwise", there); !strings.Contains(errs, want) {
		t.Error(errs)
	}
}

// A kind that no event has is answered with the kinds that events have.
func TestEventKinds(t *testing.T) {
	s := start(t)
	out, errs, exit := s.thaw(t, "", "events", "--kind", "nope")
	if exit != 0 || !strings.Contains(errs, `no event is called "nope"; those that are remembered are called node_joined, ready, start`) || strings.Contains(errs, "did you mean") {
		t.Errorf("%d, %q, %q", exit, out, errs)
	}
	if _, errs, exit := s.thaw(t, "", "events", "--kind", "starts"); exit != 0 || !strings.Contains(errs, "did you mean start?") {
		t.Errorf("%d, %q", exit, errs)
	}
	for _, args := range [][]string{{"events", "--kind", "ready"}, {"events", "tiny", "--kind", "ready"}} { // the second has none
		if _, errs, exit := s.thaw(t, "", args...); exit != 0 || strings.Contains(errs, "is called") {
			t.Errorf("%q: %d, %q", args, exit, errs)
		}
	}
}
