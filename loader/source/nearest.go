package source

import (
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// NearestPath returns the path that a missing one is like: its first part that is not there is there
// in other capitals, in another Unicode form, or without marks of a shell. It is "" for none.
func NearestPath(missing string) string {
	parent, part := filepath.Split(filepath.Clean(missing))
	for {
		if _, err := os.Stat(parent); err == nil || parent == "" || part == "" {
			break
		}
		parent, part = filepath.Split(filepath.Clean(parent))
	}
	entries, _ := os.ReadDir(parent) // of a folder that may not be read there is nothing to say
	for _, e := range entries {
		if plainPart(e.Name()) == plainPart(part) {
			return filepath.Join(parent, e.Name())
		}
	}
	return ""
}

// plainPart is a part of a path without what is easily written wrong.
func plainPart(part string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, unicode.Cf, unicode.Zs) || strings.ContainsRune(`\'"`, r) {
			return -1
		}
		return r
	}, strings.ToLower(norm.NFC.String(part)))
}
