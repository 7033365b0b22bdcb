package llama

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/thaw-dev/thaw/functions/pythonjson"
)

// Config is the used part of config.json.
type Config struct {
	Architecture string
	Hidden       int // width of the residual stream
	Inter        int // width inside the feed-forward part
	Layers       int
	Heads        int
	KVHeads      int // heads of keys and values, shared by groups of query heads
	HeadDim      int
	Vocab        int
	MaxPos       int // tokens a sequence may have
	Eps          float64
	Theta        float64
	Tied         bool // the output head is the embedding
	Rope         RopeScaling
	BOS          int // -1 for none
	EOS          []int
	DType        string // torch_dtype, for people
}

// RopeScaling changes the frequencies of the position code. Type is "", "linear"
// or "llama3".
type RopeScaling struct {
	Type      string
	Factor    float64
	Low, High float64 // llama3: low_freq_factor, high_freq_factor
	Original  float64 // llama3: original_max_position_embeddings
}

type ropeJSON struct {
	Type     string   `json:"type"`
	RopeType string   `json:"rope_type"`
	Factor   float64  `json:"factor"`
	Low      float64  `json:"low_freq_factor"`
	High     float64  `json:"high_freq_factor"`
	Original float64  `json:"original_max_position_embeddings"`
	Theta    *float64 `json:"rope_theta"`
}

type configJSON struct {
	Architectures []string        `json:"architectures"`
	ModelType     string          `json:"model_type"`
	Hidden        int             `json:"hidden_size"`
	Inter         int             `json:"intermediate_size"`
	Layers        int             `json:"num_hidden_layers"`
	Heads         int             `json:"num_attention_heads"`
	KVHeads       int             `json:"num_key_value_heads"`
	HeadDim       int             `json:"head_dim"`
	Vocab         int             `json:"vocab_size"`
	MaxPos        int             `json:"max_position_embeddings"`
	Eps           *float64        `json:"rms_norm_eps"`
	Theta         *float64        `json:"rope_theta"`
	Tied          *bool           `json:"tie_word_embeddings"`
	Act           string          `json:"hidden_act"`
	MLPBias       bool            `json:"mlp_bias"`
	RopeScaling   *ropeJSON       `json:"rope_scaling"`
	RopeParams    *ropeJSON       `json:"rope_parameters"`
	Sliding       bool            `json:"use_sliding_window"`
	Quantization  json.RawMessage `json:"quantization_config"`
	BOS           json.RawMessage `json:"bos_token_id"`
	EOS           json.RawMessage `json:"eos_token_id"`
	TorchDType    string          `json:"torch_dtype"`
	DType         string          `json:"dtype"`
}

