package checkpoint_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/runtime/ember/bpe"
	"github.com/thaw-dev/thaw/runtime/ember/llama"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
	"github.com/thaw-dev/thaw/testkit/gguf"
)

const text = "one two three, one two, one. The one who counts to two counts on; don't stop at 12 or 123."

var shape = checkpoint.Shape{Hidden: 32, Inter: 48, Layers: 1, Heads: 2, KVHeads: 1, Learned: 280, Vocab: 400, MaxPos: 64}

// TestSame: the same seed gives the same bytes, another seed other weights.
func TestSame(t *testing.T) {
	read := func(seed uint64) map[string][]byte {
		dir, out := t.TempDir(), map[string][]byte{}
		n, err := checkpoint.Folder(dir, shape, text, seed)
		if err != nil || n != 400 {
			t.Fatal(n, err)
		}
		es, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			if out[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	a, b, c := read(1), read(1), read(2)
	if len(a) != 5 {
		t.Errorf("%d files", len(a))
	}
	for n := range a {
		if !bytes.Equal(a[n], b[n]) {
			t.Errorf("%s differs", n)
		}
		if same := bytes.Equal(a[n], c[n]); same != (n != "model.safetensors") {
			t.Errorf("%s, another seed: same is %v", n, same)
		}
	}
}

// TestLoads: generated checkpoints load, with every split pattern and both families.
func TestLoads(t *testing.T) {
	for _, p := range []bpe.Pattern{bpe.GPT2, bpe.Digits, bpe.Llama3, bpe.Qwen2} {
		for _, family := range []string{"llama", "qwen2"} {
			s := shape
			s.Pattern, s.Family, s.Untied = p, family, family == "qwen2"
			dir := t.TempDir()
			if _, err := checkpoint.Folder(dir, s, text, 1); err != nil {
				t.Fatal(err)
			}
			tok, err := bpe.Load(filepath.Join(dir, "tokenizer.json"))
			if err != nil {
				t.Fatal(err)
			}
			if tok.Pattern != p || tok.Size != 400 {
				t.Errorf("%v: read as %v with %d tokens", p, tok.Pattern, tok.Size)
			}
			if ids := tok.Encode(text, true); tok.Decode(ids) != text || len(ids) >= len(text) {
				t.Errorf("%v: %d tokens, back %q", p, len(ids), tok.Decode(ids))
			}
			c, err := llama.ReadConfig(dir)
			if err != nil {
				t.Fatal(err)
			}
			m, err := llama.Open(dir, c, 1)
			if err != nil {
				t.Fatal(err)
			}
			m.Close()
			out := filepath.Join(dir, "m.gguf")
			if err := gguf.Write(out, dir, "gpt-2"); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(out); err != nil || !bytes.HasPrefix(b, []byte("GGUF\x03\x00\x00\x00")) {
				t.Errorf("%v", err)
			}
		}
	}
}
