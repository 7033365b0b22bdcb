package functions

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// makeSchema makes schema.json from the types.
func makeSchema() []byte {
	var oneOf []any
	defs := map[string]any{}
	for _, k := range []struct {
		kind  string
		empty any // with its defaults
		spec  []string
	}{
		{KindModel, *NewModel(), []string{"engine"}},
		{KindRouter, *NewRouter(), []string{"rules"}},
		{KindRemote, *NewRemote(), []string{"url"}},
		{KindComposition, *NewComposition(), []string{"pattern", "members", "coordinator"}},
		{KindTeam, Team{APIVersion: APIVersion, Kind: KindTeam}, nil},
	} {
		s := schemaOf(reflect.TypeOf(k.empty), k.kind, reflect.ValueOf(k.empty))
		constant(s, "apiVersion", APIVersion)
		constant(s, "kind", k.kind)
		require(property(s, "metadata"), "name")
		require(s, "apiVersion", "kind", "metadata")
		if k.spec != nil {
			require(s, "apiVersion", "kind", "metadata", "spec")
			require(property(s, "spec"), k.spec...)
		}
		defs[k.kind] = s
		oneOf = append(oneOf, map[string]any{"$ref": "#/$defs/" + k.kind})
	}
	doc := map[string]any{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"$id":         "https://thaw.dev/schema/v1.json",
		"title":       "thaw: models, routers, remotes, compositions and teams",
		"description": "One document of a file that thaw serve --functions reads. A file may hold several, parted by ---.",
		"oneOf":       oneOf,
		"$defs":       defs,
	}
	out, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		panic(err) // only maps, strings and numbers are in it
	}
	return append(out, '\n')
}

func require(s map[string]any, names ...string) { s["required"] = names }

func property(s map[string]any, name string) map[string]any {
	return s["properties"].(map[string]any)[name].(map[string]any)
}

func constant(s map[string]any, name, value string) {
	p := property(s, name)
	p["const"] = value
	delete(p, "default")
}

const (
	bytesPattern    = `^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$`
	cpuPattern      = `^([0-9]+(\.[0-9]+)?|[0-9]+m)$`
	durationPattern = `^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`
)

// words are the words that a text may be.
var words = map[string][]string{
	"Model.spec.pod.tolerations[].operator": {TolerationEqual, TolerationExists},
	"Model.spec.serves[]":                   wordsOf(Endpoints),
	"Model.spec.pod.tolerations[].effect":   {TaintNoSchedule, TaintPreferNoSchedule, TaintNoExecute},
	"Router.spec.intents.classifier":        {ClassifierBuiltin},
	"Router.spec.cache.exact.scope":         CacheScopes,
	"Router.spec.cache.exact.also[]":        CacheAlso,
	"Model.spec.cache.exact.scope":          CacheScopes,
	"Model.spec.cache.exact.also[]":         CacheAlso,
	"Composition.spec.pattern":              wordsOf(Patterns),
	"Composition.spec.show":                 wordsOf(Shows),
}

// enums are the words that values of a type may be.
var enums = map[reflect.Type]any{
	reflect.TypeFor[Engine](): Engines, reflect.TypeFor[DataClass](): DataClasses, reflect.TypeFor[Priority](): Priorities,
	reflect.TypeFor[ColdPolicy](): ColdPolicies,
}

