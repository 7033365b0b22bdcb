package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/gguf"
	"github.com/thaw-dev/thaw/functions/safetensors"
	"github.com/thaw-dev/thaw/functions/sizing"
	"github.com/thaw-dev/thaw/functions/weightsets"
	"github.com/thaw-dev/thaw/loader/headercheck"
	"github.com/thaw-dev/thaw/loader/source"
)

const maxHeader = 16 << 20

// readSafetensors reads the configuration and the header of the first file.
func (c *Checkpoint) readSafetensors(r *reader, files []source.File) error {
	f, _ := r.file(configName) // it is there, or the weights had not been chosen
	raw, err := r.small(f)
	if err != nil {
		return err
	}
	c.Config = raw
	facts, err := parseConfig(raw)
	if err != nil {
		return err
	}
	c.Architecture, c.Kind, c.DType, c.Quantization = facts.architecture, facts.kind, facts.dtype, facts.quantization
	c.Experts, c.Latent, c.ContextFrom, c.Sizing = facts.experts, facts.latent, facts.contextFrom, facts.model
	if c.Quantization == "" {
		if f, ok := r.file("hf_quant_config.json"); ok { // of NVIDIA's ModelOpt
			if c.Quantization, err = r.modelOpt(f); err != nil {
				return err
			}
			c.Sizing.Quantized = c.Quantization != ""
		}
	}
	first := files[0]
	if err := r.checkPointer(first); err != nil {
		return err
	}
	tensors, _, err := safetensors.Read(&rangeReader{r, first}, first.Size, maxHeader)
	if err != nil {
		return headerError(err, first.Name)
	}
	if err := c.refuseForeign(tensors); err != nil {
		return source.WithFile(err, first.Name)
	}
	c.Sizing.Weights = c.Stored
	if wide, all := floatBytes(tensors); c.Quantization == "" && all > 0 {
		// The first file is taken as an example of all: a checkpoint has one type but for
		// a few small tensors.
		c.Sizing.Weights = int64(float64(c.Stored) * float64(wide) / float64(all))
	}
	if c.DType == "" && len(tensors) > 0 {
		c.DType = tensors[len(tensors)-1].DType
	}
	return nil
}

// refuseForeign notes the type of the tensors, and returns an error for those that no engine here
// reads.
func (c *Checkpoint) refuseForeign(tensors []safetensors.Tensor) error {
	foreign := ""
	bytes := map[string]int64{}
	for _, t := range tensors {
		if bytes[t.DType] += t.End - t.Begin; bytes[t.DType] > bytes[c.TensorType] {
			c.TensorType = t.DType
		}
		switch {
		case t.DType == "U32" && strings.HasSuffix(t.Name, ".weight"):
			foreign = "MLX, which mlx_lm.server"
		case strings.HasSuffix(t.Name, ".q_weight") || strings.HasPrefix(c.Quantization, "exl2"):
			foreign = "EXL2, which TabbyAPI (ExLlamaV2)"
		case strings.HasSuffix(t.Name, ".trellis") || strings.HasPrefix(c.Quantization, "exl3"):
			foreign = "EXL3, which TabbyAPI (ExLlamaV3)"
		}
	}
	if foreign == "" {
		return nil
	}
	return source.Fail(source.Refused, "is quantised in the format of "+foreign+" reads, and none of thaw's engines",
		"engine: command starts such a server; vllm reads the model itself or a variant in AWQ, GPTQ or FP8, llamacpp one in GGUF")
}

// floatBytes returns the bytes of tensors once floats are of 16 bits, and those now.
func floatBytes(tensors []safetensors.Tensor) (narrow, now int64) {
	for _, t := range tensors {
		n := t.End - t.Begin
		now += n
		switch t.DType {
		case "F32":
			n /= 2
		case "F64":
			n /= 4
		}
		narrow += n
	}
	return narrow, now
}

