// Package weightsets groups the file names of a listing into sets that an engine loads together (a
// GGUF file or its shards, a folder's safetensors), names missing shards, and chooses the sets that
// a pattern matches; it opens no file. Of GGUF an engine loads one set, so that a folder with
// several needs a choice.
package weightsets

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

type File struct {
	Name string
	Size int64
}

// Set is the files that an engine loads together.
type Set struct {
	Files   []File // by name
	Missing string // the first shard that is not there; "" for none
}

// Split splits NAME-00001-of-00005.EXT; ok is false for a file that is no shard.
func Split(name string) (stem string, i, of int, ok bool) {
	stem = strings.TrimSuffix(name, path.Ext(name))
	at := strings.LastIndex(stem, "-of-")
	if at < 6 || stem[at-6] != '-' || len(stem)-at != len("-of-00000") {
		return name, 0, 0, false
	}
	if _, err := fmt.Sscanf(stem[at-5:], "%05d-of-%05d", &i, &of); err != nil || i < 1 || i > of {
		return name, 0, 0, false
	}
	return stem[:at-6], i, of, true
}

// maxShards bounds the names that Siblings makes up.
const maxShards = 1000

// Siblings returns the names of all files of the set that a file belongs to, in order.
func Siblings(name string) []string {
	stem, _, of, ok := Split(name)
	if !ok || of > maxShards {
		return []string{name}
	}
	out := make([]string, of)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%05d-of-%05d%s", stem, i+1, of, path.Ext(name))
	}
	return out
}

// IsGGUF reports whether a file is GGUF weights of a model, not those that llama.cpp reads
// beside a model.
func IsGGUF(name string) bool {
	base := strings.ToLower(path.Base(name))
	return path.Ext(base) == ".gguf" && !strings.Contains(base, "mmproj") && !strings.Contains(base, "imatrix")
}

// IsProjector reports whether a file is what llama.cpp reads images with, beside a model:
// mmproj-F16.gguf, model-mmproj-f16.gguf, model.mmproj-Q8_0.gguf.
func IsProjector(name string) bool {
	base := strings.ToLower(path.Base(name))
	return path.Ext(base) == ".gguf" && strings.Contains(base, "mmproj")
}

// Find returns the sets of a listing: first those of GGUF by name, then the safetensors of
// each folder.
func Find(files []File) []Set {
	groups := map[string][]File{}
	var order []string
	for _, f := range files {
		key := ""
		switch {
		case IsGGUF(f.Name):
			stem, _, of, ok := Split(f.Name)
			if key = "0" + f.Name; ok {
				key = fmt.Sprintf("0%s/%d", stem, of)
			}
		case strings.EqualFold(path.Ext(f.Name), ".safetensors"):
			key = "1" + path.Dir(f.Name)
		default:
			continue
		}
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], f)
	}
	slices.Sort(order)
	sets := make([]Set, 0, len(order))
	for _, key := range order {
		slices.SortFunc(groups[key], func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
		sets = append(sets, newSet(groups[key]))
	}
	return sets
}

// newSet makes a set of files and looks for the shards beside each.
func newSet(files []File) Set {
	for _, f := range files {
		for _, other := range Siblings(f.Name) {
			if !slices.ContainsFunc(files, func(f File) bool { return f.Name == other }) {
				return Set{files, other}
			}
		}
	}
	return Set{Files: files}
}

// Matches reports whether a pattern means a file: its whole name, a folder that it is in,
// or, for a pattern without a slash, its name in any folder.
func Matches(pattern, name string) bool {
	match := func(name string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	}
	if !strings.Contains(pattern, "/") && match(path.Base(name)) {
		return true
	}
	for p := name; p != "." && p != "/"; p = path.Dir(p) {
		if match(p) {
			return true
		}
	}
	return false
}

// Choose returns the sets that a pattern means. Of safetensors it takes the files that
// match alone, with their shards.
func Choose(sets []Set, pattern string) (out []Set) {
	for _, s := range sets {
		matches := func(f File) bool { return Matches(pattern, f.Name) }
		if !slices.ContainsFunc(s.Files, matches) {
			continue
		}
		if !IsGGUF(s.Files[0].Name) {
			var names []string
			for _, f := range functions.Filter(s.Files, matches) {
				names = append(names, Siblings(f.Name)...)
			}
			s = newSet(functions.Filter(s.Files, func(f File) bool { return slices.Contains(names, f.Name) }))
		}
		out = append(out, s)
	}
	return out
}

// List names sets with their sizes, for people.
func List(sets []Set) string {
	const most = 8
	var out []string
	for _, s := range sets[:min(len(sets), most)] {
		var n int64
		for _, f := range s.Files {
			n += f.Size
		}
		name := functions.Clip(s.Files[0].Name)
		if len(s.Files) > 1 {
			name += fmt.Sprintf(" and %d more", len(s.Files)-1)
		}
		out = append(out, fmt.Sprintf("%s (%s)", name, functions.Bytes(n).Human()))
	}
	if len(sets) > most {
		out = append(out, fmt.Sprintf("and %d more", len(sets)-most))
	}
	return strings.Join(out, ", ")
}
