package nodestore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source/huggingface/huggingfacetest"
)

// TestHubView: a model of Hugging Face appears in DATA/hf in the layout of its own cache,
// and disappears with its checkpoint.
func TestHubView(t *testing.T) {
	srv := huggingfacetest.New(t)
	for _, name := range []string{"HF_ENDPOINT", "HF_TOKEN", "THAW_SOURCE_HOSTS"} {
		t.Setenv(name, srv.Getenv(name))
	}
	head := `{"w":{"dtype":"U8","shape":[4000],"data_offsets":[0,4000]}}`
	weights := append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
	commit := srv.Commit("main", map[string][]byte{"config.json": []byte("{}"), "model.safetensors": append(weights, bytes.Repeat([]byte{7}, 4000)...)})
	data := t.TempDir()
	source := fmt.Sprintf("hf://%s/%s", huggingfacetest.Org, huggingfacetest.Repo)
	nodeStore, err := Open(Options{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	st, err := nodeStore.loader.Stage(t.Context(), source, loader.StageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := st.Wait(t.Context())
	st.Release()
	if err != nil {
		t.Fatal(err)
	}
	c.Lease.Release()
	nodeStore.Close()
	repo := filepath.Join(data, "hf", "hub", "models--"+huggingfacetest.Org+"--"+huggingfacetest.Repo)
	if got, err := os.ReadFile(filepath.Join(repo, "snapshots", commit, "config.json")); err != nil || string(got) != "{}" {
		t.Errorf("%q, %v", got, err)
	}
	if nodeStore, err = Open(Options{Data: data}); err != nil {
		t.Fatal(err)
	}
	if err := nodeStore.store.Remove(c.Digest); err != nil {
		t.Fatal(err)
	}
	nodeStore.Close()
	if _, err := os.Lstat(repo); err == nil {
		t.Error("still shown")
	}
}
