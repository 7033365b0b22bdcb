package source

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/functions/weightsets"
)

const (
	maxFiles = 10_000
	maxBytes = int64(1) << 46 // 64 TiB: a sum that large is a lie
)

// Needed reports whether an engine may need the file to load its model: weights, their
// index, configurations and tokenizers, at the top of the source or in a folder there.
func Needed(name string) bool {
	if strings.Count(name, "/") > 1 || !Allowed(name) {
		return false
	}
	base := strings.ToLower(path.Base(name))
	for _, begin := range []string{"tokenizer", "vocab", "merges", "special_tokens_map", "added_tokens", "adapter_config"} {
		if strings.HasPrefix(base, begin) {
			return true
		}
	}
	switch path.Ext(base) {
	case ".json":
		return base == "config.json" || strings.HasSuffix(base, ".safetensors.index.json") || strings.HasSuffix(base, "processor_config.json")
	case ".txt", ".jinja":
		return false
	}
	return true // weights, tiktoken, sentencepiece
}

// selection is the files of a listing that are staged, as far as it was read.
type selection struct {
	location string
	all      []File
	also     Globs
	out      []File
	left     []LeftOut
}

// Select checks a listing and returns its files that are staged, in the listing's order:
// those of Allowed, and those that also matches. A file whose name cannot be used is left
// out, unless an engine needs it or also names it: then it is an error. A name that leads
// out of the folder always is one: such a listing is not to be trusted at all.
func Select(location string, files []File, also Globs) ([]File, []LeftOut, error) {
	s := &selection{location: location, all: files, also: also}
	var sum int64
	for _, f := range files {
		if !also.Includes(f.Name) {
			continue
		}
		if err := CheckName(f.Name); err != nil {
			e := err.(*Error)
			e.Source, e.Fix = location, "rename it"
			if LeavesFolder(f.Name) || also.Needs(f.Name) {
				return nil, nil, e
			}
			s.leave(f.Name, strings.TrimPrefix(e.Detail, "file name "))
			continue
		}
		if f.Size < 0 || f.Size > maxBytes || sum+f.Size > maxBytes {
			return nil, nil, &Error{Kind: Refused, Source: location, File: f.Name, Detail: fmt.Sprintf("has an impossible size (%d bytes)", f.Size)}
		}
		sum += f.Size
		if s.out = append(s.out, f); len(s.out) > maxFiles {
			return nil, nil, &Error{Kind: Refused, Source: location, Detail: fmt.Sprintf("holds more than %d files", maxFiles),
				Fix: "point source at the model's own folder"}
		}
	}
	if err := s.dropTwins(); err != nil {
		return nil, nil, err
	}
	if err := s.chooseWeights(); err != nil {
		return nil, nil, err
	}
	return s.out, s.left, nil
}

// LeavesFolder reports whether a name is made to lead out of its folder.
func LeavesFolder(name string) bool {
	return strings.HasPrefix(name, "/") ||
		slices.ContainsFunc(strings.FieldsFunc(name, func(r rune) bool { return r == '/' || r == '\\' }), func(part string) bool {
			return part == "." || part == ".."
		})
}

func (s *selection) leave(name, reason string) {
	s.left = append(s.left, LeftOut{Name: name, Reason: reason})
}

