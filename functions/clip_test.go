package functions

import (
	"strings"
	"testing"
)

func TestClip(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "short": "short", strings.Repeat("a", 80): strings.Repeat("a", 80),
		strings.Repeat("a", 81):       strings.Repeat("a", 80) + "…",
		strings.Repeat("a", 79) + "é": strings.Repeat("a", 79) + "…",
		strings.Repeat("\x80", 100):   strings.Repeat("\x80", 76) + "…",
	} {
		if got := Clip(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