// headerError makes an error about a file's header one of the source.
func headerError(err error, name string) error {
	kind := source.Corrupt
	e, ok := errors.AsType[*safetensors.Error](err)
	g, isGGUF := errors.AsType[*gguf.Error](err)
	switch {
	case !ok && !isGGUF:
		return source.WithFile(err, name)
	case ok && e.Truncated || isGGUF && g.Truncated:
		kind = source.Truncated
	}
	return source.Fail(kind, "its header cannot be used: "+err.Error(), "").At("", name)
}

// modelOpt names the quantisation of a hf_quant_config.json.
func (r *reader) modelOpt(f source.File) (string, error) {
	raw, err := r.small(f)
	if err != nil {
		return "", err
	}
	var doc struct {
		Quantization struct {
			Algo string `json:"quant_algo"`
		} `json:"quantization"`
	}
	if err := decode(f.Name, raw, &doc); err != nil {
		return "", err
	}
	if doc.Quantization.Algo == "" {
		return "", nil
	}
	return "modelopt, " + strings.ToLower(functions.Clip(doc.Quantization.Algo)), nil
}

// slidingPeriods are the architectures whose pattern of windows llama.cpp knows by name:
// every so many-th layer sees everything.
var slidingPeriods = map[string]int{"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4}

func (c *Checkpoint) readGGUF(r *reader, first source.File) error {
	if err := r.checkPointer(first); err != nil {
		return err
	}
	m, err := gguf.Read(&rangeReader{r, first}, first.Size)
	if err != nil {
		if other := headercheck.GGUF(&rangeReader{r, first}, first.Size); source.KindOf(other) == source.Corrupt {
			return source.WithFile(other, first.Name) // it says what the file is in place of a GGUF file
		}
		return headerError(err, first.Name)
	}
	if r.scheme == "file" { // elsewhere it would be many requests, and staging does so
		if err := headercheck.File(first.Name, &rangeReader{r, first}, first.Size); err != nil {
			return source.WithFile(err, first.Name)
		}
	}
	if m.Text("general.type") == "adapter" || m.Text("adapter.type") != "" {
		return source.Fail(source.Refused, "is a LoRA adapter in GGUF, not a model",
			`llamacpp takes it beside its model: args: ["--lora", FILE]`).At("", first.Name)
	}
	arch := m.Text("general.architecture")
	key := func(name string) int { return m.Int(arch + "." + name) }
	layers, hidden, heads, context := key("block_count"), key("embedding_length"), key("attention.head_count"), key("context_length")
	if arch == "" || layers == 0 || hidden == 0 || heads == 0 || context == 0 || layers > 4096 {
		return &source.Error{Kind: source.Refused, File: first.Name,
			Detail: fmt.Sprintf("its metadata does not say how many layers, heads and tokens of context the architecture %q has",
				functions.Clip(arch)), Fix: byHand}
	}
	c.Architecture, c.Kind, c.ContextFrom, c.Experts = arch, Generates, arch+".context_length", key("expert_count")
	encoder := slices.Contains([]string{"bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert"}, arch)
	switch pooling := key("pooling_type"); {
	case pooling == 4: // rank, of llama.cpp's llama_pooling_type
		c.Kind = Scores
	case encoder || pooling > 0:
		c.Kind = Embeds
	}
	c.Quantization = fileType(m)
	vocab := cmp.Or(key("vocab_size"), int(min(m.Lengths["tokenizer.ggml.tokens"], 1<<24)))
	inter := max(key("feed_forward_length"), key("expert_feed_forward_length")*key("expert_used_count"))
	c.Sizing = sizing.Model{Weights: c.Stored, Quantized: true, Context: context, Heads: heads, Hidden: hidden, Inter: inter, Vocab: vocab}
	if !encoder {
		c.Sizing.Cache, c.Latent = ggufCache(m, arch, layers, hidden, heads)
	}
	for _, f := range r.files {
		if weightsets.IsProjector(f.Name) {
			c.Sizing.Media = true
			c.Sizing.Weights += f.Size
		}
	}
	return nil
}

// ggufCache returns the layers that keep a cache.
func ggufCache(m *gguf.Metadata, arch string, layers, hidden, heads int) (groups []sizing.Layers, latent bool) {
	key := func(name string) int { return m.Int(arch + "." + name) }
	if rank := key("attention.kv_lora_rank"); rank > 0 {
		return []sizing.Layers{{Count: layers, Token: int64(rank+key("rope.dimension_count")) * width}}, true
	}
	k := cmp.Or(key("attention.key_length"), hidden/heads)
	v := cmp.Or(key("attention.value_length"), k)
	inWindow := k + v
	if n := key("attention.key_length_swa"); n > 0 {
		inWindow = n + cmp.Or(key("attention.value_length_swa"), n)
	}
	// One number, or one for each layer: 0 where it keeps none.
	perLayer := m.Numbers(arch + ".attention.head_count_kv")
	if len(perLayer) == 0 {
		perLayer = []float64{float64(heads)}
	}
	window, period, pattern := key("attention.sliding_window"), slidingPeriods[arch], m.Numbers(arch+".attention.sliding_window_pattern")
	alike := map[sizing.Layers]int{}
	for i := range layers {
		kv := int(perLayer[min(i, len(perLayer)-1)])
		if kv <= 0 || kv > 1<<16 {
			continue
		}
		l := sizing.Layers{Token: int64(kv) * int64(k+v) * width, Heads: kv}
		switch {
		case window == 0:
		case len(pattern) == layers && pattern[i] == 1, len(pattern) == 0 && period > 0 && (i+1)%period != 0:
			l.Window, l.Token = window, int64(kv)*int64(inWindow)*width
		}
		alike[l]++
	}
	for l, n := range alike {
		l.Count = n
		groups = append(groups, l)
	}
	slices.SortFunc(groups, func(a, b sizing.Layers) int { return a.Window - b.Window })
	return groups, false
}

// fileTypes are the names of general.file_type (ggml's llama_ftype), the usual ones.
var fileTypes = map[int]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
	13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S",
	22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M",
	32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}

