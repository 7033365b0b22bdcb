package inspect

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/sizing"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/source"
)

// large is a source whose files have the sizes of real ones and no bytes beyond their
// headers: a read of those fails.
type large struct {
	files []source.File
	heads map[string][]byte
	read  int64
}

func (l *large) Plan(context.Context, string, source.Globs) (source.Plan, error) {
	return source.Plan{Files: l.files}, nil
}

func (l *large) Read(_ context.Context, f source.File, offset, length int64) (io.ReadCloser, error) {
	b := l.heads[f.Name]
	if offset+length > int64(len(b)) {
		return nil, &source.Error{Kind: source.Refused, File: f.Name, Detail: fmt.Sprintf("bytes %d to %d were read", offset, offset+length)}
	}
	l.read += length
	return io.NopCloser(bytes.NewReader(b[offset : offset+length])), nil
}

func (l *large) add(name string, size int64, head []byte) {
	if l.heads == nil {
		l.heads = map[string][]byte{}
	}
	l.files = append(l.files, source.File{Name: name, Size: size})
	l.heads[name] = head
}

// weights adds shards of together so many bytes, of one type.
func (l *large) weights(total int64, shards int, dtype string, element int64) {
	for i := range int64(shards) {
		size := total / int64(shards)
		if i == 0 {
			size += total % int64(shards)
		}
		name := "model.safetensors"
		if shards > 1 {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards)
		}
		l.add(name, size, header(size, dtype, element))
	}
}

// header is that of a safetensors file of size bytes with a tensor, and a few bytes more
// to fill it.
func header(size int64, dtype string, element int64) []byte {
	const room = 256
	data := size - room
	elements := data / element
	rest := data - elements*element
	text := fmt.Sprintf(`{"w":{"dtype":%q,"shape":[%d],"data_offsets":[0,%d]},"r":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}}`, dtype, elements, elements*element, rest, elements*element, data)
	text += string(bytes.Repeat([]byte(" "), room-8-len(text)))
	return append(binary.LittleEndian.AppendUint64(nil, room-8), text...)
}

