// Package manifest is objects of Kubernetes as text: what kubectl apply takes, and
// what is kept in files beside tests. It knows no kind of object.
package manifest

import (
	"bytes"
	"encoding/json"

	"sigs.k8s.io/yaml"
)

// Print is objects as yaml, or json: one object, or a list of them.
func Print[T any](form string, objects ...T) ([]byte, error) {
	if form == "yaml" {
		return YAML(objects...)
	}
	docs, err := documents(objects)
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

// YAML is one document for each object, keys in the order of the alphabet, nothing
// that only a server sets.
func YAML[T any](objects ...T) ([]byte, error) {
	docs, err := documents(objects)
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

// documents are objects as JSON has them, less what a client has no say in.
func documents[T any](objects []T) ([]map[string]any, error) {
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
		bare(docs[i])
	}
	return docs, nil
}

// says are the keys under which an empty object is not the same as none: a volume
// that begins empty, a selector of everything.
var says = map[string]bool{"emptyDir": true, "podSelector": true, "namespaceSelector": true}

// bare takes out what is null, or an empty object that says nothing.
func bare(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			bare(x)
			if m, object := x.(map[string]any); x == nil || object && len(m) == 0 && !says[k] {
				delete(v, k)
			}
		}
	case []any:
		for _, x := range v {
			bare(x)
		}
	}
}
