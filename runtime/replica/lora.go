package replica

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/pythonjson"
	"github.com/thaw-dev/thaw/functions/safetensors"
)

// defaultRank is vLLM's default of --max-lora-rank.
const defaultRank = 16

// headLimit bounds the header of an adapter's weights.
const headLimit = 16 << 20

// refuseSource returns an error for a LoRA adapter in the place of a model, and for GGUF before an
// engine that reads none: engines say only that there is no config.json.
func refuseSource(e functions.Engine, dir string) error {
	isThere := func(pattern string) bool {
		found, _ := fs.Glob(os.DirFS(dir), pattern)
		return len(found) > 0
	}
	switch {
	case e == functions.EngineCommand || isThere("config.json") || isThere("params.json"):
		return nil
	case isThere("*.gguf"):
		if e == functions.EngineLlamaCpp {
			return nil
		}
		return fmt.Errorf("the source holds GGUF and no config.json, and %s reads safetensors: engine: llamacpp, or the model in safetensors",
			e)
	case !isThere("adapter_config.json"):
		return nil
	}
	return errors.New("the source is a LoRA adapter (adapter_config.json and no config.json), not a model: " +
		"name it under adapters in the file of the model that it was trained on")
}

// inspectAdapter validates a LoRA adapter (a folder in peft's form) before the engine
// loads it: its errors are clearer, and a bad adapter may break the engine. declared is
// the rank in the model file, 0 for none; most is the engine's limit, 0 for its
// default. The note, if not "", is a warning for people.
func inspectAdapter(dir string, declared, maximum int) (note string, err error) {
	var c struct {
		Type    string          `json:"peft_type"`
		Rank    int             `json:"r"`
		Modules json.RawMessage `json:"target_modules"` // names, or one regular expression
		Ranks   map[string]int  `json:"rank_pattern"`
		DoRA    bool            `json:"use_dora"`
	}
	err = pythonjson.ReadFile(filepath.Join(dir, "adapter_config.json"), 1<<20, &c)
	if errors.Is(err, os.ErrNotExist) {
		fix := "name the folder that peft's save_pretrained wrote"
		if below, _ := fs.Glob(os.DirFS(dir), "*/adapter_config.json"); len(below) > 0 {
			fix = "name " + filepath.Dir(below[0]) + " below it"
		}
		return "", fmt.Errorf("not a LoRA adapter: it has no adapter_config.json (%s)", fix)
	}
	if err != nil {
		return "", fmt.Errorf("adapter_config.json: %w (mend it, or copy the file again)", err)
	}
	rank := c.Rank
	for _, r := range c.Ranks {
		rank = max(rank, r)
	}
	maximum = cmp.Or(maximum, defaultRank)
	switch {
	case c.Type != "" && !strings.EqualFold(c.Type, "LORA"):
		return "", fmt.Errorf("its peft_type is %q; only LORA can be served (peft's merge_and_unload makes a model of some)", c.Type)
	case c.DoRA:
		return "", errors.New("it is a DoRA adapter; only plain LoRA can be served (peft's merge_and_unload makes a model of it)")
	case rank <= 0:
		return "", errors.New("adapter_config.json has no rank (r): copy the file again")
	case declared > 0 && rank > declared:
		return "", fmt.Errorf("its rank is %d and the model file says %d: raise rank there", rank, declared)
	case rank > maximum:
		return "", fmt.Errorf("its rank is %d and the engine takes %d at most: say rank: %d in the model file, or --max-lora-rank in its args",
			rank, maximum, rank)
	}
	tensors, err := readHeader(filepath.Join(dir, "adapter_model.safetensors"))
	if errors.Is(err, os.ErrNotExist) {
		return "", errors.New("there is no adapter_model.safetensors in it (peft's save_pretrained writes it; adapter_model.bin is not read)")
	}
	if err != nil {
		return "", fmt.Errorf("adapter_model.safetensors: %w", err)
	}
	var broken []string // modules
	pairs := 0
	for _, t := range tensors {
		name, ok := strings.CutSuffix(t.Name, ".lora_A.weight")
		if !ok {
			continue
		}
		pairs++
		if len(t.Shape) != 2 || t.Shape[0] > maximum {
			return "", fmt.Errorf("%s has shape %v, which is no rank of at most %d", t.Name, t.Shape, maximum)
		}
		if !slices.ContainsFunc(tensors, func(o safetensors.Tensor) bool { return o.Name == name+".lora_B.weight" }) {
			return "", fmt.Errorf("%s has no lora_B beside it: copy adapter_model.safetensors again", t.Name)
		}
		switch m := name[strings.LastIndexByte(name, '.')+1:]; m {
		case "k_proj", "v_proj", "qkv_proj", "kv_proj", "query_key_value", "c_attn":
			broken = append(broken, m)
		}
	}
	if pairs == 0 {
		names := functions.ConvertAll(tensors[:min(1, len(tensors))], func(t safetensors.Tensor) string { return t.Name })
		return "", fmt.Errorf("adapter_model.safetensors holds no LoRA weights (….lora_A.weight, as peft's save_pretrained names them) among "+
			"%d tensors %v", len(tensors), names)
	}
	if len(broken) > 0 {
		slices.Sort(broken)
		broken = slices.Compact(broken)
		note = "it changes " + strings.Join(broken, " and ") + ", so its KV cache is shared with neither the model nor other adapters"
	}
	return note, nil
}

func readHeader(path string) ([]safetensors.Tensor, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	ts, _, err := safetensors.Read(f, st.Size(), headLimit)
	return ts, err
}
