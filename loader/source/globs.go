package source

import (
	"path"
	"slices"
	"strings"
)

// Globs are patterns of files that are staged beside those of Allowed, as a model file
// names them (spec.files). A pattern matches the whole slash-separated name as in
// path.Match: * stays within one folder. No pattern matches hidden files or
// ReservedFolder, and the files it matches pass the same checks as all others.
type Globs []string

// Match reports whether a pattern matches the file.
func (g Globs) Match(name string) bool {
	if len(g) == 0 || isHidden(name) {
		return false
	}
	return slices.ContainsFunc(g, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// Includes reports whether a file is staged: it is Allowed, or a pattern matches it.
func (g Globs) Includes(name string) bool { return Allowed(name) || g.Match(name) }

// isHidden reports files that no pattern matches.
func isHidden(name string) bool {
	if strings.HasPrefix(name, ReservedFolder) {
		return true
	}
	for p := range strings.SplitSeq(name, "/") {
		// "." and ".." are not hidden but refused, by CheckName.
		if strings.HasPrefix(p, ".") && p != "." && p != ".." {
			return true
		}
	}
	return false
}

// Skipped returns the sorted names of a listing's files that are not staged although a
// pattern could match them.
func (g Globs) Skipped(files []File) []string {
	var out []string
	for _, f := range files {
		if !isHidden(f.Name) && !g.Includes(f.Name) && CheckName(f.Name) == nil {
			out = append(out, f.Name)
		}
	}
	slices.Sort(out)
	return out
}
