package ember

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/runtime/ember/llama"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

// Weights that come over a socket are the weights of the folder.
func TestWeightsFrom(t *testing.T) {
	dir := t.TempDir()
	shape := checkpoint.Shape{Hidden: 96, Inter: 176, Layers: 2, Heads: 6, KVHeads: 2, Learned: 290, MaxPos: 256}
	if _, err := checkpoint.Folder(dir, shape, "One word after another goes into the model.", 3); err != nil {
		t.Fatal(err)
	}
	scores := func(o Options) ([]float32, error) {
		if err := o.defaults(); err != nil {
			return nil, err
		}
		last := 0
		c, err := loadModel(t.Context(), &o, func(p int) { last = p })
		if err != nil {
			return nil, err
		}
		defer c.model.Close()
		if last != 100 {
			t.Errorf("progress ended at %d", last)
		}
		in := []llama.Input{{Cache: c.model.NewCache(4), Tokens: []int{1, 2, 3}, Logits: true}}
		c.model.Forward(in)
		return slices.Clone(in[0].Out), nil
	}
	want, err := scores(Options{Model: dir})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := scores(Options{Model: dir, Copy: true}); err != nil || !slices.Equal(got, want) {
		t.Error("copied:", err)
	}

	away := t.TempDir()
	if err := os.Rename(filepath.Join(dir, "model.safetensors"), filepath.Join(away, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", filepath.Join(away, "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.FileServer(http.Dir(away))}
	go srv.Serve(ln)
	defer srv.Close()
	from := "unix:" + ln.Addr().String()
	if got, err := scores(Options{Model: dir, WeightsFrom: from}); err != nil || !slices.Equal(got, want) {
		t.Error("from a socket:", err)
	}
	for description, o := range map[string]Options{
		"not found":    {Model: dir, WeightsFrom: from},
		"nobody there": {Model: dir, WeightsFrom: "unix:" + filepath.Join(away, "none")},
		"want unix":    {Model: dir, WeightsFrom: "tcp:1"},
	} {
		if description == "not found" {
			os.Rename(filepath.Join(away, "model.safetensors"), filepath.Join(away, "other"))
		}
		if _, err := scores(o); err == nil || !strings.Contains(strings.ToLower(err.Error()), map[string]string{"not found": "404", "nobody there": "no such file", "want unix": "want unix"}[description]) {
			t.Errorf("%s: %v", description, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := Options{Model: dir, WeightsFrom: from}
	if err := o.defaults(); err != nil {
		t.Fatal(err)
	}
	if _, err := loadModel(ctx, &o, func(int) {}); err == nil {
		t.Error("loaded after its end")
	}
}
