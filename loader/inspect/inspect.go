package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/sizing"
	"github.com/thaw-dev/thaw/functions/weightsets"
	"github.com/thaw-dev/thaw/loader"
	"github.com/thaw-dev/thaw/loader/headercheck"
	"github.com/thaw-dev/thaw/loader/source"
)

const (
	configName  = "config.json"
	adapterName = "adapter_config.json"
	byHand      = "write its model file by hand, with resources, as the guide on model files shows; engine: command serves what no engine " +
		"here does"
)

type Format string

const (
	Safetensors Format = "safetensors"
	GGUF        Format = "gguf"
)

// Checkpoint is what a source holds.
type Checkpoint struct {
	// Scheme and Location are those of the source, canonical.
	Scheme, Location string
	Format           Format
	// Files of the weights and their bytes.
	Files  int
	Stored int64
	// Architecture, as its own files name it, what it answers, and how its weights are kept.
	Architecture string
	Kind         Kind
	DType        string
	Quantization string // "" for none
	Experts      int    // 0 for none
	Latent       bool   // attention over a latent vector
	ContextFrom  string // the key that names the longest context
	// Sizing is what package sizing computes with.
	Sizing   sizing.Model
	Adapters []Adapter
	// Config is config.json; nil for GGUF.
	Config []byte
	// Left are files of weights that no engine would read.
	Left []string
	// TensorType is the type of most bytes of the first file; "" for GGUF.
	TensorType string
	reader     *reader
}

// HasTokenizer reports whether a file by its name is one of a tokenizer.
func (c *Checkpoint) HasTokenizer() bool {
	return slices.ContainsFunc(c.reader.names, tokenizerName.MatchString)
}

var tokenizerName = regexp.MustCompile(`(?i)(?:^|/)(?:[^/]*token|vocab|spiece|sentencepiece|tekken)[^/]*$`)

// ReadFile returns a small file of the source, such as its tokenizer.
func (c *Checkpoint) ReadFile(name string) ([]byte, error) {
	f, ok := c.reader.file(name)
	if !ok {
		return nil, source.Fail(source.Missing, "is not there", "copy it beside config.json").At("", name)
	}
	return c.reader.small(f)
}

type Adapter struct {
	Folder string // below the source; empty for a source of its own
	Base   string // the model that it says it was trained on
	Rank   int
	Bytes  int64
}

type Options struct {
	Sources map[string]loader.Source
	// Folder is what a relative path counts from.
	Folder string
	// Format to take where a source holds both; "" is an error then.
	Format Format
	// Files are the patterns of the model file, as functions.ModelSpec.StagedFiles has them;
	// what they leave out is not looked at.
	Files source.Globs
}

// Read looks at a source. The bytes it reads are a few MiB at most, whatever the size of
// the checkpoint; ctx bounds it. Errors are *source.Error, but for those of ctx.
func Read(ctx context.Context, src string, o Options) (*Checkpoint, error) {
	r, err := open(ctx, src, o)
	if err != nil {
		return nil, err
	}
	if err := r.narrow(o); err != nil {
		return nil, err
	}
	c := &Checkpoint{Scheme: r.scheme, Location: r.location, reader: r}
	shape, err := r.chooseWeights(o.Format)
	if err != nil {
		return nil, r.named(err)
	}
	c.Format, c.Left = shape.format, shape.left
	for _, f := range shape.files {
		if e, ok := errors.AsType[*source.Error](source.CheckName(f.Name)); ok {
			e.Fix = "rename it"
			return nil, r.named(e)
		}
		c.Files++
		c.Stored += f.Size
	}
	if c.Format == GGUF {
		err = c.readGGUF(r, shape.files[0])
	} else {
		err = c.readSafetensors(r, shape.files)
	}
	if err != nil {
		return nil, r.named(err)
	}
	if c.Adapters, err = r.adapters(); err != nil {
		return nil, r.named(err)
	}
	return c, nil
}

// CheckWeights returns an error if o.Files choose no set of weights of a source, or one
// that is not whole. A source that cannot be listed is none: it may be reached from elsewhere.
func CheckWeights(ctx context.Context, src string, o Options) error {
	r, err := open(ctx, src, o)
	if err != nil {
		return nil
	}
	return r.narrow(o)
}

