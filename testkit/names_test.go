package testkit_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"
	"unicode"
)

// parseText returns a file of one package, for planted cases.
func parseText(t *testing.T, name, text string) *sourceFile {
	t.Helper()
	f := &sourceFile{name: name, dir: path.Dir(name), fset: token.NewFileSet()}
	var err error
	if f.ast, err = parser.ParseFile(f.fset, name, text, parser.ParseComments|parser.SkipObjectResolution); err != nil {
		t.Fatal(err)
	}
	return f
}

// beginsWord reports whether the lower-case letter begins a word of a name like KeyStore.
func beginsWord(name, letter string) bool {
	before := 'a'
	for i, r := range name {
		first := i == 0 || unicode.IsUpper(r) && (!unicode.IsUpper(before) || i+1 < len(name) && unicode.IsLower(rune(name[i+1])))
		if first && string(unicode.ToLower(r)) == letter {
			return true
		}
		before = r
	}
	return false
}

// receiverOf returns the receiver of a method and the name of its type; nil for a function
// and for a receiver that is not named.
func receiverOf(d ast.Decl) (receiver *ast.Ident, of string) {
	fn, ok := d.(*ast.FuncDecl)
	if !ok || fn.Recv == nil || len(fn.Recv.List[0].Names) == 0 || fn.Recv.List[0].Names[0].Name == "_" {
		return nil, ""
	}
	return fn.Recv.List[0].Names[0], baseType(fn.Recv.List[0].Type)
}

// baseType returns the name of a named type, of its pointer or of its instance; "" for
// other types.
func baseType(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return baseType(e.X)
	case *ast.IndexExpr:
		return baseType(e.X)
	case *ast.IndexListExpr:
		return baseType(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// badReceivers lists the receivers that are no initial of a word of their type, or that
// differ from the type's other receivers.
func badReceivers(files []*sourceFile) (problems []string) {
	first := map[string]string{}
	for _, f := range files {
		for _, d := range f.ast.Decls {
			receiver, of := receiverOf(d)
			if receiver == nil {
				continue
			}
			key := f.dir + " " + of
			if first[key] == "" {
				first[key] = receiver.Name
			}
			if !beginsWord(of, receiver.Name) {
				problems = append(problems,
					fmt.Sprintf("%s: the receiver %s of %s: want a letter that begins a word of the type's name", f.fset.Position(receiver.Pos()),
						receiver.Name, of))
			} else if receiver.Name != first[key] {
				problems = append(problems,
					fmt.Sprintf("%s: the receiver %s of %s is called %s elsewhere", f.fset.Position(receiver.Pos()), receiver.Name, of, first[key]))
			}
		}
	}
	return problems
}

// TestReceivers requires receivers that are named after their types, all of a type alike.
func TestReceivers(t *testing.T) {
	for _, problem := range badReceivers(readSources(t)) {
		t.Error(problem)
	}
	planted := parseText(t, "p/planted.go", `package p
func (s *KeyStore) Get() {}
func (k KeyStore) Put() {}
func (b *HTTPServer) Serve() {}
func (h *HTTPServer) Close() {}
func (t *treeOf[K]) add() {}
func (key *digestKey) set() {}
`)
	if got := badReceivers([]*sourceFile{planted}); len(got) != 4 {
		t.Errorf("of four planted receivers it finds %d:\n%s", len(got), strings.Join(got, "\n"))
	}
}
