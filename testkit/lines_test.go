package testkit_test

import (
	"bytes"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"
)

// maxLineColumns bounds a line in characters, of which a tab is one.
const maxLineColumns = 140

// TestLineLength: no line is longer than maxLineColumns, outside raw strings, imports, lines
// with a URL, and the rows of tables.
func TestLineLength(t *testing.T) {
	for _, f := range readSources(t) {
		raw, err := os.ReadFile(filepath.Join("..", f.name))
		if err != nil {
			t.Fatal(err)
		}
		var mayExceed map[int]bool
		for i, line := range bytes.Split(raw, []byte("\n")) {
			if utf8.RuneCount(line) <= maxLineColumns || bytes.Contains(line, []byte("://")) {
				continue
			}
			if mayExceed == nil {
				mayExceed = f.unboundedLines()
			}
			if !mayExceed[i+1] {
				t.Errorf("%s:%d is longer than %d columns", f.name, i+1, maxLineColumns)
			}
		}
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
