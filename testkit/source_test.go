package testkit_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/thaw-dev/thaw"

var writeEdges = flag.Bool("write-edges", false, "write testdata/imports.txt from the sources; read the difference before committing it")

// Limits of files, functions and packages in lines; tests and test kits are exempt.
const (
	maxFileLines     = 600
	maxFunctionLines = 80
	// A larger package states in doc.go why it is one idea.
	largePackageLines = 2500
	maxPackageLines   = 4000
	// Of a type, with those of the unexported types of its package that it embeds by value.
	maxTypeFields  = 25
	maxTypeMethods = 35
)

// owners lists the packages that may import a large dependency. Benchmarks may import a
// library that they compare with, and tests one that they test against.
var owners = map[string][]string{
	"github.com/gofiber/fiber":          {"activator/httpserver"},
	"github.com/valyala/fasthttp":       {"activator/httpserver"},
	"github.com/NVIDIA/go-nvml":         {"runtime/gpu"},
	"github.com/goccy/go-yaml":          {"platform/catalog"},
	"github.com/Azure/azure-sdk-for-go": {"loader/source/azure", "bench/thaw-bench/loader"},
	"github.com/minio/minio-go":         {"loader/source/s3"},
	"golang.org/x/oauth2":               {"loader/source/gcs"},
	"github.com/prometheus/client":      {"platform/telemetry"},
	"github.com/prometheus/common":      {"platform/telemetry"},
	"github.com/prometheus/procfs":      {"runtime/supervisor", "runtime/forkserver/pods"},
	"github.com/google/licensecheck":    {"deploy/release"},
	"github.com/spf13/cobra":            {"platform/cli", "platform/thaw-knative", "bench"},
	"github.com/hanwen/go-fuse":         {"loader/mount"},
	"k8s.io/":                           {"platform/knative", "platform/thaw-knative"},
	"knative.dev/":                      {"platform/knative", "platform/thaw-knative"},
	"go.opentelemetry.io/":              {"platform/knative", "platform/thaw-knative"},
	"go.uber.org/zap":                   {"platform/knative", "platform/thaw-knative"},
}

// sourceFile is one parsed Go file of the module.
type sourceFile struct {
	name string // slash-separated, relative to the module
	dir  string
	test bool // a test, or part of a test kit
	fset *token.FileSet
	ast  *ast.File
}

// lines returns the number of lines as wc counts them.
func (f *sourceFile) lines() int { return f.fset.File(f.ast.FileStart).LineCount() - 1 }

// readSources returns the files of parseSources, which it calls once for all tests.
func readSources(t *testing.T) []*sourceFile {
	t.Helper()
	files, err := parsedSources()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 500 {
		t.Fatalf("found %d files: the walk is broken", len(files))
	}
	return files
}

var parsedSources = sync.OnceValues(parseSources)

// parseSources parses every Go file of this module and of bench/thaw-bench, except testdata
// and other nested modules.
func parseSources() (files []*sourceFile, err error) {
	root := ".."
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); n == "node_modules" || n == "testdata" || n == "data" || n == "bin" || strings.HasPrefix(n, ".") && p != root {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && p != root && p != filepath.Join(root, "bench", "thaw-bench") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		rel, _ := filepath.Rel(root, p)
		f := &sourceFile{name: filepath.ToSlash(rel), fset: token.NewFileSet()}
		f.dir = path.Dir(f.name)
		f.test = strings.HasSuffix(p, "_test.go") || isTestKit(f.dir)
		f.ast, err = parser.ParseFile(f.fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		files = append(files, f)
		return err
	})
	return files, err
}

// isTestKit reports whether only tests import the packages of dir.
func isTestKit(dir string) bool {
	return dir == "testkit" || strings.HasPrefix(dir, "testkit/")
}

