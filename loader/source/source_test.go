package source_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader/source"
)

func TestCheckName(t *testing.T) {
	for _, good := range []string{"config.json", "a/b/c.safetensors", "model-00001-of-00002.safetensors", "été.json", "a b.txt", "%2e%2e/x.json", "..x", "x..y"} {
		if err := source.CheckName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "/x", "../x", "a/../x", "a/..", "./x", "a//b", "a/", "/", "..", ".", `a\b`, `..\x`, "c:x", "C:/x", "a\x00b", "a\nb", "a\u202eb", "\xff",
		"con", "NUL.txt", "a/com1.json", "lpt9", "x.", "x ", " x", "a./b", strings.Repeat("a/", 20) + "b", strings.Repeat("n", 300), strings.Repeat("nnnnnnnnn/", 60),
	} {
		if err := source.CheckName(bad); source.KindOf(err) != source.Refused {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Whatever name passes is a file strictly below its folder.
func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"config.json", "../x", "a/../../x", "a\x00", "C:\\x", "con", "a/b/c", "..", "%2e%2e/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if source.CheckName(name) != nil {
			return
		}
		if !filepath.IsLocal(filepath.FromSlash(name)) || filepath.Clean(name) != name || name == "." {
			t.Errorf("%q passed", name)
		}
	})
}

