package llama

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions/pythonjson"
)

// adapterConfig is the used part of an adapter's adapter_config.json.
type adapterConfig struct {
	rank   int
	scale  float64 // alpha/r, or alpha/sqrt(r) with rsLoRA
	layers []int   // layers_to_transform; nil for all
	list   []string
	expr   *regexp.Regexp // target_modules as one expression, instead of the list
}

const (
	maxAdapterConfig = 1 << 20 // bytes of adapter_config.json
	maxAlpha         = 1 << 20
	maxExpression    = 4096 // bytes of target_modules as an expression
)

// knownKeys of adapter_config.json are read, or have no influence on an answer.
var knownKeys = []string{
	"alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying", "eva_config", "inference_mode",
	"init_lora_weights", "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_config",
	"megatron_core", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config",
	"target_modules", "task_type", "use_rslora",
}

// refusedKeys are features that the engine lacks, with what they are.
var refusedKeys = map[string]string{
	"use_dora": "DoRA", "lora_bias": "a bias", "modules_to_save": "whole modules (modules_to_save)", "use_qalora": "QALoRA",
	"layer_replication": "replicated layers", "fan_in_fan_out": "transposed weights (fan_in_fan_out)", "exclude_modules": "exclude_modules",
	"layers_pattern": "layers_pattern", "trainable_token_indices": "trained tokens", "target_parameters": "target_parameters",
	"alora_invocation_tokens": "activated LoRA", "arrow_config": "Arrow routing",
}

// changesBase are the values of init_lora_weights with which an adapter belongs to
// changed weights of the base.
var changesBase = []string{"pissa", "olora", "corda", "loftq", "lora_ga"}

func readAdapterConfig(dir string) (c adapterConfig, err error) {
	const name = "adapter_config.json"
	var text json.RawMessage
	err = pythonjson.ReadFile(filepath.Join(dir, name), maxAdapterConfig, &text)
	if errors.Is(err, os.ErrNotExist) {
		return c, errors.New("not a LoRA adapter: it has no " + name)
	}
	if err == nil {
		c, err = parseAdapterConfig(text)
	}
	if err != nil {
		return c, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

func parseAdapterConfig(b []byte) (c adapterConfig, err error) {
	var all map[string]json.RawMessage
	if err := pythonjson.Decode(b, &all); err != nil {
		return c, err
	}
	var j struct {
		Type         string             `json:"peft_type"`
		Rank         int                `json:"r"`
		Alpha        *float64           `json:"lora_alpha"`
		RS           bool               `json:"use_rslora"`
		Bias         string             `json:"bias"`
		Targets      json.RawMessage    `json:"target_modules"`
		Layers       json.RawMessage    `json:"layers_to_transform"`
		RankPattern  map[string]int     `json:"rank_pattern"`
		AlphaPattern map[string]float64 `json:"alpha_pattern"`
		Init         any                `json:"init_lora_weights"`
	}
	if err := pythonjson.Decode(b, &j); err != nil {
		return c, err
	}
	switch {
	case j.Type != "" && !strings.EqualFold(j.Type, "LORA"):
		return c, fmt.Errorf("peft_type is %q; only LORA is supported", j.Type)
	case j.Bias != "" && j.Bias != "none":
		return c, fmt.Errorf("bias is %q; an adapter with a bias is not supported, only \"none\"", j.Bias)
	case len(j.RankPattern) > 0 || len(j.AlphaPattern) > 0:
		return c, errors.New("rank_pattern and alpha_pattern are not supported: one rank and one alpha hold for all modules")
	case j.Rank <= 0:
		return c, fmt.Errorf("r is %d, want a rank of at least 1", j.Rank)
	case j.Alpha == nil:
		return c, errors.New("lora_alpha is missing")
	case !(math.Abs(*j.Alpha) <= maxAlpha):
		return c, fmt.Errorf("lora_alpha is %v, which is no sensible number", *j.Alpha)
	}
	if name, ok := j.Init.(string); ok &&
		slices.ContainsFunc(changesBase, func(p string) bool { return strings.HasPrefix(strings.ToLower(name), p) }) {
		return c, fmt.Errorf("init_lora_weights is %q: the adapter belongs to changed weights of the base; save it converted to plain LoRA", name)
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if slices.Contains(knownKeys, key) || isUnset(all[key]) {
			continue
		}
		if feature, ok := refusedKeys[key]; ok {
			return c, fmt.Errorf("%s: an adapter with %s is not supported, only plain LoRA", key, feature)
		}
		return c, fmt.Errorf("the key %s is not known, so its effect is not either; only plain LoRA is supported", key)
	}
	c.rank, c.scale = j.Rank, *j.Alpha/float64(j.Rank)
	if j.RS {
		c.scale = *j.Alpha / math.Sqrt(float64(j.Rank))
	}
	if c.layers, err = TokenIDs(j.Layers); err != nil {
		return c, fmt.Errorf("layers_to_transform: %w", err)
	}
	return c, c.targets(j.Targets)
}

// isUnset reports whether a value switches nothing on: null, false, or empty.
func isUnset(v json.RawMessage) bool {
	return slices.Contains([]string{"null", "false", "[]", "{}", `""`}, strings.Join(strings.Fields(string(v)), ""))
}

// targets reads target_modules: a list of names, or one expression.
func (c *adapterConfig) targets(raw json.RawMessage) error {
	var one string
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return errors.New("target_modules is missing")
	case json.Unmarshal(raw, &one) != nil:
		if err := json.Unmarshal(raw, &c.list); err != nil || len(c.list) == 0 {
			return errors.New("target_modules must be a list of names or one expression")
		}
		for _, t := range c.list {
			if !slices.ContainsFunc(moduleNames[:], func(n string) bool { return t[strings.LastIndexByte(t, '.')+1:] == shortName(n) }) {
				return fmt.Errorf("target_modules: %q is not supported (known: %s)", t, knownModules())
			}
		}
		return nil
	case len(one) > maxExpression:
		return fmt.Errorf("target_modules: the expression is longer than %d bytes", maxExpression)
	case one == "all-linear":
		one = ".*_proj"
	}
	e, err := regexp.Compile("^(?:" + one + ")$")
	if err != nil {
		return fmt.Errorf("target_modules: %w", err)
	}
	c.expr = e
	return nil
}

// changes reports whether the adapter has weights for a module of a layer. A name
// matches a module's whole path or the end of it, as in PEFT.
func (c *adapterConfig) changes(layer int, path string) bool {
	if c.layers != nil && !slices.Contains(c.layers, layer) {
		return false
	}
	if c.expr != nil {
		return c.expr.MatchString(path)
	}
	return slices.ContainsFunc(c.list, func(t string) bool { return path == t || strings.HasSuffix(path, "."+t) })
}
