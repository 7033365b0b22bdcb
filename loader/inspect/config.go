package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/sizing"
	"github.com/thaw-dev/thaw/loader/source"
)

// Kind is what a model answers.
type Kind string

const (
	Generates Kind = "generates"
	Embeds    Kind = "embeds"
	Scores    Kind = "scores"
	Listens   Kind = "transcribes"
)

// config is a config.json as keys and values. Models name the same thing differently, so
// each is looked up under all its names.
type config map[string]any

// textParts are where models that read more than text keep the settings of their text part.
var textParts = []string{"text_config", "llm_config", "language_config"}

// usual are the values that transformers' classes have for keys that a configuration leaves out,
// as those of models that read pictures do.
var usual = map[string]config{
	"llama": {"hidden_size": 4096., "intermediate_size": 11008., "num_hidden_layers": 32., "num_attention_heads": 32.,
		"max_position_embeddings": 2048.},
	"mistral": {"hidden_size": 4096., "intermediate_size": 14336., "num_hidden_layers": 32., "num_attention_heads": 32.,
		"num_key_value_heads": 8., "max_position_embeddings": 131072.},
	"gemma": {"head_dim": 256., "max_position_embeddings": 8192.},
	"gemma3_text": {"hidden_size": 2304., "intermediate_size": 9216., "num_hidden_layers": 26., "num_attention_heads": 8.,
		"num_key_value_heads": 4., "head_dim": 256., "max_position_embeddings": 131072., "sliding_window": 4096.,
		"sliding_window_pattern": 6., "vocab_size": 262208.},
	"falcon": {"max_position_embeddings": 2048.},
}

// filled is a configuration with the usual values of what it leaves out.
func (c config) filled() config {
	u := usual[c.text("model_type")]
	if u == nil {
		return c
	}
	u = maps.Clone(u)
	maps.Copy(u, c)
	return u
}

// number returns the first of keys that is a number above 0.
func (c config) number(keys ...string) int {
	for _, k := range keys {
		if f, ok := c[k].(float64); ok && f > 0 && f < 1<<40 {
			return int(f)
		}
	}
	return 0
}

func (c config) text(key string) string {
	s, _ := c[key].(string)
	return s
}

func (c config) part(key string) config {
	m, _ := c[key].(map[string]any)
	return m
}

func (c config) list(key string) []string {
	raw, _ := c[key].([]any)
	var out []string
	for _, v := range raw {
		s, _ := v.(string)
		out = append(out, s)
	}
	return out
}

func (c config) is(key string) (value, known bool) {
	v, ok := c[key].(bool)
	return v, ok
}

// facts is what a configuration says.
type facts struct {
	architecture string
	kind         Kind
	dtype        string
	quantization string
	experts      int
	contextFrom  string
	latent       bool
	model        sizing.Model
}

// encoderTypes are models that keep no cache: they read a text once.
var encoderTypes = []string{
	"bert", "roberta", "xlm-roberta", "camembert", "modernbert", "nomic_bert", "mpnet", "distilbert", "deberta-v2",
	"new", "gte", "electra", "albert", "eurobert",
}

