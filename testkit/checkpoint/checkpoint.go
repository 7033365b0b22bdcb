// Package checkpoint writes small model checkpoints for tests and benchmarks: folders in Hugging
// Face's layout with a BPE tokenizer learned from a text, and random or given weights; it trains
// no weights. The program that trains the shipped model uses it too. The same seed gives the same
// bytes.
package checkpoint

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/thaw-dev/thaw/runtime/ember/bpe"
	"github.com/thaw-dev/thaw/testkit/tensors"
)

// Shape is the size of a model.
type Shape struct {
	Family  string // "llama" (default) or "qwen2", which has biases on q, k and v
	Hidden  int
	Inter   int
	Layers  int
	Heads   int
	KVHeads int
	HeadDim int // default Hidden/Heads
	// Learned is the number of tokens learned from the text, or fewer if it has fewer. A
	// larger Vocab is filled up with made-up merges, so that tokenizer.json has a
	// realistic size.
	Learned int
	Vocab   int
	MaxPos  int
	Untied  bool           // the output head is a matrix of its own
	DType   string         // "BF16" (default) or "F32"
	Rope    map[string]any // rope_scaling
	Pattern bpe.Pattern    // splits the text for the tokenizer
}

// Tiny is the shipped checkpoint's shape, Smol that of SmolLM-135M.
var (
	Tiny = Shape{Hidden: 128, Inter: 352, Layers: 4, Heads: 4, KVHeads: 2, Learned: 1020, MaxPos: 2048}
	Smol = Shape{Hidden: 576, Inter: 1536, Layers: 30, Heads: 9, KVHeads: 3, Learned: 2048, Vocab: 49152, MaxPos: 2048}
)

// Special tokens, in the order of their ids after the learned ones.
const (
	EndOfText = "<|endoftext|>"
	Start     = "<|im_start|>"
	End       = "<|im_end|>"
	Pad       = "<|pad|>"
)

var specials = []string{EndOfText, Start, End, Pad}

// Template is the ChatML template that the checkpoints carry.
const Template = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% " +
	"endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

// Tensors returns the names and shapes of a model's tensors, embeddings first.
func (s Shape) Tensors(vocab int) []tensors.Source {
	var ts []tensors.Source
	add := func(name string, shape ...int) { ts = append(ts, tensors.Source{Name: name, Shape: shape}) }
	hd := s.headDim()
	q, kv := s.Heads*hd, s.KVHeads*hd
	add("model.embed_tokens.weight", vocab, s.Hidden)
	add("model.norm.weight", s.Hidden)
	if s.Untied {
		add("lm_head.weight", vocab, s.Hidden)
	}
	for i := range s.Layers {
		p := "model.layers." + strconv.Itoa(i) + "."
		add(p+"input_layernorm.weight", s.Hidden)
		add(p+"post_attention_layernorm.weight", s.Hidden)
		add(p+"self_attn.q_proj.weight", q, s.Hidden)
		add(p+"self_attn.k_proj.weight", kv, s.Hidden)
		add(p+"self_attn.v_proj.weight", kv, s.Hidden)
		add(p+"self_attn.o_proj.weight", s.Hidden, q)
		if s.Family == "qwen2" {
			add(p+"self_attn.q_proj.bias", q)
			add(p+"self_attn.k_proj.bias", kv)
			add(p+"self_attn.v_proj.bias", kv)
		}
		add(p+"mlp.gate_proj.weight", s.Inter, s.Hidden)
		add(p+"mlp.up_proj.weight", s.Inter, s.Hidden)
		add(p+"mlp.down_proj.weight", s.Hidden, s.Inter)
	}
	return ts
}

func (s Shape) headDim() int {
	if s.HeadDim > 0 {
		return s.HeadDim
	}
	return s.Hidden / s.Heads
}

// Random fills the tensors with seeded noise, scaled so that activations neither vanish
// nor explode; norms are one, biases small.
func Random(ts []tensors.Source, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range ts {
		n := 1
		for _, d := range ts[i].Shape {
			n *= d
		}
		ts[i].Data = make([]float32, n)
		std := 0.0
		switch {
		case len(ts[i].Shape) == 2 && i == 0:
			std = 0.3
		case len(ts[i].Shape) == 2:
			std = 0.1
		case bytes.HasSuffix([]byte(ts[i].Name), []byte(".bias")):
			std = 0.05
		}
		for j := range ts[i].Data {
			if std == 0 {
				ts[i].Data[j] = 1
			} else {
				ts[i].Data[j] = float32(r.NormFloat64() * std)
			}
		}
	}
}

// Folder writes a checkpoint with random weights to dir and returns the size of its
// vocabulary. The tokenizer is learned from text.
func Folder(dir string, s Shape, text string, seed uint64) (vocab int, err error) {
	vocab, err = Files(dir, s, text)
	if err != nil {
		return 0, err
	}
	ts := s.Tensors(vocab)
	Random(ts, seed)
	return vocab, Weights(filepath.Join(dir, "model.safetensors"), s.dtype(), ts)
}

func (s Shape) dtype() string {
	if s.DType == "" {
		return "BF16"
	}
	return s.DType
}

// Weights writes a safetensors file.
func Weights(path, dtype string, ts []tensors.Source) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := tensors.Write(f, dtype, ts); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

