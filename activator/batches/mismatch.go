package batches

import (
	"cmp"
	"encoding/json/v2"
	"errors"
	"reflect"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// jsonKinds are the words for the kinds of JSON values.
var jsonKinds = map[byte]string{'n': "null", 't': "true", 'f': "false", '"': "a string", '0': "a number", '{': "an object", '[': "a list"}

// describeMismatch says in words of JSON why a value is not of the form that is wanted. The
// error's own text has names of Go types.
func describeMismatch(e *json.SemanticError) string {
	name := "it"
	if path := strings.TrimPrefix(string(e.JSONPointer), "/"); path != "" {
		name = "`" + functions.Clip(path) + "`"
	}
	if errors.Is(e.Err, json.ErrUnknownName) {
		return name + " is no member of it"
	}
	is := cmp.Or(jsonKinds[byte(e.JSONKind)], "of another kind")
	if want := wantedKind(e.GoType); want != "" && want != is {
		return name + " is " + is + ", not " + want
	}
	return name + " is not valid there"
}

// wantedKind is the kind of JSON value that a type is read from; "" for any.
func wantedKind(t reflect.Type) string {
	if t == nil {
		return ""
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Int64, reflect.Int:
		return "a whole number"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return wantedKind(t.Elem())
	}
	return ""
}
