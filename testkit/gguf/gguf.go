// Package gguf converts a checkpoint in Hugging Face's layout to one GGUF file (version 3) in F32,
// for tests with llama.cpp and of readers of GGUF; it reads no GGUF and does not quantise. It
// supports only the parts of the format that they need.
package gguf

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/thaw-dev/thaw/runtime/ember/kernel"
	"github.com/thaw-dev/thaw/runtime/ember/llama"
	"github.com/thaw-dev/thaw/runtime/ember/safetensors"
)

// Types of metadata values.
const (
	kindU32    = 4
	kindI32    = 5
	kindF32    = 6
	kindBool   = 7
	kindString = 8
	kindArray  = 9
)

const align = 32

// metadata collects key-value pairs.
type metadata struct {
	b []byte
	n uint64
}

func (m *metadata) u32(v uint32) { m.b = binary.LittleEndian.AppendUint32(m.b, v) }
func (m *metadata) u64(v uint64) { m.b = binary.LittleEndian.AppendUint64(m.b, v) }
func (m *metadata) str(s string) { m.u64(uint64(len(s))); m.b = append(m.b, s...) }

func (m *metadata) key(k string, kind uint32) {
	m.n++
	m.str(k)
	m.u32(kind)
}

func (m *metadata) setInt(k string, v int) { m.key(k, kindU32); m.u32(uint32(v)) }
func (m *metadata) setFloat(k string, v float64) {
	m.key(k, kindF32)
	m.u32(math.Float32bits(float32(v)))
}
func (m *metadata) setString(k, v string) { m.key(k, kindString); m.str(v) }

func (m *metadata) setBool(k string, v bool) {
	m.key(k, kindBool)
	b := byte(0)
	if v {
		b = 1
	}
	m.b = append(m.b, b)
}

func (m *metadata) list(k string, kind uint32, n int) {
	m.key(k, kindArray)
	m.u32(kind)
	m.u64(uint64(n))
}

