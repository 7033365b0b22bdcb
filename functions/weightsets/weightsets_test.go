package weightsets_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions/weightsets"
)

func listing(names string) (out []weightsets.File) {
	for _, n := range strings.Fields(names) {
		out = append(out, weightsets.File{Name: n, Size: 1 << 30})
	}
	return out
}

func names(sets []weightsets.Set) string {
	var out []string
	for _, s := range sets {
		var files []string
		for _, f := range s.Files {
			files = append(files, f.Name)
		}
		text := strings.Join(files, "+")
		if s.Missing != "" {
			text += "!" + s.Missing
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func TestFindAndChoose(t *testing.T) {
	for _, tc := range []struct{ files, pattern, want string }{
		{"m-BF16.gguf m-Q4_K_M.gguf mmproj-f16.gguf config.json", "*.gguf", "m-BF16.gguf m-Q4_K_M.gguf"},
		{"m-BF16.gguf m-Q4_K_M.gguf", "*Q4_K_M*", "m-Q4_K_M.gguf"},
		{"BF16/m-00001-of-00002.gguf BF16/m-00002-of-00002.gguf Q4/m.gguf", "BF16", "BF16/m-00001-of-00002.gguf+BF16/m-00002-of-00002.gguf"},
		{"BF16/m-00001-of-00002.gguf BF16/m-00002-of-00002.gguf Q4/m.gguf", "Q4/*", "Q4/m.gguf"},
		{"m-00003-of-00003.gguf m-00001-of-00003.gguf", "*.gguf", "m-00001-of-00003.gguf+m-00003-of-00003.gguf!m-00002-of-00003.gguf"},
		{"m-00002-of-00002.gguf m-00001-of-00002.gguf n.gguf", "m-00002-of-00002.gguf", "m-00001-of-00002.gguf+m-00002-of-00002.gguf"},
		{"model-00001-of-00002.safetensors model-00002-of-00002.safetensors consolidated.safetensors", "consolidated*", "consolidated.safetensors"},
		{"model-00001-of-00002.safetensors model-00002-of-00002.safetensors consolidated.safetensors", "model-*", "model-00001-of-00002.safetensors+model-00002-of-00002.safetensors"},
		{"model.safetensors m.gguf", "*.safetensors", "model.safetensors"},
		{"model.safetensors m.gguf", "*", "m.gguf model.safetensors"},
		{"m.gguf", "*Q8*", ""},
		{"M.GGUF", "*.GGUF", "M.GGUF"},
		{"m-00001-of-00001.gguf config.json", "*.gguf", "m-00001-of-00001.gguf"},
	} {
		if got := names(weightsets.Choose(weightsets.Find(listing(tc.files)), tc.pattern)); got != tc.want {
			t.Errorf("%s of %s: %q, want %q", tc.pattern, tc.files, got, tc.want)
		}
	}
}

func TestSiblings(t *testing.T) {
	for _, tc := range []struct {
		name string
		want []string
	}{
		{"a/m-00002-of-00003.gguf", []string{"a/m-00001-of-00003.gguf", "a/m-00002-of-00003.gguf", "a/m-00003-of-00003.gguf"}},
		{"m.gguf", []string{"m.gguf"}}, {"m-00004-of-00003.gguf", []string{"m-00004-of-00003.gguf"}}, {"m-1-of-2.gguf", []string{"m-1-of-2.gguf"}},
		{"m-00001-of-99999.gguf", []string{"m-00001-of-99999.gguf"}}, {"-of-.gguf", []string{"-of-.gguf"}}, {"", []string{""}},
	} {
		if got := weightsets.Siblings(tc.name); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
	if got := weightsets.List(
		weightsets.Find(listing(
			"b.gguf a-00001-of-00002.gguf a-00002-of-00002.gguf"))); got != "a-00001-of-00002.gguf and 1 more (2 GiB), b.gguf (1 GiB)" {
		t.Error(got)
	}
}
