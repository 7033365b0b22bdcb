package loader_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// rewriteJSON edits an object in a file.
func rewriteJSON(t *testing.T, path string, edit func(map[string]any)) {
	t.Helper()
	var v map[string]any
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	edit(v)
	if raw, err = json.Marshal(v); err == nil {
		err = os.WriteFile(path, raw, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// makeFormer rewrites the only checkpoint of a store as an earlier thaw wrote it, and
// returns its digest there.
func makeFormer(t *testing.T, data string, c *loader.Checkpoint) (digest string) {
	t.Helper()
	var lines []string
	var files []any
	for _, f := range c.Files {
		b, err := os.ReadFile(filepath.Join(c.Path, f.Name))
		if err != nil {
			t.Fatal(err)
		}
		sum := fmt.Sprintf("%x", sha256.Sum256(b))
		lines = append(lines, fmt.Sprintf("%s %d %s\n", sum, f.Size, f.Name))
		files = append(files, map[string]any{"name": f.Name, "size": f.Size, "sha256": sum})
	}
	slices.Sort(lines)
	h := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(lines, ""))))
	digest = "sha256:" + h
	folder := filepath.Join(data, "checkpoints", h)
	if err := os.Rename(filepath.Dir(c.Path), folder); err != nil {
		t.Fatal(err)
	}
	rewriteJSON(t, filepath.Join(folder, "manifest.json"), func(m map[string]any) {
		delete(m, "format")
		delete(m, "block")
		m["digest"], m["files"] = digest, files
	})
	index, err := filepath.Glob(filepath.Join(data, "sources", "*.json"))
	if err != nil || len(index) != 1 {
		t.Fatal(index, err)
	}
	rewriteJSON(t, index[0], func(m map[string]any) {
		delete(m, "block")
		m["digest"] = digest
	})
	if err := os.RemoveAll(filepath.Join(data, "blobs", "tree")); err != nil {
		t.Fatal(err)
	}
	return digest
}

// TestUpgrade: the loader is replaced by one of another store format. An engine's checkpoint
// stays and can be asked for by its digest; the next start takes it over. No byte of weights
// is downloaded.
func TestUpgrade(t *testing.T) {
	data := t.TempDir()
	r := newRemote(t, store.Options{Dir: data})
	was, err := r.stage(t, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	digest := makeFormer(t, data, was)
	r.srv.Fault(nil) // forget earlier requests
	r.l = r.loader(t, openStore(t, store.Options{Dir: data}))
	held, err := r.stage(t, loader.StageOptions{Digest: digest})
	if err != nil || held.Digest != digest {
		t.Fatal(held, err)
	}
	r.check(t, held)
	next, err := r.stage(t, loader.StageOptions{})
	if err != nil || next.Digest != was.Digest {
		t.Fatalf("taken over as %+v, %v; a download has %s", next, err, was.Digest)
	}
	r.check(t, next)
	r.check(t, held)
	if gets := r.srv.Gets(); len(gets) > 0 {
		t.Errorf("downloaded: %q", gets)
	}
	for _, digest := range []string{digest, next.Digest} {
		if err := r.l.Verify(t.Context(), digest); err != nil {
			t.Errorf("%s: %v", digest, err)
		}
	}
	// The source changes: the former checkpoint is of no more use.
	r.want["model.safetensors"] = weights(9*block, 4)
	r.srv.Put("m/model.safetensors", r.want["model.safetensors"])
	changed, err := r.stage(t, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.check(t, changed)
	if err := r.store.Remove(digest); source.KindOf(err) != source.Refused {
		t.Errorf("removed while an engine uses it: %v", err)
	}
	was.Lease.Release()
	held.Lease.Release()
	if err := r.store.Remove(digest); err != nil {
		t.Error(err)
	}
}
