package knative

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
)

// FormatObjects encodes Kubernetes objects as "yaml", or as JSON: one object or a List.
func FormatObjects[T any](form string, objects ...T) ([]byte, error) {
	if form == "yaml" {
		return ObjectsYAML(objects...)
	}
	docs, err := genericObjects(objects)
	if err != nil {
		return nil, err
	}
	var v any = map[string]any{"apiVersion": "v1", "kind": "List", "items": docs}
	if len(docs) == 1 {
		v = docs[0]
	}
	b, err := json.MarshalIndent(v, "", "  ")
	return append(b, '\n'), err
}

// ObjectsYAML encodes each object as one YAML document with sorted keys, without the
// fields that only an API server sets.
func ObjectsYAML[T any](objects ...T) ([]byte, error) {
	docs, err := genericObjects(objects)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for i, doc := range docs {
		b, err := yaml.Marshal(doc)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out.WriteString("---\n")
		}
		out.Write(b)
	}
	return out.Bytes(), nil
}

// genericObjects converts objects to generic maps without status and empty fields.
func genericObjects[T any](objects []T) ([]map[string]any, error) {
	docs := make([]map[string]any, len(objects))
	for i, o := range objects {
		b, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(b, &docs[i]); err != nil {
			return nil, err
		}
		delete(docs[i], "status")
		dropEmpty(docs[i])
	}
	return docs, nil
}

// emptyMeansAll lists the keys under which an empty object differs from an absent one:
// an emptyDir volume, a selector that matches everything.
var emptyMeansAll = map[string]bool{"emptyDir": true, "podSelector": true, "namespaceSelector": true}

// dropEmpty removes null values and empty objects without a meaning.
func dropEmpty(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			dropEmpty(x)
			if m, object := x.(map[string]any); x == nil || object && len(m) == 0 && !emptyMeansAll[k] {
				delete(v, k)
			}
		}
	case []any:
		for _, x := range v {
			dropEmpty(x)
		}
	}
}

// DecodeStarted decodes THAW_MODEL, in which $$ stands for $.
func DecodeStarted(name, value string) (*functions.Model, error) {
	if len(value) > 2*catalog.MaxTenant {
		return nil, errTooLarge
	}
	docs, err := catalog.DecodeTenant(name, []byte(strings.ReplaceAll(value, "$$", "$")))
	if err == nil && (len(docs) != 1 || docs[0].Model == nil) {
		err = errors.New("one document of kind Model is wanted")
	}
	if err != nil {
		return nil, err
	}
	return docs[0].Model, nil
}

// DecodeAnnotation decodes the model file on a Service and checks the fields that are
// read from it. Other fields are not checked: a newer thaw may know more.
func DecodeAnnotation(doc string) (*functions.Model, error) {
	if len(doc) > catalog.MaxTenant {
		return nil, errTooLarge
	}
	m := new(functions.Model)
	if err := json.Unmarshal([]byte(doc), m); err != nil {
		return nil, err
	}
	m.SetDefaults()
	for _, p := range functions.Validate(m) {
		if strings.HasPrefix(p.Path, "spec.queue") || p.Path == "spec.scale.idle" || strings.HasPrefix(p.Path, "metadata.labels") {
			return nil, fmt.Errorf("%s: %s", p.Path, p.Message)
		}
	}
	return m, nil
}

var errTooLarge = fmt.Errorf("it is larger than %s", functions.Bytes(catalog.MaxTenant).Human())

// Protect calls f, which reads one object of a tenant, and returns its panic as an error.
// Without it one bad object ends the controller of the whole cluster, and that of the
// next leader.
func Protect(log *slog.Logger, object string, f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("an object cannot be read: panic", "object", object, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("%s cannot be read: %s", object, functions.Clip(fmt.Sprint(p)))
		}
	}()
	f()
	return nil
}
