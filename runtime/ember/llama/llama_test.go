package llama_test

import (
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/thaw-dev/thaw/runtime/ember/llama"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
)

const sample = `One word after another goes into the model, and one comes out. The words are many, the days are long, and nobody counts them twice.`

var shape = checkpoint.Shape{Hidden: 96, Inter: 176, Layers: 2, Heads: 6, KVHeads: 2, Learned: 290, MaxPos: 256}

func openModel(t *testing.T, s checkpoint.Shape, threads int) *llama.Model {
	t.Helper()
	dir := t.TempDir()
	if _, err := checkpoint.Folder(dir, s, sample, 3); err != nil {
		t.Fatal(err)
	}
	c, err := llama.ReadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, err := llama.Open(dir, c, threads)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func tokens(n, seed int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = (i*37 + seed*11 + 5) % 256
	}
	return out
}

func floatBits(x []float32) []uint32 {
	out := make([]uint32, len(x))
	for i, v := range x {
		out[i] = math.Float32bits(v)
	}
	return out
}

// The scores of a sequence must have the same bits whether its prompt came at once
// or in pieces, alone or among others, on one thread or three.
func TestBatchesAgree(t *testing.T) {
	for _, family := range []string{"llama", "qwen2"} {
		for _, dtype := range []string{"BF16", "F32"} {
			s := shape
			s.Family, s.DType = family, dtype
			one, three := openModel(t, s, 1), openModel(t, s, 3)
			prompt := tokens(45, 1)
			whole := []llama.Input{{Cache: one.NewCache(4), Tokens: prompt, Logits: true}}
			one.Forward(whole)
			want := floatBits(whole[0].Out)

			mine, other, third := three.NewCache(1), three.NewCache(100), three.NewCache(1)
			at := 0
			var got []uint32
			for i := 0; at < len(prompt); i++ {
				n := min(1+i%5, len(prompt)-at)
				in := []llama.Input{
					{Cache: other, Tokens: tokens(1+i%3, i), Logits: i%2 == 0},
					{Cache: mine, Tokens: prompt[at : at+n], Logits: true},
				}
				if i%3 == 0 {
					in = append(in, llama.Input{Cache: third, Tokens: tokens(2, i), Hidden: make([]float32, s.Hidden)})
				}
				three.Forward(in)
				got = floatBits(in[1].Out)
				at += n
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s %s: the scores differ", family, dtype)
			}
			if mine.Len() != len(prompt) {
				t.Errorf("%d positions", mine.Len())
			}
			// A cache is as new after Reset.
			other.Reset()
			again := []llama.Input{{Cache: other, Tokens: prompt, Logits: true}}
			three.Forward(again)
			if !slices.Equal(floatBits(again[0].Out), want) {
				t.Errorf("%s %s: a used cache remembers", family, dtype)
			}
		}
	}
}

// Random weights must not blow up, or the other tests compare nothing.
func TestScoresAreFinite(t *testing.T) {
	m := openModel(t, shape, 1)
	in := []llama.Input{{Cache: m.NewCache(4), Tokens: tokens(20, 2), Logits: true}}
	m.Forward(in)
	for _, v := range in[0].Out {
		if v != v || math.IsInf(float64(v), 0) {
			t.Fatal("scores are not finite")
		}
	}
}

func TestHiddenStatesAreSummed(t *testing.T) {
	m := openModel(t, shape, 2)
	ids := tokens(9, 4)
	sum := func(size int) []float32 {
		c, h := m.NewCache(4), make([]float32, shape.Hidden)
		for at := 0; at < len(ids); at += size {
			m.Forward([]llama.Input{{Cache: c, Tokens: ids[at:min(at+size, len(ids))], Hidden: h}})
		}
		return h
	}
	if a, b := sum(9), sum(2); !slices.Equal(floatBits(a), floatBits(b)) {
		t.Error("pieces change the sum")
	}
}

func TestTouchReports(t *testing.T) {
	m := openModel(t, shape, 1)
	var n atomic.Int64
	m.Touch(func(done, total int64) bool {
		if done > total {
			t.Errorf("%d of %d", done, total)
		}
		n.Add(1)
		return true
	})
	if n.Load() == 0 {
		t.Error("nothing was reported")
	}
}

const good = `{"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":300`

