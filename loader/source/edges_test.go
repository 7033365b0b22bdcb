package source_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// TestEdgesOfNames: each bound of a name takes what is just inside and refuses what is just
// outside.
func TestEdgesOfNames(t *testing.T) {
	a := strings.Repeat
	parts := func(n int) string { return strings.TrimSuffix(a("a/", n), "/") }
	for _, x := range [][2]string{
		{a(a("a", 127)+"/", 3) + a("a", 128), a(a("a", 127)+"/", 3) + a("a", 129)}, {a("a", 200), a("a", 201)}, {"x/" + a("a", 200) + "/y", "x/" + a("a", 201) + "/y"}, {parts(8), parts(9)},
		{"a b", "a "}, {"a.b", "a."}, {"a b/c", "a /c"}, {"a.b/c", "a./c"}, {"a/b c", "a/ b"}, {".a", "."}, {"..a", ".."}, {"a/..b", "a/.."}, {"a/.b/c", "a/./c"}, {"a-b", "a\\b"}, {"a-b", "a:b"},
		{"a b", "a\tb"}, {"a~", "a\x7f"}, {"ü", "\u00ad"}, {"ü", "\u0085"}, {"ü", "\xc3"}, {"a", "/a"}, {"a/b", "a//b"}, {"a/b", "a/b/"}, {"a", ""},
		{"conn", "con"}, {"prnt/a", "prn/a"}, {"auxx.json", "AUX.json"}, {"null", "nul"}, {"com", "com0"}, {"coma", "com9"}, {"com10", "COM5.tar.gz"}, {"com-", "com5"}, {"com~", "lpt5"}, {"com/x", "a/lpt0"}, {"lpt", "LPT9.x"}, {"lpta", "lpt1"}, {"xom1", "com1"}, {"a.con", "con.a"},
	} {
		if err := source.CheckName(x[0]); err != nil {
			t.Errorf("%q: %v", x[0], err)
		}
		if err := source.CheckName(x[1]); source.KindOf(err) != source.Refused {
			t.Errorf("%q: %v", x[1], err)
		}
	}
	for _, pattern := range []string{"!x.md", "=x.md"} { // of other meaning
		if (source.Globs{pattern}).Match(pattern) {
			t.Errorf("%s matches itself", pattern)
		}
	}
	for name, leaves := range map[string]bool{
		"/a": true, "..": true, "a/..": true, "../a": true, "a/../b": true, "./a": true, "a/.": true, `a\..\b`: true, `..\a`: true, "a": false, "..a/b..": false, "a//b": false, "a/...": false, "": false, "a /b": false,
	} {
		if source.LeavesFolder(name) != leaves {
			t.Errorf("%q leaves its folder: %v", name, !leaves)
		}
	}
}

// TestKindsOfFiles: which files are staged, which an engine needs, and which are weights.
func TestKindsOfFiles(t *testing.T) {
	const allowed, needed, weights = 1, 2, 4
	for name, want := range map[string]int{
		"model.safetensors": allowed | needed | weights, "X.SafeTensors": allowed | needed | weights, "m.gguf": allowed | needed | weights, "q.tiktoken": allowed | needed,
		"d/m.gguf": allowed | needed | weights, "d/e/m.gguf": allowed | weights, "config.json": allowed | needed, "d/config.json": allowed | needed, "d/e/config.json": allowed,
		"a_config.json": allowed, "config.txt": allowed, "model.safetensors.index.json": allowed | needed, "preprocessor_config.json": allowed | needed, "processor_config.json": allowed | needed,
		"other.json": allowed, "params.json": allowed, "tokenizer.json": allowed | needed, "tokenizer_config.json": allowed | needed, "Tokenizer.txt": allowed | needed, "vocab.txt": allowed | needed, "vocab.json": allowed | needed,
		"merges.txt": allowed | needed, "special_tokens_map.json": allowed | needed, "added_tokens.json": allowed | needed, "adapter_config.json": allowed | needed, "notes.txt": allowed, "chat_template.jinja": allowed,
		"tokenizer.model": allowed | needed, "Tokenizer.Model": allowed | needed, "tokenizer.model.v3": allowed | needed, "tokenizer.model.x": 0, "spiece.model": allowed | needed, "sentencepiece.bpe.model": allowed | needed,
		"source.spm": allowed | needed, "target.spm": allowed | needed, "other.spm": 0, "x.model": 0, "tokenizer.bin": 0, "vocab.pkl": 0, "model.bin": 0, "README.md": 0, "safetensors": 0,
		".config.json": 0, "d/.x/config.json": 0, ".d/config.json": 0, "_thaw/config.json": 0, "_thaw": 0, "x_thaw/config.json": allowed | needed, "d/_thaw/a.json": allowed, "_thawed/config.json": allowed | needed,
	} {
		got := 0
		if source.Allowed(name) {
			got |= allowed
		}
		if source.Needed(name) {
			got |= needed
		}
		if source.Weights(name) {
			got |= weights
		}
		if got != want {
			t.Errorf("%s: %03b, want %03b", name, got, want)
		}
	}
}

