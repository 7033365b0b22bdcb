package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/platform/cli/kit"
)

// TestSettingsFiles: the files that thaw serve prints say what its settings are.
func TestSettingsFiles(t *testing.T) {
	for name, f := range map[string]struct {
		made string
		kept *string
	}{
		"serve.example.yaml": {exampleFile(new(ServeConfig), "https://thaw.dev/schema/serve.json"), &exampleSettings},
		"serve.schema.json":  {schemaFile(new(ServeConfig), "thaw serve"), &settingsSchema},
	} {
		if *update {
			if err := os.WriteFile(name, []byte(f.made), 0o644); err != nil {
				t.Fatal(err)
			}
			*f.kept = f.made // as it will be in the next build
		}
		if *f.kept != f.made {
			t.Errorf("%s is not what the settings say: go test ./platform/cli -run TestSettingsFiles -update", name)
		}
	}
}

// exampleFile is a file with every setting, commented.
func exampleFile(config any, schema string) string {
	var b strings.Builder
	b.WriteString("# yaml-language-server: $schema=" + schema + "\n")
	b.WriteString("# Settings of thaw. A flag or a THAW_ variable overrules what stands here.\n")
	for _, s := range kit.Settings(config) {
		def := s.Default
		if s.Shown != "" {
			def = ""
		}
		fmt.Fprintf(&b, "\n# %s%s", strings.ToUpper(s.Help[:1]), s.Help[1:])
		if s.OneOf != nil {
			b.WriteString(" (" + strings.Join(s.OneOf, ", ") + ")")
		}
		b.WriteString(".")
		if s.Shown != "" {
			b.WriteString(" Unless said: " + s.Shown + ".")
		}
		b.WriteString("\n")
		switch s.Value.Kind() {
		case reflect.Slice:
			def = "[]"
		case reflect.Bool:
		case reflect.String:
			def = strconv.Quote(def)
		}
		fmt.Fprintf(&b, "#%s: %s\n", s.Name, def)
	}
	return b.String()
}

// schemaFile is the JSON schema of a file of settings.
func schemaFile(config any, title string) string {
	props := map[string]any{}
	for _, s := range kit.Settings(config) {
		p := map[string]any{"description": s.Help}
		switch s.Value.Kind() {
		case reflect.Bool:
			p["type"] = "boolean"
		case reflect.Slice:
			p["type"], p["items"] = "array", map[string]any{"type": "string"}
		case reflect.String:
			p["type"] = "string"
		case reflect.Float64:
			p["type"] = []string{"string", "number"}
		default:
			p["type"] = []string{"string", "integer"}
		}
		if s.OneOf != nil {
			p["enum"] = s.OneOf
		}
		if s.Default != "" && s.Shown == "" && s.Value.Kind() != reflect.Bool {
			p["default"] = s.Default
		}
		props[s.Name] = p
	}
	b, err := json.MarshalIndent(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title,
		"type": "object", "additionalProperties": false, "properties": props,
	}, "", "  ")
	if err != nil {
		panic(err) // only maps, strings and lists are in it
	}
	return string(b) + "\n"
}