func TestConfig(t *testing.T) {
	c, err := llama.ParseConfig([]byte(good + `}`))
	if err != nil || c.KVHeads != 4 || c.HeadDim != 16 || c.Theta != 10000 || c.Eps != 1e-6 || c.MaxPos != 2048 || c.Tied || c.BOS != -1 ||
		c.EOS != nil {
		t.Errorf("%+v %v", c, err)
	}
	c, err = llama.ParseConfig([]byte(strings.Replace(good, "Llama", "Qwen2", 1) + `,"rope_parameters":{"rope_type":"llama3","rope_theta":5e5,"factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192},"eos_token_id":[1,2],"bos_token_id":7,"head_dim":32}`))
	if err != nil || c.Theta != 5e5 || c.Rope.Type != "llama3" || c.BOS != 7 || !slices.Equal(c.EOS, []int{1, 2}) || c.HeadDim != 32 {
		t.Errorf("%+v %v", c, err)
	}
	for _, x := range []struct{ json, want string }{
		{`{`, "line 1, column 2: it ends in the middle"},
		{`{}`, `model_type "" is not supported`},
		{`{"architectures":["GPT2LMHeadModel"]}`, "architecture GPT2LMHeadModel is not supported"},
		{good + `,"hidden_size":"x"}`, "`hidden_size` is a string, not a whole number"},
		{good + `,"num_hidden_layers":0}`, "num_hidden_layers is 0"},
		{good + `,"num_hidden_layers":-1}`, "num_hidden_layers is -1"},
		{good + `,"vocab_size":99999999999}`, "vocab_size"},
		{good + `,"num_key_value_heads":3}`, "not a multiple"},
		{good + `,"head_dim":15}`, "odd"},
		{good + `,"hidden_act":"gelu"}`, `hidden_act "gelu"`},
		{good + `,"mlp_bias":true}`, "mlp_bias"},
		{good + `,"use_sliding_window":true}`, "use_sliding_window"},
		{good + `,"quantization_config":{}}`, "quantized"},
		{good + `,"rope_theta":0}`, "rope_theta"},
		{good + `,"rope_scaling":{"type":"dynamic","factor":2}}`, `"dynamic" is not supported`},
		{good + `,"rope_scaling":{"rope_type":"llama3","factor":8}}`, "want a factor of 1 or more"},
		{good + `,"rope_scaling":{"type":"linear","factor":0}}`, "want a factor of 1 or more"},
		{good + `,"eos_token_id":"x"}`, "eos_token_id"},
	} {
		if _, err := llama.ParseConfig([]byte(x.json)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want %q", x.json, err, x.want)
		}
	}
}

func TestFrequencies(t *testing.T) {
	c := llama.Config{HeadDim: 64, Theta: 5e5}
	plain := c.Frequencies()
	c.Rope = llama.RopeScaling{Type: "llama3", Factor: 8, Low: 1, High: 4, Original: 8192}
	scaled := c.Frequencies()
	if scaled[0] != plain[0] {
		t.Error("short waves are scaled")
	}
	if r := plain[31] / scaled[31]; math.Abs(r-8) > 1e-9 {
		t.Errorf("long waves are scaled by %v", r)
	}
	for i := 1; i < len(scaled); i++ {
		if scaled[i] >= scaled[i-1] {
			t.Errorf("frequency %d does not fall", i)
		}
	}
	c.Rope = llama.RopeScaling{Type: "linear", Factor: 4}
	if f := c.Frequencies(); f[3] != plain[3]/4 {
		t.Errorf("%v", f[3])
	}
}

// Weights that were copied give the very scores of weights that are mapped.
func TestCopyGivesSameOutput(t *testing.T) {
	for _, dtype := range []string{"BF16", "F32"} {
		s := shape
		s.DType = dtype
		dir := t.TempDir()
		if _, err := checkpoint.Folder(dir, s, sample, 3); err != nil {
			t.Fatal(err)
		}
		c, err := llama.ReadConfig(dir)
		if err != nil {
			t.Fatal(err)
		}
		var scores [2][]uint32
		for i, open := range []func() (*llama.Model, error){
			func() (*llama.Model, error) { return llama.Open(dir, c, 1) },
			func() (*llama.Model, error) {
				return llama.Copy(dir, c, 1, nil, func(int64, int64) bool { return true })
			},
		} {
			m, err := open()
			if err != nil {
				t.Fatal(err)
			}
			in := []llama.Input{{Cache: m.NewCache(4), Tokens: tokens(20, 1), Logits: true}}
			m.Forward(in)
			scores[i] = floatBits(in[0].Out)
			m.Close()
		}
		if !slices.Equal(scores[0], scores[1]) {
			t.Errorf("%s: the scores differ", dtype)
		}
	}
}
