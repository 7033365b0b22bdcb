package inspect

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/testkit/gguf"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

const llama = `{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"max_position_embeddings":128,"vocab_size":16,"torch_dtype":"bfloat16"}`

const lora = `{"peft_type":"LORA","r":8,"base_model_name_or_path":"org/base"}`

// inMemory is a source of these files at s3://bucket/m, and what it is read with.
func inMemory(files map[string]string) Options {
	m := new(sourcetest.Memory)
	for name, body := range files {
		m.Put("s3://bucket/m", name, []byte(body))
	}
	return Options{Sources: map[string]loader.Source{"s3": m}}
}

func weights() string { return string(header(256+64, "BF16", 2)) + strings.Repeat("\x00", 64) }

// TestErrors: each source of which nothing can be worked out says why, and the way out.
func TestErrors(t *testing.T) {
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
	for _, x := range []struct {
		name   string
		files  map[string]string
		format Format
		kind   source.Kind
		want   []string
	}{
		{"nothing", nil, "", source.NotFound, []string{"s3://bucket/m"}},
		{"no weights", map[string]string{configName: llama, "tokenizer.json": "{}"}, "", source.Missing, []string{"has no weights", "copy them beside config.json"}},
		{"no model", map[string]string{"README.md": "x"}, "", source.Missing, []string{"has no weights", "name the folder of one model"}},
		{"unfinished", map[string]string{configName: llama, "model.safetensors.part": "x"}, "", source.Missing, []string{"has no weights", "model.safetensors.part is of a download that has not finished"}},
		{"an archive", map[string]string{"model.tar.gz": "x"}, "", source.Missing, []string{"unpack model.tar.gz"}},
		{"ONNX", map[string]string{configName: llama, "onnx/model.onnx": "x"}, "", source.Missing, []string{"onnx/model.onnx is for an engine of another kind"}},
		{"Ollama's store", map[string]string{"blobs/sha256-abc": "GGUF", "manifests/x": "{}"}, "", source.Missing, []string{"copied to NAME.gguf"}},
		{"an older GGUF", map[string]string{"m.gguf": "GGUF\x01\x00\x00\x00" + strings.Repeat("\x00", 40)}, "", source.Corrupt, []string{"version 1 is not known: convert the model to GGUF anew"}},
		{"a GGUF for other machines", map[string]string{"m.gguf": "GGUF\x00\x00\x00\x03" + strings.Repeat("\x00", 40)}, "", source.Corrupt, []string{"big-endian"}},
		{"below", map[string]string{"a/config.json": llama, "a/model.safetensors": weights()}, "", source.Missing, []string{"below: a/model.safetensors", "name the folder"}},
		{"pickles", map[string]string{configName: llama, "pytorch_model.bin": "x"}, "", source.Refused, []string{"has no weights but pytorch_model.bin: such files run code", "safe_serialization=True"}},
		{"both formats", map[string]string{configName: llama, "model.safetensors": weights(), "m.gguf": "GGUF"}, "", source.Refused, []string{"two sets of weights", "--engine llamacpp", "--engine vllm"}},
		{"two of GGUF", map[string]string{"m-Q4.gguf": "GGUF", "m-Q8.gguf": "GGUF"}, "", source.Refused, []string{"2 sets of weights: m-Q4.gguf (4 B), m-Q8.gguf (4 B)", "weights: PATTERN"}},
		{"two of safetensors", map[string]string{configName: llama, "model.safetensors": weights(), "model.fp16.safetensors": weights()}, "", source.Refused, []string{"2 sets of weights and no index", "folder of its own"}},
		{"a shard is missing", map[string]string{configName: llama, "model.safetensors.index.json": `{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}`, "model-1.safetensors": weights()}, "", source.Missing, []string{"names 2 shards, 1 of them are not there", "model-2.safetensors", "copy the missing files"}},
		{"shards without index", map[string]string{configName: llama, "model-00001-of-00003.safetensors": weights()}, "", source.Missing, []string{"has 1 of the 3 files"}},
		{"shards of GGUF", map[string]string{"m-00001-of-00002.gguf": "GGUF"}, "", source.Missing, []string{"has 1 of the 2 files"}},
		{"no config", map[string]string{"model.safetensors": weights()}, "", source.Missing, []string{"has weights and no config.json"}},
		{"Mistral's layout", map[string]string{"params.json": "{}", "consolidated.safetensors": weights()}, "", source.Missing, []string{"Mistral's own layout"}},
		{"no GGUF", map[string]string{configName: llama, "model.safetensors": weights()}, GGUF, source.Missing, []string{"llamacpp reads no other", "leave --engine out"}},
		{"GGUF alone", map[string]string{"m.gguf": "GGUF"}, Safetensors, source.Missing, []string{"in GGUF, which llamacpp alone reads", "leave --engine out"}},
		{"config is an array", map[string]string{configName: "[1, 2]", "model.safetensors": weights()}, "", source.Corrupt, []string{"config.json: is not the JSON object that engines read: it is a list, not an object"}},
		{"a quantisation is an array", map[string]string{configName: llama, "hf_quant_config.json": `{"quantization":[]}`, "model.safetensors": weights()}, "", source.Corrupt, []string{"`quantization` is a list, not an object"}},
		{"config is no JSON", map[string]string{configName: "{", "model.safetensors": weights()}, "", source.Corrupt, []string{"line 1, column 2: it ends in the middle"}},
		{"config is empty", map[string]string{configName: "{}", "model.safetensors": weights()}, "", source.Refused, []string{"neither architectures nor a model_type", "by hand"}},
		{"architecture", map[string]string{configName: `{"architectures":["StableDiffusionPipeline"]}`, "model.safetensors": weights()}, "", source.Refused, []string{`"StableDiffusionPipeline" is none that thaw knows`, "engine: command"}},
		{"a text for a number", map[string]string{configName: strings.Replace(llama, `"hidden_size":64`, `"hidden_size":"64"`, 1), "model.safetensors": weights()}, "", source.Refused, []string{"names no number above 0 as hidden_size"}},
		{"no context", map[string]string{configName: strings.Replace(llama, `"max_position_embeddings":128`, `"max_position_embeddings":-1`, 1), "model.safetensors": weights()}, "", source.Refused, []string{"no number above 0 as max_position_embeddings"}},
		{"encoder and decoder", map[string]string{configName: `{"architectures":["T5ForConditionalGeneration"],"is_encoder_decoder":true}`, "model.safetensors": weights()}, "", source.Refused, []string{"none that thaw knows"}},
		{"no layers", map[string]string{configName: `{"architectures":["NewForCausalLM"],"hidden_size":4}`, "model.safetensors": weights()}, "", source.Refused, []string{"names no number above 0 as num_hidden_layers", "by hand"}},
		{"cut short", map[string]string{configName: llama, "model.safetensors": weights()[:300]}, "", source.Truncated, []string{"cut short", "copy the file again"}},
		{"not safetensors", map[string]string{configName: llama, "model.safetensors": strings.Repeat("x", 2000)}, "", source.Corrupt, []string{"model.safetensors: its header cannot be used"}},
		{"not GGUF", map[string]string{"m.gguf": strings.Repeat("\x01x", 1000)}, "", source.Corrupt, []string{"does not begin with GGUF", "copy the file again"}},
		{"GGML of old", map[string]string{"m.gguf": "tjgg\x03\x00\x00\x00" + strings.Repeat("x", 40)}, "", source.Corrupt, []string{"from before GGUF: convert the model"}},
		{"another GGML of old", map[string]string{"m.gguf": "lmgg" + strings.Repeat("x", 40)}, "", source.Corrupt, []string{"from before GGUF: convert the model"}},
		{"a page for GGUF", map[string]string{"m.gguf": "<!DOCTYPE html>" + strings.Repeat("x", 40)}, "", source.Corrupt, []string{"is a page", "copy the file again"}},
		{"zeros for GGUF", map[string]string{"m.gguf": strings.Repeat("\x00", 2000)}, "", source.Corrupt, []string{"not finished", "copy the file again"}},
		{"GGUF cut short", map[string]string{"m.gguf": "GGUF\x03\x00\x00\x00"}, "", source.Truncated, []string{"cut short"}},
		{"GGUF says nothing", map[string]string{"m.gguf": "GGUF\x03\x00\x00\x00" + strings.Repeat("\x00", 16)}, "", source.Refused, []string{"does not say how many layers"}},
		{"pointer", map[string]string{configName: llama, "model.safetensors": pointer}, "", source.Missing, []string{"Git LFS pointer", "git lfs pull"}},
		{"config is a pointer", map[string]string{configName: pointer, "model.safetensors": weights()}, "", source.Missing, []string{"config.json: is a Git LFS pointer"}},
		{"only an adapter", map[string]string{adapterName: lora, "adapter_model.safetensors": weights()}, "", source.Refused, []string{"is a LoRA adapter of org/base, not a model", "thaw init hf://org/base --adapter NAME=SOURCE"}},
		{"an adapter without weights", map[string]string{configName: llama, "model.safetensors": weights(), "x/" + adapterName: lora}, "", source.Missing, []string{"x/adapter_model.safetensors", "no weights"}},
		{"another kind of adapter", map[string]string{configName: llama, "model.safetensors": weights(), "x/" + adapterName: `{"peft_type":"IA3"}`}, "", source.Refused, []string{`of the kind "IA3"`, "merge it"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			o := inMemory(x.files)
			o.Format = x.format
			_, err := Read(t.Context(), "s3://bucket/m", o)
			if source.KindOf(err) != x.kind || !strings.HasPrefix(err.Error(), "s3://bucket/m: ") || strings.Count(err.Error(), "\n") > 0 {
				t.Errorf("%s: %v", source.KindOf(err), err)
			}
			if text := err.Error(); strings.Contains(text, "convert the model") && strings.Contains(text, "copy the file again") {
				t.Errorf("two ways out: %s", text)
			}
			for _, w := range x.want {
				if err != nil && !strings.Contains(err.Error(), w) {
					t.Errorf("no %q in: %v", w, err)
				}
			}
		})
	}
	for src, want := range map[string]string{"ftp://x/y": `"ftp" is not known here`, "hf://a/b?token=1": "holds a query", "./nothing": "there is no such folder"} {
		_, err := Read(t.Context(), src, Options{Folder: t.TempDir(), Sources: map[string]loader.Source{"file": dir.Source{}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", src, err)
		}
	}
}

// TestAgain: a source that is busy for a moment is asked again, and one that stays so is
// not asked for ever; a refusal ends the read at once.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, x := range []struct {
			kind  source.Kind
			fails int
			calls int
			ok    bool
		}{
			{source.Unavailable, 2, 3, true}, {source.Unavailable, 9, 3, false}, {source.Denied, 9, 1, false},
		} {
			o := inMemory(map[string]string{configName: llama, "model.safetensors": weights()})
			calls := 0
			o.Sources["s3"].(*sourcetest.Memory).Before = func(_ context.Context, name string, _, _ int64) error {
				if name != "" {
					return nil
				}
				if calls++; calls <= x.fails {
					return &source.Error{Kind: x.kind, Source: "s3://bucket/m", Detail: "not now"}
				}
				return nil
			}
			_, err := Read(t.Context(), "s3://bucket/m", o)
			if (err == nil) != x.ok || calls != x.calls {
				t.Errorf("%s: %d calls, %v", x.kind, calls, err)
			}
		}
	})
}