func TestAllowed(t *testing.T) {
	for name, want := range map[string]bool{
		"model.safetensors": true, "x.GGUF": true, "config.json": true, "merges.txt": true, "chat_template.jinja": true, "tokenizer.model": true, "tokenizer.model.v3": true, "spiece.model": true, "qwen.tiktoken": true,
		"pytorch_model.bin": false, "x.pt": false, "x.pth": false, "x.ckpt": false, "x.pkl": false, "modeling.py": false, "x.so": false, "x.model": false, "README.md": false, "x": false, "x.zip": false, "x.tar.gz": false,
		".cache/x.json": false, "a/.hidden.json": false, ".gitattributes": false, "../x.json": true, // not hidden but hostile: CheckName's
	} {
		if got := source.Allowed(name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestSelect(t *testing.T) {
	f := func(names ...string) (out []source.File) {
		for _, n := range names {
			out = append(out, source.File{Name: n, Size: 1})
		}
		return out
	}
	got, _, err := source.Select("s", f("a.json", "b.bin", "c.safetensors"), nil)
	if err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range [][]source.File{
		f("a.json", "../b.json"), f("a.json", "a/../../b.json"), f("a.json", "/b.json"),
		f("config.json", "Config.json"), f("config.json", "config.json/tokenizer.json"), f("model.safetensors", "Model.Safetensors"),
		f("a:model.gguf"), f("sub/tokenizer .json", "x/con.safetensors"), f("tokenizer.json."+"json", "vocab\x01.json"),
		{{Name: "a.json", Size: -1}}, {{Name: "a.json", Size: 1 << 50}}, {{Name: "a.json", Size: 1 << 45}, {Name: "b.json", Size: 1 << 45}, {Name: "c.json", Size: 1}},
	} {
		_, _, err := source.Select("s", bad, nil)
		if e, _ := errors.AsType[*source.Error](err); e == nil || e.Kind != source.Refused || e.Source != "s" ||
			!strings.Contains(e.Error(), ".") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// One odd name beside a model does not refuse the model, wherever it stands in the listing.
func TestSelectLeavesOut(t *testing.T) {
	deep := strings.Repeat("a/", 8) + "x.json"
	for _, tc := range []struct {
		names      []string
		also       source.Globs
		kept, left string
	}{
		{[]string{"config.json", "results_2024-01-01T12:00:00.json"}, nil, "config.json", "results_2024-01-01T12:00:00.json"},
		{[]string{"results_2024-01-01T12:00:00.json", "config.json"}, nil, "config.json", "results_2024-01-01T12:00:00.json"},
		{[]string{"A.json", "a.json", "m.gguf"}, nil, "A.json m.gguf", "a.json"},
		{[]string{"Config.JSON2.json", "CONFIG.json", "config.json"}, nil, "Config.JSON2.json CONFIG.json", ""},
		{[]string{"Tokenizer/x.json", "tokenizer", "m.gguf"}, source.Globs{"*"}, "Tokenizer/x.json m.gguf", "tokenizer"},
		{[]string{deep, "m.gguf"}, nil, "m.gguf", deep},
		{[]string{"logs//x.json", "m.gguf", "what?.txt", "a|b.json"}, nil, "m.gguf what?.txt a|b.json", "logs//x.json"},
		{[]string{"a.json", "a.json/b.json", "m.gguf"}, nil, "a.json m.gguf", "a.json/b.json"},
		{[]string{"run/con.txt", "x\xff.json", "end..txt", "m.gguf", "tab\t.txt", " lead.json", `back\slash.json`}, nil, "m.gguf end..txt", "run/con.txt x\xff.json tab\t.txt  lead.json back\\slash.json"},
		{[]string{"nul.py", "m.py", "M.py", "m.gguf"}, source.Globs{"*", "*/*"}, "m.py m.gguf", "nul.py M.py"},
		{[]string{"README:1.md", "m.gguf"}, nil, "m.gguf", ""}, // not staged anyway
		{[]string{"config.json/x.txt", "config.json"}, nil, "config.json", "config.json/x.txt"},
	} {
		var files []source.File
		for _, n := range tc.names {
			files = append(files, source.File{Name: n, Size: 1})
		}
		got, left, err := source.Select("s", files, tc.also)
		var kept, out []string
		for _, f := range got {
			kept = append(kept, f.Name)
		}
		for _, l := range left {
			if out = append(out, l.Name); l.Reason == "" {
				t.Errorf("%q: no reason", l.Name)
			}
		}
		if tc.names[0] == "Config.JSON2.json" {
			if source.KindOf(err) != source.Refused {
				t.Errorf("%q: %v", tc.names, err)
			}
			continue
		}
		slices.Sort(kept)
		want := strings.Fields(tc.kept)
		slices.Sort(want)
		if err != nil || !slices.Equal(kept, want) || strings.Join(out, " ") != tc.left {
			t.Errorf("%q: kept %q, left %q, %v", tc.names, kept, out, err)
		}
	}
}

// An empty file under the name of a folder, as some tools store it, does not drop the folder.
func TestSelectFolderMarkers(t *testing.T) {
	got, left, err := source.Select("s", []source.File{{Name: "data"}, {Name: "data/x.bin", Size: 1}, {Name: "empty.txt"}}, source.Globs{"*", "*/*"})
	if err != nil || len(got) != 2 || got[0].Name != "data/x.bin" || len(left) != 1 || left[0].Name != "data" {
		t.Errorf("%v, left %v, %v", got, left, err)
	}
}

// Of several sets of weights one is staged, or the list of them is the error; what repeats
// weights in another layout is left out, and what the model file excludes.
func TestSelectWeights(t *testing.T) {
	quants := "BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf Q4_K_M/m-Q4_K_M.gguf mmproj-m.gguf config.json"
	sharded := "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json"
	for _, tc := range []struct {
		name, files string
		spec        functions.ModelSpec
		want        string // the files, or ! and words of the error
	}{
		{"one GGUF", "m-Q4.gguf config.json", functions.ModelSpec{Engine: functions.EngineLlamaCpp}, "config.json m-Q4.gguf"},
		{"several without a choice", "m-BF16.gguf m-Q4_K_M.gguf", functions.ModelSpec{Engine: functions.EngineLlamaCpp}, "!2 sets of weights, and the engine loads one: m-BF16.gguf (2 GiB), m-Q4_K_M.gguf (2 GiB)"},
		{"a choice", "m-BF16.gguf m-Q4_K_M.gguf mmproj-m.gguf", functions.ModelSpec{Engine: functions.EngineLlamaCpp, Weights: "*Q4_K_M*"}, "m-Q4_K_M.gguf mmproj-m.gguf"},
		{"a choice of a folder", quants, functions.ModelSpec{Engine: functions.EngineLlamaCpp, Weights: "BF16"}, "BF16/m-BF16-00001-of-00002.gguf BF16/m-BF16-00002-of-00002.gguf config.json mmproj-m.gguf"},
		{"a choice of one in a folder", quants, functions.ModelSpec{Engine: functions.EngineLlamaCpp, Weights: "*Q4_K_M.gguf"}, "Q4_K_M/m-Q4_K_M.gguf config.json mmproj-m.gguf"},
		{"a choice that matches none", quants, functions.ModelSpec{Engine: functions.EngineLlamaCpp, Weights: "*Q8*"}, "!no weights that \"*Q8*\" matches: BF16/m-BF16-00001-of-00002.gguf and 1 more (4 GiB), Q4_K_M/m-Q4_K_M.gguf (2 GiB)"},
		{"the others excluded", "m-BF16.gguf m-Q4_K_M.gguf", functions.ModelSpec{Engine: functions.EngineLlamaCpp, Exclude: []string{"*BF16*"}}, "m-Q4_K_M.gguf"},
		{"a missing middle shard", "m-00001-of-00003.gguf m-00003-of-00003.gguf", functions.ModelSpec{Engine: functions.EngineLlamaCpp}, "!m-00002-of-00003.gguf: is not there"},
		{"a missing shard and no index", "config.json model-00001-of-00003.safetensors model-00002-of-00003.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM}, "!model-00003-of-00003.safetensors: is not there"},
		{"a missing shard of another form", "model.safetensors-00002-of-00002.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM}, "!model.safetensors-00001-of-00002.safetensors: is not there"},
		{"a missing shard of a pipeline", "model_index.json unet/m-00001-of-00002.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM}, "!unet/m-00002-of-00002.safetensors: is not there"},
		{"all shards and no index", "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM}, "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors"},
		{"a missing shard, and an index that is checked", "model-00001-of-00002.safetensors model.safetensors.index.json", functions.ModelSpec{Engine: functions.EngineVLLM}, "model-00001-of-00002.safetensors model.safetensors.index.json"},
		{"a torn checkpoint below a model", "model.safetensors checkpoint-5/model-00001-of-00002.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM}, "checkpoint-5/model-00001-of-00002.safetensors model.safetensors"},
		{"a program's own part of the shards", "model-00001-of-00002.safetensors", functions.ModelSpec{Engine: functions.EngineCommand}, "model-00001-of-00002.safetensors"},
		{"llamacpp beside safetensors", "m.gguf model.safetensors config.json", functions.ModelSpec{Engine: functions.EngineLlamaCpp}, "config.json m.gguf"},
		{"llamacpp of safetensors", "model.safetensors config.json", functions.ModelSpec{Engine: functions.EngineLlamaCpp}, "!no GGUF file"},
		{"the source names a file", "m-BF16.gguf m-Q4_K_M.gguf", functions.ModelSpec{Source: "az://a/b/c/m-Q4_K_M.gguf", Engine: functions.EngineLlamaCpp}, "m-Q4_K_M.gguf"},
		{"a program loads what it likes", "a.gguf b.gguf x/y.bin", functions.ModelSpec{Engine: functions.EngineCommand}, "a.gguf b.gguf x/y.bin"},
		{"consolidated and original", sharded + " consolidated.safetensors params.json original/params.json original/tokenizer.model", functions.ModelSpec{Engine: functions.EngineVLLM}, sharded + " params.json"},
		{"original alone", "config.json original/model.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM}, "config.json original/model.safetensors"},
		{"consolidated shards beside one file", "model.safetensors consolidated-00001-of-00002.safetensors consolidated-00002-of-00002.safetensors", functions.ModelSpec{Engine: functions.EngineSGLang}, "model.safetensors"},
		{"an adapter beside its model", "model.safetensors adapter_model.safetensors adapter_config.json lora/adapter_model.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM}, "adapter_config.json lora/adapter_model.safetensors model.safetensors"},
		{"an adapter alone", "adapter_model.safetensors adapter_config.json", functions.ModelSpec{Engine: functions.EngineVLLM}, "adapter_config.json adapter_model.safetensors"},
		{"a text beside it", "model.safetensors consolidated.json Consolidated.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM}, "consolidated.json model.safetensors"},
		{"an index of shards beside one file", "model.safetensors model-00001-of-00001.safetensors model.safetensors.index.json", functions.ModelSpec{Engine: functions.EngineVLLM}, "model-00001-of-00001.safetensors model.safetensors model.safetensors.index.json"},
		{"another file than the whole one", "other.safetensors consolidated.safetensors model.safetensors.index.json", functions.ModelSpec{Engine: functions.EngineVLLM}, "consolidated.safetensors model.safetensors.index.json other.safetensors"},
		{"no weights", "config.json a.txt", functions.ModelSpec{Engine: functions.EngineLlamaCpp}, "!holds no weights (*.safetensors, *.gguf); 2 other files are there (point source"},
		{"what is there instead", "sha256-abc README.md", functions.ModelSpec{Engine: functions.EngineLlamaCpp}, "!2 other files are there (a GGUF file without its ending"},
		{"consolidated alone", "consolidated.safetensors params.json", functions.ModelSpec{Engine: functions.EngineVLLM}, "consolidated.safetensors params.json"},
		{"consolidated chosen", sharded + " consolidated.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM, Weights: "consolidated*"}, "config.json consolidated.safetensors model.safetensors.index.json"},
		{"consolidated named", "model.safetensors consolidated.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM, Files: []string{"consolidated*"}}, "consolidated.safetensors model.safetensors"},
		{"a stale index", "config.json model.safetensors model.safetensors.index.json", functions.ModelSpec{Engine: functions.EngineVLLM}, "config.json model.safetensors"},
		{"folders of a pipeline", "unet/a.safetensors vae/b.safetensors text_encoder/model.safetensors", functions.ModelSpec{Engine: functions.EngineVLLM}, "text_encoder/model.safetensors unet/a.safetensors vae/b.safetensors"},
		{"folders and files excluded", sharded + " onnx/x.json logs/deep/y.json big.txt", functions.ModelSpec{Engine: functions.EngineVLLM, Exclude: []string{"onnx", "logs", "*.txt"}}, sharded},
		{"an odd name excluded", "model.safetensors C:config.json/config.json", functions.ModelSpec{Engine: functions.EngineVLLM, Exclude: []string{"C:*"}}, "model.safetensors"},
	} {
		var files []source.File
		for _, n := range strings.Fields(tc.files) {
			files = append(files, source.File{Name: n, Size: 2 << 30})
		}
		got, _, err := source.Select("s", files, tc.spec.StagedFiles())
		var names []string
		for _, f := range got {
			names = append(names, f.Name)
		}
		if text, bad := strings.CutPrefix(tc.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), text) || !strings.HasPrefix(err.Error(), "s: ") {
				t.Errorf("%s: %v, %v", tc.name, names, err)
			}
			continue
		}
		want := strings.Fields(tc.want)
		slices.Sort(want)
		if slices.Sort(names); err != nil || !slices.Equal(names, want) {
			t.Errorf("%s: %v, %v", tc.name, names, err)
		}
	}
}

func TestGlobs(t *testing.T) {
	also := source.Globs{"*.py", "a/*.bin", "[", "x[*]"}
	for name, want := range map[string]bool{
		"m.py": true, "a/m.py": false, "a/m.bin": true, "a/b/m.bin": false, "m.bin": false, "x*": true, "xy": false, ".m.py": false, "a/.m.bin": false, "config.json": true,
	} {
		if also.Includes(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
	f := func(names ...string) (out []source.File) {
		for _, n := range names {
			out = append(out, source.File{Name: n, Size: 1})
		}
		return out
	}
	// What is named passes the same checks as what always is staged.
	for _, bad := range [][]source.File{f("a\\b.py"), f("m.py", "M.py"), f("../m.py"), f("a/../m.py"), f("nul.py")} {
		all := source.Globs{"*.py", "*/*.py", "*/*/*.py"}
		if got, _, err := source.Select("s", bad, all); source.KindOf(err) != source.Refused {
			t.Errorf("%v: %v, %v", bad, got, err)
		}
	}
}

// TestSkipped: what a pattern could add, sorted, without what must not be named.
func TestSkipped(t *testing.T) {
	var files []source.File
	for _, n := range []string{"z.py", "config.json", ".h.py", "_thaw/x.py", "a.py", "b:c.py", "d/e.bin", "x.txt", "y.md", "!z.md"} {
		files = append(files, source.File{Name: n})
	}
	for _, x := range []struct {
		also source.Globs
		want string
	}{
		{nil, "!z.md a.py d/e.bin y.md z.py"}, {source.Globs{"a.*"}, "!z.md d/e.bin y.md z.py"}, {source.Globs{"!a.py", "!d"}, "!z.md y.md z.py"}, {source.Globs{"!x.txt", "[!"}, "!z.md a.py d/e.bin y.md z.py"},
	} {
		if got := strings.Join(x.also.Skipped(files), " "); got != x.want {
			t.Errorf("%v: %s, want %s", x.also, got, x.want)
		}
	}
}

func TestError(t *testing.T) {
	err := fmt.Errorf("start: %w",
		&source.Error{Kind: source.Missing, Source: "az://a/c/p", File: "config.json", Detail: "is not there", Fix: "put it there",
			Err: os.ErrNotExist})
	if got := err.Error(); got != "start: az://a/c/p: config.json: is not there: file does not exist (put it there)" {
		t.Error(got)
	}
	if source.KindOf(err) != source.Missing || !errors.Is(err, os.ErrNotExist) || source.KindOf(os.ErrExist) != "" {
		t.Error("kind or chain")
	}
	// What helps against a kind is said once.
	cause := &source.Error{Kind: source.Changed, File: "f", Detail: "is gone since it was listed"}
	twice := &source.Error{Kind: source.Changed, Source: "s", Detail: "changed twice", Err: cause}
	if got := twice.Error(); strings.Count(got, "let the upload finish, then try again") != 1 ||
		!strings.HasPrefix(got, "s: changed twice: f: is gone since it was listed (let") {
		t.Error(got)
	}
	if cause.Fix = "own"; twice.Error() != "s: changed twice: f: is gone since it was listed (own)" {
		t.Error(twice)
	}
}
