package inspect

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/functions/sizing"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
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
		"Meta's layout":              {map[string]string{"consolidated.00.pth": "x", "params.json": "{}"}, "convert_llama_weights_to_hf.py"},
		"DeepSpeed":                  {map[string]string{"config.json": "{}", "global_step6/mp_rank_00_model_states.pt": "x", "zero_to_fp32.py": "x"}, "joined by the zero_to_fp32.py beside it"},
		"FSDP":                       {map[string]string{"pytorch_model_fsdp_0/__0_0.distcp": "x"}, "accelerate merge-weights pytorch_model_fsdp_0 OUT"},
		"a renamed config":           {map[string]string{"config (1).json": "{}", "model.safetensors": "x"}, `rename "config (1).json" to config.json`},
		"a config of Windows":        {map[string]string{"config.json.txt": "{}", "model.safetensors": "x"}, `rename "config.json.txt" to config.json`},
		"another config":             {map[string]string{"configuration.json": "{}", "model.safetensors": "x"}, "has weights and no config.json (name the folder"},
		"adapters alone":             {map[string]string{"checkpoint-600/adapter_config.json": lora, "checkpoint-600/adapter_model.safetensors": "x"}, "--adapter NAME=SOURCE/checkpoint-600"},
		"CTranslate2":                {map[string]string{"model.bin": "x", "config.json": "{}", "vocabulary.json": "[]"}, "a model of CTranslate2 or MLC is for another engine"},
		"MLC":                        {map[string]string{"params_shard_0.bin": "x", "mlc-chat-config.json": "{}"}, "a model of CTranslate2 or MLC"},
		"OpenVINO":                   {map[string]string{"openvino_model.xml": "x", "openvino_model.bin": "x", "config.json": "{}"}, "openvino_model.xml is for an engine of another kind"},
		"DVC":                        {map[string]string{"model.safetensors.dvc": "x", "config.json": "{}"}, "dvc pull"},
		"a partial download":         {map[string]string{"model.safetensors.partial": "x", "config.json": "{}"}, "is of a download that has not finished"},
		"pickles beside ONNX":        {map[string]string{"onnx/model.onnx": "x", "pytorch_model.bin": "x", "config.json": "{}"}, "(save the model as safetensors"},
		"a name that is refused":     {map[string]string{"m:Q4.gguf": begin}, "holds a backslash or a colon (rename it)"},
		"a name of a device":         {map[string]string{"NUL.gguf": begin}, "is a device on some systems (rename it)"},
		"MLX":                        {map[string]string{"config.json": llama, "model.safetensors": namedWeights("model.embed_tokens.weight", "U32")}, "in the format of MLX, which mlx_lm.server reads"},
		"EXL2":                       {map[string]string{"config.json": llama, "output.safetensors": namedWeights("model.layers.0.mlp.up_proj.q_weight", "I32")}, "in the format of EXL2"},
		"EXL3 by its configuration":  {map[string]string{"config.json": strings.Replace(llama, "{", `{"quantization_config":{"quant_method":"exl3","bits":3.0},`, 1), "model.safetensors": weights()}, "in the format of EXL3"},
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

// namedWeights is a file of one tensor.
func namedWeights(name, dtype string) string {
	length := 4
	if strings.HasSuffix(dtype, "8") || strings.HasPrefix(dtype, "F8") {
		length = 16
	}
	head := fmt.Sprintf(`{%q:{"dtype":%q,"shape":[%d],"data_offsets":[0,16]}}`, name, dtype, length)
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(head)))) + head + strings.Repeat("\x00", 16)
}

