package functions

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write schema.json anew")

// TestSchemaFile fails when the types and the committed schema say different
// things; `go generate` writes it anew.
func TestSchemaFile(t *testing.T) {
	if *update {
		if err := os.WriteFile("schema.json", makeSchema(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(file, makeSchema()) {
		t.Fatal("schema.json is not what the types say: run go generate ./functions")
	}
}

func TestEveryKeyIsDescribed(t *testing.T) {
	var doc struct {
		Defs map[string]any `json:"$defs"`
	}
	if err := json.Unmarshal(Schema(), &doc); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var walk func(path string, v map[string]any)
	walk = func(path string, v map[string]any) {
		_, shared, _ := strings.Cut(path, ".")
		seen[path], seen[shared] = true, true
		if describe(path) == "" && !strings.HasSuffix(path, "[]") {
			t.Errorf("%s has no description", path)
		}
		if props, ok := v["properties"].(map[string]any); ok {
			for k, p := range props {
				walk(path+"."+k, p.(map[string]any))
			}
		}
		if items, ok := v["items"].(map[string]any); ok {
			walk(path+"[]", items)
		}
	}
	for name, def := range doc.Defs {
		walk(name, def.(map[string]any))
	}
	for path := range described() {
		if !seen[path] {
			t.Errorf("%s is described, but no file has it", path)
		}
	}
}
