package testkit_test

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// vocabulary is what the files of one package declare and use.
type vocabulary struct {
	words    map[string]bool            // identifiers, and words of string literals
	declared map[string]bool            // names at the package's level, with methods and fields
	members  map[string]map[string]bool // fields and methods by type
	open     map[string]bool            // types that also have members declared elsewhere
}

var literalWord = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// read adds a file.
func (v *vocabulary) read(f *sourceFile) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			v.words[n.Name] = true
		case *ast.BasicLit:
			for _, word := range literalWord.FindAllString(n.Value, -1) {
				v.words[word] = true
			}
		case *ast.TypeSpec:
			v.readType(n)
		case *ast.ValueSpec:
			for _, name := range n.Names {
				v.declared[name.Name] = true
			}
		case *ast.FuncDecl:
			v.declared[n.Name.Name] = true
			if n.Recv != nil {
				v.addMember(baseType(n.Recv.List[0].Type), n.Name.Name)
			}
		}
		return true
	})
}

func (v *vocabulary) readType(spec *ast.TypeSpec) {
	name := spec.Name.Name
	v.declared[name] = true
	var list []*ast.Field
	switch of := spec.Type.(type) {
	case *ast.StructType:
		list = of.Fields.List
	case *ast.InterfaceType:
		list = of.Methods.List
	default:
		v.open[name] = true
	}
	v.addMember(name, "")
	for _, field := range list {
		for _, n := range field.Names {
			v.addMember(name, n.Name)
		}
		if len(field.Names) == 0 {
			v.open[name] = true
		}
	}
}

func (v *vocabulary) addMember(of, name string) {
	if v.members[of] == nil {
		v.members[of] = map[string]bool{}
	}
	v.members[of][name], v.declared[name] = true, true
}

// vocabularies holds the packages of the module by folder, and by the last word of it.
type vocabularies struct {
	dirs  map[string]*vocabulary
	names map[string][]*vocabulary
}

func readVocabularies(files []*sourceFile) vocabularies {
	all := vocabularies{map[string]*vocabulary{}, map[string][]*vocabulary{}}
	for _, f := range files {
		v := all.dirs[f.dir]
		if v == nil {
			v = &vocabulary{map[string]bool{}, map[string]bool{}, map[string]map[string]bool{}, map[string]bool{}}
			all.dirs[f.dir] = v
			all.names[path.Base(f.dir)] = append(all.names[path.Base(f.dir)], v)
		}
		v.read(f)
	}
	return all
}

var (
	// camelName matches a word with an upper-case letter inside.
	camelName = regexp.MustCompile(`\b[A-Za-z][A-Za-z0-9]*[a-z0-9][A-Z][A-Za-z0-9]*\b`)
	// dottedName matches a member of a type or of a value, a name of a package, and a member
	// of a package's type.
	dottedName = regexp.MustCompile(`\b([A-Za-z][A-Za-z0-9]*)\.([A-Za-z][A-Za-z0-9]*)(?:\.([A-Z][A-Za-z0-9]*))?\b`)
	// docLink matches [Name].
	docLink = regexp.MustCompile(`\[\*?([A-Z][A-Za-z0-9]*)\](?:[^(\[]|$)`)
)

var fileSuffixes = map[string]bool{"go": true, "json": true, "py": true}

// unresolved lists the names in the comments of f that its package does not know.
func (v vocabularies) unresolved(f *sourceFile) (found []string) {
	own := v.dirs[f.dir]
	foreign := map[string]bool{} // packages of other modules
	var imports []*vocabulary
	for _, im := range f.ast.Imports {
		dep, _ := strconv.Unquote(im.Path.Value)
		if in := v.dirs[strings.TrimPrefix(dep, module+"/")]; in != nil {
			imports = append(imports, in)
		} else {
			foreign[path.Base(dep)] = true
		}
	}
	knows := func(name string) bool {
		return own.words[name] || ast.IsExported(name) && slices.ContainsFunc(imports, func(in *vocabulary) bool { return in.declared[name] })
	}
	knowsMember := func(x, y string) bool {
		switch camel := ast.IsExported(y) || camelName.MatchString(y); {
		case fileSuffixes[y] || foreign[x]:
			return true
		case own.members[x] != nil:
			return own.members[x][y] || own.open[x] && knows(y)
		case !camel: // a host, the end of a sentence
			return true
		case v.names[x] != nil:
			return slices.ContainsFunc(v.names[x], func(in *vocabulary) bool { return in.declared[y] })
		case own.words[x]:
			return knows(y)
		}
		return slices.ContainsFunc(imports, func(in *vocabulary) bool { return in.members[x][y] })
	}
	hasMember := func(pkg, of, name string) bool {
		return v.names[pkg] == nil || slices.ContainsFunc(v.names[pkg], func(in *vocabulary) bool {
			return in.members[of] == nil || in.members[of][name] || in.open[of] && in.words[name]
		})
	}
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			add := func(name string) {
				found = append(found, fmt.Sprintf("%s: %s", f.fset.Position(c.Pos()), name))
			}
			for _, m := range dottedName.FindAllStringSubmatch(c.Text, -1) {
				if !knowsMember(m[1], m[2]) || m[3] != "" && !hasMember(m[1], m[2], m[3]) {
					add(m[0])
				}
			}
			rest := dottedName.ReplaceAllString(c.Text, "")
			for _, name := range camelName.FindAllString(rest, -1) {
				if !knows(name) {
					add(name)
				}
			}
			for _, m := range docLink.FindAllStringSubmatch(rest, -1) {
				if !knows(m[1]) && !camelName.MatchString(m[1]) {
					add(m[1])
				}
			}
		}
	}
	return found
}

// TestNamesInComments looks up the names in Go comments: words with an upper-case letter
// inside, Type.member, package.Name and [Name]. Each is an identifier or a word of a string
// of its package, an exported name of an import, or in testdata/names.txt, which lists
// names of other projects.
func TestNamesInComments(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "names.txt"))
	if err != nil {
		t.Fatal(err)
	}
	foreign := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "#") {
			foreign[strings.TrimSpace(line)] = false
		}
	}
	files := readSources(t)
	all := readVocabularies(files)
	for _, f := range files {
		for _, at := range all.unresolved(f) {
			name := at[strings.LastIndex(at, " ")+1:]
			if _, ok := foreign[name]; !ok {
				t.Errorf("%s: its package knows no such name (names of other projects: testdata/names.txt)", at)
			}
			foreign[name] = true
		}
	}
	for name, used := range foreign {
		if !used {
			t.Errorf("testdata/names.txt lists %s, which no comment needs", name)
		}
	}
	planted := []*sourceFile{parseText(t, "p/planted.go", `package p
import "`+module+`/q"
// Load is filled by Box.Fill and q.Known; see [Load], fillLater, Box.gone, q.Gone, lostName
// and [Lost], q.Box, q.Kind.Gone, q.Kind.Name.
type Box struct { Load int }
func (b *Box) Fill() { _ = "fillLater" }
`), parseText(t, "q/planted.go", "package q\nvar Known int\ntype Kind struct{ Name string }\n")}
	all = readVocabularies(planted)
	if got := all.unresolved(planted[0]); len(got) != 6 {
		t.Errorf("of six planted names it finds %d:\n%s", len(got), strings.Join(got, "\n"))
	}
}
