package ember

import (
	"strings"
	"unicode/utf8"
)

// stopFilter turns a sequence's bytes into text that may be sent: whole characters, and
// nothing that may be the beginning of a stop string.
type stopFilter struct {
	stops      []string
	include    bool   // the stop string itself is part of the answer
	bytes      []byte // the beginning of a character
	heldBack   string // the beginning of a stop string, perhaps
	stopString string // the stop string that was found
}

// push adds bytes and returns the text that may be sent. It is not called after a stop
// string was found (hit is set).
func (t *stopFilter) push(b []byte, search bool) string {
	t.bytes = append(t.bytes, b...)
	stopServing := completeLength(t.bytes)
	t.heldBack += strings.ToValidUTF8(string(t.bytes[:stopServing]), "\uFFFD")
	t.bytes = append(t.bytes[:0], t.bytes[stopServing:]...)
	if !search {
		return ""
	}
	at, which := -1, ""
	for _, s := range t.stops {
		if i := strings.Index(t.heldBack, s); i >= 0 && (at < 0 || i < at) {
			at, which = i, s
		}
	}
	if at >= 0 {
		t.stopString = which
		if t.include {
			at += len(which)
		}
		out := t.heldBack[:at]
		t.heldBack, t.bytes = "", nil
		return out
	}
	keep := 0
	for _, s := range t.stops {
		for n := min(len(s)-1, len(t.heldBack)); n > keep; n-- {
			if strings.HasSuffix(t.heldBack, s[:n]) {
				keep = n
				break
			}
		}
	}
	out := t.heldBack[:len(t.heldBack)-keep]
	t.heldBack = t.heldBack[len(out):]
	return out
}

// end returns the text held back. An incomplete character becomes U+FFFD.
func (t *stopFilter) end() string {
	out := t.heldBack + strings.ToValidUTF8(string(t.bytes), "\uFFFD")
	t.heldBack, t.bytes = "", nil
	return out
}

// completeLength is the length of b without an unfinished character at its end.
func completeLength(b []byte) int {
	for k := 1; k < utf8.UTFMax && k <= len(b); k++ {
		if i := len(b) - k; utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}
