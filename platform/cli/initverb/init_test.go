package initverb

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/inspect"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/platform/catalog"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/testkit/gguf"
)

// runInit runs the verb on a machine with so many GPUs of a size.
func runInit(t *testing.T, folder string, gpus int, memory functions.Bytes, args ...string) (out, errs string, exit int) {
	t.Helper()
	var o, e bytes.Buffer
	terminal := kit.NewTerminal(nil, &o, &e, func(string) string { return "" })
	cmd := New(Options{
		Terminal: terminal,
		Sources: func() (map[string]loader.Source, func()) {
			return map[string]loader.Source{"file": dir.Source{}}, func() {}
		},
		GPUs: func() (list []functions.GPU, driver string, err error) {
			if gpus < 0 {
				return nil, "", errors.New("no driver")
			}
			for i := range gpus {
				list = append(list, functions.GPU{Index: i, MemoryTotal: memory})
			}
			return list, "driver", nil
		},
		Folder: func() (string, error) { return folder, nil },
	})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	exit = terminal.Report(t.Context(), cmd.ExecuteContext(t.Context()))
	return o.String(), e.String(), exit
}

// write makes the files of a folder below dir.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	shipped = "../../../functions/shipped/tiny"
	// Of a model that ember does not know, with a cache of 256 KiB a token and weights of
	// no size to speak of.
	mistral = `{"architectures":["MistralForCausalLM"],"model_type":"mistral","hidden_size":4096,"num_hidden_layers":64,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"max_position_embeddings":32768,"vocab_size":32000,"torch_dtype":"bfloat16"}`
	lora    = `{"peft_type":"LORA","r":8,"base_model_name_or_path":"org/base"}`
)

