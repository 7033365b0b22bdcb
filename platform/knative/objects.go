package knative

import (
	"bytes"
	"encoding/json"

	"sigs.k8s.io/yaml"
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