type addedToken struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// Files writes all files but the weights and returns the size of the vocabulary.
func Files(dir string, s Shape, text string) (int, error) {
	names, merges := learnVocabulary(text, s.Learned, s.Pattern)
	if n := s.Vocab - len(specials); n > len(names) {
		names, merges = fillVocabulary(names, merges, n)
	}
	vocab := map[string]int{}
	for i, n := range names {
		vocab[n] = i
	}
	var added []addedToken
	special := func(name string) {
		id := len(vocab)
		vocab[name] = id
		added = append(added, addedToken{ID: id, Content: name, Special: true})
	}
	for _, n := range specials {
		special(n)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	pre := level
	switch s.Pattern {
	case bpe.Digits:
		pre = map[string]any{"type": "Sequence", "pretokenizers": []any{map[string]any{"type": "Digits", "individual_digits": true}, level}}
	case bpe.Llama3, bpe.Qwen2:
		pre = map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]string{"Regex": s.Pattern.Regex()}, "behavior": "Isolated", "invert": false},
			map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}}}
	}
	arch := map[string]string{"": "LlamaForCausalLM", "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[s.Family]
	family := s.Family
	if family == "" {
		family = "llama"
	}
	eot, end := vocab[EndOfText], vocab[End]
	config := map[string]any{
		"architectures": []string{arch}, "model_type": family, "hidden_act": "silu",
		"hidden_size": s.Hidden, "intermediate_size": s.Inter, "num_hidden_layers": s.Layers,
		"num_attention_heads": s.Heads, "num_key_value_heads": s.KVHeads, "head_dim": s.headDim(),
		"vocab_size": len(vocab), "max_position_embeddings": s.MaxPos, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
		"tie_word_embeddings": !s.Untied, "attention_bias": false, "mlp_bias": false,
		"bos_token_id": eot, "eos_token_id": end,
		"torch_dtype": map[string]string{"BF16": "bfloat16", "F32": "float32"}[s.dtype()],
	}
	if s.Rope != nil {
		config["rope_scaling"] = s.Rope
	}
	for name, v := range map[string]any{
		"tokenizer.json": map[string]any{
			"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil,
			"pre_tokenizer": pre, "post_processor": level, "decoder": level,
			"model": map[string]any{"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil,
				"end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false, "ignore_merges": s.Pattern == bpe.Llama3,
				"vocab": vocab, "merges": merges},
		},
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": EndOfText, "eos_token": End, "pad_token": Pad,
			"add_bos_token": false, "clean_up_tokenization_spaces": false, "model_max_length": s.MaxPos, "chat_template": Template,
		},
		"generation_config.json": map[string]any{"bos_token_id": eot, "eos_token_id": []int{end, eot}},
		"config.json":            config,
	} {
		b, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			return 0, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), append(b, '\n'), 0o644); err != nil {
			return 0, err
		}
	}
	return len(vocab), nil
}

// fillVocabulary adds merges of two existing tokens until there are n tokens.
func fillVocabulary(names, merges []string, n int) ([]string, []string) {
	r := rand.New(rand.NewPCG(1, 1))
	seen := map[string]bool{}
	for _, x := range names {
		seen[x] = true
	}
	for len(names) < n {
		a, b := names[r.IntN(len(names))], names[r.IntN(len(names))]
		if len(a)+len(b) > 16 || seen[a+b] {
			continue
		}
		seen[a+b] = true
		names, merges = append(names, a+b), append(merges, a+" "+b)
	}
	return names, merges
}

// learnVocabulary learns the merges of a byte-level BPE: always the most frequent pair,
// on ties the lowest ids. It returns the names of the tokens by id.
func learnVocabulary(text string, n int, p bpe.Pattern) (names []string, merges []string) {
	var runes []rune
	for b := range 256 {
		runes = append(runes, bpe.ByteRune(byte(b)))
	}
	slices.Sort(runes)
	id := map[rune]int{}
	for i, r := range runes {
		id[r] = i
		names = append(names, string(r))
	}
	counts := map[string]int{}
	p.Split(text, func(w string) { counts[w]++ })
	type word struct {
		ids []int
		n   int
	}
	var words []word
	keys := make([]string, 0, len(counts))
	for w := range counts {
		keys = append(keys, w)
	}
	slices.Sort(keys)
	for _, k := range keys {
		w := word{n: counts[k]}
		for i := range len(k) {
			w.ids = append(w.ids, id[bpe.ByteRune(k[i])])
		}
		words = append(words, w)
	}
	for len(names) < n {
		pairs := map[[2]int]int{}
		for _, w := range words {
			for i := 0; i+1 < len(w.ids); i++ {
				pairs[[2]int{w.ids[i], w.ids[i+1]}] += w.n
			}
		}
		best, maximum := [2]int{}, 1
		for p, c := range pairs {
			if c > maximum || c == maximum && maximum > 1 && (p[0] < best[0] || p[0] == best[0] && p[1] < best[1]) {
				best, maximum = p, c
			}
		}
		if maximum == 1 {
			break
		}
		to := len(names)
		names = append(names, names[best[0]]+names[best[1]])
		merges = append(merges, names[best[0]]+" "+names[best[1]])
		for j := range words {
			ids := words[j].ids
			out := ids[:0]
			for i := 0; i < len(ids); i++ {
				if i+1 < len(ids) && ids[i] == best[0] && ids[i+1] == best[1] {
					out = append(out, to)
					i++
				} else {
					out = append(out, ids[i])
				}
			}
			words[j].ids = out
		}
	}
	return names, merges
}
