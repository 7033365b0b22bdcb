package api

import (
	"reflect"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

// TestCachedModels: the nearest of what a store has counts, whatever else it has.
func TestCachedModels(t *testing.T) {
	s := Sources{}
	for model, at := range map[string]string{"b/qwen": "az://acct/models/qwen", "a/llama": "az://acct/models/llama/", "c/llama": "az://acct/models/llama", "x/bad": "what://is this", "d/here": "weights"} {
		s.Add(model, at, "/w")
	}
	cached := func(source string, t functions.Tier) functions.CachedModel {
		return functions.CachedModel{Source: source, Tier: t}
	}
	const llama, qwen, disk, memory = "az://acct/models/llama", "az://acct/models/qwen", functions.TierNVMe, functions.TierDRAM
	for _, c := range []struct {
		cached  []functions.CachedModel
		serving []string
		want    []NodeModel
	}{
		{want: []NodeModel{}},
		{cached: []functions.CachedModel{cached("az://acct/models/else", memory)}, want: []NodeModel{}},
		{cached: []functions.CachedModel{cached(llama, disk), cached("file:///w/weights", disk)}, want: []NodeModel{{"a/llama", disk}, {"c/llama", disk}, {"d/here", disk}}},
		{cached: []functions.CachedModel{cached(qwen, memory), cached(qwen, disk)}, want: []NodeModel{{"b/qwen", memory}}},
		{cached: []functions.CachedModel{cached(qwen, disk), cached(qwen+"\n[\"*.txt\"]", memory)}, want: []NodeModel{{"b/qwen", memory}}},
		{cached: []functions.CachedModel{cached(qwen, disk)}, serving: []string{"a/llama", "b/qwen"}, want: []NodeModel{{"a/llama", disk}, {"b/qwen", disk}}},
		{cached: []functions.CachedModel{cached(qwen, memory)}, serving: []string{"b/qwen", "b/qwen"}, want: []NodeModel{{"b/qwen", memory}}},
	} {
		if got := s.CachedModels(c.cached, c.serving); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v serving %v: %v, want %v", c.cached, c.serving, got, c.want)
		}
	}
}

// TestNodesListCachedModels: everything to an admin, and to a team its own, though what
// else lies there is not told.
func TestNodesListCachedModels(t *testing.T) {
	r := start(t, nil)
	r.keys(t)
	one, two := NodeModel{"a/one", functions.TierDRAM}, NodeModel{"b/two", functions.TierDRAM}
	for key, want := range map[string][]NodeModel{r.admin: {one, two}, r.keyA: {one}, r.keyB: {two}} {
		c, err := NewClient(r.url, key)
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := GetItems[Node](t.Context(), c, "/api/v1/nodes")
		if err != nil || len(nodes) != 1 || !reflect.DeepEqual(nodes[0].Near, want) || (nodes[0].Cached == nil) != (key != r.admin) {
			t.Errorf("%+v %v, want %v near", nodes, err, want)
		}
	}
	r.nodeLost = true
	c, err := NewClient(r.url, r.admin)
	if err != nil {
		t.Fatal(err)
	}
	if nodes, err := GetItems[Node](t.Context(), c, "/api/v1/nodes"); err != nil || len(nodes) != 1 || nodes[0].Near != nil {
		t.Errorf("of a node that is lost: %+v %v", nodes, err)
	}
}