// TestSelectOfAnyListing: whatever a listing holds, what is staged of it can be on one disk
// together, is in the listing's order, and what is left out has a reason.
func TestSelectOfAnyListing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	parts := []string{"a", "A", "b.json", "B.JSON", "config.json", "Config.json", "m.gguf", "x.txt", "con", "c:d", " e", "f.", "..", "", "d", "_thaw", ".h", "tokenizer.json", "long" + strings.Repeat("g", 200)}
	globs := []source.Globs{nil, {"*"}, {"*", "*/*"}, {"*.txt", "!a"}, {"a/*", "!*.json"}, {"!x.txt", "!d"}}
	errs, staged, leftOut := 0, 0, 0
	for range 5_000 {
		var files []source.File
		for range 1 + rng.IntN(6) {
			var name []string
			for range 1 + rng.IntN(3) {
				name = append(name, parts[rng.IntN(len(parts))])
			}
			files = append(files, source.File{Name: strings.Join(name, "/"), Size: int64(rng.IntN(3)), Version: fmt.Sprint(len(files))})
		}
		also := globs[rng.IntN(len(globs))]
		before := fmt.Sprint(files)
		got, left, err := source.Select("s", files, also)
		if fmt.Sprint(files) != before {
			t.Fatalf("%v: the listing was changed", before)
		}
		dangerous := slices.ContainsFunc(files, func(f source.File) bool { return also.Includes(f.Name) && source.LeavesFolder(f.Name) })
		if err != nil {
			errs++
			if got != nil || left != nil || !strings.HasPrefix(err.Error(), "s: ") && !dangerous {
				t.Fatalf("%v: %v with %v", before, err, got)
			}
			e, _ := errors.AsType[*source.Error](err)
			needs := slices.ContainsFunc(files, func(f source.File) bool { return also.Needs(f.Name) })
			if e.Kind == source.Refused && !dangerous && !needs {
				t.Fatalf("%v, %v: %v, although no engine needs any", before, also, err)
			}
			continue
		}
		if dangerous {
			t.Fatalf("%v: a name that leaves its folder passes", before)
		}
		at := -1
		lower := map[string]bool{}
		for _, f := range got {
			i := slices.IndexFunc(files, func(o source.File) bool { return o.Version == f.Version })
			if i <= at || files[i].Name != f.Name {
				t.Fatalf("%v: %v is in another order", before, got)
			}
			at = i
			low := strings.ToLower(f.Name)
			if source.CheckName(f.Name) != nil || !also.Includes(f.Name) || lower[low] {
				t.Fatalf("%v, %v: %q is staged", before, also, f.Name)
			}
			lower[low] = true
		}
		for name := range lower {
			for p := path.Dir(name); p != "."; p = path.Dir(p) {
				if lower[p] {
					t.Fatalf("%v: %q is staged beside a file %q", before, name, p)
				}
			}
		}
		staged += len(got)
		leftOut += len(left)
		includes := 0
		for _, f := range files {
			if also.Includes(f.Name) {
				includes++
			}
		}
		for _, l := range left {
			if l.Reason == "" || strings.HasPrefix(l.Reason, "file name") ||
				!slices.ContainsFunc(files, func(f source.File) bool { return f.Name == l.Name }) || also.Needs(l.Name) {
				t.Fatalf("%v, %v: left out is %+v", before, also, l)
			}
		}
		if len(got)+len(left) > includes || len(left) == 0 && len(got) != includes {
			t.Fatalf("%v, %v: %d are staged and %d left out of %d", before, also, len(got), len(left), includes)
		}
		for _, name := range also.Skipped(files) {
			if also.Includes(name) || source.CheckName(name) != nil {
				t.Fatalf("%v, %v: %q is skipped", before, also, name)
			}
		}
	}
	if errs < 100 || staged < 1000 || leftOut < 50 {
		t.Errorf("%d errors, %d staged, %d left out", errs, staged, leftOut)
	}
	// The bounds of a listing.
	many := make([]source.File, 10_001)
	for i := range many {
		many[i] = source.File{Name: fmt.Sprint(i, ".json"), Size: 1}
	}
	if got, _, err := source.Select("s", many[1:], nil); err != nil || len(got) != 10_000 {
		t.Errorf("10,000 files: %d, %v", len(got), err)
	}
	if _, _, err := source.Select("s", many, nil); source.KindOf(err) != source.Refused {
		t.Errorf("10,001 files: %v", err)
	}
	for sizes, want := range map[[2]int64]source.Kind{{1 << 46, 0}: "", {1 << 45, 1 << 45}: "", {1<<46 + 1, 0}: source.Refused, {1 << 45, 1<<45 + 1}: source.Refused, {1, math.MaxInt64}: source.Refused, {0, -1}: source.Refused, {0, 0}: ""} {
		if _, _, err := source.Select("s", []source.File{{Name: "a.json", Size: sizes[0]}, {Name: "b.json", Size: sizes[1]}}, nil); source.KindOf(err) != want {
			t.Errorf("sizes %v: %v", sizes, err)
		}
	}
}

