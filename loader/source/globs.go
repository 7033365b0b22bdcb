package source

import (
	"path"
	"slices"
	"strings"
)

// Globs are patterns of files beside the list of Allowed that are staged as
// well, as a model file names them (spec.files). A pattern is matched against the
// whole slash-separated name below the source's folder, as path.Match does: *
// stays within one folder. No pattern reaches what is hidden, nor what is thaw's
// own; and what it names passes the same checks as every other file.
type Globs []string

// Match reports whether a pattern names the file.
func (g Globs) Match(name string) bool {
	if len(g) == 0 || hidden(name) {
		return false
	}
	return slices.ContainsFunc(g, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// Includes reports whether a file is staged: it is on the list, or a pattern names
// it.
func (g Globs) Includes(name string) bool { return Allowed(name) || g.Match(name) }

// hidden is what is left where it is whatever a pattern says.
func hidden(name string) bool {
	if strings.HasPrefix(name, ReservedFolder) {
		return true
	}
	for p := range strings.SplitSeq(name, "/") {
		// "." and ".." are not hidden but hostile: CheckName says so.
		if strings.HasPrefix(p, ".") && p != "." && p != ".." {
			return true
		}
	}
	return false
}

// Skipped are the files of a listing that are not staged although a pattern could
// name them, by name.
func (g Globs) Skipped(files []File) []string {
	var out []string
	for _, f := range files {
		if !hidden(f.Name) && !g.Includes(f.Name) && CheckName(f.Name) == nil {
			out = append(out, f.Name)
		}
	}
	slices.Sort(out)
	return out
}