// dropTwins leaves out files that cannot be on one disk together: two names that are one
// where case does not count, and a file below a name that is a file.
func (s *selection) dropTwins() error {
	// Needed files come first, then those of the listing's order. Empty ones are last: some
	// tools store one under the name of each folder.
	order := slices.Clone(s.out)
	rank := func(f File) int {
		switch {
		case s.also.Needs(f.Name):
			return 0
		case f.Size > 0:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(order, func(a, b File) int { return cmp.Compare(rank(a), rank(b)) })
	files, folders, dropped := map[string]string{}, map[string]string{}, map[string]bool{}
	for _, f := range order {
		low := strings.ToLower(f.Name)
		reason := ""
		if other, ok := files[low]; ok {
			reason = fmt.Sprintf("is the same name as %q where case does not count", other)
		} else if other, ok := folders[low]; ok {
			reason = fmt.Sprintf("is a file, and %q lies below it", other)
		}
		for p := path.Dir(low); p != "."; p = path.Dir(p) {
			if other, ok := files[p]; ok {
				reason = fmt.Sprintf("lies below %q, which is a file", other)
			}
		}
		if reason != "" {
			if s.also.Needs(f.Name) {
				return &Error{Kind: Refused, Source: s.location, File: f.Name, Detail: reason, Fix: "rename or remove one of them"}
			}
			s.leave(f.Name, reason)
			dropped[f.Name] = true
			continue
		}
		files[low] = f.Name
		for p := path.Dir(low); p != "."; p = path.Dir(p) {
			folders[p] = f.Name
		}
	}
	s.out = slices.DeleteFunc(s.out, func(f File) bool { return dropped[f.Name] })
	return nil
}

// chooseWeights drops the weights that are not of the one set that is staged; without a
// choice, those that no engine reads beside the others.
func (s *selection) chooseWeights() error {
	if s.also.weights() == "" {
		s.dropSecondLayouts()
		return s.checkShards()
	}
	chosen, err := s.also.Narrow(s.out)
	if err != nil {
		if _, ofAll := s.also.Narrow(s.all); ofAll != nil { // it knows what is there in place of weights
			err = ofAll
		}
		err.(*Error).Source = s.location
	}
	s.out = chosen
	return err
}

// Narrow returns the files of a listing without those that a pattern leaves out, and of its
// weights the one set that is chosen. Errors are *Error.
func (g Globs) Narrow(files []File) ([]File, error) {
	var out []File
	var names []weightsets.File
	for _, f := range files {
		if !g.excludes(f.Name) {
			out = append(out, f)
			names = append(names, weightsets.File{Name: f.Name, Size: f.Size})
		}
	}
	if g.weights() == "" {
		return out, nil
	}
	set, err := chooseSet(names, g.weights())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(out, func(f File) bool {
		weights := weightsets.IsGGUF(f.Name) || strings.EqualFold(path.Ext(f.Name), ".safetensors")
		return weights && !slices.ContainsFunc(set.Files, func(w weightsets.File) bool { return w.Name == f.Name })
	}), nil
}

// chooseSet returns the one set of weights that a pattern means. Errors list the sets.
func chooseSet(files []weightsets.File, pattern string) (weightsets.Set, error) {
	sets := weightsets.Find(files)
	chosen := weightsets.Choose(sets, pattern)
	const fix = `name one with spec.weights, such as weights: "*Q4_K_M*", or name its file as the source`
	switch {
	case len(chosen) > 1:
		return weightsets.Set{},
			&Error{Kind: Refused,
				Detail: fmt.Sprintf("holds %d sets of weights, and the engine loads one: %s", len(chosen), weightsets.List(chosen)), Fix: fix}
	case len(chosen) == 1 && chosen[0].Missing != "":
		return weightsets.Set{},
			&Error{Kind: Missing, File: chosen[0].Missing, Detail: "is not there, and the shards beside it count it",
				Fix: "copy it beside the others"}
	case len(chosen) == 1:
		return chosen[0], nil
	case pattern == functions.AnyGGUF && len(sets) > 0:
		return weightsets.Set{}, &Error{
			Kind: Missing, Detail: "has no GGUF file, and llamacpp reads no other: " + weightsets.List(sets),
			Fix: "name a source with a GGUF file, or another engine",
		}
	case len(sets) > 0:
		return weightsets.Set{},
			&Error{Kind: Missing, Detail: fmt.Sprintf("has no weights that %q matches: %s", functions.Clip(pattern), weightsets.List(sets)),
				Fix: fix}
	}
	names := functions.ConvertAll(files, func(f weightsets.File) string { return f.Name })
	return weightsets.Set{}, &Error{
		Kind:   Missing,
		Detail: fmt.Sprintf("holds no weights (*.safetensors, *.gguf); %d other files are there", len(files)),
		Fix:    WithoutWeights(names, "point source at the folder that holds them"),
	}
}

// WithoutWeights is what helps where none of these files has weights that are read here;
// otherwise where the files do not tell.
func WithoutWeights(names []string, otherwise string) string {
	for _, name := range names {
		base := strings.ToLower(path.Base(name))
		switch path.Ext(base) {
		case ".part", ".partial", ".incomplete", ".crdownload", ".aria2", ".download", ".tmp":
			return functions.Clip(name) + " is of a download that has not finished: finish it"
		case ".zip", ".tar", ".gz", ".tgz", ".zst", ".xz", ".bz2", ".lz4", ".7z", ".rar", ".nemo", ".llamafile":
			return "unpack " + functions.Clip(name) + ", and name the folder with safetensors or GGUF"
		case ".onnx", ".engine", ".plan", ".mlmodel", ".mil", ".tflite", ".pte", ".task", ".litertlm", ".rkllm", ".mnn", ".xml":
			return functions.Clip(name) + " is for an engine of another kind, which engine: command starts"
		case ".distcp":
			return "the checkpoint of a training with FSDP is joined by accelerate merge-weights " + functions.Clip(path.Dir(name)) + " OUT"
		case ".dvc":
			return functions.Clip(name) + " is a pointer of DVC: dvc pull"
		case ".h5", ".msgpack", ".npz", ".pb", ".keras", ".pdparams", ".ocdbt":
			return functions.Clip(name) + " is of TensorFlow, Flax, Paddle or MLX: save the model as safetensors"
		}
		switch {
		case Weights(strings.TrimSpace(base)) && !Weights(base):
			return fmt.Sprintf("rename %q, whose name ends with a blank", functions.Clip(name))
		case weightsets.IsProjector(base):
			return functions.Clip(name) + " reads images for a model, whose own GGUF file is missing beside it"
		case strings.HasPrefix(base, "vocabulary.") || strings.HasPrefix(base, "mlc-chat-config"):
			return "a model of CTranslate2 or MLC is for another engine, which engine: command starts"
		case strings.Contains(base, "mp_rank_"):
			return "the checkpoint of a training with DeepSpeed is joined by the zero_to_fp32.py beside it, with --safe_serialization"
		case strings.HasPrefix(base, "consolidated.") && path.Ext(base) == ".pth":
			return "that is Meta's own layout: take the model in Hugging Face's, or convert it with transformers' convert_llama_weights_to_hf.py"
		case halfCopied.MatchString(base):
			return functions.Clip(name) + " is of a copy that has not finished: copy the file again"
		case partName.MatchString(name):
			return joinParts(name, names)
		case strings.HasPrefix(name, "models--") && strings.Contains(name, "/snapshots/"):
			return "that is a cache of Hugging Face: name " + functions.Clip(path.Dir(name))
		case strings.HasPrefix(base, "ggml-") && path.Ext(base) == ".bin":
			return "a model of whisper.cpp is for another engine, which engine: command starts; one from before GGUF is converted anew"
		case strings.HasPrefix(base, "sha256-"):
			return "a GGUF file without its ending, as Ollama keeps it, is read once it is copied to NAME.gguf"
		}
	}
	return otherwise
}

// partName matches a part of a file of weights that was cut by bytes: the file's name, and
// which part it is.
var partName = regexp.MustCompile(`(?i)^(.+\.(?:gguf|safetensors))[.-](?:(?:part[-_]?|split-)([a-z]{1,3}|\d+)(?:of\d+)?|(\d{2,3}|a[a-z]))$`)

// halfCopied matches the hidden name under which rsync writes a file of weights.
var halfCopied = regexp.MustCompile(`^\..+\.(?:gguf|safetensors)\.\w{6}$`)

// maxParts bounds the parts that a message names.
const maxParts = 20

// joinParts returns the command that joins the parts of a file, of which name is one.
func joinParts(name string, names []string) string {
	whole := partName.FindStringSubmatch(name)[1]
	order := map[string]string{} // by length, then by text: 2 before 10, z before aa
	for _, n := range names {
		if m := partName.FindStringSubmatch(n); m != nil && m[1] == whole {
			order[n] = fmt.Sprintf("%20s", strings.TrimLeft(m[2]+m[3], "0"))
		}
	}
	parts := slices.SortedFunc(maps.Keys(order), func(a, b string) int { return strings.Compare(order[a], order[b]) })
	if len(parts) > maxParts || slices.ContainsFunc(parts, func(n string) bool { return !plainName.MatchString(n) }) {
		return fmt.Sprintf("join its %d parts in order, such as by cat, from %s to %s, and name the file that comes out", len(parts),
			functions.Clip(parts[0]), functions.Clip(parts[len(parts)-1]))
	}
	return "join the parts in order, cat " + strings.Join(parts, " ") + " > " + whole + ", and name that file"
}

// plainName matches a name that a shell takes as it is.
var plainName = regexp.MustCompile(`^[\w.][\w./@%+=:,-]*$`)

// dropSecondLayouts leaves out what repeats the weights in a layout that engines do not
// read, and no pattern names: consolidated safetensors and the folder original beside those
// of Hugging Face, a LoRA adapter in the folder of the weights that it was trained on, and an
// index whose shards were merged into one file.
func (s *selection) dropSecondLayouts() {
	var top bool
	whole, shards := map[string]bool{}, map[string]bool{} // folders
	for _, f := range s.out {
		if !strings.EqualFold(path.Ext(f.Name), ".safetensors") || isConsolidated(f.Name) {
			continue
		}
		folder := path.Dir(f.Name)
		top = top || folder == "."
		if _, _, _, shard := weightsets.Split(f.Name); shard {
			shards[folder] = true
		} else if path.Base(f.Name) == "model.safetensors" {
			whole[folder] = true
		}
	}
	s.out = slices.DeleteFunc(s.out, func(f File) bool {
		folder := path.Dir(f.Name)
		adapter := path.Base(f.Name) == "adapter_model.safetensors"
		second := (isConsolidated(f.Name) || adapter) && (whole[folder] || shards[folder]) ||
			top && strings.HasPrefix(f.Name, "original/") ||
			path.Base(f.Name) == "model.safetensors.index.json" && whole[folder] && !shards[folder]
		return second && !s.also.Match(f.Name)
	})
}

// checkShards refuses safetensors whose names count a shard that is not there. An index, which
// is checked by itself, or a whole file beside them says more than the names. Folders below a
// model count only where its top has no weights.
func (s *selection) checkShards() error {
	var names []weightsets.File
	covered := map[string]bool{} // folders
	for _, f := range s.out {
		if s.also.Match(f.Name) {
			continue
		}
		names = append(names, weightsets.File{Name: f.Name, Size: f.Size})
		base := path.Base(f.Name)
		covered[path.Dir(f.Name)] = covered[path.Dir(f.Name)] || base == "model.safetensors" || strings.HasSuffix(base, ".safetensors.index.json")
	}
	sets := weightsets.Find(names)
	top := slices.ContainsFunc(sets, func(w weightsets.Set) bool { return path.Dir(w.Files[0].Name) == "." })
	for _, w := range sets {
		first := w.Files[0].Name
		if folder := path.Dir(first); w.Missing != "" && !weightsets.IsGGUF(first) && !covered[folder] && (!top || folder == ".") {
			return &Error{Kind: Missing, Source: s.location, File: w.Missing, Detail: "is not there, and the shards beside it count it",
				Fix: "copy it beside the others"}
		}
	}
	return nil
}

func isConsolidated(name string) bool {
	base := strings.ToLower(path.Base(name))
	return strings.HasPrefix(base, "consolidated") && path.Ext(base) == ".safetensors"
}

// PlanFile plans the one file that a location ends in, with the other shards of its set.
// one looks up the file of a key; it fills in all but the name.
func PlanFile(location, key string, one func(key string) (File, error)) (Plan, error) {
	var plan Plan
	for _, k := range weightsets.Siblings(key) {
		f, err := one(k)
		if KindOf(err) == NotFound && k != key {
			return Plan{}, &Error{
				Kind: Missing, Source: location, File: path.Base(k),
				Detail: fmt.Sprintf("is not there, and the name %s counts it", path.Base(key)),
				Fix:    "copy it beside the others",
			}
		}
		if err != nil {
			return Plan{}, err
		}
		f.Name = path.Base(k)
		plan.Files = append(plan.Files, f)
	}
	return plan, nil
}

// PlanFolder plans a location that may be a folder or one file: list is asked first, unless
// the name is that of weights, and file where there is nothing below.
func PlanFolder(location string, list, file func() (Plan, error)) (Plan, error) {
	if Weights(location) {
		return file()
	}
	plan, err := list()
	// A page of the web that is no list may be the file.
	named := path.Ext(location) != ""
	if kind := KindOf(err); kind != NotFound && (kind != Refused || !named) {
		return plan, err
	}
	// What is empty and looks like a folder marks one.
	if one, ferr := file(); ferr == nil && (named || len(one.Files) != 1 || one.Files[0].Size > 0) {
		return one, nil
	}
	return plan, err
}