// public are configurations that are published, and what is known of them from elsewhere.
// Sources of the configurations, some without keys that say nothing here: PyPI
// aiconfigurator-core 0.12.0 (model_configs), or copies of repositories of the hub on
// GitHub at a commit. weights are metadata.total_size of the index of shards there, or
// the sizes that its Git LFS pointers name.
//
// token is the cache of a token. For DeepSeek-V3 (70,272 bytes) and Llama 3.1 405B
// (516,096) it is table 1 of "Insights into DeepSeek-V3" (ISCA 2025, arXiv 2505.09343);
// the others are 2 x layers x KV heads x head size x 2 bytes by hand.
var public = []struct {
	file         string
	weights      int64
	shards       int
	dtype        string
	element      int64
	loaded       int64 // weights in memory, where that is another number
	architecture string
	context      int
	experts      int
	quantization string
	latent       bool
	// token is the cache of a token in a short request, longest that of a request of so
	// many tokens: windows and states make a difference.
	token, tokens, longest int64
}{
	// zml/zml's test of indexes and tbressers' and others' copies name the same total_size.
	{file: "llama-3.1-8b", weights: 16060522496, shards: 4, dtype: "BF16", element: 2, architecture: "LlamaForCausalLM", context: 131072, token: 131072, tokens: 8192, longest: 1 << 30},
	// 2 bytes for each of its 405,853,388,800 parameters.
	{file: "llama-3.1-405b", weights: 811706777600, shards: 191, dtype: "BF16", element: 2, architecture: "LlamaForCausalLM", context: 131072, token: 516096, tokens: 1000, longest: 516096000},
	// The bytes of the repository of the hub.
	{file: "deepseek-v3", weights: 688586727753, shards: 163, dtype: "F8_E4M3", element: 1, architecture: "DeepseekV3ForCausalLM", context: 163840, experts: 256, quantization: "fp8", latent: true, token: 70272, tokens: 1000, longest: 70272000},
	{file: "qwen3-30b-a3b", weights: 61064245248, shards: 16, dtype: "BF16", element: 2, architecture: "Qwen3MoeForCausalLM", context: 40960, experts: 128, token: 98304, tokens: 1000, longest: 98304000},
	// 12 of 24 layers have a window of 128 tokens.
	{file: "gpt-oss-20b", weights: 13761264768, shards: 3, dtype: "U8", element: 1, architecture: "GptOssForCausalLM", context: 131072, experts: 32, quantization: "mxfp4", token: 49152, tokens: 8192, longest: 12*2048*8192 + 12*2048*128},
	// tbressers/WizardLM-2-8x22B at c2092670c140eae0056af85c639c97414fd825f1.
	{file: "mixtral-8x22b", weights: 281241268224, shards: 59, dtype: "BF16", element: 2, architecture: "MixtralForCausalLM", context: 65536, experts: 8, token: 229376, tokens: 1000, longest: 229376000},
	// Ibtasam-98/medgemma-27b-it at 351f31de594a03c2a17ac8d5982ee0e044a3a8d3: 10 of 62 layers see all.
	{file: "medgemma-27b", weights: 54864813280, shards: 11, dtype: "BF16", element: 2, architecture: "Gemma3ForConditionalGeneration", context: 131072, token: 62 * 8192, tokens: 8192, longest: 10*8192*8192 + 52*8192*1024},
	// jeremieconte/granite-3.1-1b-a400m-instruct at 73154eec21d1b9803ca85a415ddc9cec1287a492;
	// tied embeddings, and a configuration that says float32 of weights that are not.
	{file: "granite-3.1-1b-a400m", weights: 2669283096, shards: 1, dtype: "BF16", element: 2, architecture: "GraniteMoeForCausalLM", context: 131072, experts: 32, token: 49152, tokens: 1000, longest: 49152000},
	// mapengAdam/qianwen-72B at c677f291486fda4daae4bfe31fe86582fcc387d5: no grouped heads.
	{file: "qwen-72b", weights: 144575840256, shards: 19, dtype: "BF16", element: 2, architecture: "QWenLMHeadModel", context: 8192, token: 2621440, tokens: 1000, longest: 2621440000},
	// MiMiGame-1/Reflection-Llama-3.1-70B at 458962ed801fac4eadd01a91a2029a3a82f4cd84: kept
	// in 32 bits, loaded in 16.
	{file: "llama-3.1-70b-f32", weights: 282215219200, shards: 162, dtype: "F32", element: 4, loaded: 282215219200 / 2, architecture: "LlamaForCausalLM", context: 8192, token: 327680, tokens: 1000, longest: 327680000},
	// jeevanchaps/Meta-Llama3.1-8B-Instruct-assessment at 3c36ac64c04b2d72ffb0e7d4dd3dc2ac25b6f980.
	{file: "llama-3.1-8b-int8", weights: 4996772687 + 4090014257, shards: 2, dtype: "I8", element: 1, architecture: "LlamaForCausalLM", context: 131072, quantization: "bitsandbytes", token: 131072, tokens: 1000, longest: 131072000},
	// Of these no sizes of weights are at hand, so a round number stands for them. 48 of 64
	// layers have a state of 48 x 128 x 128 x 4 bytes, and 10,240 x 3 x 2 of a convolution.
	{file: "qwen3.5-27b", weights: 54e9, shards: 14, dtype: "BF16", element: 2, architecture: "Qwen3_5ForConditionalGeneration", context: 262144, token: 65536 + 48*(3145728+61440), tokens: 1000, longest: 65536000 + 48*(3145728+61440)},
	// 6 of 52 layers attend, 23 are Mamba's with 64 heads x 64 x 128 x 4 bytes and 6,144 x 3 x 2.
	{file: "nemotron-3-nano", weights: 63e9, shards: 13, dtype: "BF16", element: 2, architecture: "NemotronHForCausalLM", context: 262144, experts: 128, token: 6*1024 + 23*(2097152+36864), tokens: 1000, longest: 6*1024000 + 23*(2097152+36864)},
	// 9 of 48 layers see all with 4 heads of 192 and 128; the others have 8, and 128 tokens.
	{file: "mimo-v2-flash", weights: 310e9, shards: 100, dtype: "F8_E4M3", element: 1, architecture: "MiMoV2FlashForCausalLM", context: 262144, experts: 256, quantization: "fp8", token: 9*2560 + 39*5120, tokens: 1000, longest: 9*2560*1000 + 39*5120*128},
	{file: "gemma-4-26b-a4b", weights: 52e9, shards: 11, dtype: "BF16", element: 2, architecture: "Gemma4ForConditionalGeneration", context: 262144, experts: 128, token: 5*4096 + 25*8192, tokens: 8192, longest: 5*4096*8192 + 25*8192*1024},
	{file: "kimi-k2.5", weights: 595e9, shards: 64, dtype: "I32", element: 4, architecture: "KimiK25ForConditionalGeneration", context: 262144, experts: 384, quantization: "compressed-tensors, 4 bits", latent: true, token: 70272, tokens: 1000, longest: 70272000},
}

