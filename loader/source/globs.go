package source

import (
	"path"
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// Globs are patterns of files that are staged beside those of Allowed, as a model file
// names them (spec.files). A pattern matches the whole slash-separated name as in
// path.Match: * stays within one folder. No pattern matches hidden files or
// ReservedFolder, and the files it matches pass the same checks as all others. As
// functions.ModelSpec.StagedFiles writes them, !PATTERN leaves files and folders out
// (spec.exclude), and =PATTERN is the one set of weights that is staged (spec.weights).
type Globs []string

// Match reports whether a pattern matches the file.
func (g Globs) Match(name string) bool {
	if isHidden(name) {
		return false
	}
	return slices.ContainsFunc(g, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok && !strings.HasPrefix(pattern, functions.ExcludePrefix) && !strings.HasPrefix(pattern, functions.WeightsPrefix)
	})
}

// excludes reports whether a pattern leaves the file out, or a folder that it is in.
func (g Globs) excludes(name string) bool {
	return slices.ContainsFunc(g, func(pattern string) bool {
		pattern, ok := strings.CutPrefix(pattern, functions.ExcludePrefix)
		for p := name; ok && p != "." && p != "/"; p = path.Dir(p) {
			if match, _ := path.Match(pattern, p); match {
				return true
			}
		}
		return false
	})
}

// weights is the pattern of the one set of weights that is staged, "" for all.
func (g Globs) weights() string {
	for _, pattern := range g {
		if weights, ok := strings.CutPrefix(pattern, functions.WeightsPrefix); ok {
			return weights
		}
	}
	return ""
}

// Needs reports whether the file is one that an engine may need, or that a pattern names.
func (g Globs) Needs(name string) bool { return Needed(name) || g.names(name) }

// names reports whether a pattern that says more than "every file" matches the file.
func (g Globs) names(name string) bool {
	return slices.ContainsFunc(g, func(pattern string) bool {
		return strings.Trim(pattern, "*/") != "" && Globs{pattern}.Match(name)
	})
}

// Includes reports whether a file is staged: it is Allowed, or a pattern matches it, and
// none leaves it out. Of several sets of weights Select chooses.
func (g Globs) Includes(name string) bool {
	return (Allowed(name) || g.Match(name)) && !g.excludes(name)
}

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
		if !isHidden(f.Name) && !g.Includes(f.Name) && !g.excludes(f.Name) && CheckName(f.Name) == nil {
			out = append(out, f.Name)
		}
	}
	slices.Sort(out)
	return out
}
