package ember

import (
	"strings"
	"unicode/utf8"
)

// text turns a sequence's bytes into what may be sent: whole characters only, and
// nothing that could still turn out to be the beginning of a stop string.
type text struct {
	stops   []string
	include bool   // the stop string itself is part of the answer
	bytes   []byte // the beginning of a character
	held    string // the beginning of a stop string, perhaps
	hit     string // the stop string that was found
}

// push adds bytes and returns what may go out. After a stop string was found (hit
// is set) there is nothing more to push.
func (t *text) push(b []byte, search bool) string {
	t.bytes = append(t.bytes, b...)
	cut := whole(t.bytes)
	t.held += strings.ToValidUTF8(string(t.bytes[:cut]), "\uFFFD")
	t.bytes = append(t.bytes[:0], t.bytes[cut:]...)
	if !search {
		return ""
	}
	at, which := -1, ""
	for _, s := range t.stops {
		if i := strings.Index(t.held, s); i >= 0 && (at < 0 || i < at) {
			at, which = i, s
		}
	}
	if at >= 0 {
		t.hit = which
		if t.include {
			at += len(which)
		}
		out := t.held[:at]
		t.held, t.bytes = "", nil
		return out
	}
	keep := 0
	for _, s := range t.stops {
		for n := min(len(s)-1, len(t.held)); n > keep; n-- {
			if strings.HasSuffix(t.held, s[:n]) {
				keep = n
				break
			}
		}
	}
	out := t.held[:len(t.held)-keep]
	t.held = t.held[len(out):]
	return out
}

// end returns what was held back. Half a character becomes U+FFFD, as it does when
// the whole answer is decoded at once.
func (t *text) end() string {
	out := t.held + strings.ToValidUTF8(string(t.bytes), "\uFFFD")
	t.held, t.bytes = "", nil
	return out
}

// whole is the length of b without an unfinished character at its end.
func whole(b []byte) int {
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
