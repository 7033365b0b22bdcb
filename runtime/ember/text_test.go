package ember

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// However the bytes are cut into tokens, what goes out is the same, is whole
// characters, and never shows a part of a stop string.
func TestTextAnyCut(t *testing.T) {
	for _, c := range []struct {
		in    string
		stops []string
		want  string
		hit   string
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
				rest := c.in
				for n := first; rest != "" && x.hit == ""; n = size {
					n = min(max(n, 1), len(rest))
					piece := x.push([]byte(rest[:n]), true)
					if !utf8.ValidString(piece) {
						t.Errorf("%q: %q is half a character", c.in, piece)
					}
					out += piece
					rest = rest[n:]
					if !strings.HasPrefix(c.want, out) {
						t.Errorf("%q in pieces of %d: %q went out too early", c.in, size, out)
					}
				}
				if x.hit == "" {
					out += x.end()
				}
				if out != c.want || x.hit != c.hit {
					t.Errorf("%q in pieces of %d: %q, stopped by %q", c.in, size, out, x.hit)
				}
			}
		}
	}
}