// parseConfig reads a config.json. Errors are of kind Refused: what is not known here is no
// reason to fetch it again.
func parseConfig(raw []byte) (facts, error) {
	var f facts
	refuse := func(format string, args ...any) (facts, error) {
		return f, &source.Error{Kind: source.Refused, File: configName, Detail: fmt.Sprintf(format, args...), Fix: byHand}
	}
	var top config
	if err := decode(configName, raw, &top); err != nil {
		return f, err
	}
	c := top.filled()
	for _, k := range textParts {
		if p := top.part(k).filled(); p.number("num_hidden_layers", "n_layer", "num_layers") > 0 {
			c = p
			break
		}
	}
	if p := top.part("thinker_config").part("text_config"); p != nil {
		c = p
	}
	if list := top.list("architectures"); len(list) > 0 {
		f.architecture = list[0]
	}
	modelType := top.text("model_type")
	if f.architecture == "" && modelType == "" {
		return refuse("names neither architectures nor a model_type, so what the model is cannot be known")
	}
	f.kind = kindOf(f.architecture, modelType)
	f.architecture = cmp.Or(f.architecture, modelType)
	if f.kind == "" || top["is_encoder_decoder"] == true && f.kind != Listens {
		return refuse("the architecture %q is none that thaw knows", functions.Clip(f.architecture))
	}
	f.dtype = cmp.Or(c.text("torch_dtype"), c.text("dtype"), top.text("torch_dtype"), top.text("dtype"))
	f.quantization = quantizationOf(top, c)
	f.experts = c.number("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
	m := &f.model
	m.Quantized = f.quantization != ""
	m.Hidden = c.number("hidden_size", "n_embd", "n_embed", "d_model", "dim")
	m.Heads = c.number("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads")
	m.Vocab = cmp.Or(c.number("padded_vocab_size", "vocab_size"), top.number("vocab_size"))
	m.Inter = interOf(c)
	m.Media = len(top.part("vision_config")) > 0 || len(top.part("audio_config")) > 0 || len(top.part("thinker_config")) > 0 ||
		f.kind == Listens
	m.Context, f.contextFrom = contextOf(c)
	for _, size := range []struct {
		n    int
		what string
	}{{c.layers(), "num_hidden_layers"}, {m.Heads, "num_attention_heads"}, {m.Hidden, "hidden_size"}} {
		if size.n == 0 {
			return refuse("the architecture %q names no number above 0 as %s, or under another name that thaw knows", functions.Clip(f.architecture),
				size.what)
		}
	}
	switch {
	case f.kind == Listens:
		m.Cache = speechCache(c, m.Hidden)
	case slices.Contains(encoderTypes, modelType):
	default:
		m.Cache, f.latent = cacheOf(c, m.Hidden, m.Heads)
	}
	if m.Context == 0 {
		return refuse("the architecture %q names no longest context: no number above 0 as max_position_embeddings, or under another name "+
			"that thaw knows", functions.Clip(f.architecture))
	}
	return f, nil
}

func (c config) layers() int {
	return c.number("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
}

// kindOf is what a model of this architecture answers, "" where that is not known. The
// end of an architecture's name says what stands on top of its layers.
func kindOf(architecture, modelType string) Kind {
	if modelType == "whisper" {
		return Listens
	}
	for _, e := range []struct {
		end  string
		kind Kind
	}{
		{"ForCausalLM", Generates}, {"LMHeadModel", Generates}, {"ForConditionalGeneration", Generates},
		{"ForSequenceClassification", Scores}, {"ForRewardModel", Scores}, {"RewardModel", Scores},
		{"ChatModel", Generates}, {"ChatGLMModel", Generates}, {"MiniCPMV", Generates}, {"MiniCPMO", Generates},
		{"ForTextEmbedding", Embeds}, {"EmbeddingModel", Embeds}, {"Model", Embeds},
	} {
		if strings.HasSuffix(architecture, e.end) {
			return e.kind
		}
	}
	if architecture == "" && modelType != "" {
		return Generates
	}
	return ""
}

// quantizationOf names how the weights are quantised, "" where they are not.
func quantizationOf(top, c config) string {
	parts := []config{top.part("quantization_config"), c.part("quantization_config"), top.part("compression_config")}
	i := slices.IndexFunc(parts, func(p config) bool { return len(p) > 0 })
	if i < 0 {
		return ""
	}
	q := parts[i]
	name := cmp.Or(q.text("quant_method"), "quantised")
	bits := q.number("bits", "w_bit")
	for _, g := range q.part("config_groups") {
		if group, ok := g.(map[string]any); ok && bits == 0 {
			bits = config(group).part("weights").number("num_bits")
		}
	}
	if bits > 0 {
		name += fmt.Sprintf(", %d bits", bits)
	}
	return name
}

// interOf is the width of the feed-forward that a token passes: of the dense one, or of
// the experts it visits, whichever is more.
func interOf(c config) int {
	dense := c.number("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "decoder_ffn_dim")
	dense = cmp.Or(dense, 4*c.number("hidden_size", "n_embd", "n_embed", "d_model"))
	expert := c.number("moe_intermediate_size", "expert_ffn_hidden_size")
	visited := c.number("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "top_k_experts")
	if expert == 0 && c.number("num_local_experts") > 0 {
		expert = dense
	}
	return max(dense, expert*visited)
}

// contextOf is the longest request, and the key that says so. Scaled positions count
// scaled where the configuration names the length before.
func contextOf(c config) (tokens int, from string) {
	for _, k := range []string{"max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "model_max_length", "n_ctx", "seq_length", "max_target_positions"} {
		if n := c.number(k); n > 0 {
			tokens, from = n, k
			break
		}
	}
	r := c.part("rope_scaling")
	if len(r) == 0 {
		r = c.part("rope_parameters")
	}
	factor, _ := r["factor"].(float64)
	if factor <= 1 {
		return tokens, from
	}
	switch kind, before := cmp.Or(r.text("rope_type"), r.text("type")), r.number("original_max_position_embeddings"); {
	case kind == "yarn" && before > 0:
		if scaled := int(float64(before) * factor); scaled > tokens {
			return scaled, "rope_scaling"
		}
	case kind == "linear" || kind == "dynamic":
		// Gemma 3 names the length after its scaling.
		if !strings.HasPrefix(c.text("model_type"), "gemma3") {
			return int(float64(tokens) * factor), "rope_scaling"
		}
	}
	return tokens, from
}
