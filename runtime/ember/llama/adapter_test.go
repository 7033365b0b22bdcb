package llama_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/thaw-dev/thaw/runtime/ember/llama"
	"github.com/thaw-dev/thaw/runtime/ember/safetensors"
	"github.com/thaw-dev/thaw/testkit/checkpoint"
	"github.com/thaw-dev/thaw/testkit/tensors"
)

// adapterFiles are the files of an adapter before they are written.
type adapterFiles struct {
	config  map[string]any
	tensors []tensors.Source
}

// shapes of the modules of the test's model: rows and columns.
var moduleShapes = map[string][2]int{
	"self_attn.q_proj": {96, 96}, "self_attn.k_proj": {32, 96}, "self_attn.v_proj": {32, 96}, "self_attn.o_proj": {96, 96},
	"mlp.gate_proj": {176, 96}, "mlp.up_proj": {176, 96}, "mlp.down_proj": {96, 176},
}

// newAdapter makes an adapter of those modules in every layer, of random numbers.
func newAdapter(rank int, alpha float64, seed uint64, names ...string) *adapterFiles {
	r := rand.New(rand.NewPCG(seed, 1))
	short := []string{}
	for _, n := range names {
		short = append(short, n[strings.LastIndexByte(n, '.')+1:])
	}
	a := &adapterFiles{config: map[string]any{"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": short, "bias": "none",
		"use_dora": false, "modules_to_save": nil, "lora_dropout": 0.1, "rank_pattern": map[string]any{}, "init_lora_weights": true}}
	random := func(name string, rows, cols int) {
		t := tensors.Source{Name: name, Shape: []int{rows, cols}}
		for range rows * cols {
			t.Data = append(t.Data, float32(r.NormFloat64()*0.2))
		}
		a.tensors = append(a.tensors, t)
	}
	for i := range shape.Layers {
		for _, n := range names {
			at := fmt.Sprintf("base_model.model.model.layers.%d.%s", i, n)
			random(at+".lora_A.weight", rank, moduleShapes[n][1])
			random(at+".lora_B.weight", moduleShapes[n][0], rank)
		}
	}
	return a
}

