package sizer

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
	"github.com/thaw-dev/thaw/loader/source/dir"
	"github.com/thaw-dev/thaw/testkit/gguf"
	"github.com/thaw-dev/thaw/testkit/sourcetest"
)

const (
	gib = 1 << 30
	// A cache of 256 KiB a token, and weights of no size to speak of.
	mistral = `{"architectures":["MistralForCausalLM"],"model_type":"mistral","hidden_size":4096,"num_hidden_layers":64,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"max_position_embeddings":32768,"vocab_size":32000,"torch_dtype":"bfloat16"}`
	lora    = `{"peft_type":"LORA","r":8}`
)

func node(id string, memory ...functions.Bytes) functions.Node {
	n := functions.Node{ID: id}
	for i, m := range memory {
		n.GPUs = append(n.GPUs, functions.GPU{Index: i, MemoryTotal: m})
	}
	return n
}

func TestSize(t *testing.T) {
	shipped := filepath.Join("..", "..", "functions", "shipped", "tiny")
	weights, err := os.ReadFile(filepath.Join(shipped, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	quantized := filepath.Join(t.TempDir(), "m.gguf")
	if err := gguf.Write(quantized, shipped, "gpt-2"); err != nil {
		t.Fatal(err)
	}
	single, err := os.ReadFile(quantized)
	if err != nil {
		t.Fatal(err)
	}
	m := new(sourcetest.Memory)
	m.Put("s3://models/m", "config.json", []byte(mistral))
	m.Put("s3://models/m", "model.safetensors", weights)
	m.Put("s3://models/lora", "adapter_config.json", []byte(lora))
	m.Put("s3://models/lora", "adapter_model.safetensors", weights)
	m.Put("s3://models/gguf", "m.gguf", single)
	lost := node("lost", 80*gib)
	lost.Lost = true
	vllm := func(change func(*functions.ModelSpec)) functions.ModelSpec {
		s := functions.Defaults()
		s.Engine, s.Source = functions.EngineVLLM, "s3://models/m"
		if change != nil {
			change(&s)
		}
		return s
	}
	for _, x := range []struct {
		name  string
		spec  functions.ModelSpec
		nodes []functions.Node
		gpus  int
		least functions.Bytes // of gpuMemory, and at most 4 GiB more
		text  []string
	}{
		{"as it is", vllm(func(s *functions.ModelSpec) { s.Resources.Memory = 1 }), []functions.Node{node("a", 80*gib)}, 0, 0, nil},
		{"ember", vllm(func(s *functions.ModelSpec) { s.Engine = functions.EngineEmber }), []functions.Node{node("a", 80*gib)}, 0, 0, nil},
		{"command", vllm(func(s *functions.ModelSpec) { s.Engine = functions.EngineCommand }), []functions.Node{node("a", 80*gib)}, 0, 0, nil},
		{"no GPU", vllm(nil), []functions.Node{node("a"), node("b", 0), lost}, 0, 0, []string{"nothing is reserved: no node has a GPU"}},
		{"no source", vllm(func(s *functions.ModelSpec) { s.Source = "s3://models/nothing" }), []functions.Node{node("a", 80*gib)}, 0, 0, []string{"nothing is reserved: it could not be worked out: s3://models/nothing"}},
		{"on one", vllm(nil), []functions.Node{node("a", 80*gib)}, 1, 64 * gib, []string{"worked out: {gpus: 1, gpuMemory: ", "KV cache of 64 GiB for 8 x 32768 tokens"}},
		{"by its args", vllm(func(s *functions.ModelSpec) { s.Args, s.Scale.Target = []string{"--max-model-len=4096"}, 4 }), []functions.Node{node("a", 80*gib)}, 1, 4 * gib, []string{"for 4 x 4096 tokens"}},
		{"tensor parallel by its args", vllm(func(s *functions.ModelSpec) { s.Args = []string{"-tp", "2"} }), []functions.Node{node("a", 80*gib, 80*gib)}, 2, 32 * gib, nil},
		{"the node with room", vllm(nil), []functions.Node{node("a", 16*gib, 16*gib), node("b", 80*gib)}, 1, 64 * gib, nil},
		{"the smallest GPU of a node counts", vllm(nil), []functions.Node{node("a", 80*gib, 16*gib)}, 2, 8 * gib, []string{"for 2 x "}},
		{"fewer requests at once", vllm(nil), []functions.Node{node("a", 24*gib)}, 1, 16 * gib, []string{"for 2 x 32768 tokens"}},
		{"no room", vllm(nil), []functions.Node{node("a", 8*gib), node("b", 9*gib)}, 1, 8 * gib, []string{"no node has room for that now, and the largest, b, has 1 x 9 GiB"}},
		{"adapters", vllm(func(s *functions.ModelSpec) {
			s.Adapters = []functions.Adapter{{Name: "a", Source: "s3://models/lora"}}
		}), []functions.Node{node("a", 80*gib)}, 1, 64 * gib, nil},
		{"an adapter that is not there", vllm(func(s *functions.ModelSpec) {
			s.Adapters = []functions.Adapter{{Name: "a", Source: "s3://models/nothing"}}
		}), []functions.Node{node("a", 80*gib)}, 0, 0, []string{"could not be worked out"}},
		{"llama.cpp", vllm(func(s *functions.ModelSpec) {
			s.Engine, s.Source, s.Args = functions.EngineLlamaCpp, "s3://models/gguf", []string{"-c", "8192"}
		}), []functions.Node{node("a", 16*gib)}, 1, gib / 2, []string{"for 1 x 8192 tokens"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			model := functions.NewModel()
			model.Spec = x.spec
			s := Sizer{Sources: func() (map[string]loader.Source, func()) { return map[string]loader.Source{"s3": m}, func() {} }, Nodes: func() []functions.Node { return x.nodes }}
			got, text := s.Size(t.Context(), model)
			if got.GPUs != x.gpus || got.GPUMemory < x.least || got.GPUMemory > x.least+4*gib || (text == "") != (x.text == nil && x.gpus == 0) {
				t.Errorf("%+v %q", got, text)
			}
			if x.gpus > 0 && got.Memory < gib {
				t.Errorf("%+v", got)
			}
			for _, w := range x.text {
				if !strings.Contains(text, w) {
					t.Errorf("no %q in %q", w, text)
				}
			}
		})
	}
}

// TestSizeEnds: a source that never answers holds a deploy for a while and no longer.
func TestSizeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(sourcetest.Memory)
		m.Put("s3://models/m", "config.json", nil)
		m.Before = func(ctx context.Context, _ string, _, _ int64) error {
			<-ctx.Done()
			return &source.Error{Kind: source.Unavailable, Detail: "no answer", Err: context.Cause(ctx)}
		}
		model := functions.NewModel()
		model.Spec.Engine, model.Spec.Source = functions.EngineVLLM, "s3://models/m"
		s := Sizer{Sources: func() (map[string]loader.Source, func()) { return map[string]loader.Source{"s3": m}, func() {} }, Nodes: func() []functions.Node { return []functions.Node{node("a", gib)} }}
		if got, text := s.Size(t.Context(), model); got != (functions.Resources{}) || !strings.Contains(text, "did not answer within 20s") {
			t.Errorf("%+v %q", got, text)
		}
	})
}

