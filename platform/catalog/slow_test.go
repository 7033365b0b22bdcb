package catalog

import (
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/testkit"
)

// tooSlow bounds the reading of any file on a machine that has nothing else to do. Without
// the bounds of parse some take minutes, or longer.
const tooSlow = time.Second

// isSlow reports whether f takes longer than tooSlow.
func isSlow(t *testing.T, f func()) bool {
	t.Helper()
	watch := testkit.StartWatch(t)
	f()
	took, slowdown := watch.Stop()
	t.Logf("%s on a machine %.1f times slower than alone", took, slowdown)
	return float64(took) > float64(tooSlow)*slowdown
}

// units are texts that, repeated, make the parser work hard.
var units = []string{"a: b\n", "- a\n", "[a],", `"a" `, "{", "&a ", "#\n", "---\n", " ", "a:\n ", "a ", "|\n", "? a\n", "? ", "\n", "{a: b},", "'", `"`, `\`, "\t", "*a\n", "!a ", "%a\n", "@", "\r", "`", ">\n ", ",", "-\n", ":", "a: |\n b\n---\n", "- - a\n"}

// TestSlow: whatever a long file repeats, it is read or refused in a moment. An
// eighth of the largest size is enough to tell.
func TestSlow(t *testing.T) {
	for _, unit := range units {
		for _, before := range []string{"", "["} {
			text := before + strings.Repeat(unit, MaxFile/8/len(unit))
			if isSlow(t, func() { _, _ = Decode("f.yaml", []byte(text)) }) {
				t.Errorf("%q after %q takes too long", unit, before)
			}
		}
	}
}
