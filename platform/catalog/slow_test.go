package catalog

import (
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// units are texts that, repeated, make the parser work hard.
var units = []string{"a: b\n", "- a\n", "[a],", `"a" `, "{", "&a ", "#\n", "---\n", " ", "a:\n ", "a ", "|\n", "? a\n", "? ", "\n", "{a: b},", "'", `"`, `\`, "\t", "*a\n", "!a ", "%a\n", "@", "\r", "`", ">\n ", ",", "-\n", ":", "a: |\n b\n---\n", "- - a\n"}

// TestSlow: whatever a long file repeats, it is read or refused. Without the bounds of parse
// some take minutes, or longer; an eighth of the largest size is enough to tell.
func TestSlow(t *testing.T) {
	for _, unit := range units {
		for _, before := range []string{"", "["} {
			text := before + strings.Repeat(unit, MaxFile/8/len(unit))
			began := time.Now()
			_, _ = Decode("f.yaml", []byte(text))
			if time.Since(began) > testkit.Timeout {
				t.Errorf("%q after %q takes too long", unit, before)
			}
		}
	}
}
