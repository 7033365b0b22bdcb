package functions

import (
	"cmp"
	_ "embed"
	"strings"
	"sync"
)

// describedKeys has a line for each key of the files, KEY: DESCRIPTION, and for a key that
// several kinds have one without the kind. A key without a line, or a line without a key,
// fails the tests.
//
//go:embed described.txt
var describedKeys string

// described returns the descriptions by key.
var described = sync.OnceValue(func() map[string]string {
	texts := map[string]string{}
	for line := range strings.Lines(describedKeys) {
		if key, text, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); ok {
			texts[key] = text
		}
	}
	return texts
})

// describe returns the description of a key, which begins with its kind; "" for none.
func describe(key string) string {
	_, path, _ := strings.Cut(key, ".")
	return cmp.Or(described()[key], described()[path])
}
