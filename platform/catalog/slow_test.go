package catalog

import (
	"strings"
	"testing"
	"time"
)

// TestSlow: whatever a long file repeats, it is read or refused in a moment. An
// eighth of the largest size is enough to tell: without the bounds of parse
// some of these take minutes.
func TestSlow(t *testing.T) {
	for _, unit := range []string{"a: b\n", "- a\n", "[a],", `"a" `, "{", "&a ", "#\n", "---\n", " ", "a:\n ", "a ", "|\n", "? a\n", "? ", "\n", "{a: b},", "'", `"`, `\`, "\t", "*a\n", "!a ", "%a\n", "@", "\r", "`", ">\n ", ",", "-\n", ":", "a: |\n b\n---\n", "- - a\n"} {
		for _, before := range []string{"", "["} {
			text := before + strings.Repeat(unit, MaxFile/8/len(unit))
			began := time.Now()
			_, _ = Decode("f.yaml", []byte(text))
			if d := time.Since(began); d > 5*time.Second {
				t.Errorf("%q after %q: %s", unit, before, d)
			}
		}
	}
}
