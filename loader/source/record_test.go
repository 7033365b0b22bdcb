package source_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

var update = flag.Bool("update", false, "write the records of testdata anew: read what changed in them")

// listings are such as sources have; ~ before a name is an empty file, sizes are 1 elsewhere.
var listings = []string{
	"config.json tokenizer.json model.safetensors README.md",
	"config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json",
	"config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors",
	"config.json model-00002-of-00002.safetensors",
	"config.json model-00002-of-00002.safetensors model.safetensors",
	"config.json model-00002-of-00002.safetensors model.safetensors.index.json notes.json",
	"config.json model.safetensors.index.json model-00002-of-00002.safetensors a.json",
	"config.json model.safetensors model.safetensors.index.json",
	"config.json model.safetensors model-00001-of-00001.safetensors model.safetensors.index.json",
	"config.json consolidated.safetensors model.safetensors",
	"config.json consolidated.safetensors other.safetensors",
	"config.json consolidated.00.safetensors model-00001-of-00001.safetensors",
	"config.json consolidated.safetensors",
	"config.json original/model.safetensors original/params.json model.safetensors",
	"config.json original/model.safetensors original/params.json",
	"config.json original/model.safetensors original/params.json sub/model.safetensors",
	"config.json unet/model-00002-of-00002.safetensors",
	"config.json unet/model-00002-of-00002.safetensors model.safetensors",
	"config.json unet/model-00002-of-00002.safetensors unet/model.safetensors.index.json",
	"a/model.safetensors a/model.safetensors.index.json b/model-00001-of-00001.safetensors b/model.safetensors.index.json",
	"a-Q4_K_M.gguf a-Q8_0.gguf config.json", "a-Q4_K_M.gguf", "a-Q4_K_M-00002-of-00002.gguf", "a-Q4_K_M-00002-of-00002.gguf b-Q8_0.gguf", "a/m-Q4_K_M.gguf b/m-Q4_K_M.gguf",
	"x/m.gguf m.gguf", "=none config.json =m.gguf", "model.safetensors m-Q4_K_M.gguf", "m-00001-of-00003.gguf m-00003-of-00003.gguf",
	"config.json Config.json", "config.json ~Config.json", "~a a/config.json", "a.json a.json/config.json", "a.json ~a.json/b.json", "~a.json a.json/b.json c.json", "a.json/d/b.json a.json",
	"b.json B.json c.json", "~b.json B.json", "notes.txt NOTES.txt other.txt",
	"1.json 2.json 3.json 4.json 5.json 6.json 7.json 8.json 9.json A.json B.json C.json D.json a.json b.json c.json d.json",
	"d/1.json D/2.json d/3.json", manyTwins(), "x.py sub/y.py .hidden/z.py _thaw/c.py", "x.bin a/x.bin a/b/x.bin",
	"con config.json", "con.json config.json", "a:b.json config.json", "a:b.txt config.json", "../config.json", "a/../b.txt", "/config.json", "./x.md config.json", "sub/./x.json",
	"model.part config.json", "model.safetensors.incomplete", "MODEL.ZIP", "m.tar.gz config.json", "m.nemo", "m.onnx config.json", "m.engine", "sha256-0123", "ggml-model.bin", "ggml-model.txt", "SHA256-x", "m.7z m.part",
	"m.crdownload", "m.aria2", "m.download", "m.tmp", "m.tar", "m.tgz", "m.zst", "m.xz", "m.llamafile", "m.mlmodel", "m.tflite", "README.md", "",
	"m.h5", "m.msgpack config.json", "m.npz", "mmproj-F16.gguf config.json", "models--o--r/snapshots/0123/config.json", "models--o--r/refs/main", "x/snapshots/0123/config.json",
	"m.gguf.part2 m.gguf.part10 m.gguf.part1 n.gguf.part1", "m.gguf.ab m.gguf.aa", "m.safetensors-split-b m.safetensors-split-a", "m.gguf.002 m.gguf.001 m.gguf.0003", "m'x.gguf.part1 m'x.gguf.part2", manyParts(20), manyParts(21),
	"m.gguf-part-aof2 m.gguf-part-bof2", "b.txt B.txt b.TXT", "a.json a.json/x/c.json a.json/x/d.json a.json/x", "config.json model.safetensors original/model.safetensors original/params.json",
	"consolidated.safetensors original/model.safetensors original/params.json",
}

