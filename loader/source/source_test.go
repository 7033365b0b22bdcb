package source_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	got, err := source.Select("s", f("a.json", "b.bin", "c.safetensors"), nil)
	if err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range [][]source.File{
		f("a.json", "../b.json"), f("a.json", "A.json"), f("a.json", "a.json/b.json"),
		{{Name: "a.json", Size: -1}}, {{Name: "a.json", Size: 1 << 50}}, {{Name: "a.json", Size: 1 << 45}, {Name: "b.json", Size: 1 << 45}, {Name: "c.json", Size: 1}},
	} {
		if _, err := source.Select("s", bad, nil); source.KindOf(err) != source.Refused {
			t.Errorf("%v: %v", bad, err)
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
	for _, bad := range [][]source.File{f("a\\b.py"), f("m.py", "M.py"), f("a.bin.", "a.bin"), f("../m.py"), f("a/../m.py"), f("nul.py")} {
		all := source.Globs{"*", "*/*", "*/*/*"}
		if got, err := source.Select("s", bad, all); source.KindOf(err) != source.Refused {
			t.Errorf("%v: %v, %v", bad, got, err)
		}
	}
}

func TestError(t *testing.T) {
	err := fmt.Errorf("start: %w", &source.Error{Kind: source.Missing, Source: "az://a/c/p", File: "config.json", Detail: "is not there", Fix: "put it there", Err: os.ErrNotExist})
	if got := err.Error(); got != "start: az://a/c/p: config.json: is not there: file does not exist (put it there)" {
		t.Error(got)
	}
	if source.KindOf(err) != source.Missing || !errors.Is(err, os.ErrNotExist) || source.KindOf(os.ErrExist) != "" {
		t.Error("kind or chain")
	}
}
