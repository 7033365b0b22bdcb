package api

import (
	"encoding"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/functions"
)

func makeDocument(rows []endpoint) []byte {
	s := &schemas{defs: map[string]any{}, types: map[string]reflect.Type{}}
	paths := map[string]map[string]any{}
	for _, e := range rows {
		op := map[string]any{
			"summary":     e.summary,
			"operationId": operation(e),
			"x-right":     e.permission.String(),
		}
		var params []any
		for _, seg := range e.segments {
			if strings.HasPrefix(seg, "{") {
				params = append(params, map[string]any{"name": strings.Trim(seg, "{}"), "in": "path", "required": true, "schema": map[string]any{"type": "string"}})
			}
		}
		for _, q := range e.query {
			params = append(params, map[string]any{"name": q, "in": "query", "schema": map[string]any{"type": "string"}})
		}
		if params != nil {
			op["parameters"] = params
		}
		if e.body != nil {
			op["requestBody"] = map[string]any{"content": content(s.ofBody(e.body))}
		}
		ok := map[string]any{"description": http.StatusText(e.status)}
		switch {
		case e.answer != nil:
			ok["content"] = content(s.of(reflect.TypeOf(e.answer)))
		case e.status != http.StatusNoContent:
			ok["content"] = map[string]any{"text/plain": map[string]any{"schema": map[string]any{"type": "string"}}}
		}
		op["responses"] = map[string]any{
			strconv.Itoa(e.status): ok,
			"default":              map[string]any{"description": "An error, in OpenAI's shape.", "content": content(map[string]any{"$ref": "#/components/schemas/Error"})},
		}
		if e.permission == probe {
			op["security"] = []any{}
		}
		if paths[e.path] == nil {
			paths[e.path] = map[string]any{}
		}
		paths[e.path][strings.ToLower(e.method)] = op
	}
	text := map[string]any{"type": "string"}
	s.defs["Error"] = map[string]any{"type": "object", "properties": map[string]any{"error": map[string]any{
		"type": "object", "properties": map[string]any{"message": text, "type": text, "param": map[string]any{"type": []string{"string", "null"}}, "code": text},
	}}}
	b, err := json.MarshalIndent(map[string]any{
		"openapi":    "3.1.0",
		"info":       map[string]any{"title": "thaw control API", "version": "{version}", "license": map[string]any{"name": "Apache-2.0", "identifier": "Apache-2.0"}},
		"paths":      paths,
		"components": map[string]any{"schemas": s.defs, "securitySchemes": map[string]any{"key": map[string]any{"type": "http", "scheme": "bearer"}}},
		"security":   []any{map[string]any{"key": []string{}}},
	}, "", "  ")
	if err != nil {
		panic(err) // only maps, strings and lists are in it
	}
	return append(b, '\n')
}

// operation is the id of a row: method and the path's words.
func operation(e endpoint) string {
	id := strings.ToLower(e.method)
	for _, seg := range e.segments {
		seg = strings.Trim(seg, "{}")
		if seg == "" || seg == "api" || seg == "v1" {
			continue
		}
		id += strings.ToUpper(seg[:1]) + seg[1:]
	}
	return strings.NewReplacer(".", "", "-", "").Replace(id)
}

func content(schema any) map[string]any {
	return map[string]any{"application/json": map[string]any{"schema": schema}}
}

// schemas describes types; structs by name, once.
type schemas struct {
	defs  map[string]any
	types map[string]reflect.Type
}

func (s *schemas) ofBody(body any) any {
	several, ok := body.(oneOf)
	if !ok {
		return s.of(reflect.TypeOf(body))
	}
	list := functions.ConvertAll(several, func(b any) any { return s.of(reflect.TypeOf(b)) })
	return map[string]any{"oneOf": list}
}

func (s *schemas) of(t reflect.Type) any {
	if t.Kind() == reflect.Pointer {
		return s.of(t.Elem())
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[functions.Members](): // a list, or agents
		return map[string]any{"oneOf": []any{s.of(reflect.TypeFor[[]string]()), s.of(reflect.TypeFor[functions.Agents]())}}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Struct:
		name := defName(t)
		if first, done := s.types[name]; done && first != t {
			panic(fmt.Sprintf("api: %s and %s have one name", first, t))
		} else if !done {
			s.types[name] = t
			props := map[string]any{}
			s.defs[name] = map[string]any{"type": "object", "properties": props}
			s.fields(t, props)
		}
		return map[string]any{"$ref": "#/components/schemas/" + name}
	case reflect.Slice, reflect.Array:
		return map[string]any{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object"}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return map[string]any{"type": "number"}
	}
	return map[string]any{"type": "integer"}
}

func (s *schemas) fields(t reflect.Type, props map[string]any) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "":
			s.fields(f.Type, props)
		default:
			props[name] = s.of(f.Type)
		}
	}
}

// defName is the type's name; of a list, with that of its items.
func defName(t reflect.Type) string {
	if t == reflect.TypeFor[functions.Cache]() { // Cache is the list of checkpoints
		return "AnswerCache"
	}
	name := t.Name()
	if base, of, ok := strings.Cut(name, "["); ok {
		of = strings.TrimSuffix(of, "]")
		return base + "Of" + of[strings.LastIndexByte(of, '.')+1:]
	}
	return name
}

func (p permission) String() string { return [...]string{"read", "admin", "probe", "own"}[p] }
