package functions

import "unicode/utf8"

// maxQuoted bounds in bytes what a message quotes of its input.
const maxQuoted = 80

// Clip shortens s to 80 bytes and an ellipsis, for a message that quotes input. It
// does not cut inside a character.
func Clip(s string) string { return Shorten(s, maxQuoted) }

// Shorten shortens s to n bytes and an ellipsis, and does not cut inside a character.
func Shorten(s string, n int) string {
	if short := ClipTo(s, n); len(short) < len(s) {
		return short + "…"
	}
	return s
}

// ClipTo shortens s to n bytes, and does not cut inside a character.
func ClipTo(s string, n int) string {
	if len(s) <= n {
		return s
	}
	end := n
	for end > max(0, n-utf8.UTFMax) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
