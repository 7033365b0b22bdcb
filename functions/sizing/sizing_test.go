package sizing

import (
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

const gib = 1 << 30

// eight is a model of 8 billion parameters with 32 layers of 8 KV heads of 128.
func eight() *Model {
	return &Model{Weights: 16 * gib, Cache: []Layers{{Count: 32, Token: 4096, Heads: 8}}, Context: 131072, Heads: 32, Hidden: 4096, Inter: 14336, Vocab: 128256}
}

func TestCache(t *testing.T) {
	for _, x := range []struct {
		name         string
		layers       []Layers
		tokens, gpus int
		want         int64
	}{
		{"one GPU", []Layers{{Count: 32, Token: 4096, Heads: 8}}, 1000, 1, 32 * 4096 * 1000},
		{"heads are divided", []Layers{{Count: 32, Token: 4096, Heads: 8}}, 1000, 4, 32 * 1024 * 1000},
		{"a GPU has a whole head", []Layers{{Count: 32, Token: 4096, Heads: 8}}, 1000, 16, 32 * 512 * 1000},
		{"heads that do not divide", []Layers{{Count: 1, Token: 300, Heads: 3}}, 10, 2, 2000},
		{"latent vectors are not divided", []Layers{{Count: 61, Token: 1152}}, 1000, 8, 61 * 1152 * 1000},
		{"window", []Layers{{Count: 2, Token: 100, Heads: 1, Window: 128}}, 1000, 1, 2 * 100 * 128},
		{"shorter than the window", []Layers{{Count: 2, Token: 100, Heads: 1, Window: 128}}, 10, 1, 2 * 100 * 10},
		{"state", []Layers{{Count: 3, State: 5000, Heads: 5}}, 1000, 1, 15000},
		{"state is divided", []Layers{{Count: 3, State: 5000, Heads: 5}}, 1000, 5, 3000},
		{"no cache", nil, 1000, 1, 0},
	} {
		m := Model{Cache: x.layers}
		if got := m.CacheOf(x.tokens, x.gpus); got != x.want {
			t.Errorf("%s: %d, want %d", x.name, got, x.want)
		}
	}
}

// TestEngines: every engine has a figure, and what grows grows.
func TestEngines(t *testing.T) {
	for _, u := range []Use{
		{Engine: functions.EngineVLLM, GPUs: 1}, {Engine: functions.EngineVLLM}, {Engine: functions.EngineSGLang, GPUs: 1},
		{Engine: functions.EngineLlamaCpp, GPUs: 1}, {Engine: functions.EngineLlamaCpp}, {Engine: functions.EngineEmber},
	} {
		u.Context, u.Requests = 1024, 4
		m := eight()
		n := Of(m, u)
		width := int64(1)
		if u.Engine == functions.EngineEmber {
			width = 2
		}
		if n.Weights != m.Weights || n.Cache != 4*1024*32*4096*width || n.Program <= 0 || n.Work <= 0 || n.Total()%step != 0 ||
			n.Total() < n.Weights+n.Cache {
			t.Errorf("%+v: %+v", u, n)
		}
		less := n.Total()
		m.Media = true
		m.Adapter, m.Slots = 100<<20, 2
		if n := Of(m, u); n.Adapters != 200<<20 || n.Total() < less+200<<20-step {
			t.Errorf("%+v with adapters: %+v", u, n)
		}
	}
	two := Of(eight(), Use{Engine: functions.EngineVLLM, GPUs: 2, Context: 1024, Requests: 4})
	one := Of(eight(), Use{Engine: functions.EngineVLLM, GPUs: 1, Context: 1024, Requests: 4})
	if two.Weights*2 != one.Weights || two.Cache*2 != one.Cache || two.Program <= one.Program {
		t.Errorf("%+v\n%+v", one, two)
	}
}

func TestFitOn(t *testing.T) {
	for _, x := range []struct {
		name   string
		model  func(*Model)
		use    Use
		memory int64
		count  int
		ok     bool
		gpus   int
		ways   Ways
	}{
		{"on one", nil, Use{Context: 8192, Requests: 8}, 80 * gib, 8, true, 1, Ways{}},
		{"on the fewest", nil, Use{Context: 8192, Requests: 8}, 16 * gib, 8, true, 2, Ways{}},
		{"one of two is meant", nil, Use{Context: 8192, Requests: 8, GPUs: 2}, 80 * gib, 8, true, 2, Ways{}},
		{"more GPUs", nil, Use{Context: 8192, Requests: 8}, 24 * gib, 1, false, 1, Ways{GPUs: 2, Context: 4096, Requests: 8, Bits: 8}},
		{"a long context", nil, Use{Context: 131072, Requests: 8}, 24 * gib, 1, false, 1, Ways{GPUs: 8, Context: 4096, Requests: 8}},
		{"fewer requests", nil, Use{Context: 8192, Requests: 8}, 20 * gib, 1, false, 1, Ways{GPUs: 2, Context: 1024, Requests: 4, Bits: 4}},
		{"a variant", nil, Use{Context: 1024, Requests: 1}, 16 * gib, 1, false, 1, Ways{GPUs: 2, Bits: 8}},
		{"quantised already", func(m *Model) { m.Quantized = true }, Use{Context: 1024, Requests: 1}, 16 * gib, 1, false, 1, Ways{GPUs: 2}},
		{"heads that do not divide", func(m *Model) { m.Heads = 7 }, Use{Context: 1024, Requests: 1}, 16 * gib, 8, false, 1, Ways{Bits: 8}},
		{"nothing helps", func(m *Model) { m.Weights = 1 << 44; m.Quantized = true }, Use{Context: 1024, Requests: 1}, 16 * gib, 8, false, 8, Ways{}},
		{"KV heads that do not divide", func(m *Model) { m.Heads, m.Cache[0].Heads = 32, 3 }, Use{Context: 1024, Requests: 1}, 16 * gib, 8, false, 1, Ways{Bits: 8}},
		{"three", func(m *Model) { m.Heads = 36 }, Use{Context: 1024, Requests: 1, GPUs: 3}, 80 * gib, 4, true, 3, Ways{}},
	} {
		m := eight()
		if x.model != nil {
			x.model(m)
		}
		x.use.Engine = functions.EngineVLLM
		f := FitOn(m, x.use, x.memory, x.count)
		if f.OK != x.ok || f.Use.GPUs != x.gpus || f.Ways != x.ways {
			t.Errorf("%s: %+v, %s", x.name, f, functions.Bytes(f.Need.Total()).Human())
		}
		// What is proposed does fit.
		try := func(what string, m *Model, u Use) {
			if Of(m, u).Total() > int64(float64(x.memory)*usable) {
				t.Errorf("%s: %s does not fit", x.name, what)
			}
		}
		if f.Ways.GPUs > 0 {
			u := f.Use
			u.GPUs = f.Ways.GPUs
			try("more GPUs", m, u)
		}
		if f.Ways.Context > 0 {
			u := f.Use
			u.Context, u.Requests = f.Ways.Context, f.Ways.Requests
			try("a shorter context", m, u)
		}
	}
}

func TestDivides(t *testing.T) {
	m := &Model{Heads: 24, Cache: []Layers{{Count: 1, Token: 8, Heads: 4}, {Count: 1, Token: 8}}}
	for n, want := range map[int]bool{1: true, 2: true, 3: false, 4: true, 6: false, 8: true, 12: true, 16: false, 24: true} {
		if m.Divides(n) != want {
			t.Errorf("%d: %v", n, !want)
		}
	}
	if m.Heads = 0; !m.Divides(7) {
		t.Error("what has no heads is not divided by them")
	}
}