func fileType(m *gguf.Metadata) string {
	if _, ok := m.Values["general.file_type"]; !ok {
		return "GGUF"
	}
	return cmp.Or(fileTypes[m.Int("general.file_type")], "GGUF")
}

// adapter reads the LoRA adapter in a folder of the source.
func (r *reader) adapter(folder string) (Adapter, error) {
	a := Adapter{Folder: folder}
	f, _ := r.file(path.Join(folder, adapterName))
	raw, err := r.small(f)
	if err != nil {
		return a, err
	}
	var doc struct {
		Rank int    `json:"r"`
		Base string `json:"base_model_name_or_path"`
		Type string `json:"peft_type"`
	}
	if err := decode(f.Name, raw, &doc); err != nil {
		return a, err
	}
	if doc.Type != "" && !strings.EqualFold(doc.Type, "LORA") {
		return a, source.Fail(source.Refused, fmt.Sprintf("is an adapter of the kind %q; engines load LoRA alone", functions.Clip(doc.Type)),
			"merge it into its model").At("", f.Name)
	}
	a.Rank, a.Base = doc.Rank, doc.Base
	for _, f := range r.files {
		if path.Dir(f.Name) == path.Clean(folder) && strings.HasSuffix(f.Name, ".safetensors") {
			a.Bytes += f.Size
		}
	}
	if a.Bytes == 0 {
		return a, source.Fail(source.Missing, "is not there, so the adapter has no weights",
			"save it as safetensors beside "+adapterName).At("", path.Join(folder, "adapter_model.safetensors"))
	}
	return a, nil
}

// onlyAdapter is the error of a source that is an adapter and no model.
func (r *reader) onlyAdapter() error {
	a, err := r.adapter("")
	if err != nil {
		return err
	}
	of, base := "", "BASE"
	if a.Base != "" {
		of, base = " of "+functions.Clip(a.Base), functions.Clip(a.Base)
		if strings.Count(base, "/") == 1 && !strings.HasPrefix(base, "/") && !strings.HasPrefix(base, ".") {
			base = "hf://" + base
		}
	}
	return source.Fail(source.Refused, "is a LoRA adapter"+of+", not a model", "thaw init "+base+" --adapter NAME=SOURCE")
}