// TestImports compares the imports inside the module with testdata/imports.txt. A
// line lists what a package imports; a line that ends in "(tests)" lists what its
// tests import beyond that, test kits apart, which every test may import.
func TestImports(t *testing.T) {
	edges := map[string]map[string]bool{}
	add := func(from, to string) {
		if edges[from] == nil {
			edges[from] = map[string]bool{}
		}
		edges[from][to] = true
	}
	files := readSources(t)
	for _, f := range files {
		if f.test {
			continue
		}
		for _, to := range imports(f) {
			add(f.dir, to)
			if isTestKit(to) && !strings.HasPrefix(f.dir, "bench") {
				t.Errorf("%s imports the test kit %s", f.name, to)
			}
		}
	}
	for _, f := range files {
		if !f.test || isTestKit(f.dir) {
			continue
		}
		for _, to := range imports(f) {
			if !edges[f.dir][to] && to != f.dir && !isTestKit(to) {
				add(f.dir+" (tests)", to)
			}
		}
	}
	var have []string
	for _, from := range slices.Sorted(maps.Keys(edges)) {
		have = append(have, from+": "+strings.Join(slices.Sorted(maps.Keys(edges[from])), " "))
	}
	list := filepath.Join("testdata", "imports.txt")
	if *writeEdges {
		if err := os.WriteFile(list, []byte(strings.Join(have, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(raw)), "\n")
	for _, line := range have {
		if !slices.Contains(want, line) {
			t.Errorf("%s does not allow (go test ./testkit -run TestImports -write-edges shows the difference):\n  %s", list, line)
		}
	}
	for _, line := range want {
		if !slices.Contains(have, line) {
			t.Errorf("%s lists what the sources do not have:\n  %s", list, line)
		}
	}
}

// imports lists the packages of this module that f imports, relative to the module.
func imports(f *sourceFile) (list []string) {
	for _, im := range f.ast.Imports {
		dep, _ := strconv.Unquote(im.Path.Value)
		if in, ok := strings.CutPrefix(dep, module+"/"); ok {
			list = append(list, in)
		}
	}
	return list
}

// TestLargeDependencies keeps each large dependency inside the packages that own it.
func TestLargeDependencies(t *testing.T) {
	within := func(dir, owner string) bool { return dir == owner || strings.HasPrefix(dir, owner+"/") }
	for _, f := range readSources(t) {
		if f.test {
			continue
		}
		for _, im := range f.ast.Imports {
			dep, _ := strconv.Unquote(im.Path.Value)
			for prefix, dirs := range owners {
				if strings.HasPrefix(dep, prefix) && !slices.ContainsFunc(dirs, func(o string) bool { return within(f.dir, o) }) {
					t.Errorf("%s imports %s: only %s may", f.name, dep, strings.Join(dirs, ", "))
				}
			}
		}
	}
}

// TestSizes enforces the limits. testdata/debts.txt lists the exceptions still to be
// split; a line that is no longer needed must be removed.
func TestSizes(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "debts.txt"))
	if err != nil {
		t.Fatal(err)
	}
	exceptions := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			exceptions[line] = true
		}
	}
	found := map[string]bool{}
	exceeds := func(description string, n, maximum int) {
		if n <= maximum {
			return
		}
		found[description] = true
		if !exceptions[description] {
			t.Errorf("%s: %d, at most %d are allowed", description, n, maximum)
		}
	}
	size := map[string]int{}
	types := map[string]*typeSize{}
	for _, f := range readSources(t) {
		if f.test {
			continue
		}
		countTypes(types, f)
		size[f.dir] += f.lines()
		exceeds(f.name, f.lines(), maxFileLines)
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				exceeds(f.name+" "+fn.Name.Name, f.fset.Position(fn.End()).Line-f.fset.Position(fn.Pos()).Line+1, maxFunctionLines)
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(size)) {
		exceeds(dir, size[dir], maxPackageLines)
		if size[dir] <= largePackageLines {
			continue
		}
		doc, err := os.ReadFile(filepath.Join("..", dir, "doc.go"))
		if err != nil || !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(string(doc), "//", "")), " "), "one idea") {
			t.Errorf("%s has %d lines: its doc.go must state why it is one idea", dir, size[dir])
		}
	}
	for name, ts := range types {
		fields, methods := ts.total(types)
		exceeds(name+" fields", fields, maxTypeFields)
		exceeds(name+" methods", methods, maxTypeMethods)
	}
	for description := range exceptions {
		if !found[description] {
			t.Errorf("testdata/debts.txt lists %s, which is within its bound", description)
		}
	}
}

// typeSize is what a type declares.
type typeSize struct {
	fields, methods int
	embeds          []string // the unexported types of its package that it embeds by value
}

func (s *typeSize) total(types map[string]*typeSize) (fields, methods int) {
	fields, methods = s.fields, s.methods
	for _, name := range s.embeds {
		if e := types[name]; e != nil {
			f, m := e.total(types)
			fields, methods = fields+f, methods+m
		}
	}
	return fields, methods
}

// countTypes adds what f declares to types, by package and name.
func countTypes(types map[string]*typeSize, f *sourceFile) {
	get := func(name string) *typeSize {
		name = f.dir + "." + name
		if types[name] == nil {
			types[name] = &typeSize{}
		}
		return types[name]
	}
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
			get(baseType(fn.Recv.List[0].Type)).methods++
		}
		gen, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range gen.Specs {
			ts, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			st, ok := ts.Type.(*ast.StructType)
			if !ok {
				continue
			}
			size := get(ts.Name.Name)
			for _, field := range st.Fields.List {
				size.fields += max(1, len(field.Names))
				if id, ok := field.Type.(*ast.Ident); ok && len(field.Names) == 0 && !ast.IsExported(id.Name) {
					size.embeds = append(size.embeds, f.dir+"."+id.Name)
				}
			}
		}
	}
}

var indefinite = regexp.MustCompile(`(?i)\b(nobody|somebody|whoever|anybody)\b`)

// TestPlainWords rejects comments whose subject is an indefinite pronoun in place of
// a component.
func TestPlainWords(t *testing.T) {
	for _, f := range readSources(t) {
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if m := indefinite.FindString(c.Text); m != "" && f.name != "testkit/source_test.go" {
					t.Errorf("%s: %q in a comment: name the component", f.fset.Position(c.Pos()), m)
				}
			}
		}
	}
}

// shortNames are unexported functions whose short name is a term of its own.
var shortNames = map[string]bool{"main": true, "init": true, "run": true, "add": true, "min": true, "max": true, "abs": true, "hash": true, "dot": true, "open": true, "read": true, "name": true}

// TestFunctionNames requires whole words: an unexported function without a receiver has
// a name of at least five letters, or one of shortNames.
func TestFunctionNames(t *testing.T) {
	for _, f := range readSources(t) {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && !fn.Name.IsExported() && len(fn.Name.Name) <= 4 && !shortNames[fn.Name.Name] {
				t.Errorf("%s: function %s: its name should be whole words", f.fset.Position(fn.Pos()), fn.Name.Name)
			}
		}
	}
}
