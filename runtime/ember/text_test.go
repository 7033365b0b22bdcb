package ember

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// However the bytes are cut into tokens, what goes out is the same, is whole
// characters, and never shows a part of a stop string.
func TestTextAtEverySplit(t *testing.T) {
	for _, c := range []struct {
		in         string
		stops      []string
		want       string
		stopString string
	}{
		{"hello world", nil, "hello world", ""},
		{"grüße 漢字 🙂 end", nil, "grüße 漢字 🙂 end", ""},
		{"abc STOP def", []string{"STOP"}, "abc ", "STOP"},
		{"abc STO def", []string{"STOP"}, "abc STO def", ""},
		{"ababac", []string{"abac"}, "ab", "abac"},
		{"aaab", []string{"aab"}, "a", "aab"},
		{"one two", []string{"two", "one t"}, "", "one t"},
		{"x🙂y", []string{"🙂"}, "x", "🙂"},
		{"half STO", []string{"STOP"}, "half STO", ""},
		{"cut \xf0\x9f", nil, "cut \uFFFD", ""},
	} {
		for size := 1; size <= 5; size++ {
			for first := range size {
				x := stopFilter{stops: c.stops}
				var out string
				remaining := c.in
				for n := first; remaining != "" && x.stopString == ""; n = size {
					n = min(max(n, 1), len(remaining))
					piece := x.push([]byte(remaining[:n]), true)
					if !utf8.ValidString(piece) {
						t.Errorf("%q: %q is half a character", c.in, piece)
					}
					out += piece
					remaining = remaining[n:]
					if !strings.HasPrefix(c.want, out) {
						t.Errorf("%q in pieces of %d: %q went out too early", c.in, size, out)
					}
				}
				if x.stopString == "" {
					out += x.end()
				}
				if out != c.want || x.stopString != c.stopString {
					t.Errorf("%q in pieces of %d: %q, stopped by %q", c.in, size, out, x.stopString)
				}
			}
		}
	}
}