// TestOtherQuantisations: what vllm reads is not taken for another's.
func TestOtherQuantisations(t *testing.T) {
	for _, x := range []struct{ config, name, dtype string }{
		{"awq", "model.layers.0.mlp.up_proj.qweight", "I32"}, {"gptq", "model.layers.0.mlp.up_proj.qzeros", "I32"}, {"fp8", "model.layers.0.mlp.up_proj.weight", "F8_E4M3"},
		{"bitsandbytes", "model.layers.0.mlp.up_proj.weight", "U8"}, {"compressed-tensors", "model.layers.0.mlp.up_proj.weight_packed", "I32"},
	} {
		c, err := Read(t.Context(), "s3://bucket/m", inMemory(map[string]string{
			configName: strings.Replace(llama, "{", `{"quantization_config":{"quant_method":"`+x.config+`"},`, 1), "model.safetensors": namedWeights(x.name, x.dtype)}))
		if err != nil || c.Quantization != x.config || c.TensorType != x.dtype {
			t.Errorf("%s: %+v, %v", x.config, c, err)
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

// TestUsualValues: configurations that leave out what transformers' classes have by themselves, and
// those that name things in their own way.
func TestUsualValues(t *testing.T) {
	for name, x := range map[string]struct {
		config  string
		kind    Kind
		context int
		cache   []sizing.Layers
	}{
		"gemma-3-4b-it": {`{"architectures":["Gemma3ForConditionalGeneration"],"model_type":"gemma3","text_config":{"hidden_size":2560,"intermediate_size":10240,
			"model_type":"gemma3_text","num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024},"vision_config":{"a":1}}`,
			Generates, 131072, []sizing.Layers{{Count: 5, Token: 4096, Heads: 4}, {Count: 29, Token: 4096, Heads: 4, Window: 1024}}},
		"llava-1.5-7b-hf": {`{"architectures":["LlavaForConditionalGeneration"],"model_type":"llava","text_config":{"max_position_embeddings":4096,
			"model_type":"llama","vocab_size":32064},"vision_config":{"a":1}}`, Generates, 4096, []sizing.Layers{{Count: 32, Token: 16384, Heads: 32}}},
		"llava-v1.6-mistral-7b-hf": {`{"architectures":["LlavaNextForConditionalGeneration"],"model_type":"llava_next","text_config":{"intermediate_size":14336,
			"max_position_embeddings":32768,"model_type":"mistral","num_key_value_heads":8,"sliding_window":null}}`, Generates, 32768,
			[]sizing.Layers{{Count: 32, Token: 4096, Heads: 8}}},
		"falcon-7b": {`{"architectures":["FalconForCausalLM"],"model_type":"falcon","hidden_size":4544,"num_hidden_layers":32,"num_attention_heads":71,
			"multi_query":true}`, Generates, 2048, []sizing.Layers{{Count: 32, Token: 256, Heads: 1}}},
		"bloom": {`{"architectures":["BloomForCausalLM"],"model_type":"bloom","n_embed":4096,"n_layer":30,"num_attention_heads":32,"seq_length":2048}`,
			Generates, 2048, []sizing.Layers{{Count: 30, Token: 16384, Heads: 32}}},
		"dbrx": {`{"architectures":["DbrxForCausalLM"],"model_type":"dbrx","d_model":6144,"n_layers":40,"n_heads":48,"max_seq_len":32768,
			"attn_config":{"kv_n_heads":8}}`, Generates, 32768, []sizing.Layers{{Count: 40, Token: 4096, Heads: 8}}},
		"InternVL": {`{"architectures":["InternVLChatModel"],"model_type":"internvl_chat","llm_config":{"hidden_size":3584,"num_hidden_layers":28,
			"num_attention_heads":28,"num_key_value_heads":4,"max_position_embeddings":32768,"model_type":"qwen2"}}`, Generates, 32768,
			[]sizing.Layers{{Count: 28, Token: 2048, Heads: 4}}},
		"ChatGLM3": {`{"architectures":["ChatGLMModel"],"model_type":"chatglm","hidden_size":4096,"num_layers":28,"num_attention_heads":32,
			"multi_query_group_num":2,"kv_channels":128,"seq_length":8192}`, Generates, 8192, []sizing.Layers{{Count: 28, Token: 1024, Heads: 2}}},
	} {
		c, err := Read(t.Context(), "s3://bucket/m", inMemory(map[string]string{configName: x.config, "model.safetensors": weights()}))
		if err != nil || c.Kind != x.kind || c.Sizing.Context != x.context || !slices.Equal(c.Sizing.Cache, x.cache) {
			t.Errorf("%s: %v, %+v", name, err, c)
		}
	}
}

// TestKindsOfGGUF: what the metadata says of windows, pooling and quantisation.
func TestKindsOfGGUF(t *testing.T) {
	of := func(arch string, more ...any) string {
		return metadataOf(append([]any{"general.architecture", arch, arch + ".block_count", 6, arch + ".embedding_length", 960, arch + ".attention.head_count", 4,
			arch + ".context_length", 131072}, more...)...)
	}
	read := func(file string) *Checkpoint {
		t.Helper()
		c, err := Read(t.Context(), "s3://bucket/m", inMemory(map[string]string{"m.gguf": file}))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// Gemma 4: heads of each layer, and layers with a window of another size.
	c := read(of("gemma4", "gemma4.attention.head_count_kv", []int{8, 8, 8, 8, 8, 1}, "gemma4.attention.key_length", 512, "gemma4.attention.value_length", 512,
		"gemma4.attention.key_length_swa", 256, "gemma4.attention.value_length_swa", 256, "gemma4.attention.sliding_window", 1024,
		"gemma4.attention.sliding_window_pattern", []bool{true, true, true, true, true, false}))
	want := []sizing.Layers{{Count: 1, Token: 2 * 1024, Heads: 1}, {Count: 5, Token: 8 * 512 * 2, Heads: 8, Window: 1024}}
	if !slices.Equal(c.Sizing.Cache, want) {
		t.Errorf("gemma4: %+v", c.Sizing.Cache)
	}
	for _, x := range []struct {
		arch    string
		pooling int
		kind    Kind
		cache   bool
	}{
		{"llama", 0, Generates, true}, {"qwen3", 3, Embeds, true}, {"bert", 1, Embeds, false}, {"bert", 4, Scores, false}, {"bert", 0, Embeds, false},
		{"qwen3", 4, Scores, true}, {"gemma-embedding", 1, Embeds, true},
	} {
		var more []any
		if x.pooling > 0 {
			more = []any{x.arch + ".pooling_type", x.pooling}
		}
		if c := read(of(x.arch, more...)); c.Kind != x.kind || len(c.Sizing.Cache) > 0 != x.cache {
			t.Errorf("%s with pooling %d: %s, %+v", x.arch, x.pooling, c.Kind, c.Sizing.Cache)
		}
	}
	if c := read(of("llama", "general.file_type", 30)); c.Quantization != "IQ4_XS" {
		t.Error(c.Quantization)
	}
}

// TestLocalGGUF: one that lies here is looked at as staging does, beyond its metadata.
func TestLocalGGUF(t *testing.T) {
	folder := t.TempDir()
	joined := metadataOf("general.architecture", "llama", "llama.block_count", 8, "llama.embedding_length", 8, "llama.attention.head_count", 8,
		"llama.context_length", 8, "split.no", 0, "split.count", 3)
	if err := os.WriteFile(filepath.Join(folder, "m.gguf"), []byte(joined), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Read(t.Context(), folder, Options{Sources: map[string]loader.Source{"file": dir.Source{}}, Folder: "/"})
	if source.KindOf(err) != source.Corrupt || !strings.Contains(err.Error(), "is part 1 of 3 of a model (split.count), renamed or joined") {
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
		case []int:
			b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, 9), 4), uint64(len(v)))
			for _, n := range v {
				b = binary.LittleEndian.AppendUint32(b, uint32(n))
			}
		case []bool:
			b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, 9), 7), uint64(len(v)))
			for _, on := range v {
				b = append(b, map[bool]byte{true: 1}[on])
			}
		}
	}
	return string(b) + strings.Repeat("\x00", 64)
}