var architectures = map[string]string{"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}

func ReadConfig(dir string) (Config, error) {
	path := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	c, err := ParseConfig(b)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ParseConfig checks the content of a config.json. A feature that
// the engine lacks is an error.
func ParseConfig(b []byte) (Config, error) {
	var j configJSON
	if err := pythonjson.Decode(b, &j); err != nil {
		return Config{}, err
	}
	c := Config{Hidden: j.Hidden, Inter: j.Inter, Layers: j.Layers, Heads: j.Heads, KVHeads: j.KVHeads, HeadDim: j.HeadDim,
		Vocab: j.Vocab, MaxPos: j.MaxPos, Eps: 1e-6, Theta: 10000, BOS: -1, DType: j.TorchDType}
	c.DType = cmp.Or(c.DType, j.DType)
	switch {
	case len(j.Architectures) > 0:
		c.Architecture = j.Architectures[0]
		if architectures[c.Architecture] == "" {
			return c, fmt.Errorf("architecture %s is not supported (known: LlamaForCausalLM, Qwen2ForCausalLM)", c.Architecture)
		}
	case j.ModelType == "llama":
		c.Architecture = "LlamaForCausalLM"
	case j.ModelType == "qwen2":
		c.Architecture = "Qwen2ForCausalLM"
	default:
		return c, fmt.Errorf("model_type %q is not supported (known: llama, qwen2)", j.ModelType)
	}
	if j.Eps != nil {
		c.Eps = *j.Eps
	}
	if j.Theta != nil {
		c.Theta = *j.Theta
	}
	if j.Tied != nil {
		c.Tied = *j.Tied
	}
	c.KVHeads = cmp.Or(c.KVHeads, c.Heads)
	if c.HeadDim == 0 && c.Heads > 0 {
		c.HeadDim = c.Hidden / c.Heads
	}
	c.MaxPos = cmp.Or(c.MaxPos, 2048)
	if err := j.checkFeatures(); err != nil {
		return c, err
	}
	if err := c.checkSizes(); err != nil {
		return c, err
	}
	r := j.RopeScaling
	if j.RopeParams != nil {
		r = j.RopeParams
		if r.Theta != nil {
			c.Theta = *r.Theta
		}
	}
	if !(c.Eps >= 0) || !(c.Theta > 0) || math.IsInf(c.Theta, 0) {
		return c, fmt.Errorf("rms_norm_eps is %v and rope_theta %v: want 0 or more, and more than 0", c.Eps, c.Theta)
	}
	if err := c.rope(r); err != nil {
		return c, err
	}
	ids, err := TokenIDs(j.BOS)
	if err != nil {
		return c, fmt.Errorf("bos_token_id: %w", err)
	}
	if len(ids) > 0 {
		c.BOS = ids[0]
	}
	if c.EOS, err = TokenIDs(j.EOS); err != nil {
		return c, fmt.Errorf("eos_token_id: %w", err)
	}
	return c, nil
}

func (c *Config) rope(r *ropeJSON) error {
	if r == nil {
		return nil
	}
	t := cmp.Or(r.RopeType, r.Type)
	switch t {
	case "", "default":
		return nil
	case "linear", "llama3":
	default:
		return fmt.Errorf("rope_scaling %q is not supported (known: linear, llama3)", t)
	}
	c.Rope = RopeScaling{Type: t, Factor: r.Factor, Low: r.Low, High: r.High, Original: r.Original}
	if !(r.Factor >= 1) || t == "llama3" && (!(r.Low > 0) || !(r.High > r.Low) || !(r.Original > 0)) {
		return fmt.Errorf("rope_scaling %s: factor is %v, low_freq_factor %v, high_freq_factor %v, original_max_position_embeddings %v: "+
			"want a factor of 1 or more, and of llama3 the others above 0, high above low", t, r.Factor, r.Low, r.High, r.Original)
	}
	return nil
}

// checkFeatures returns an error for a feature that the engine lacks.
func (j *configJSON) checkFeatures() error {
	if len(j.Quantization) > 0 && string(j.Quantization) != "null" {
		return errors.New("quantization_config: quantized weights are not supported")
	}
	if j.Act != "" && j.Act != "silu" {
		return fmt.Errorf("hidden_act %q is not supported (known: silu)", j.Act)
	}
	if j.MLPBias {
		return errors.New("mlp_bias is not supported")
	}
	if j.Sliding {
		return errors.New("use_sliding_window is not supported")
	}
	return nil
}

func (c *Config) checkSizes() error {
	for _, d := range []struct {
		name     string
		v, limit int
	}{
		{"hidden_size", c.Hidden, 1 << 16}, {"intermediate_size", c.Inter, 1 << 18}, {"num_hidden_layers", c.Layers, 1 << 10},
		{"num_attention_heads", c.Heads, 1 << 10}, {"num_key_value_heads", c.KVHeads, 1 << 10}, {"head_dim", c.HeadDim, 1 << 12},
		{"vocab_size", c.Vocab, 1 << 21}, {"max_position_embeddings", c.MaxPos, 1 << 24},
	} {
		if d.v <= 0 || d.v > d.limit {
			return fmt.Errorf("%s is %d, want 1 to %d", d.name, d.v, d.limit)
		}
	}
	if c.Heads%c.KVHeads != 0 {
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	}
	if c.HeadDim%2 != 0 {
		return fmt.Errorf("head_dim %d is odd", c.HeadDim)
	}
	return nil
}

// TokenIDs reads null, a number or a list of numbers.
func TokenIDs(raw json.RawMessage) ([]int, error) {
	s := strings.TrimSpace(string(raw))
	if s == "" || s == "null" {
		return nil, nil
	}
	if s[0] == '[' {
		var l []int
		err := pythonjson.Decode(raw, &l)
		return l, err
	}
	var one int
	if err := pythonjson.Decode(raw, &one); err != nil {
		return nil, err
	}
	return []int{one}, nil
}

// Frequencies are the angles by which one position turns each pair of a head.
func (c *Config) Frequencies() []float64 {
	f := make([]float64, c.HeadDim/2)
	for i := range f {
		f[i] = math.Pow(c.Theta, -2*float64(i)/float64(c.HeadDim))
		switch c.Rope.Type {
		case "linear":
			f[i] /= c.Rope.Factor
		case "llama3":
			f[i] /= c.Llama3Divisor(f[i])
		}
	}
	return f
}

// Llama3Divisor is the divisor of a frequency in Llama 3.1's scaling: 1 for short waves,
// the factor for long ones, interpolated between.
func (c *Config) Llama3Divisor(f float64) float64 {
	r := c.Rope
	wave := 2 * math.Pi / f
	switch {
	case wave < r.Original/r.High:
		return 1
	case wave > r.Original/r.Low:
		return r.Factor
	}
	smooth := (r.Original/wave - r.Low) / (r.High - r.Low)
	return 1 / ((1-smooth)/r.Factor + smooth)
}