func TestPublic(t *testing.T) {
	for _, p := range public {
		t.Run(p.file, func(t *testing.T) {
			config, err := os.ReadFile(filepath.Join("testdata", "public", p.file+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var l large
			l.add(configName, int64(len(config)), config)
			l.weights(p.weights, p.shards, p.dtype, p.element)
			c, err := Read(t.Context(), "az://a/c/"+p.file, Options{Sources: map[string]loader.Source{"az": &l}})
			if err != nil {
				t.Fatal(err)
			}
			loaded := p.weights
			if p.loaded != 0 {
				loaded = p.loaded
			}
			if got := c.Sizing.Weights; got < loaded-loaded/1000 || got > loaded+loaded/1000 {
				t.Errorf("weights of %d bytes, want %d", got, loaded)
			}
			if c.Stored != p.weights || c.Files != p.shards {
				t.Errorf("%d bytes in %d files", c.Stored, c.Files)
			}
			if c.Architecture != p.architecture || c.Sizing.Context != p.context || c.Experts != p.experts || c.Quantization != p.quantization ||
				c.Latent != p.latent || c.Kind != Generates {
				t.Errorf("%+v", c)
			}
			if got := c.Sizing.CacheOf(1, 1); got != p.token {
				t.Errorf("a token takes %d bytes of cache, want %d", got, p.token)
			}
			if got := c.Sizing.CacheOf(int(p.tokens), 1); got != p.longest {
				t.Errorf("%d tokens take %d bytes of cache, want %d", p.tokens, got, p.longest)
			}
			if l.read > 64<<10 {
				t.Errorf("%d bytes were read", l.read)
			}
		})
	}
}

// TestPublicFits: where models are known to run, and where not. The GPUs' memory is what
// the driver counts.
func TestPublicFits(t *testing.T) {
	const h100, h200, l4 = 81559 << 20, 143771 << 20, 23034 << 20
	for _, x := range []struct {
		file    string
		memory  int64
		count   int
		ok      bool
		gpus    int
		context int
	}{
		{"llama-3.1-8b", l4, 1, true, 1, 8192},
		{"llama-3.1-8b", h100, 8, true, 1, 8192},
		{"llama-3.1-70b-f32", h100, 1, false, 1, 8192},
		{"llama-3.1-70b-f32", h100, 4, true, 4, 8192},
		{"llama-3.1-405b", h100, 8, false, 8, 8192},
		{"deepseek-v3", h100, 8, false, 8, 8192}, // its authors name 8 H200, or 16 H100
		{"deepseek-v3", h200, 8, true, 8, 8192},
		{"deepseek-v3", h100, 16, true, 16, 8192},
		{"qwen3-30b-a3b", h100, 1, true, 1, 8192},
		{"gpt-oss-20b", l4, 1, true, 1, 8192},
		{"mixtral-8x22b", h100, 8, true, 4, 8192},
		{"medgemma-27b", h100, 1, true, 1, 8192},
	} {
		config, err := os.ReadFile(filepath.Join("testdata", "public", x.file+".json"))
		if err != nil {
			t.Fatal(err)
		}
		f, err := parseConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range public {
			if p.file == x.file {
				if f.model.Weights = p.weights; p.loaded != 0 {
					f.model.Weights = p.loaded
				}
			}
		}
		requests := 8
		if x.memory == l4 {
			requests = 2
		}
		got := sizing.FitOn(&f.model, sizing.Use{Engine: functions.EngineVLLM, Context: x.context, Requests: requests}, x.memory, x.count)
		if got.OK != x.ok || got.Use.GPUs != x.gpus {
			t.Errorf("%s on %d x %s: %+v, %s each", x.file, x.count, functions.Bytes(x.memory).Human(), got,
				functions.Bytes(got.Need.Total()).Human())
		}
	}
}
