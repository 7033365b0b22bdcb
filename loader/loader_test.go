package loader_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/dir"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/store"
)

// weights is a safetensors file with one tensor of n bytes.
func weights(n int, seed byte) []byte {
	head := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n)
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(head)))
	b = append(b, head...)
	for i := range n {
		b = append(b, byte(i*7)^byte(i>>8)^seed)
	}
	return b
}

func write(t *testing.T, folder, name string, body []byte) {
	t.Helper()
	p := filepath.Join(folder, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, body, 0o644); err != nil {
		t.Fatal(err)
	}
}

func model(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	write(t, folder, "config.json", []byte(`{"model_type":"llama"}`))
	write(t, folder, "model.safetensors", weights(100_000, 1))
	write(t, folder, "README.md", []byte("not staged"))
	return folder
}

// copied is a folder whose files are staged like those of any other source.
type copied struct{ loader.Source }

func open(t *testing.T, o store.Options) *store.Store {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	s, err := store.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestFolderInPlace(t *testing.T) {
	folder := model(t)
	l := loader.New(loader.Options{Sources: map[string]loader.Source{"file": dir.Source{}}})
	t.Cleanup(l.Close)
	s, err := l.Stage(context.Background(), folder, loader.StageOptions{Need: []string{"config.json"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c.Path != folder || len(c.Files) != 2 || !c.InPlace || c.Digest != "" {
		t.Errorf("checkpoint %+v", c)
	}
	c.Lease.Release()
}

func TestStagedIntoStore(t *testing.T) {
	folder := model(t)
	st := open(t, store.Options{})
	l := loader.New(loader.Options{Store: st, Sources: map[string]loader.Source{"file": copied{dir.Source{}}}, Block: 4096})
	t.Cleanup(l.Close)
	s, err := l.Stage(t.Context(), folder, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	c, err := s.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Lease.Release()
	for _, n := range []string{"config.json", "model.safetensors"} {
		want, _ := os.ReadFile(filepath.Join(folder, n))
		got, err := os.ReadFile(filepath.Join(c.Path, n))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: %d bytes, %v", n, len(got), err)
		}
	}
	list, err := st.List()
	if err != nil || len(list) != 1 || !list[0].Pinned || list[0].Digest != c.Digest {
		t.Errorf("list %+v, %v", list, err)
	}
	if source.KindOf(st.Remove(c.Digest)) != source.Refused {
		t.Error("a leased checkpoint was removed")
	}
}