func ReadAdapter(ctx context.Context, src string, o Options) (Adapter, string, error) {
	r, err := open(ctx, src, o)
	if err != nil {
		return Adapter{}, "", err
	}
	if _, ok := r.file(adapterName); !ok {
		fix := "name the folder that PEFT wrote; of a GGUF adapter, engine llamacpp and args: [--lora, FILE]"
		if i := slices.IndexFunc(r.files, func(f source.File) bool { return path.Base(f.Name) == adapterName }); i >= 0 {
			fix = "name " + functions.Clip(path.Dir(r.files[i].Name)) + " below it"
		}
		return Adapter{}, "", r.named(source.Fail(source.Missing, "is no LoRA adapter: it has no "+adapterName, fix))
	}
	a, err := r.adapter("")
	return a, r.location, r.named(err)
}

// weightSet is the files that an engine would load.
type weightSet struct {
	format Format
	files  []source.File
	left   []string
}

// chooseWeights finds the one set of weights of a listing.
func (r *reader) chooseWeights(want Format) (weightSet, error) {
	var st, gguf []source.File
	var pickles, below, left []string
	for _, f := range r.files {
		base := strings.ToLower(path.Base(f.Name))
		ext := path.Ext(base)
		switch {
		case ext == ".bin" && (strings.HasPrefix(base, "pytorch_model") || strings.HasPrefix(base, "adapter_model") ||
			strings.HasPrefix(base, "model")) || ext == ".pt" || ext == ".pth" || ext == ".ckpt":
			pickles = append(pickles, f.Name)
		case !source.Weights(f.Name):
		case strings.Contains(f.Name, "/"):
			below = append(below, f.Name)
		case weightsets.IsGGUF(f.Name):
			gguf = append(gguf, f)
		case ext == ".safetensors" && strings.HasPrefix(base, "adapter_model"): // a LoRA adapter beside its model
			left = append(left, f.Name)
		case ext == ".safetensors":
			st = append(st, f)
		}
	}
	_, hasConfig := r.file(configName)
	if _, lora := r.file(adapterName); lora && !hasConfig {
		return weightSet{}, r.onlyAdapter()
	}
	switch {
	case len(st) > 0 && len(gguf) > 0 && want == "":
		return weightSet{}, &source.Error{Kind: source.Refused,
			Detail: fmt.Sprintf("holds two sets of weights: %s in safetensors and %s in GGUF", sizeOf(st), sizeOf(gguf)),
			Fix:    "--engine llamacpp means the GGUF, --engine vllm the safetensors"}
	case len(gguf) > 0 && (want == GGUF || want == "" && len(st) == 0):
		slices.SortFunc(gguf, func(a, b source.File) int { return strings.Compare(a.Name, b.Name) })
		return weightSet{format: GGUF, files: gguf},
			checkOneSet(gguf, "", "name its file as the source; a model file chooses it with weights: PATTERN")
	case len(st) > 0 && want != GGUF:
		s, err := r.oneSafetensors(st, hasConfig)
		s.left = append(s.left, left...)
		return s, err
	case want == GGUF:
		return weightSet{}, &source.Error{Kind: source.Missing, Detail: "has no GGUF file, and llamacpp reads no other",
			Fix: "leave --engine out, or name a source with a GGUF file"}
	case len(gguf) > 0:
		return weightSet{}, source.Fail(source.Missing, "has its weights in GGUF, which llamacpp alone reads here",
			"leave --engine out, or name a source with safetensors")
	case len(pickles) > 0:
		telling := functions.Filter(r.names, func(n string) bool { return slices.Contains(pickles, n) || strings.HasPrefix(n, "vocabulary.") })
		return weightSet{}, &source.Error{Kind: source.Refused,
			Detail: fmt.Sprintf("has no weights but %s: such files run code when they are read, so thaw stages none", shortList(pickles)),
			Fix:    source.WithoutWeights(telling, "save the model as safetensors: save_pretrained(DIR, safe_serialization=True)")}
	case len(below) > 0:
		return weightSet{}, source.Fail(source.Missing, fmt.Sprintf("has no weights at its top, but below: %s", shortList(below)),
			r.wayBelow(below))
	}
	if len(r.names) > 0 && !hasConfig {
		return weightSet{}, &source.Error{Kind: source.Missing, Detail: "has no weights: no safetensors and no GGUF file, and no config.json",
			Fix: source.WithoutWeights(r.names, "name the folder of one model")}
	}
	return weightSet{}, source.Fail(source.Missing, "has no weights: no safetensors and no GGUF file",
		source.WithoutWeights(r.names, "copy them beside config.json, or name the folder that has them"))
}