// manyTwins is a listing in which each name comes twice, with files of each importance between.
func manyTwins() string {
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprintf("tokenizer%d.txt x%d.json ~y%d.txt X%d.json ~Y%d.txt", i, i, i, i, i))
	}
	return strings.Join(names, " ")
}

// manyParts is a listing of a file in so many parts.
func manyParts(n int) string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("m.gguf.part%d", n-i))
	}
	return strings.Join(names, " ")
}

var selections = []source.Globs{
	nil, {"*"}, {"*.py"}, {"*/*"}, {"=*"}, {"=*Q4_K_M*"}, {"=*.gguf"}, {"=*.safetensors"}, {"=none"}, {"=*", "!*Q8*"}, {"=*", "!b"}, {"!original"}, {"!a"}, {"!*.json"}, {"a.json"}, {"consolidated*.safetensors"},
	{"model.safetensors.index.json"}, {"model-0000*"}, {"x.bin", "a/*.bin"}, {"!*/*"}, {"=m.gguf"}, {"=a/*"}, {"=x/m.gguf"},
}

// TestRecordOfSelections: what is staged of each listing, what is left out and why, and what a
// pattern could add, for each choice of files.
func TestRecordOfSelections(t *testing.T) {
	var out strings.Builder
	for _, listing := range listings {
		fmt.Fprintf(&out, "%s\n", listing)
		var files []source.File
		for i, name := range strings.Fields(listing) {
			name, empty := strings.CutPrefix(name, "~")
			files = append(files, source.File{Name: name, Size: 1, Version: fmt.Sprint(i)})
			if empty {
				files[i].Size = 0
			}
		}
		fmt.Fprintf(&out, "    where there are no weights: %s\n", source.WithoutWeights(source.Names(files), "-"))
		before := ""
		for _, also := range selections {
			got, left, err := source.Select("s", files, also)
			line := "\t" + strings.Join(source.Names(got), " ")
			if err != nil {
				line = fmt.Sprintf("\t%s %v", source.KindOf(err), err)
			}
			for _, l := range left {
				line += fmt.Sprintf("\n\t\tleft %q: %s", l.Name, l.Reason)
			}
			if narrow, err := also.Narrow(files); err != nil && line[1:] != string(source.KindOf(err))+" s: "+err.Error() {
				line += fmt.Sprintf("\n\t\tnarrowed: %v", err)
			} else if n := strings.Join(source.Names(narrow), " "); err == nil && line != "\t"+n {
				line += "\n\t\tnarrowed: " + n
			}
			if skipped := also.Skipped(files); len(skipped) > 0 {
				line += "\n\t\tskipped " + strings.Join(skipped, " ")
			}
			if line != before {
				fmt.Fprintf(&out, "    %q\n%s\n", also, line)
			}
			before = line
		}
	}
	file := filepath.Join("testdata", "selections.txt")
	if *update {
		if err := errors.Join(os.MkdirAll("testdata", 0o777), os.WriteFile(file, []byte(out.String()), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(string(b), "\n")
	got := strings.Split(out.String(), "\n")
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || got[i] != want[i] {
			t.Fatalf("line %d of the record:\n%q\nwant\n%q", i+1, got[i:min(i+3, len(got))], want[i:min(i+3, len(want))])
		}
	}
}

// TestBlankBehindAName: weights whose name ends with a blank are named, for no listing shows it.
func TestBlankBehindAName(t *testing.T) {
	got := source.WithoutWeights([]string{"config.json", "sub/model.safetensors "}, "-")
	if got != `rename "sub/model.safetensors ", whose name ends with a blank` {
		t.Error(got)
	}
}
