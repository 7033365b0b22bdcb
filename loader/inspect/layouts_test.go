package inspect

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/loader/source"
)

// TestLayoutsThatAreNoModel: what lies in place of a model, or beside it, is named with the way
// out.
func TestLayoutsThatAreNoModel(t *testing.T) {
	const begin = "GGUF"
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a projector alone":          {map[string]string{"mmproj-F16.gguf": begin}, "reads images for a model, whose own GGUF file is missing"},
		"halves of a GGUF":           {map[string]string{"m.gguf-split-a": "x", "m.gguf-split-b": "x"}, "join the parts in order, cat m.gguf-split-a m.gguf-split-b > m.gguf, and"},
		"parts of a GGUF":            {map[string]string{"M.Q8_0.gguf.part2of2": "x", "M.Q8_0.gguf.part1of2": "x"}, "cat M.Q8_0.gguf.part1of2 M.Q8_0.gguf.part2of2 > M.Q8_0.gguf, and"},
		"ten parts":                  {map[string]string{"m.gguf.part10of10": "x", "m.gguf.part9of10": "x", "m.gguf.part2of10": "x"}, "cat m.gguf.part2of10 m.gguf.part9of10 m.gguf.part10of10 > m.gguf"},
		"parts by letters":           {map[string]string{"model.safetensors.partab": "x", "model.safetensors.partaa": "x", "config.json": "{}"}, "cat model.safetensors.partaa model.safetensors.partab > model.safetensors"},
		"parts by numbers":           {map[string]string{"m.gguf.002": "x", "m.gguf.001": "x"}, "cat m.gguf.001 m.gguf.002 > m.gguf"},
		"parts with blanks":          {map[string]string{"m $.gguf.002": "x", "m $.gguf.001": "x"}, "join its 2 parts in order, such as by cat, from m $.gguf.001 to m $.gguf.002"},
		"a cache of Hugging Face":    {map[string]string{"models--o--r/snapshots/abc/config.json": "{}"}, "name models--o--r/snapshots/abc"},
		"whisper.cpp":                {map[string]string{"ggml-base.bin": "lmgg"}, "whisper.cpp"},
		"Flax":                       {map[string]string{"config.json": "{}", "flax_model.msgpack": "x"}, "save the model as safetensors"},
		"a pipeline of diffusers":    {map[string]string{"model_index.json": "{}", "unet/diffusion_pytorch_model.safetensors": "x"}, "pipeline of diffusers"},
		"quantisations in folders":   {map[string]string{"Q4_K_M/m-Q4_K_M.gguf": begin, "Q8_0/m-Q8_0.gguf": begin}, "weights: PATTERN"},
		"two safetensors":            {map[string]string{"config.json": "{}", "model.safetensors": "x", "model.fp16.safetensors": "x"}, "exclude: [NAME]"},
		"config with a BOM":          {map[string]string{"config.json": "\ufeff{}", "model.safetensors": "x"}, "byte order mark"},
		"config in UTF-16":           {map[string]string{"config.json": "\xff\xfe{\x00}\x00", "model.safetensors": "x"}, "save it as UTF-8"},
		"config with a comment":      {map[string]string{"config.json": "{\n // x\n}", "model.safetensors": "x"}, "line 2, column 2"},
		"config with a comma behind": {map[string]string{"config.json": `{"a": 1,}`, "model.safetensors": "x"}, "no comma before a bracket"},
	} {
		_, err := Read(t.Context(), "s3://bucket/m", inMemory(c.files))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if source.KindOf(err) == "" {
			t.Errorf("%s: no kind: %v", name, err)
		}
	}
}

// TestBesideAModel: a LoRA adapter, a projector and an importance matrix beside a model are
// none of its sets of weights.
func TestBesideAModel(t *testing.T) {
	c, err := Read(t.Context(), "s3://bucket/m", inMemory(map[string]string{configName: llama, "model.safetensors": weights(),
		"adapter_model.safetensors": weights()}))
	if err != nil || c.Files != 1 || strings.Join(c.Left, " ") != "adapter_model.safetensors" {
		t.Errorf("%+v, %v", c, err)
	}
	model := metadataOf("general.architecture", "llama", "llama.block_count", 8, "llama.embedding_length", 8, "llama.attention.head_count", 8,
		"llama.context_length", 8)
	c, err = Read(t.Context(), "s3://bucket/m", inMemory(map[string]string{"m-Q4_K_M.gguf": model, "m-mmproj-f16.gguf": "GGUF",
		"m.imatrix.gguf": "GGUF"}))
	if err != nil || c.Files != 1 || !c.Sizing.Media {
		t.Errorf("%+v, %v", c, err)
	}
	adapter := metadataOf("general.architecture", "llama", "general.type", "adapter")
	if _, err = Read(t.Context(), "s3://bucket/m", inMemory(map[string]string{"lora.gguf": adapter})); source.KindOf(err) != source.Refused ||
		!strings.Contains(err.Error(), "LoRA adapter in GGUF") {
		t.Error(err)
	}
}

// metadataOf is a GGUF file of these keys and values, texts and numbers.
func metadataOf(pairs ...any) string {
	text := func(b []byte, s string) []byte {
		return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
	}
	b := append([]byte("GGUF\x03\x00\x00\x00"), make([]byte, 8)...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(pairs)/2))
	for i := 0; i < len(pairs); i += 2 {
		b = text(b, pairs[i].(string))
		switch v := pairs[i+1].(type) {
		case string:
			b = text(binary.LittleEndian.AppendUint32(b, 8), v)
		case int:
			b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, 4), uint32(v))
		}
	}
	return string(b) + strings.Repeat("\x00", 64)
}