// A model that chooses none of several sets of weights is refused with their list, where
// the source can be listed.
func TestCheckWeights(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"m-BF16.gguf", "m-Q4_K_M.gguf", "config.json"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("GGUF"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := new(sourcetest.Memory)
	m.Put("s3://models/m", "a.gguf", []byte("GGUF"))
	m.Put("s3://models/m", "b.gguf", []byte("GGUF"))
	s := Sizer{Sources: func() (map[string]loader.Source, func()) {
		return map[string]loader.Source{"s3": m, "file": dir.Source{}}, func() {}
	}}
	for _, tc := range []struct {
		source, weights string
		engine          functions.Engine
		want            string
	}{
		{"s3://models/m", "", functions.EngineLlamaCpp, "a.gguf (4 B), b.gguf (4 B)"},
		{"s3://models/m", "b.*", functions.EngineLlamaCpp, ""},
		{"s3://models/m", "c.*", functions.EngineLlamaCpp, "matches"},
		{"s3://models/m", "", functions.EngineCommand, ""},
		{".", "", functions.EngineLlamaCpp, "m-BF16.gguf (4 B), m-Q4_K_M.gguf (4 B)"},
		{"./m-BF16.gguf", "", functions.EngineLlamaCpp, ""},
		{".", "*Q4*", functions.EngineLlamaCpp, ""},
		{"./gone", "", functions.EngineLlamaCpp, ""},
		{"az://account/container/m", "", functions.EngineLlamaCpp, ""},
	} {
		err := s.CheckWeights(t.Context(),
			&functions.Model{Dir: folder, Spec: functions.ModelSpec{Source: tc.source, Weights: tc.weights, Engine: tc.engine}})
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

// TestCheckGPUs: GPUs that tensor parallelism cannot divide a model's heads among are refused,
// with the numbers that it can, where the source can be read.
func TestCheckGPUs(t *testing.T) {
	m := new(sourcetest.Memory)
	m.Put("s3://models/m", "config.json", []byte(mistral))
	m.Put("s3://models/m", "model.safetensors", []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	s := Sizer{Sources: func() (map[string]loader.Source, func()) { return map[string]loader.Source{"s3": m}, func() {} }}
	for _, tc := range []struct {
		engine functions.Engine
		source string
		gpus   int
		args   []string
		want   string
	}{
		{functions.EngineVLLM, "s3://models/m", 3, nil, "32 attention heads cannot be divided among 3 GPUs (gpus: 1, 2, 4, 8, 16, 32)"},
		{functions.EngineSGLang, "s3://models/m", 6, nil, "among 6 GPUs"},
		{functions.EngineVLLM, "s3://models/m", 4, []string{"--tensor-parallel-size=3"}, "among 3 GPUs"},
		{functions.EngineVLLM, "s3://models/m", 2, []string{"-tp", "4"}, "args ask for 4 GPUs, and resources.gpus is 2 (leave the flag out, or gpus: 4)"},
		{functions.EngineVLLM, "s3://models/m", 4, nil, ""},
		{functions.EngineVLLM, "s3://models/m", 3, []string{"--pipeline-parallel-size", "3"}, ""},
		{functions.EngineVLLM, "s3://models/m", 3, []string{"-tp", "1"}, ""},
		{functions.EngineVLLM, "s3://models/gone", 3, nil, ""},
		{functions.EngineCommand, "s3://models/m", 3, nil, ""},
	} {
		spec := functions.ModelSpec{Source: tc.source, Engine: tc.engine, Args: tc.args, Resources: functions.Resources{GPUs: tc.gpus}}
		err := s.CheckGPUs(t.Context(), &functions.Model{Spec: spec})
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
