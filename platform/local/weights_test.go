package local

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/agent"
)

// TestWeightsChanged: what may not be the same weights counts as changed.
func TestWeightsChanged(t *testing.T) {
	folder := t.TempDir()
	config := filepath.Join(folder, "config.json")
	if err := os.WriteFile(config, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := agent.FolderID(t.Context(), folder, "")
	cached := func(sources ...string) (nodes []functions.Node) {
		for i := 0; i < len(sources); i += 2 {
			nodes = append(nodes, functions.Node{Cached: []functions.CachedModel{{Source: sources[i], Digest: sources[i+1]}}})
		}
		return nodes
	}
	const at = "az://a/c/m"
	for i, c := range []struct {
		source, weights string
		nodes           []functions.Node
		want            bool
	}{
		{"", "", nil, false}, // it has no weights
		{folder, id, nil, false},
		{folder, "", nil, true},
		{folder, "sha256:1", nil, true},
		{folder + "/none", id, nil, true},
		{at, "sha256:1", nil, false},
		{at, "", nil, true},
		{at, "sha256:1", cached(at, "sha256:1", "az://a/c/n", "sha256:2"), false},
		{at, "sha256:1", cached(at, "sha256:1", at, "sha256:2"), true},
		{at, "sha256:1,sha256:2", cached(at, "sha256:2"), true},
	} {
		m := &functions.Model{Spec: functions.ModelSpec{Source: c.source}}
		if got := weightsChanged(m, c.weights, func() []functions.Node { return c.nodes }); got != c.want {
			t.Errorf("%d: %q %q: %v", i, c.source, c.weights, got)
		}
	}
	if err := os.WriteFile(config, []byte("{ }"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := agent.FolderID(t.Context(), folder, ""); again == id || again == "" {
		t.Errorf("an edited folder has the id %q, before %q", again, id)
	}
}
