package testkit_test

import (
	"bytes"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxLineColumns bounds a line in characters, of which a tab is one.
const maxLineColumns = 140

// TestLineLength: no line is longer than maxLineColumns, outside raw strings, imports, lines
// with a URL, and the rows of tables. testdata/longlines.txt lists the files that are still
// to be wrapped.
func TestLineLength(t *testing.T) {
	raw, err := os.ReadFile("testdata/longlines.txt")
	if err != nil {
		t.Fatal(err)
	}
	exceptions := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			exceptions[line] = true
		}
	}
	for _, f := range readSources(t) {
		raw, err := os.ReadFile(filepath.Join("..", f.name))
		if err != nil {
			t.Fatal(err)
		}
		var long []int
		var mayExceed map[int]bool
		for i, line := range bytes.Split(raw, []byte("\n")) {
			if utf8.RuneCount(line) <= maxLineColumns || bytes.Contains(line, []byte("://")) {
				continue
			}
			if mayExceed == nil {
				mayExceed = f.unboundedLines()
			}
			if !mayExceed[i+1] {
				long = append(long, i+1)
			}
		}
		if exceptions[f.name] {
			delete(exceptions, f.name)
			if len(long) == 0 {
				t.Errorf("testdata/longlines.txt lists %s, whose lines are within the bound", f.name)
			}
			continue
		}
		for _, line := range long {
			t.Errorf("%s:%d is longer than %d columns", f.name, line, maxLineColumns)
		}
	}
	for name := range exceptions {
		t.Errorf("testdata/longlines.txt lists %s, which does not exist", name)
	}
}

// unboundedLines returns the lines of raw strings, imports and tables: of elements of a
// slice, an array or a map that begin and end in one line.
func (f *sourceFile) unboundedLines() map[int]bool {
	lines := map[int]bool{}
	add := func(n ast.Node) {
		for l := f.fset.Position(n.Pos()).Line; l <= f.fset.Position(n.End()).Line; l++ {
			lines[l] = true
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			add(n)
		case *ast.BasicLit:
			if n.Kind == token.STRING && n.Value[0] == '`' {
				add(n)
			}
		case *ast.CompositeLit:
			switch n.Type.(type) {
			case *ast.ArrayType, *ast.MapType:
				for _, row := range n.Elts {
					if f.fset.Position(row.Pos()).Line == f.fset.Position(row.End()).Line {
						add(row)
					}
				}
			}
		}
		return true
	})
	return lines
}
