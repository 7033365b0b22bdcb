package testkit_test

import (
	"flag"
	"fmt"
	"go/doc"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the map of packages in deploy/docs/development.md")

// layers are the top folders in the order of the map, from the lowest layer up.
var layers = []string{"functions", "activator", "loader", "runtime", "platform", "bench", "deploy", "testkit"}

// Lines of deploy/docs/development.md around the map.
const (
	mapBegins = "<!-- The map of packages: go test ./testkit -run TestPackageMap -update -->\n"
	mapEnds   = "<!-- End of the map. -->\n"
)

// TestPackageMap compares the map of packages in deploy/docs/development.md with the first
// sentence of each package's comment, which it requires.
func TestPackageMap(t *testing.T) {
	sentences := map[string]string{}
	for _, f := range readSources(t) {
		if f.ast.Doc == nil {
			if _, ok := sentences[f.dir]; !ok {
				sentences[f.dir] = ""
			}
			continue
		}
		if s := new(doc.Package).Synopsis(f.ast.Doc.Text()); s != "" && (sentences[f.dir] == "" || !f.test) {
			sentences[f.dir] = s
		}
	}
	var dirs []string
	for dir, sentence := range sentences {
		if !strings.HasPrefix(sentence, "Package ") && !strings.HasPrefix(sentence, "Command ") {
			t.Errorf("the comment of package %s begins with %q: want Package or Command, and what it does", dir, sentence)
			continue
		}
		if len(sentence) > 300 {
			t.Errorf("the first sentence of package %s has %d bytes: at most 300", dir, len(sentence))
		}
		dirs = append(dirs, dir)
	}
	layer := func(dir string) int {
		top, _, _ := strings.Cut(dir, "/")
		i := slices.Index(layers, top)
		if i < 0 {
			t.Errorf("layers does not list the folder %s", top)
		}
		return i
	}
	slices.SortFunc(dirs, func(a, b string) int {
		if n := layer(a) - layer(b); n != 0 {
			return n
		}
		return strings.Compare(a, b)
	})
	var b strings.Builder
	b.WriteString("\n| package | what it does |\n| --- | --- |\n")
	for _, dir := range dirs {
		words := strings.SplitN(sentences[dir], " ", 3)
		fmt.Fprintf(&b, "| `%s` | %s |\n", dir, strings.ReplaceAll(words[2], "|", "\\|"))
	}
	b.WriteString("\n")
	page := filepath.Join("..", "deploy", "docs", "development.md")
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), mapBegins)
	old, after, ok2 := strings.Cut(rest, mapEnds)
	if !ok || !ok2 {
		t.Fatalf("%s does not have the lines around the map", page)
	}
	if old == b.String() {
		return
	}
	if !*update {
		t.Fatalf("the map of packages in %s is stale: go test ./testkit -run TestPackageMap -update", page)
	}
	if err := os.WriteFile(page, []byte(before+mapBegins+b.String()+mapEnds+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