// TestLeavesOut: what an engine does not read is not counted.
func TestLeavesOut(t *testing.T) {
	c, err := Read(t.Context(), "s3://bucket/m", inMemory(map[string]string{
		configName: llama, "model.safetensors": weights(), "consolidated.safetensors": weights(), "onnx/model.safetensors": weights(),
		"adapters/Pirate/" + adapterName: lora, "adapters/Pirate/adapter_model.safetensors": weights(), "pytorch_model.bin": "x",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if c.Files != 1 || c.Stored != int64(len(weights())) || strings.Join(c.Left, " ") != "consolidated.safetensors" {
		t.Errorf("%+v", c)
	}
	if len(c.Adapters) != 1 || c.Adapters[0] != (Adapter{Folder: "adapters/Pirate", Base: "org/base", Rank: 8, Bytes: int64(len(weights()))}) {
		t.Errorf("%+v", c.Adapters)
	}
	a, location, err := ReadAdapter(t.Context(), "s3://bucket/m", inMemory(map[string]string{adapterName: lora, "adapter_model.safetensors": weights()}))
	if err != nil || a.Rank != 8 || a.Base != "org/base" || location != "s3://bucket/m" {
		t.Errorf("%+v %s %v", a, location, err)
	}
	if _, _, err := ReadAdapter(t.Context(), "s3://bucket/m", inMemory(map[string]string{configName: llama})); err == nil || !strings.Contains(err.Error(), "is no LoRA adapter") {
		t.Error(err)
	}
}

// TestKinds: what stands on top of the layers decides what a model answers.
func TestKinds(t *testing.T) {
	with := func(text string) string {
		return strings.Replace(llama, `"LlamaForCausalLM"],"model_type":"llama"`, text, 1)
	}
	for _, x := range []struct {
		config string
		kind   Kind
		cache  int64 // of a token
		media  bool
	}{
		{llama, Generates, 2 * 2 * 64 * 2, false},
		{with(`"BertModel"],"model_type":"bert"`), Embeds, 0, false},
		{with(`"XLMRobertaForSequenceClassification"],"model_type":"xlm-roberta"`), Scores, 0, false},
		{with(`"Qwen3Model"],"model_type":"qwen3"`), Embeds, 512, false},
		{with(`"Qwen2_5_VLForConditionalGeneration"],"model_type":"qwen2_5_vl","vision_config":{"depth":1}`), Generates, 512, true},
		{`{"architectures":["WhisperForConditionalGeneration"],"model_type":"whisper","is_encoder_decoder":true,"d_model":64,"num_hidden_layers":2,"decoder_layers":2,"decoder_attention_heads":4,"num_attention_heads":4,"max_source_positions":10,"max_target_positions":44,"vocab_size":9}`, Listens, 512 + 10*512, true},
		{with(`"Qwen2ForCausalLM"],"model_type":"qwen2","sliding_window":8,"use_sliding_window":false`), Generates, 512, false},
		{with(`"FalconForCausalLM"],"model_type":"falcon","multi_query":true`), Generates, 2 * 2 * 16 * 2, false},
	} {
		f, err := parseConfig([]byte(x.config))
		if err != nil || f.kind != x.kind || f.model.CacheOf(1, 1) != x.cache || f.model.Media != x.media {
			t.Errorf("%s: %+v %v", x.config, f, err)
		}
	}
	for config, context := range map[string]int{
		with(`"XForCausalLM"],"model_type":"x","rope_scaling":{"type":"yarn","factor":4,"original_max_position_embeddings":128}`):        512,
		with(`"XForCausalLM"],"model_type":"x","rope_scaling":{"rope_type":"llama3","factor":8,"original_max_position_embeddings":128}`): 128,
		with(`"XForCausalLM"],"model_type":"x","rope_scaling":{"type":"linear","factor":2.0}`):                                           256,
	} {
		if f, err := parseConfig([]byte(config)); err != nil || f.model.Context != context {
			t.Errorf("%s: %d %v", config, f.model.Context, err)
		}
	}
}

// TestGGUFAgrees: a checkpoint says the same in both formats.
func TestGGUFAgrees(t *testing.T) {
	shipped := filepath.Join("..", "..", "functions", "shipped", "tiny")
	folder := t.TempDir()
	if err := gguf.Write(filepath.Join(folder, "tiny.gguf"), shipped, "gpt-2"); err != nil {
		t.Fatal(err)
	}
	o := Options{Sources: map[string]loader.Source{"file": dir.Source{}}}
	absolute, err := filepath.Abs(shipped)
	if err != nil {
		t.Fatal(err)
	}
	a, err := Read(t.Context(), absolute, o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Read(t.Context(), folder, o)
	if err != nil {
		t.Fatal(err)
	}
	if a.Sizing.CacheOf(100, 1) != b.Sizing.CacheOf(100, 1) || a.Sizing.Context != b.Sizing.Context || a.Sizing.Vocab != b.Sizing.Vocab ||
		a.Sizing.Hidden != b.Sizing.Hidden || a.Sizing.Inter != b.Sizing.Inter || a.Sizing.Heads != b.Sizing.Heads {
		t.Errorf("%+v\n%+v", a.Sizing, b.Sizing)
	}
	st, err := os.Stat(filepath.Join(folder, "tiny.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if b.Format != GGUF || b.Architecture != "llama" || b.Quantization != "F32" || b.Sizing.Weights != st.Size() {
		t.Errorf("%+v", b)
	}
}

// broken is a body that ends with an error.
type broken struct{ sourcetest.Memory }

func (*broken) Read(context.Context, source.File, int64, int64) (io.ReadCloser, error) {
	return io.NopCloser(io.MultiReader(strings.NewReader("{"), failing{})), nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("reset by peer") }

func TestBodyBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := new(broken)
		b.Put("s3://bucket/m", configName, []byte(llama))
		b.Put("s3://bucket/m", "model.safetensors", []byte(weights()))
		_, err := Read(t.Context(), "s3://bucket/m", Options{Sources: map[string]loader.Source{"s3": b}})
		if source.KindOf(err) != source.Malformed || !strings.Contains(err.Error(), "config.json: the body ended early: reset by peer") {
			t.Error(err)
		}
	})
}