func (a *adapterFiles) write(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	b, err := json.Marshal(a.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.Weights(filepath.Join(dir, "adapter_model.safetensors"), "F32", a.tensors); err != nil {
		t.Fatal(err)
	}
	return dir
}

// merge writes the checkpoint of base with W + scale·B·A for each pair.
func (a *adapterFiles) merge(t *testing.T, base string, scale float64) string {
	t.Helper()
	dir := t.TempDir()
	b, err := os.ReadFile(filepath.Join(base, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	set, err := safetensors.OpenFolder(base)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	of := map[string][]float32{}
	for _, x := range a.tensors {
		of[x.Name] = x.Data
	}
	var out []tensors.Source
	for _, name := range set.Names() {
		x, _ := set.Lookup(name)
		w := slices.Clone(set.F32(name))
		at := "base_model.model." + strings.TrimSuffix(name, ".weight")
		if down, up := of[at+".lora_A.weight"], of[at+".lora_B.weight"]; down != nil {
			rows, cols := x.Shape[0], x.Shape[1]
			rank := len(down) / cols
			for i := range rows {
				for j := range cols {
					sum := 0.0
					for k := range rank {
						sum += float64(up[i*rank+k]) * float64(down[k*cols+j])
					}
					w[i*cols+j] = float32(float64(w[i*cols+j]) + scale*sum)
				}
			}
		}
		out = append(out, tensors.Source{Name: name, Shape: x.Shape, Data: w})
	}
	if err := checkpoint.Weights(filepath.Join(dir, "model.safetensors"), "F32", out); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openFolder(t testing.TB, dir string, threads int) *llama.Model {
	t.Helper()
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

func floatFolder(t testing.TB) string {
	t.Helper()
	s := shape
	s.DType = "F32"
	dir := t.TempDir()
	if _, err := checkpoint.Folder(dir, s, sample, 3); err != nil {
		t.Fatal(err)
	}
	return dir
}

func openAdapter(t testing.TB, m *llama.Model, a *adapterFiles) *llama.Adapter {
	t.Helper()
	out, err := llama.OpenAdapter(a.write(t), &m.Config, 64)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// scoresOf runs a prompt with an adapter, alone.
func scoresOf(m *llama.Model, a *llama.Adapter, prompt []int) []float32 {
	c := m.NewCache(1)
	c.Use(a)
	in := []llama.Input{{Cache: c, Tokens: prompt, Logits: true}}
	m.Forward(in)
	return slices.Clone(in[0].Out)
}

func distance(a, b []float32) (d float64) {
	for i := range a {
		d = max(d, math.Abs(float64(a[i]-b[i])))
	}
	return d
}

// TestAdapterEqualsMerged: the scores with an adapter are those of a checkpoint whose
// weights are W + scale·B·A, with PEFT's scale: alpha/r, or alpha/sqrt(r) with rsLoRA.
func TestAdapterEqualsMerged(t *testing.T) {
	base := floatFolder(t)
	m := openFolder(t, base, 2)
	prompt := tokens(30, 3)
	plain := scoresOf(m, nil, prompt)
	all := slices.Sorted(maps.Keys(moduleShapes))
	for _, x := range []struct {
		name    string
		rank    int
		modules []string
		rs      bool
		targets any
	}{
		{"attention", 4, []string{"self_attn.q_proj", "self_attn.v_proj"}, false, nil},
		{"keys", 1, []string{"self_attn.k_proj"}, false, []string{"self_attn.k_proj"}},
		{"feed forward", 3, []string{"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}, false, `.*\.mlp\.(gate|up|down)_proj`},
		{"all, rsLoRA", 16, all, true, "all-linear"},
		{"output", 24, []string{"self_attn.o_proj"}, false, nil},
	} {
		a := newAdapter(x.rank, 8, 5, x.modules...)
		scale := 8 / float64(x.rank)
		if x.rs {
			a.config["use_rslora"] = true
			scale = 8 / math.Sqrt(float64(x.rank))
		}
		if x.targets != nil {
			a.config["target_modules"] = x.targets
		}
		want := scoresOf(openFolder(t, a.merge(t, base, scale), 1), nil, prompt)
		got := scoresOf(m, openAdapter(t, m, a), prompt)
		if d, moved := distance(got, want), distance(plain, want); d > 1e-4*(1+moved) || moved < 0.01 {
			t.Errorf("%s: %v from the merged weights, which are %v from the base", x.name, d, moved)
		}
	}
	if d := distance(scoresOf(m, nil, prompt), plain); d != 0 {
		t.Errorf("the base moved by %v", d)
	}
}

// TestAdaptersShareBatch: a sequence has the same bits alone and in a batch with other
// adapters and the base, in any pieces, on one thread and three.
func TestAdaptersShareBatch(t *testing.T) {
	base := floatFolder(t)
	one, three := openFolder(t, base, 1), openFolder(t, base, 3)
	small := openAdapter(t, one, newAdapter(2, 8, 1, "self_attn.q_proj", "mlp.down_proj"))
	large := openAdapter(t, one, newAdapter(20, 8, 2, slices.Sorted(maps.Keys(moduleShapes))...))
	adapters := []*llama.Adapter{nil, small, large}
	prompt := tokens(40, 1)
	var want [][]float32
	for _, a := range adapters {
		want = append(want, scoresOf(one, a, prompt))
	}
	if distance(want[0], want[1]) < 0.01 || distance(want[1], want[2]) < 0.01 {
		t.Fatal("the adapters change nothing")
	}
	var caches [3]*llama.Cache
	for round := range 3 {
		at := [3]int{}
		got := [3][]float32{}
		for i := range caches {
			if caches[i] == nil {
				caches[i] = three.NewCache(1)
			}
			caches[i].Reset()
			caches[i].Use(adapters[(i+round)%3]) // a used cache remembers no adapter
		}
		for step := 0; slices.Min(at[:]) < len(prompt); step++ {
			var in []llama.Input
			var of []int
			for i := range caches {
				if n := min(1+(step+i*2)%4, len(prompt)-at[i]); n > 0 {
					in = append(in, llama.Input{Cache: caches[i], Tokens: prompt[at[i] : at[i]+n], Logits: true})
					of = append(of, i)
					at[i] += n
				}
			}
			three.Forward(in)
			for j, i := range of {
				got[i] = slices.Clone(in[j].Out)
			}
		}
		for i := range caches {
			if w := want[(i+round)%3]; !slices.Equal(floatBits(got[i]), floatBits(w)) {
				t.Errorf("round %d, sequence %d: %v from its scores alone", round, i, distance(got[i], w))
			}
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a filled cache changed its adapter")
		}
	}()
	caches[0].Use(small)
}

// TestAdapterFloats: weights of two bytes are read as they are.
func TestAdapterFloats(t *testing.T) {
	m := openFolder(t, floatFolder(t), 1)
	dir := newAdapter(4, 8, 1, "self_attn.q_proj").write(t)
	path := filepath.Join(dir, "adapter_model.safetensors")
	var same [2][]float32
	for i, dtype := range []string{"F16", "F32"} {
		// 0x3555 is the number of 16 bits next to a third.
		bits, size := []byte{0x55, 0x35}, 2
		if dtype == "F32" {
			bits, size = []byte{0x00, 0xa0, 0xaa, 0x3e}, 4
		}
		head, data := map[string]any{}, []byte{}
		for l := range shape.Layers {
			for end, n := range map[string][]int{"lora_A": {4, 96}, "lora_B": {96, 4}} {
				began := len(data)
				for range 4 * 96 {
					data = append(data, bits...)
				}
				head[fmt.Sprintf("base_model.model.model.layers.%d.self_attn.q_proj.%s.weight", l, end)] =
					map[string]any{"dtype": dtype, "shape": n, "data_offsets": []int{began, began + 4*96*size}}
			}
		}
		h, _ := json.Marshal(head)
		b := append([]byte{byte(len(h)), byte(len(h) >> 8), 0, 0, 0, 0, 0, 0}, h...)
		if err := os.WriteFile(path, append(b, data...), 0o644); err != nil {
			t.Fatal(err)
		}
		a, err := llama.OpenAdapter(dir, &m.Config, 16)
		if err != nil {
			t.Fatal(err)
		}
		same[i] = scoresOf(m, a, tokens(9, 1))
	}
	if !slices.Equal(same[0], same[1]) {
		t.Error("F16 and F32 differ")
	}
}

// TestBadAdapters: what is not plain LoRA for this model is refused, and the error names it.
func TestBadAdapters(t *testing.T) {
	m := openFolder(t, floatFolder(t), 1)
	set := func(key string, v any) func(*adapterFiles) { return func(a *adapterFiles) { a.config[key] = v } }
	for _, x := range []struct {
		change func(*adapterFiles)
		want   string
	}{
		{set("peft_type", "IA3"), "only LORA"},
		{set("bias", "lora_only"), "bias"},
		{set("lora_bias", true), "a bias"},
		{set("use_dora", true), "DoRA"},
		{set("modules_to_save", []string{"lm_head"}), "modules_to_save"},
		{set("fan_in_fan_out", true), "transposed"},
		{set("layer_replication", [][]int{{0, 1}}), "replicated"},
		{set("trainable_token_indices", []int{1}), "trained tokens"},
		{set("init_lora_weights", "pissa_niter_4"), "pissa_niter_4"},
		{set("rank_pattern", map[string]int{"q_proj": 8}), "rank_pattern"},
		{set("alpha_pattern", map[string]int{"q_proj": 8}), "alpha_pattern"},
		{set("use_new_idea", true), "use_new_idea is not known"},
		{set("r", 0), "r is 0"},
		{set("r", "x"), "`r` is a string, not a whole number"},
		{set("r", 4), "shape [2 96]"},
		{set("r", 65), "rank is 65 and the engine takes 64"},
		{set("lora_alpha", nil), "lora_alpha is missing"},
		{set("lora_alpha", 1e300), "lora_alpha"},
		{set("target_modules", nil), "target_modules is missing"},
		{set("target_modules", []string{}), "target_modules must be"},
		{set("target_modules", []string{"q_proj", "lm_head"}), `"lm_head" is not supported`},
		{set("target_modules", []string{"q_proj", "v_proj"}), "v_proj.lora_A.weight is missing, though target_modules names it; it has 4, such as [base_model"},
		{set("target_modules", []string{"v_proj"}), "v_proj.lora_A.weight is missing"},
		{set("target_modules", "("), "target_modules"},
		{set("target_modules", strings.Repeat("a", 5000)), "longer than 4096"},
		{set("target_modules", "nothing"), "does not name it"},
		{set("layers_to_transform", []int{0}), "layers.1.self_attn.q_proj.lora_A.weight is not supported"},
		{func(a *adapterFiles) { a.tensors = a.tensors[:3] }, "lora_B.weight is missing"},
		{func(a *adapterFiles) {
			a.tensors = append(a.tensors, tensors.Source{Name: "base_model.model.lm_head.lora_A.weight", Shape: []int{1}, Data: []float32{1}})
		}, "lm_head.lora_A.weight is not supported"},
		{func(a *adapterFiles) { a.tensors[1].Shape = []int{2, 96} }, "shape [2 96]"},
		{func(a *adapterFiles) { a.tensors[2].Data[7] = float32(math.NaN()) }, "not finite"},
	} {
		a := newAdapter(2, 8, 1, "self_attn.q_proj")
		x.change(a)
		if _, err := llama.OpenAdapter(a.write(t), &m.Config, 64); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v, want %q", err, x.want)
		}
	}
	if _, err := llama.OpenAdapter(t.TempDir(), &m.Config, 64); err == nil || !strings.Contains(err.Error(), "no adapter_config.json") {
		t.Error(err)
	}
	dir := newAdapter(2, 8, 1, "self_attn.q_proj").write(t)
	weights := filepath.Join(dir, "adapter_model.safetensors")
	for _, x := range []struct {
		do   func() error
		want string
	}{
		{func() error { return os.Truncate(weights, 900) }, "adapter_model.safetensors"},
		{func() error { return os.Truncate(weights, 0) }, "adapter_model.safetensors"},
		{func() error { return os.Remove(weights) }, "no adapter_model.safetensors"},
		{func() error { return os.WriteFile(filepath.Join(dir, "adapter_model.bin"), nil, 0o644) }, "pickle"},
	} {
		if err := x.do(); err != nil {
			t.Fatal(err)
		}
		if _, err := llama.OpenAdapter(dir, &m.Config, 64); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v, want %q", err, x.want)
		}
	}
}

// BenchmarkAdapter measures a token of the shipped model's shape: of the base, with an
// adapter, and of four sequences with four adapters; and the reading of an adapter.
func BenchmarkAdapter(b *testing.B) {
	base := "../../../functions/shipped/tiny"
	m := openFolder(b, base, 1)
	var adapters []*llama.Adapter
	for _, name := range []string{"billing", "repair"} {
		a, err := llama.OpenAdapter("../../../deploy/example/switchboard/"+name, &m.Config, 16)
		if err != nil {
			b.Fatal(err)
		}
		adapters = append(adapters, a)
	}
	for _, x := range []struct {
		name string
		of   []*llama.Adapter
	}{
		{"base", []*llama.Adapter{nil}}, {"one", adapters[:1]}, {"base-four", make([]*llama.Adapter, 4)},
		{"mixed-four", []*llama.Adapter{nil, adapters[0], adapters[1], adapters[0]}},
	} {
		b.Run(x.name, func(b *testing.B) {
			in := make([]llama.Input, len(x.of))
			for i := range in {
				in[i] = llama.Input{Cache: m.NewCache(256), Tokens: []int{1}, Logits: true}
			}
			for n := 0; b.Loop(); n++ {
				if n%128 == 0 {
					for i := range in {
						in[i].Cache.Reset()
						in[i].Cache.Use(x.of[i])
					}
				}
				m.Forward(in)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(in)), "ns/token")
		})
	}
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := llama.OpenAdapter("../../../deploy/example/switchboard/billing", &m.Config, 16); err != nil {
				b.Fatal(err)
			}
		}
	})
}