// Write converts the checkpoint in dir. pre is llama.cpp's name of the split pattern:
// gpt-2, smollm, llama-bpe or qwen2.
func Write(path, dir, pre string) error {
	c, err := llama.ReadConfig(dir)
	if err != nil {
		return err
	}
	set, err := safetensors.OpenFolder(dir)
	if err != nil {
		return err
	}
	defer set.Close()
	var m metadata
	if err := describeModel(&m, c, dir, pre); err != nil {
		return err
	}
	ts, err := tensors(c, set)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if err := writeFile(w, &m, ts); err != nil {
		f.Close()
		return err
	}
	if err := w.Flush(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func describeModel(m *metadata, c llama.Config, dir, pre string) error {
	arch := "llama"
	if c.Architecture == "Qwen2ForCausalLM" {
		arch = "qwen2"
	}
	m.setString("general.architecture", arch)
	m.setString("general.name", filepath.Base(dir))
	m.setInt("general.file_type", 0) // all F32
	m.setInt(arch+".block_count", c.Layers)
	m.setInt(arch+".context_length", c.MaxPos)
	m.setInt(arch+".embedding_length", c.Hidden)
	m.setInt(arch+".feed_forward_length", c.Inter)
	m.setInt(arch+".attention.head_count", c.Heads)
	m.setInt(arch+".attention.head_count_kv", c.KVHeads)
	m.setInt(arch+".attention.key_length", c.HeadDim)
	m.setInt(arch+".attention.value_length", c.HeadDim)
	m.setFloat(arch+".attention.layer_norm_rms_epsilon", c.Eps)
	m.setFloat(arch+".rope.freq_base", c.Theta)
	m.setInt(arch+".rope.dimension_count", c.HeadDim)
	m.setInt(arch+".vocab_size", c.Vocab)
	if c.Rope.Type == "linear" {
		m.setString(arch+".rope.scaling.type", "linear")
		m.setFloat(arch+".rope.scaling.factor", c.Rope.Factor)
	}
	return vocabulary(m, c, dir, pre)
}

func vocabulary(m *metadata, c llama.Config, dir, pre string) error {
	b, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		return err
	}
	var f struct {
		Added []struct {
			ID      int    `json:"id"`
			Content string `json:"content"`
			Special bool   `json:"special"`
		} `json:"added_tokens"`
		Model struct {
			Vocab  map[string]int `json:"vocab"`
			Merges []string       `json:"merges"`
		} `json:"model"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	const normal, control, user, unused = 1, 3, 4, 5
	names, kinds := make([]string, c.Vocab), make([]uint32, c.Vocab)
	for i := range names {
		names[i], kinds[i] = "[PAD"+strconv.Itoa(i)+"]", unused
	}
	for n, id := range f.Model.Vocab {
		if id >= c.Vocab {
			return fmt.Errorf("token %d is outside the vocabulary", id)
		}
		names[id], kinds[id] = n, normal
	}
	for _, a := range f.Added {
		if a.ID >= c.Vocab {
			return fmt.Errorf("token %d is outside the vocabulary", a.ID)
		}
		names[a.ID], kinds[a.ID] = a.Content, user
		if a.Special {
			kinds[a.ID] = control
		}
	}
	m.setString("tokenizer.ggml.model", "gpt2")
	m.setString("tokenizer.ggml.pre", pre)
	m.list("tokenizer.ggml.tokens", kindString, len(names))
	for _, n := range names {
		m.str(n)
	}
	m.list("tokenizer.ggml.token_type", kindI32, len(kinds))
	for _, k := range kinds {
		m.u32(k)
	}
	m.list("tokenizer.ggml.merges", kindString, len(f.Model.Merges))
	for _, s := range f.Model.Merges {
		m.str(s)
	}
	if c.BOS >= 0 {
		m.setInt("tokenizer.ggml.bos_token_id", c.BOS)
	}
	if len(c.EOS) > 0 {
		m.setInt("tokenizer.ggml.eos_token_id", c.EOS[0])
	}
	m.setBool("tokenizer.ggml.add_bos_token", false)
	return nil
}

// tensor is a tensor to write; its shape is that of the checkpoint, rows first.
type tensor struct {
	name  string
	shape []int
	data  []float32
}

func tensors(c llama.Config, set *safetensors.Set) ([]tensor, error) {
	var out []tensor
	var first error
	add := func(from, to string, heads int) {
		t, ok := set.Lookup(from)
		if !ok {
			if first == nil {
				first = fmt.Errorf("tensor %s is missing", from)
			}
			return
		}
		data := toFloat32(set, t)
		if heads > 0 {
			data = interleave(data, t.Shape, heads)
		}
		out = append(out, tensor{to, t.Shape, data})
	}
	add("model.embed_tokens.weight", "token_embd.weight", 0)
	add("model.norm.weight", "output_norm.weight", 0)
	if !c.Tied {
		add("lm_head.weight", "output.weight", 0)
	}
	if c.Rope.Type == "llama3" {
		f := make([]float32, c.HeadDim/2)
		for i := range f {
			f[i] = float32(c.Llama3Divisor(math.Pow(c.Theta, -2*float64(i)/float64(c.HeadDim))))
		}
		out = append(out, tensor{"rope_freqs.weight", []int{len(f)}, f})
	}
	// llama.cpp rotates neighbours in Llama models and halves in Qwen2, Hugging Face
	// always halves, so Llama's rows are reordered.
	q, k := c.Heads, c.KVHeads
	if c.Architecture == "Qwen2ForCausalLM" {
		q, k = 0, 0
	}
	for i := range c.Layers {
		from, to := fmt.Sprintf("model.layers.%d.", i), fmt.Sprintf("blk.%d.", i)
		for _, x := range []struct {
			from, to string
			heads    int
		}{
			{"input_layernorm.weight", "attn_norm.weight", 0},
			{"self_attn.q_proj.weight", "attn_q.weight", q}, {"self_attn.k_proj.weight", "attn_k.weight", k},
			{"self_attn.v_proj.weight", "attn_v.weight", 0}, {"self_attn.o_proj.weight", "attn_output.weight", 0},
			{"post_attention_layernorm.weight", "ffn_norm.weight", 0},
			{"mlp.gate_proj.weight", "ffn_gate.weight", 0}, {"mlp.up_proj.weight", "ffn_up.weight", 0}, {"mlp.down_proj.weight", "ffn_down.weight", 0},
		} {
			add(from+x.from, to+x.to, x.heads)
		}
		for _, x := range [][2]string{{"q", "q"}, {"k", "k"}, {"v", "v"}} {
			name := from + "self_attn." + x[0] + "_proj.bias"
			if _, ok := set.Lookup(name); ok {
				add(name, to+"attn_"+x[1]+".bias", 0)
			}
		}
	}
	return out, first
}

func toFloat32(set *safetensors.Set, t safetensors.Tensor) []float32 {
	if t.DType == "F32" {
		return set.F32(t.Name)
	}
	half := set.BF16(t.Name)
	out := make([]float32, len(half))
	for i, h := range half {
		out[i] = kernel.FromBF16(h)
	}
	return out
}

// interleave moves row i of a head's first half next to row i of its second.
func interleave(in []float32, shape []int, heads int) []float32 {
	cols := shape[1]
	hd := shape[0] / heads
	out := make([]float32, len(in))
	for h := range heads {
		for i := range hd / 2 {
			for j := range 2 {
				copy(out[(h*hd+2*i+j)*cols:][:cols], in[(h*hd+j*hd/2+i)*cols:][:cols])
			}
		}
	}
	return out
}

func writeFile(w io.Writer, m *metadata, ts []tensor) error {
	var head metadata
	head.b = append(head.b, "GGUF"...)
	head.u32(3)
	head.u64(uint64(len(ts)))
	head.u64(m.n)
	head.b = append(head.b, m.b...)
	at := uint64(0)
	for _, t := range ts {
		head.str(t.name)
		head.u32(uint32(len(t.shape)))
		for i := len(t.shape) - 1; i >= 0; i-- {
			head.u64(uint64(t.shape[i]))
		}
		head.u32(0) // F32
		head.u64(at)
		at += uint64(padTo(4 * len(t.data)))
	}
	head.b = append(head.b, make([]byte, padTo(len(head.b))-len(head.b))...)
	if _, err := w.Write(head.b); err != nil {
		return err
	}
	for _, t := range ts {
		b := make([]byte, 0, padTo(4*len(t.data)))
		for _, v := range t.data {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		if _, err := w.Write(b[:cap(b)]); err != nil {
			return err
		}
	}
	return nil
}

func padTo(n int) int { return (n + align - 1) / align * align }
