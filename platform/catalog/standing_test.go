package catalog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// TestFileProblem: a file that can no longer be used keeps its functions, and they name its
// first problem until it is right again; a warning and another file's problem are none.
func TestFileProblem(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.yaml")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	good := strings.Replace(tiny, "name: tiny", "name: here", 1)
	write(path, good)
	c, err := Open(Options{Folder: dir})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Models()) != 1 {
		t.Fatal(c.Problems())
	}
	name := c.Models()[0].FullName()
	for i, x := range []struct{ text, other, want string }{
		{good, "", ""},
		{good + "  x: 1\n", "", "spec.x: unknown key"},
		{"kind: [", "", "m.yaml:1"},
		{good + "  y: 1\n  z: 1\n", "", "spec.y: unknown key"},
		{good, "kind: [", ""},
		{good + "# as it was\n", "", ""},
	} {
		write(path, x.text)
		if other := filepath.Join(dir, "other.yaml"); x.other != "" {
			write(other, x.other)
		} else {
			os.Remove(other)
		}
		c.Reload()
		got := c.FileProblem(name)
		if x.want == "" && got != "" || !strings.Contains(got, x.want) ||
			x.want != "" && !strings.HasSuffix(got, "; the version before it serves on") {
			t.Errorf("%d: %q", i, got)
		}
		if names := c.FunctionsOf(path); len(names) != 1 || names[0] != name {
			t.Errorf("%d: the file serves %v", i, names)
		}
	}
	if got := c.FileProblem(functions.Name{Team: "no", Name: "such"}); got != "" {
		t.Error(got)
	}
}