// schemaOf describes one type. def holds the defaults, where there are any.
func schemaOf(t reflect.Type, path string, def reflect.Value) map[string]any {
	s := map[string]any{}
	if d := describe(path); d != "" {
		s["description"] = d
	}
	switch t {
	case reflect.TypeFor[Bytes]():
		s["type"], s["pattern"], s["minimum"] = []string{"string", "integer"}, bytesPattern, 0
		if def.IsValid() && !def.IsZero() {
			s["default"] = def.Interface().(Bytes).String() // as a person writes it
		}
		return s
	case reflect.TypeFor[CPU]():
		s["type"], s["pattern"], s["minimum"] = []string{"string", "number"}, cpuPattern, 0
		return s
	case reflect.TypeFor[Duration]():
		s["type"], s["pattern"] = "string", durationPattern
		return withDefault(s, def)
	case reflect.TypeFor[Engine](), reflect.TypeFor[DataClass](), reflect.TypeFor[Priority](), reflect.TypeFor[ColdPolicy]():
		s["type"], s["enum"] = "string", enums[t]
		return withDefault(s, def)
	case reflect.TypeFor[Members]():
		s = schemaOf(reflect.TypeFor[Agents](), path, reflect.Value{})
		s["type"], s["items"] = []string{"array", "object"}, map[string]any{"type": "string"}
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem(), path, reflect.Value{})
	case reflect.Struct:
		s["type"], s["additionalProperties"] = "object", false
		props := map[string]any{}
		for _, f := range reflect.VisibleFields(t) { // those of embedded structs too
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" || f.Anonymous {
				continue
			}
			var d reflect.Value
			if def.IsValid() {
				d = def.FieldByIndex(f.Index)
			}
			props[name] = schemaOf(f.Type, path+"."+name, d)
		}
		s["properties"] = props
		switch path {
		case "Model.spec.adapters[]":
			require(s, "name", "source")
		case "Model.spec.pod.imagePullSecrets[]", "Router.spec.intents.list[]":
			require(s, "name")
		case "Model.spec.probe":
			s["type"], s["pattern"] = []string{"string", "object"}, "^("+probeAuto+"|"+probeNone+")$"
			require(s, "path", "body")
		case "Router.spec.rules[]":
			require(s, "name", "to")
		case "Router.spec.cache.exact", "Model.spec.cache.exact":
			require(s, "ttl")
		}
	case reflect.Slice:
		s["type"] = "array"
		s["items"] = schemaOf(t.Elem(), path+"[]", reflect.Value{})
	case reflect.Interface: // any JSON
	case reflect.Map:
		s["type"] = "object"
		s["additionalProperties"] = schemaOf(t.Elem(), path+"{}", reflect.Value{})
	default:
		describeScalar(s, t, path)
		return withDefault(s, def)
	}
	return s
}

// describeScalar adds to s what a text, a number, true or false at path may be.
func describeScalar(s map[string]any, t reflect.Type, path string) {
	switch t.Kind() {
	case reflect.Bool:
		s["type"] = "boolean"
	case reflect.Float64:
		s["type"], s["minimum"] = "number", 0
		if strings.HasPrefix(path, "Router.spec.rules[].when.complexity") || path == "Router.spec.intents.threshold" {
			s["maximum"] = 1
		}
	case reflect.String:
		s["type"] = "string"
		if list := words[path]; list != nil {
			s["enum"] = list
		} else if path == "Router.spec.intents.list[].name" {
			s["pattern"] = `^[A-Za-z0-9._-]{1,63}$`
		} else if path != "Model.spec.pod.imagePullSecrets[].name" && slices.Contains([]string{".name", ".namespace"}, path[strings.LastIndexByte(path, '.'):]) {
			s["pattern"] = `^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
		}
	case reflect.Int:
		s["type"], s["minimum"] = "integer", 0
		if minimum := map[string]int{"Model.spec.scale.max": 1, "Model.spec.scale.target": 1, "Model.spec.queue.requests": 1}[path]; minimum > 0 {
			s["minimum"] = minimum
		}
	default:
		panic(fmt.Sprintf("functions: no schema for %s at %s", t, path))
	}
}

// withDefault adds the default unless it is "" or 0, which mean absence.
func withDefault(s map[string]any, def reflect.Value) map[string]any {
	if def.IsValid() && !def.IsZero() {
		s["default"] = def.Interface()
	}
	return s
}

// describedKeys has a line for each key of the files, KEY: DESCRIPTION, and for a key that
// several kinds have one without the kind. A key without a line, or a line without a key,
// fails the tests.
//
//go:embed described.txt
var describedKeys string

// described returns the descriptions by key.
var described = sync.OnceValue(func() map[string]string {
	texts := map[string]string{}
	for line := range strings.Lines(describedKeys) {
		if key, text, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); ok {
			texts[key] = text
		}
	}
	return texts
})

// describe returns the description of a key, which begins with its kind; "" for none.
func describe(key string) string {
	_, path, _ := strings.Cut(key, ".")
	return cmp.Or(described()[key], described()[path])
}
