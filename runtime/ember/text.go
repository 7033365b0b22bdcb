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
func (f *stopFilter) push(b []byte, search bool) string {
	f.bytes = append(f.bytes, b...)
	stopServing := completeLength(f.bytes)
	f.heldBack += strings.ToValidUTF8(string(f.bytes[:stopServing]), "\uFFFD")
	f.bytes = append(f.bytes[:0], f.bytes[stopServing:]...)
	if !search {
		return ""
	}
	at, which := -1, ""
	for _, s := range f.stops {
		if i := strings.Index(f.heldBack, s); i >= 0 && (at < 0 || i < at) {
			at, which = i, s
		}
	}
	if at >= 0 {
		f.stopString = which
		if f.include {
			at += len(which)
		}
		out := f.heldBack[:at]
		f.heldBack, f.bytes = "", nil
		return out
	}
	keep := 0
	for _, s := range f.stops {
		for n := min(len(s)-1, len(f.heldBack)); n > keep; n-- {
			if strings.HasSuffix(f.heldBack, s[:n]) {
				keep = n
				break
			}
		}
	}
	out := f.heldBack[:len(f.heldBack)-keep]
	f.heldBack = f.heldBack[len(out):]
	return out
}

// end returns the text held back. An incomplete character becomes U+FFFD.
func (f *stopFilter) end() string {
	out := f.heldBack + strings.ToValidUTF8(string(f.bytes), "\uFFFD")
	f.heldBack, f.bytes = "", nil
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
