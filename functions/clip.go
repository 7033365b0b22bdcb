package functions

import "unicode/utf8"

// maxQuoted bounds in bytes what a message quotes of its input.
const maxQuoted = 80

// Clip shortens s to 80 bytes and an ellipsis, for a message that quotes input. It
// does not cut inside a character.
func Clip(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	end := maxQuoted
	for end > maxQuoted-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
