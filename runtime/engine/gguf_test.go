package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

func TestFindGGUF(t *testing.T) {
	for _, tc := range []struct {
		files string
		spec  functions.ModelSpec
		want  string // a file, or ! and words of the error
	}{
		{"m.gguf", functions.ModelSpec{}, "m.gguf"},
		{"mmproj-m.gguf m.GGUF", functions.ModelSpec{}, "m.GGUF"},
		{"m-BF16.gguf m-Q4.gguf", functions.ModelSpec{}, "!2 sets of weights: m-BF16.gguf (1 B), m-Q4.gguf (1 B)"},
		{"m-BF16.gguf m-Q4.gguf", functions.ModelSpec{Weights: "*Q4*"}, "m-Q4.gguf"},
		{"m-BF16.gguf m-Q4.gguf", functions.ModelSpec{Source: "./m-Q4.gguf"}, "m-Q4.gguf"},
		{"m-BF16.gguf m-Q4.gguf", functions.ModelSpec{Weights: "*Q8*"}, "!matches none"},
		{"Q4/m-00001-of-00002.gguf Q4/m-00002-of-00002.gguf", functions.ModelSpec{}, "Q4/m-00001-of-00002.gguf"},
		{"Q4/m.gguf BF16/m.gguf", functions.ModelSpec{Weights: "BF16"}, "BF16/m.gguf"},
		{".cache/m.gguf m.gguf", functions.ModelSpec{}, "m.gguf"},
		{"config.json", functions.ModelSpec{}, "!no .gguf"},
	} {
		folder := t.TempDir()
		for name := range strings.FieldsSeq(tc.files) {
			at := filepath.Join(folder, name)
			if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		tc.spec.Engine = functions.EngineLlamaCpp
		got, err := findGGUF(folder, tc.spec.WeightsPattern())
		if text, bad := strings.CutPrefix(tc.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %s, %v", tc.files, got, err)
			}
		} else if err != nil || got != filepath.Join(folder, tc.want) {
			t.Errorf("%s: %s, %v", tc.files, got, err)
		}
	}
}

func TestScriptFolders(t *testing.T) {
	top := t.TempDir()
	for _, name := range []string{"srv/main.py", "srv/helper.py", "data/weights.bin", "tool/run.SH"} {
		at := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(top, "link.py")
	if err := os.Symlink(filepath.Join(top, "srv", "main.py"), link); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(top, name) }
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"python3", in("srv/main.py"), "--port", "{port}"}, []string{in("srv")}},
		{[]string{in("tool/run.SH"), "--config=" + in("srv/main.py")}, []string{in("tool"), in("srv")}},
		{[]string{"python3", link}, []string{top, in("srv")}},
		{[]string{"program", in("data/weights.bin"), in("srv"), in("gone/x.py"), "srv/main.py", "/etc/passwd"}, nil},
	} {
		if got := ScriptFolders(tc.args); !slices.Equal(got, tc.want) {
			t.Errorf("%v: %v", tc.args, got)
		}
	}
}

func TestNameConfinement(t *testing.T) {
	for cause, want := range map[string]bool{
		"ModuleNotFoundError: No module named 'helper'":                true,
		"PermissionError: [Errno 13] Permission denied: '/srv/x.json'": true,
		"KeyError: 'getpwuid(): uid not found: 1073741825'":            true,
		"open /srv/a: permission denied":                               true,
		"Error: Cannot find module './helper'":                         true,
		"out of GPU memory: CUDA out of memory":                        false,
		"ValueError: bad shape":                                        false,
	} {
		if got := NameConfinement(cause); strings.HasPrefix(got, cause) && strings.Contains(got, "--confine off") != want {
			t.Errorf("%s: %s", cause, got)
		}
	}
}