// wayBelow is what helps where all weights are in folders below the source.
func (r *reader) wayBelow(below []string) string {
	if _, ok := r.file("model_index.json"); ok {
		return "it is a pipeline of diffusers, which makes pictures: engine: command starts a server for it"
	}
	if i := slices.IndexFunc(below, func(n string) bool { return strings.HasPrefix(path.Base(n), "adapter_model") }); i >= 0 {
		return "a LoRA adapter is named with its model: thaw init BASE --adapter NAME=SOURCE/" + functions.Clip(path.Dir(below[i]))
	}
	if slices.ContainsFunc(below, weightsets.IsGGUF) {
		return "name the folder or the file; a model file chooses it with weights: PATTERN"
	}
	return "name the folder that holds config.json and the weights"
}

// checkOneSet returns an error if files are the shards of several models, whose list follows
// the note in it, or not all of one. way is how to name one of several.
func checkOneSet(files []source.File, note, way string) error {
	sets := map[string][]source.File{}
	for _, f := range files {
		key := f.Name
		if stem, _, _, ok := weightsets.Split(f.Name); ok {
			key = stem
		}
		sets[key] = append(sets[key], f)
	}
	if len(sets) > 1 {
		var list []string
		for key, s := range sets {
			list = append(list, key+" ("+sizeOf(s)+")")
		}
		slices.Sort(list)
		return source.Fail(source.Refused, fmt.Sprintf("holds %d sets of weights%s: %s", len(sets), note, shortList(list)), way)
	}
	if _, _, of, ok := weightsets.Split(files[0].Name); ok && of != len(files) {
		return source.Fail(source.Missing, fmt.Sprintf("has %d of the %d files that the name %s counts", len(files), of, files[0].Name),
			"copy the missing files beside them")
	}
	return nil
}

// oneSafetensors is what vLLM reads of a folder: the shards of its index, else all files
// but consolidated ones, which repeat the others in another layout.
func (r *reader) oneSafetensors(files []source.File, hasConfig bool) (weightSet, error) {
	if !hasConfig {
		if _, ok := r.file("params.json"); ok {
			return weightSet{}, source.Fail(source.Missing, "has params.json and no config.json: that is Mistral's own layout",
				"name a source in Hugging Face's layout")
		}
		fix := "name the folder that has both, or copy config.json and the tokenizer beside the weights"
		if i := slices.IndexFunc(r.names, renamedConfig.MatchString); i >= 0 {
			fix = fmt.Sprintf("rename %q to config.json, if that is what it is", r.names[i])
		}
		return weightSet{}, source.Fail(source.Missing, "has weights and no config.json", fix)
	}
	s := weightSet{format: Safetensors}
	whole := slices.ContainsFunc(files, func(f source.File) bool { return f.Name == "model.safetensors" })
	if index, ok := r.file("model.safetensors.index.json"); ok && !whole {
		used, err := r.shards(index, files)
		if err != nil {
			return s, err
		}
		for _, f := range files {
			if slices.Contains(used, f.Name) {
				s.files = append(s.files, f)
			} else {
				s.left = append(s.left, f.Name)
			}
		}
		return s, nil
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name, "consolidated") && len(files) > 1 {
			s.left = append(s.left, f.Name)
		} else {
			s.files = append(s.files, f)
		}
	}
	if len(s.files) == 0 {
		return s, &source.Error{Kind: source.Missing, Detail: "has consolidated weights only, which is Mistral's own layout",
			Fix: "name a source in Hugging Face's layout"}
	}
	return s, checkOneSet(s.files, " and no index that says which are meant",
		"a model file leaves the others out: exclude: [NAME]; or copy the one that is meant, with config.json and the tokenizer, "+
			"into a folder of its own and name that")
}

// renamedConfig matches names that browsers and editors give to a config.json.
var renamedConfig = regexp.MustCompile(`(?i)^config ?(?:\(\d+\)|-\d+)?\.json(?:\.txt)?$`)

// shards returns the names of the files that an index uses; all must be there.
func (r *reader) shards(index source.File, files []source.File) ([]string, error) {
	raw, err := r.small(index)
	if err != nil {
		return nil, err
	}
	used, err := headercheck.Shards(index.Name, bytes.NewReader(raw), int64(len(raw)), source.Names(files))
	return used, source.WithFile(err, index.Name)
}

func sizeOf(files []source.File) string {
	var n int64
	for _, f := range files {
		n += f.Size
	}
	return functions.Bytes(n).Human()
}

// shortList names the first few of a list.
func shortList(list []string) string {
	const most = 4
	clipped := functions.ConvertAll(list[:min(len(list), most)], functions.Clip)
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(clipped, ", "), len(list)-most)
	}
	return strings.Join(clipped, ", ")
}
