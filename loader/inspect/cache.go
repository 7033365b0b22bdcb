package inspect

import (
	"cmp"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions/sizing"
)

// width is the size of a value in a cache, in bytes: engines keep 16 bits unless told.
const width = 2

// cacheOf returns the layers of a model that keep a cache, alike ones together. latent is
// true for multi-head latent attention.
func cacheOf(c config, hidden, heads int) (groups []sizing.Layers, latent bool) {
	count := c.layers()
	full, sliding := attentionOf(c, hidden, heads)
	if use, known := c.is("use_mla"); c.number("kv_lora_rank") > 0 && (use || !known) {
		latent = true
		values := c.number("kv_lora_rank") + c.number("qk_rope_head_dim")
		full = sizing.Layers{Token: int64(values) * width}
		if index := c.number("index_head_dim"); index > 0 {
			full.Token += int64(index) + 4 // of 8 bits, with a scale
		}
		sliding = full
	}
	kinds := layerKinds(c, count)
	if shared := c.number("num_kv_shared_layers"); shared > 0 && shared < len(kinds) {
		kinds = kinds[:len(kinds)-shared] // the last ones read the caches of earlier ones
	}
	add := func(kind string, of sizing.Layers) {
		for _, k := range kinds {
			if k == kind {
				of.Count++
			}
		}
		if of.Count > 0 {
			groups = append(groups, of)
		}
	}
	sliding.Window = c.number("sliding_window", "sliding_window_size")
	chunked := full
	chunked.Window = c.number("attention_chunk_size")
	add(layerFull, full)
	add(layerSliding, sliding)
	add(layerChunked, chunked)
	add(layerLinear, linearState(c))
	add(layerMamba, mambaState(c, hidden))
	return groups, latent
}

// attentionOf returns the cache of a layer with full attention and of one with a window,
// which may have other heads.
func attentionOf(c config, hidden, heads int) (full, sliding sizing.Layers) {
	kv := c.number("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
	if many, known := c.is("multi_query"); kv == 0 && known && many {
		kv = 1
	}
	kv = cmp.Or(kv, c.part("attn_config").number("kv_n_heads"), heads)
	size := cmp.Or(c.number("head_dim", "kv_channels", "attention_head_dim"), hidden/heads)
	layer := func(heads, k, v int) sizing.Layers {
		v = cmp.Or(v, k)
		return sizing.Layers{Token: int64(heads) * int64(k+v) * width, Heads: heads}
	}
	value := c.number("v_head_dim")
	// Gemma 4 names its full layers apart, MiMo its layers with a window.
	full = layer(cmp.Or(c.number("num_global_key_value_heads"), kv), cmp.Or(c.number("global_head_dim"), size), value)
	sliding = layer(cmp.Or(c.number("swa_num_key_value_heads"), kv), cmp.Or(c.number("swa_head_dim"), size),
		cmp.Or(c.number("swa_v_head_dim"), value))
	return full, sliding
}

const (
	layerFull    = "full"
	layerSliding = "sliding"
	layerChunked = "chunked"
	layerLinear  = "linear"
	layerMamba   = "mamba"
	layerNone    = "none" // a feed-forward of its own
)

// layerKinds says of each layer what it keeps. Where a configuration does not tell layers
// apart all count as full: that is never too little.
func layerKinds(c config, count int) []string {
	kinds := slices.Repeat([]string{layerFull}, min(count, 4096))
	if list := append(c.list("layer_types"), c.list("layers_block_type")...); len(list) == count {
		for i, t := range list {
			switch {
			case strings.HasPrefix(t, "sliding") || t == "local_attention":
				kinds[i] = layerSliding
			case strings.HasPrefix(t, "chunked"):
				kinds[i] = layerChunked
			case strings.HasPrefix(t, "linear"):
				kinds[i] = layerLinear
			case strings.HasPrefix(t, "mamba"):
				kinds[i] = layerMamba
			case t == "mlp" || t == "moe":
				kinds[i] = layerNone
			}
		}
		return withoutWindow(c, kinds)
	}
	if pattern := c.text("hybrid_override_pattern"); len(pattern) == count {
		for i, t := range pattern {
			switch t {
			case 'M':
				kinds[i] = layerMamba
			case '-', 'E':
				kinds[i] = layerNone
			}
		}
		return kinds
	}
	if pattern, _ := c["hybrid_layer_pattern"].([]any); len(pattern) == count {
		for i, t := range pattern {
			if t == 1.0 {
				kinds[i] = layerSliding
			}
		}
		return withoutWindow(c, kinds)
	}
	if use, known := c.is("use_sliding_window"); c.number("sliding_window") == 0 || known && !use {
		return kinds
	}
	period := c.number("sliding_window_pattern", "_sliding_window_pattern")
	if c.text("model_type") == "gemma2" {
		period = 2
	}
	first := 0
	if use, _ := c.is("use_sliding_window"); use {
		first = c.number("max_window_layers")
	}
	for i := range kinds {
		if i >= first && (period == 0 || (i+1)%period != 0) {
			kinds[i] = layerSliding
		}
	}
	return kinds
}

// withoutWindow counts layers as full whose window is not named.
func withoutWindow(c config, kinds []string) []string {
	for i, k := range kinds {
		if k == layerSliding && c.number("sliding_window", "sliding_window_size") == 0 ||
			k == layerChunked && c.number("attention_chunk_size") == 0 {
			kinds[i] = layerFull
		}
	}
	return kinds
}

// linearState is what a layer of gated delta nets keeps of a request (Qwen3-Next): a matrix
// for each value head, and the last inputs of its convolution.
func linearState(c config) sizing.Layers {
	k, v := c.number("linear_num_key_heads"), c.number("linear_num_value_heads")
	kSize, vSize := c.number("linear_key_head_dim"), c.number("linear_value_head_dim")
	state := int64(v) * int64(kSize) * int64(vSize) * stateWidth(c)
	conv := int64(2*k*kSize+v*vSize) * int64(max(c.number("linear_conv_kernel_dim")-1, 0)) * width
	return sizing.Layers{State: state + conv, Heads: k}
}

// mambaState is what a Mamba layer keeps of a request.
func mambaState(c config, hidden int) sizing.Layers {
	size := c.number("ssm_state_size", "mamba_d_state")
	kernel := max(c.number("conv_kernel", "mamba_d_conv")-1, 0)
	if heads := c.number("mamba_num_heads", "mamba_n_heads"); heads > 0 {
		inner := heads * c.number("mamba_head_dim", "mamba_d_head")
		groups := max(c.number("n_groups", "mamba_n_groups"), 1)
		return sizing.Layers{State: int64(inner)*int64(size)*stateWidth(c) + int64(inner+2*groups*size)*int64(kernel)*width, Heads: heads}
	}
	inner := max(c.number("mamba_expand", "expand"), 2) * hidden
	return sizing.Layers{State: int64(inner) * (int64(size)*stateWidth(c) + int64(kernel)*width)}
}

// stateWidth is the size of a value of a recurrent state.
func stateWidth(c config) int64 {
	if c.text("mamba_ssm_dtype") == "float32" || c.text("mamba_ssm_cache_dtype") == "float32" {
		return 4
	}
	return width
}

// speechCache is that of Whisper: the decoder's own tokens, and all of the encoder's for
// each of its layers.
func speechCache(c config, hidden int) []sizing.Layers {
	token := 2 * int64(hidden) * width
	heads := c.number("decoder_attention_heads")
	return []sizing.Layers{{Count: c.number("decoder_layers"), Token: token, Heads: heads, State: token * int64(c.number("max_source_positions"))}}
}
