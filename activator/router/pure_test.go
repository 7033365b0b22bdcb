package router

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPure: no package of the decision imports a clock, files, the network or a context, so that
// a simulation and a replay decide with the code that serves.
func TestPure(t *testing.T) {
	impure := []string{"context", "database", "io", "log", "net", "os", "os/exec", "plugin", "runtime", "syscall", "testing", "time"}
	ours := []string{"github.com/thaw-dev/thaw/activator/router", "github.com/thaw-dev/thaw/functions"}
	files := 0
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		files++
		for _, i := range parsed.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			first, _, _ := strings.Cut(name, "/")
			other := strings.Contains(first, ".") && !slices.ContainsFunc(ours, func(p string) bool { return strings.HasPrefix(name, p) })
			if other || slices.Contains(impure, first) {
				t.Errorf("%s imports %s", file, name)
			}
		}
		return nil
	})
	if err != nil || files < 10 {
		t.Errorf("%d files: %v", files, err)
	}
}
