package keeper

import (
	"slices"
	"testing"
)

func FuzzParseInotify(f *testing.F) {
	event := func(name string, n byte) []byte {
		b := make([]byte, 16)
		b[12] = n
		return append(append(b, name...), make([]byte, max(0, int(n)-len(name)))...)
	}
	f.Add(event("psm_1", 16))
	f.Add(append(event("a", 16), event("b", 16)...))
	f.Add(event("a", 200)[:20])
	f.Fuzz(func(t *testing.T, b []byte) { parseInotify(b) })
	if got := parseInotify(append(event("a", 16), event("bb", 16)...)); !slices.Equal(got, []string{"a", "bb"}) {
		f.Error(got)
	}
}
