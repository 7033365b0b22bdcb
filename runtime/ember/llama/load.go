package llama

import (
	"errors"
	"fmt"
	"slices"

	"github.com/thaw-dev/thaw/runtime/ember/kernel"
	"github.com/thaw-dev/thaw/runtime/ember/safetensors"
)

// matrix is a row-major weight matrix in the file's data type.
type matrix struct {
	rows, cols int
	bf16       []uint16  // BF16
	full       []float32 // or F32
	bias       []float32 // nil if there is none
}

type layer struct {
	attnNorm, mlpNorm []float32
	q, k, v, o        matrix
	gate, up, down    matrix
}

type Model struct {
	Config
	embed, head matrix
	norm        []float32
	layers      []layer
	set         *safetensors.Set
	team        *team
	rope        rope
	s           scratch
}

// Open maps the weights of the checkpoint in dir and checks every tensor's shape against
// c. threads is how many goroutines share a pass.
func Open(dir string, c Config, threads int) (*Model, error) {
	set, err := safetensors.OpenFolder(dir)
	if err != nil {
		return nil, err
	}
	return bindModel(dir, set, c, threads)
}

// Copy is Open for files that are still arriving or are removed later: the weights are
// read into memory, from the folder or with from; see [safetensors.CopyFolder].
func Copy(dir string, c Config, threads int, from safetensors.From, report func(done, total int64) bool) (*Model, error) {
	set, err := safetensors.CopyFolder(dir, from, report)
	if err != nil {
		return nil, err
	}
	return bindModel(dir, set, c, threads)
}

func bindModel(dir string, set *safetensors.Set, c Config, threads int) (*Model, error) {
	m := &Model{Config: c, set: set}
	if err := m.bind(); err != nil {
		set.Close()
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	m.rope.freq = c.Frequencies()
	m.team = newTeam(threads)
	return m, nil
}

// Close ends the workers and unmaps the weights.
func (m *Model) Close() error {
	m.team.close()
	return m.set.Close()
}

// Touch reads the weights into memory; see [safetensors.Set.Touch]. It may run
// concurrently with every method but Close.
func (m *Model) Touch(report func(done, total int64) bool) { m.set.Touch(report) }

func (m *Model) bind() error {
	var first error
	record := func(err error) {
		if first == nil {
			first = err
		}
	}
	mat := func(name string, rows, cols int) matrix {
		w, err := m.matrix(name, rows, cols)
		record(err)
		return w
	}
	vec := func(name string, n int) []float32 {
		v, err := m.vector(name, n)
		record(err)
		return v
	}
	biased := func(name string, rows, cols int) matrix {
		w := mat(name+".weight", rows, cols)
		if _, ok := m.set.Lookup(name + ".bias"); ok {
			w.bias = vec(name+".bias", rows)
		}
		return w
	}
	q, kv := m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	m.embed = mat("model.embed_tokens.weight", m.Vocab, m.Hidden)
	m.head = m.embed
	if !m.Tied {
		m.head = mat(headName, m.Vocab, m.Hidden)
	}
	m.norm = vec("model.norm.weight", m.Hidden)
	m.layers = make([]layer, m.Layers)
	for i := range m.layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		l := &m.layers[i]
		l.attnNorm = vec(p+"input_layernorm.weight", m.Hidden)
		l.mlpNorm = vec(p+"post_attention_layernorm.weight", m.Hidden)
		l.q = biased(p+"self_attn.q_proj", q, m.Hidden)
		l.k = biased(p+"self_attn.k_proj", kv, m.Hidden)
		l.v = biased(p+"self_attn.v_proj", kv, m.Hidden)
		l.o = biased(p+"self_attn.o_proj", m.Hidden, q)
		l.gate = mat(p+"mlp.gate_proj.weight", m.Inter, m.Hidden)
		l.up = mat(p+"mlp.up_proj.weight", m.Inter, m.Hidden)
		l.down = mat(p+"mlp.down_proj.weight", m.Hidden, m.Inter)
		if first != nil {
			return first
		}
	}
	return first
}

func (m *Model) matrix(name string, rows, cols int) (matrix, error) {
	t, err := m.expect(name, rows, cols)
	if err != nil {
		return matrix{}, err
	}
	w := matrix{rows: rows, cols: cols}
	if t.DType == "BF16" {
		w.bf16 = m.set.BF16(name)
	} else {
		w.full = m.set.F32(name)
	}
	return w, nil
}

func (m *Model) vector(name string, n int) ([]float32, error) {
	t, err := m.expect(name, n)
	if err != nil {
		return nil, err
	}
	if t.DType == "F32" {
		return m.set.F32(name), nil
	}
	bf16 := m.set.BF16(name)
	out := make([]float32, n) // small: widened once
	for i, h := range bf16 {
		out[i] = kernel.FromBF16(h)
	}
	return out, nil
}

func (m *Model) expect(name string, shape ...int) (safetensors.Tensor, error) {
	t, ok := m.set.Lookup(name)
	if !ok {
		return t, m.missing(name)
	}
	if t.DType != "BF16" && t.DType != "F32" {
		return t, fmt.Errorf("tensor %s: dtype %s is not supported (known: BF16, F32)", name, t.DType)
	}
	if !slices.Equal(t.Shape, shape) {
		return t, fmt.Errorf("tensor %s has the shape %v, and config.json asks for %v: %s", name, t.Shape, shape, m.sizes())
	}
	return t, nil
}

// sizes are those of config.json that the shapes follow from.
func (c *Config) sizes() string {
	return fmt.Sprintf("vocab_size %d, hidden_size %d, intermediate_size %d, num_attention_heads %d, num_key_value_heads %d, head_dim %d",
		c.Vocab, c.Hidden, c.Inter, c.Heads, c.KVHeads, c.HeadDim)
}

func (m *Model) missing(name string) error {
	names := m.set.Names()
	switch {
	case name == headName:
		return fmt.Errorf("tensor %s is missing; where the embedding is the head too, config.json has tie_word_embeddings: true", name)
	case len(names) == 0:
		return errors.New("the weights hold no tensor")
	}
	return fmt.Errorf("tensor %s is missing among %d, the first of which is %s; num_hidden_layers is %d", name, len(names), names[0],
		m.Layers)
}

const headName = "lm_head.weight"

// row copies one row, widened, as the embedding needs it.
func (m *matrix) row(out []float32, r int) {
	if m.full != nil {
		copy(out, m.full[r*m.cols:(r+1)*m.cols])
		return
	}
	for i, h := range m.bf16[r*m.cols : (r+1)*m.cols] {
		out[i] = kernel.FromBF16(h)
	}
}

// times multiplies rows lo..hi-1 with n vectors; out has rows numbers per vector.
func (m *matrix) times(out, x []float32, lo, hi, n int) {
	if m.full != nil {
		kernel.F32(out, m.rows, m.full, x, m.cols, lo, hi, n)
	} else {
		kernel.BF16(out, m.rows, m.bf16, x, m.cols, lo, hi, n)
	}
	if m.bias != nil {
		for v := range n {
			o := out[v*m.rows:]
			for r := lo; r < hi; r++ {
				o[r] += m.bias[r]
			}
		}
	}
}