// TestPlanOfOneFile: a location that ends in a file, in one of a set, or in a folder of such a
// name.
func TestPlanOfOneFile(t *testing.T) {
	gone := &source.Error{Kind: source.NotFound}
	for _, x := range []struct {
		key, there string
		want       string // the files, or ! and the error
	}{
		{"p/m.gguf", "p/m.gguf", "m.gguf"}, {"m.gguf", "m.gguf", "m.gguf"}, {"p/m.gguf", "", "!source_not_found"},
		{"p/m-00002-of-00002.gguf", "p/m-00001-of-00002.gguf p/m-00002-of-00002.gguf", "m-00001-of-00002.gguf m-00002-of-00002.gguf"},
		{"p/m-00002-of-00002.gguf", "p/m-00002-of-00002.gguf", "!weights_missing"}, {"p/m-00001-of-00002.gguf", "", "!source_not_found"},
	} {
		plan, err := source.PlanFile("s", x.key, func(key string) (source.File, error) {
			if slices.Contains(strings.Fields(x.there), key) {
				return source.File{Size: int64(len(key)), Ref: key}, nil
			}
			return source.File{}, gone
		})
		var names []string
		for _, f := range plan.Files {
			if names = append(names, f.Name); path.Base(f.Ref) != f.Name || f.Size != int64(len(f.Ref)) {
				t.Errorf("%s: %+v", x.key, f)
			}
		}
		if kind, bad := strings.CutPrefix(x.want, "!"); bad && string(source.KindOf(err)) != kind || !bad && (err != nil ||
			strings.Join(names, " ") != x.want) {
			t.Errorf("%s of %q: %q, %v", x.key, x.there, names, err)
		}
	}
	other := errors.New("no network")
	if _, err := source.PlanFile("s", "m.gguf", func(string) (source.File, error) { return source.File{}, other }); err != other {
		t.Error(err)
	}
	list, file := source.Plan{Files: []source.File{{Name: "listed"}}}, source.Plan{Files: []source.File{{Name: "one"}}}
	large, refused := source.Plan{Files: []source.File{{Name: "one", Size: 1}}}, &source.Error{Kind: source.Refused} // what is empty may mark a folder
	for _, x := range []struct {
		location           string
		listErr, fileErr   error
		want               string
		wantErr            error
		listed, askedAsOne bool
	}{
		{"p/m.gguf", nil, nil, "one", nil, false, true}, {"p/m.safetensors", nil, other, "", other, false, true}, {"p/v1.5", nil, nil, "listed", nil, true, false}, {"p", gone, nil, "", gone, true, true}, {"p/large", gone, nil, "one", nil, true, true},
		{"p/large", refused, nil, "", refused, true, false},
		{"p/m.onnx", gone, nil, "one", nil, true, true}, {"p/m.onnx", &source.Error{Kind: source.Refused}, nil, "one", nil, true, true}, {"p/m.onnx", other, nil, "", other, true, false}, {"p/m.onnx", gone, other, "", gone, true, true},
	} {
		listed, one := false, false
		plan, err := source.PlanFolder(x.location, func() (source.Plan, error) {
			listed = true
			if x.listErr != nil {
				return source.Plan{}, x.listErr
			}
			return list, nil
		}, func() (source.Plan, error) {
			one = true
			if x.fileErr != nil {
				return source.Plan{}, x.fileErr
			}
			if x.location == "p/large" {
				return large, nil
			}
			return file, nil
		})
		got := ""
		if len(plan.Files) > 0 {
			got = plan.Files[0].Name
		}
		if got != x.want || err != x.wantErr || listed != x.listed || one != x.askedAsOne {
			t.Errorf("%+v: %q, %v, listed %v, asked as one %v", x, got, err, listed, one)
		}
	}
}

// TestErrorTexts: what an error says, with and without each of its parts.
func TestErrorTexts(t *testing.T) {
	for want, e := range map[string]*source.Error{
		"is odd": {Detail: "is odd"}, "s: is odd": {Source: "s", Detail: "is odd"}, "f: is odd": {File: "f", Detail: "is odd"}, "s: f: is odd (do so)": {Source: "s", File: "f", Detail: "is odd", Fix: "do so"},
		"s: file does not exist": {Source: "s", Err: os.ErrNotExist}, "is odd: file does not exist (do so)": {Detail: "is odd", Err: os.ErrNotExist, Fix: "do so"},
	} {
		if e.Error() != want {
			t.Errorf("%q, want %q", e.Error(), want)
		}
	}
	e := source.Fail(source.Refused, "is odd", "do so")
	if source.WithFile(source.WithSource(fmt.Errorf("x: %w", e), "s"), "f"); e.Source != "s" || e.File != "f" {
		t.Errorf("%+v", e)
	}
	if source.WithFile(source.WithSource(e, "other"), "other"); e.Source != "s" || e.File != "f" {
		t.Errorf("%+v", e)
	}
	if e.At("a", "b"); e.Error() != "a: b: is odd (do so)" || source.WithSource(nil, "s") != nil ||
		source.WithFile(os.ErrExist, "f") != os.ErrExist {
		t.Error(e)
	}
}
