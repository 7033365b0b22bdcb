// Package jsonerror describes, for people, why a JSON value does not fit what it is decoded into:
// by the member and the kinds of JSON, without names of Go types; it decodes nothing itself.
package jsonerror

import (
	"cmp"
	"encoding"
	"encoding/json/v2"
	"errors"
	"reflect"
	"strings"
)

// kinds are the words for the kinds of JSON values.
var kinds = map[byte]string{'n': "null", 't': "true", 'f': "false", '"': "a string", '0': "a number", '{': "an object", '[': "a list"}

// Describe returns a clause such as "`n` is a string, not a whole number".
func Describe(e *json.SemanticError) string {
	name := "it"
	if path := strings.TrimPrefix(string(e.JSONPointer), "/"); path != "" {
		name = "`" + path[:min(len(path), 100)] + "`"
	}
	switch {
	case errors.Is(e.Err, json.ErrUnknownName):
		return name + " is no member of it"
	case e.Err != nil && readsText(e.GoType) && !strings.Contains(e.Err.Error(), "must be string type"): // in its own words
		return name + ": " + e.Err.Error()
	}
	is := cmp.Or(kinds[byte(e.JSONKind)], "of another kind")
	if want := describeWanted(e.GoType); want != "" && want != is {
		return name + " is " + is + ", not " + want
	}
	return name + " is not valid there"
}

// readsText reports whether values of a type read their own text.
func readsText(t reflect.Type) bool {
	return t != nil && reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// describeWanted returns the kind of JSON value that a type is read from; "" for any.
func describeWanted(t reflect.Type) string {
	switch {
	case t == nil:
		return ""
	case readsText(t):
		return "a string"
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int64, reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return describeWanted(t.Elem())
	}
	return ""
}