// models makes a folder of checkpoints.
func models(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	weights, err := os.ReadFile(filepath.Join(shipped, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(shipped, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	tokenizer, err := os.ReadFile(filepath.Join(shipped, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	w := string(weights)
	write(t, folder, map[string]string{
		"Tiny_1.B/config.json": string(config), "Tiny_1.B/model.safetensors": w, "Tiny_1.B/tokenizer.json": string(tokenizer),
		"large/config.json": mistral, "large/model.safetensors": w,
		"large/lora/Pi rate/adapter_config.json": lora, "large/lora/Pi rate/adapter_model.safetensors": w,
		"lora/adapter_config.json": lora, "lora/adapter_model.safetensors": w,
		"bert/config.json": strings.Replace(mistral, `MistralForCausalLM"],"model_type":"mistral`, `BertModel"],"model_type":"bert`, 1), "bert/model.safetensors": w,
		"odd/config.json": strings.Replace(mistral, "MistralForCausalLM", `New\n# \u2028ForCausalLM`, 1), "odd/model.safetensors": w,
		"both/config.json": string(config), "both/model.safetensors": w,
		"half/config.json": string(config), "half/tokenizer.json": string(tokenizer), "half/model.safetensors": strings.ReplaceAll(w, `"dtype":"BF16"`, `"dtype":"F16" `),
		"pieces/config.json": string(config), "pieces/model.safetensors": w, "pieces/tokenizer.json": strings.Replace(string(tokenizer), `"type": "ByteLevel"`, `"type": "Metaspace"`, -1),
		"code/config.json": strings.Replace(mistral, `{`, `{"auto_map":{"AutoModel":"modeling_x.X"},`, 1), "code/model.safetensors": w,
	})
	for _, name := range []string{"gguf/tiny.gguf", "both/tiny.gguf"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(folder, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := gguf.Write(filepath.Join(folder, name), shipped, "gpt-2"); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// TestInit: each file decodes and says what it should.
func TestInit(t *testing.T) {
	const gib = 1 << 30
	folder := models(t)
	for _, x := range []struct {
		name   string
		gpus   int // of this machine
		memory functions.Bytes
		args   []string
		want   functions.ModelSpec
		has    []string // in the file
		errs   []string // on stderr
	}{
		{name: "embedded", args: []string{"./Tiny_1.B"},
			want: functions.ModelSpec{Engine: functions.EngineEmber, Resources: functions.Resources{Memory: 128 << 20}},
			has:  []string{"name: tiny-1-b}", "KV cache: 8 requests x 2048 tokens, 4 layers x 512 bytes a token (2 KV heads)"}},
		{name: "on processors as asked", args: []string{"Tiny_1.B", "--engine", "vllm", "--gpus", "0", "--name", "mine", "--context", "512", "--concurrency", "2"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--max-model-len", "512"}},
			has:  []string{"name: mine}", "32 bits, which processors without bfloat16", "512 tokens a request; the model takes up to 2048 (max_position_embeddings)"}},
		{name: "no GPU is known", gpus: -1, args: []string{"large"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--max-model-len", "8192"}, Resources: functions.Resources{GPUs: 1},
				Adapters: []functions.Adapter{{Name: "pi-rate", Source: folder + "/large/lora/Pi rate", Rank: 8}}},
			has:  []string{"No GPU is known on this machine: it needs ", "KV cache: 8 requests x 8192 tokens, 64 layers x 4096 bytes a token (8 KV heads)", "16 GiB  KV cache", "adapters: 1 x 1.7 MiB"},
			errs: []string{"no GPU is known on this machine", "--gpu-memory 80Gi plans"}},
		{name: "fits", gpus: 8, memory: 80 * gib, args: []string{"large"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--max-model-len", "8192"}, Resources: functions.Resources{GPUs: 1},
				Adapters: []functions.Adapter{{Name: "pi-rate", Source: folder + "/large/lora/Pi rate", Rank: 8}}},
			errs: []string{"fits: ", "which has 80 GiB; up to --context 32768 would"}},
		{name: "on two", gpus: 8, memory: 16 * gib, args: []string{"large", "--adapter", "other=./lora"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--max-model-len", "8192"}, Resources: functions.Resources{GPUs: 2},
				Adapters: []functions.Adapter{{Name: "pi-rate", Source: folder + "/large/lora/Pi rate", Rank: 8}, {Name: "other", Source: folder + "/lora", Rank: 8}}},
			has:  []string{"Memory of each of 2 GPUs (tensor parallelism)"},
			errs: []string{"on each of 2 GPUs, which have 16 GiB"}},
		{name: "does not fit", gpus: 1, memory: 16 * gib, args: []string{"large"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--max-model-len", "8192"}, Resources: functions.Resources{GPUs: 1},
				Adapters: []functions.Adapter{{Name: "pi-rate", Source: folder + "/large/lora/Pi rate", Rank: 8}}},
			errs: []string{"does not fit: it needs ", "on one GPU, and this machine's have 16 GiB; what would: --gpus 2 (here are 1), or --context 6144"}},
		{name: "other GPUs", gpus: 1, memory: 16 * gib, args: []string{"large", "--gpu-memory", "24Gi"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--max-model-len", "8192"}, Resources: functions.Resources{GPUs: 1},
				Adapters: []functions.Adapter{{Name: "pi-rate", Source: folder + "/large/lora/Pi rate", Rank: 8}}},
			errs: []string{"fits: "}},
		{name: "more GPUs than here", gpus: 1, memory: 80 * gib, args: []string{"large", "--gpus", "4", "--engine", "sglang"},
			want: functions.ModelSpec{Engine: functions.EngineSGLang, Args: []string{"--context-length", "8192"}, Resources: functions.Resources{GPUs: 4}},
			errs: []string{"on each of 4 GPUs, and here are 1", "left out: 1 adapter, which sglang does not serve here"}},
		{name: "GGUF", args: []string{"gguf"},
			want: functions.ModelSpec{Engine: functions.EngineLlamaCpp, Args: []string{"--ctx-size", "16384", "--parallel", "8"}},
			has:  []string{"llama, F32, 1 file of"}},
		{name: "GGUF on a GPU", gpus: 1, memory: 16 * gib, args: []string{"gguf", "--context", "1024"},
			want: functions.ModelSpec{Engine: functions.EngineLlamaCpp, Args: []string{"--ctx-size", "8192", "--parallel", "8", "--n-gpu-layers", "999"}, Resources: functions.Resources{GPUs: 1}}},
		{name: "of both the GGUF", args: []string{"both", "--engine", "llamacpp"},
			want: functions.ModelSpec{Engine: functions.EngineLlamaCpp, Args: []string{"--ctx-size", "16384", "--parallel", "8"}}},
		{name: "embeddings", gpus: 1, memory: 16 * gib, args: []string{"bert"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Serves: []functions.Endpoint{"embeddings"}, Resources: functions.Resources{GPUs: 1}}},
		{name: "F16, which ember does not read", gpus: -1, args: []string{"half"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Resources: functions.Resources{GPUs: 1}},
			has:  []string{"ember does not read these: most weights are of the type F16, not BF16 or F32"}},
		{name: "a tokenizer that ember does not read", gpus: -1, args: []string{"pieces"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Resources: functions.Resources{GPUs: 1}},
			has:  []string{"ember does not read these: tokenizer.json: pre_tokenizer Metaspace is not supported"}},
		{name: "no tokenizer", gpus: -1, args: []string{"large"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--max-model-len", "8192"}, Resources: functions.Resources{GPUs: 1},
				Adapters: []functions.Adapter{{Name: "pi-rate", Source: folder + "/large/lora/Pi rate", Rank: 8}}},
			has: []string{"# No tokenizer is beside the weights"}, errs: []string{"no tokenizer is beside the weights: copy the files"}},
		{name: "code of its own", gpus: -1, args: []string{"code"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--max-model-len", "8192"}, Resources: functions.Resources{GPUs: 1}},
			has:  []string{"# It names code of its own (auto_map in config.json)"}, errs: []string{`args: [--trust-remote-code] and files: ["*.py"] run it`}},
		{name: "a name that would be YAML", gpus: -1, args: []string{"odd"},
			want: functions.ModelSpec{Engine: functions.EngineVLLM, Args: []string{"--max-model-len", "8192"}, Resources: functions.Resources{GPUs: 1}}},
	} {
		t.Run(x.name, func(t *testing.T) {
			out, errs, exit := runInit(t, folder, x.gpus, x.memory, x.args...)
			if exit != 0 {
				t.Fatal(exit, errs)
			}
			docs, err := catalog.Decode("m.yaml", []byte(out))
			if err != nil || len(docs) != 1 || docs[0].Model == nil {
				t.Fatalf("%v\n%s", err, out)
			}
			got := docs[0].Model.Spec
			if got.Engine != x.want.Engine || strings.Join(got.Args, " ") != strings.Join(x.want.Args, " ") ||
				got.Resources.GPUs != x.want.Resources.GPUs || len(got.Adapters) != len(x.want.Adapters) || len(got.Serves) != len(x.want.Serves) {
				t.Errorf("%+v\n%s%s", got, out, errs)
			}
			for i, a := range x.want.Adapters {
				if got.Adapters[i].Name != a.Name || got.Adapters[i].Source != a.Source || got.Adapters[i].Rank != a.Rank {
					t.Errorf("%+v", got.Adapters[i])
				}
			}
			if (got.Resources.GPUMemory > 0) != (got.Resources.GPUs > 0) || got.Resources.Memory == 0 ||
				x.want.Resources.Memory > 0 && got.Resources.Memory != x.want.Resources.Memory {
				t.Errorf("%+v", got.Resources)
			}
			if !filepath.IsAbs(got.Source) {
				t.Errorf("source %s", got.Source)
			}
			for _, w := range x.has {
				if !strings.Contains(out, w) {
					t.Errorf("no %q in\n%s", w, out)
				}
			}
			for _, w := range x.errs {
				if !strings.Contains(errs, w) {
					t.Errorf("no %q in\n%s", w, errs)
				}
			}
		})
	}
}

// TestRefusals: each has its exit code and the way out, and prints nothing on stdout.
func TestRefusals(t *testing.T) {
	folder := models(t)
	for _, x := range []struct {
		args []string
		exit int
		want []string
	}{
		{[]string{}, kit.ExitUsage, []string{"a source is missing"}},
		{[]string{"./nothing"}, kit.ExitNotFound, []string{"there is no such folder"}},
		{[]string{"meta-llama/Llama-3.1-8B"}, kit.ExitNotFound, []string{"there is no such folder", "did you mean hf://meta-llama/Llama-3.1-8B?"}},
		{[]string{"hf://a"}, kit.ExitUsage, []string{"hf"}},
		{[]string{"large", "--engine", "vlm"}, kit.ExitUsage, []string{`"vlm" is no engine`, "did you mean vllm?"}},
		{[]string{"large", "--engine", "command"}, kit.ExitUsage, []string{"a command is your own"}},
		{[]string{"large", "--engine", "ember"}, kit.ExitFailed, []string{"ember cannot serve it: architecture MistralForCausalLM is not supported", "--engine vllm"}},
		{[]string{"Tiny_1.B", "--engine", "ember", "--gpus", "1"}, kit.ExitUsage, []string{"processors only"}},
		{[]string{"large", "--context", "65536"}, kit.ExitUsage, []string{"the model takes at most 32768 tokens (max_position_embeddings)", "--context 32768 or less"}},
		{[]string{"large", "--concurrency", "0"}, kit.ExitUsage, []string{"--concurrency: 0 requests"}},
		{[]string{"large", "--gpus", "2000"}, kit.ExitUsage, []string{"--gpus: 2000", "1024 at most"}},
		{[]string{"large", "--gpus", "0", "--gpu-memory", "1Gi"}, kit.ExitUsage, []string{"--gpus 0 means none"}},
		{[]string{"large", "--gpus", "3"}, kit.ExitUsage, []string{"--gpus 3: its 32 heads cannot be divided so", "--gpus 1, 2, 4, 8, 16, 32"}},
		{[]string{"large", "--name", "A b"}, kit.ExitUsage, []string{"no DNS label"}},
		{[]string{"large", "--adapter", "./lora"}, kit.ExitUsage, []string{"no NAME=SOURCE"}},
		{[]string{"large", "--adapter", "pi-rate=./lora"}, kit.ExitUsage, []string{`two adapters "pi-rate"`}},
		{[]string{"large", "--adapter", "x=./Tiny_1.B"}, kit.ExitFailed, []string{"is no LoRA adapter"}},
		{[]string{"lora"}, kit.ExitFailed, []string{"is a LoRA adapter of org/base", "thaw init hf://org/base --adapter NAME=SOURCE"}},
		{[]string{"both"}, kit.ExitFailed, []string{"two sets of weights", "--engine llamacpp"}},
	} {
		out, errs, exit := runInit(t, folder, 0, 0, x.args...)
		if exit != x.exit || out != "" {
			t.Errorf("%v: exit %d, %q, %s", x.args, exit, out, errs)
		}
		for _, w := range x.want {
			if !strings.Contains(errs, w) {
				t.Errorf("%v: no %q in %s", x.args, w, errs)
			}
		}
	}
}

// TestNamesOfSources: a source is read as text whatever YAML would make of its last part, and
// a revision of the hub is no part of a name.
func TestNamesOfSources(t *testing.T) {
	folder := models(t)
	for name, want := range map[string]string{
		"7": "7", "2024": "2024", "true": "true", "null": "null", "~": "model", "1e3": "1e3", "0x10": "0x10", "on": "on", "007": "007", "1.5": "1-5",
		"No": "no", "y": "y", "0b1": "0b1", "1_000": "1-000", "2024-01-02": "2024-01-02", ".inf": "inf", "nan": "nan", "- a": "a", "a: b": "a-b", "[x]": "x",
		"a #b": "a-b", "&a": "a", "!a": "a", "|": "model", "%a": "a", "@a": "a", "a,b": "a-b", "a}": "a", `a"b`: "a-b", "it's": "it-s", "ü b": "b", "12e03": "12e03",
	} {
		at := filepath.Join(folder, "n", name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(at, os.DirFS(filepath.Join(folder, "large"))); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(at, "lora", "Pi rate"), filepath.Join(at, "lora", name)); err != nil {
			t.Fatal(err)
		}
		out, errs, exit := runInit(t, folder, 0, 0, "./n/"+name)
		docs, err := catalog.Decode("m.yaml", []byte(out))
		if exit != 0 || err != nil || len(docs) != 1 {
			t.Errorf("%q: exit %d, %v\n%s%s", name, exit, err, out, errs)
			continue
		}
		m := docs[0].Model
		if m.Metadata.Name != want || m.Spec.Source != at {
			t.Errorf("%q: name %q, source %q", name, m.Metadata.Name, m.Spec.Source)
		}
		// Hidden folders are not looked at.
		if a := m.Spec.Adapters; name != ".inf" && (len(a) != 1 || a[0].Name != want || a[0].Source != at+"/lora/"+name) {
			t.Errorf("%q: adapters %+v", name, a)
		}
	}
	for location, want := range map[string]string{
		"hf://org/Repo@refs/pr/7": "repo", "hf://org/Repo@feature%2Fx": "repo", "hf://org/Repo@v1": "repo", "hf://org/repo@0123abc/sub/2024": "2024",
		"hf://org/repo@refs/pr/7/a.gguf": "a-gguf", "hf://org/repo": "repo", "hf://org/Repo/sub": "sub",
	} {
		d := draft{checkpoint: &inspect.Checkpoint{Scheme: "hf", Location: location}}
		if got := d.name(); got != want {
			t.Errorf("%s: %s", location, got)
		}
	}
	d := draft{checkpoint: &inspect.Checkpoint{Scheme: "s3", Location: "s3://b/p@v1"}}
	if got := d.name(); got != "p-v1" {
		t.Error(got)
	}
}

// TestTextOfFiles: what a file says of itself stays inside its comment.
func TestTextOfFiles(t *testing.T) {
	folder := models(t)
	at := filepath.Join(folder, "gguf", "tiny.gguf")
	raw, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, bytes.ReplaceAll(raw, []byte("llama"), []byte("l\na:1")), 0o644); err != nil {
		t.Fatal(err)
	}
	out, errs, exit := runInit(t, folder, 0, 0, "./gguf", "--context", "512")
	if exit != 0 || !strings.Contains(out, "(l a:1.context_length)") {
		t.Errorf("exit %d\n%s%s", exit, out, errs)
	}
}

func TestLabel(t *testing.T) {
	for word, want := range map[string]string{
		"Llama-3.1-8B-Instruct": "llama-3-1-8b-instruct", "__x__": "x", "日本": "model", "auto": "model", "": "model",
		strings.Repeat("a", 80): strings.Repeat("a", 63), "a--b..c": "a-b-c",
	} {
		if got := label(word); got != want || !functions.IsLabel(got) {
			t.Errorf("%q: %q", word, got)
		}
	}
}

func TestScalar(t *testing.T) {
	for s, want := range map[string]string{
		"/a/b": "/a/b", "hf://org/m@main": "hf://org/m@main", "az://a/c/p": "az://a/c/p", "/a b": `"/a b"`, "/a#b": `"/a#b"`, "no": `"no"`, "/x: y": `"/x: y"`, "/ü": `"/ü"`,
	} {
		if got := scalar(s); got != want {
			t.Errorf("%s: %s", s, got)
		}
	}
}
