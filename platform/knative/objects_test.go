package knative

import (
	"encoding/json"
	"testing"
)

// plainObject is an object as clients of Kubernetes make them.
type plainObject struct {
	Kind     string         `json:"kind"`
	Metadata map[string]any `json:"metadata"`
	Spec     any            `json:"spec"`
	Status   any            `json:"status"`
}

var plainObjects = []plainObject{
	{Kind: "B", Metadata: map[string]any{"name": "b", "creationTimestamp": nil}, Spec: struct{}{}, Status: map[string]any{"phase": "x"}},
	{Kind: "A", Metadata: map[string]any{"name": "a"}, Spec: map[string]any{
		"from":    []any{map[string]any{"podSelector": map[string]any{}}, map[string]any{"namespaceSelector": map[string]any{}}},
		"volumes": []any{map[string]any{"emptyDir": map[string]any{}, "resources": map[string]any{"limits": map[string]any{}}}}, "on": "yes", "none": []any{},
	}},
}

// TestObjectsYAML: objects keep their order and lose server fields. An empty selector or
// volume stays, since its absence would have another meaning.
func TestObjectsYAML(t *testing.T) {
	const want = `kind: B
metadata:
  name: b
---
kind: A
metadata:
  name: a
spec:
  from:
  - podSelector: {}
  - namespaceSelector: {}
  none: []
  "on": "yes"
  volumes:
  - emptyDir: {}
`
	for range 3 {
		got, err := FormatObjects("yaml", plainObjects...)
		if err != nil || string(got) != want {
			t.Fatalf("%v:\n%s", err, got)
		}
	}
	if got, err := ObjectsYAML[plainObject](); len(got) > 0 || err != nil {
		t.Errorf("none: %q %v", got, err)
	}
	if _, err := ObjectsYAML(func() {}); err == nil {
		t.Error("what is no object is written")
	}
}

// TestJSON: one object is encoded as itself, several as a List.
func TestJSON(t *testing.T) {
	for _, c := range []struct {
		objects []plainObject
		want    string
	}{
		{plainObjects[:1], `{"kind":"B","metadata":{"name":"b"}}`},
		{plainObjects[:0], `{"apiVersion":"v1","items":[],"kind":"List"}`},
		{[]plainObject{plainObjects[0], plainObjects[0]}, `{"apiVersion":"v1","items":[{"kind":"B","metadata":{"name":"b"}},{"kind":"B","metadata":{"name":"b"}}],"kind":"List"}`},
	} {
		got, err := FormatObjects("json", c.objects...)
		if err != nil || got[len(got)-1] != '\n' {
			t.Fatalf("%v %q", err, got)
		}
		var v any
		if err := json.Unmarshal(got, &v); err != nil {
			t.Fatal(err)
		}
		if b, _ := json.Marshal(v); string(b) != c.want {
			t.Errorf("%s, want %s", b, c.want)
		}
	}
}
