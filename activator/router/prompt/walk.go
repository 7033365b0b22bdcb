package prompt

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// The functions here read JSON that [openai.Peek] has accepted: they check nothing.

func skipSpace(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t' {
		i++
	}
	return i
}

// skipValue returns the index behind the value at i.
func skipValue(b []byte, i int) int {
	depth := 0
	for {
		switch b[i] {
		case '"':
			i = skipString(b, i)
		case '{', '[':
			depth++
			i++
		case '}', ']':
			depth--
			i++
		case ',', ':', ' ', '\n', '\r', '\t':
			i++
		default:
			for i < len(b) && !isDelimiter(b[i]) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
}

func isDelimiter(c byte) bool {
	switch c {
	case ',', ':', ' ', '\n', '\r', '\t', '}', ']':
		return true
	}
	return false
}

// skipString returns the index behind the string literal at i.
func skipString(b []byte, i int) int {
	for i++; ; {
		i += bytes.IndexByte(b[i:], '"')
		slashes := 0
		for b[i-1-slashes] == '\\' {
			slashes++
		}
		i++
		if slashes%2 == 0 {
			return i
		}
	}
}

func hasEscape(literal []byte) bool { return bytes.IndexByte(literal, '\\') >= 0 }

type nameKind int

const (
	otherName nameKind = iota
	textName
	imageName
)

// kindOf classifies the name of a member of a message or of a part of its content.
func kindOf(name []byte) nameKind {
	switch string(name) {
	case "content", "text", "output", "arguments", "input", "thinking", "reasoning_content", "refusal", "tool_calls", "function", "summary":
		return textName
	case "image_url", "input_image", "image", "images", "image_data":
		return imageName
	}
	return otherName
}

// appendText appends the text that a string literal stands for; of a longer one, at least
// most bytes.
func appendText(dst, literal []byte, most int) []byte {
	s := literal[1 : len(literal)-1]
	n := len(dst)
	most += n
	dst = slices.Grow(dst, len(s)+8) // an escape is longer than what it stands for
	dst = dst[:cap(dst)]
	for i := 0; i < len(s) && n < most; {
		if len(s)-i >= 8 { // eight bytes, of which those before a backslash count
			w := binary.LittleEndian.Uint64(s[i:])
			binary.LittleEndian.PutUint64(dst[n:], w)
			w ^= '\\' * ones
			if w = (w - ones) &^ w & tops; w == 0 {
				i, n = i+8, n+8
				continue
			}
			plain := bits.TrailingZeros64(w) / 8
			i, n = i+plain, n+plain
		} else if s[i] != '\\' {
			dst[n] = s[i]
			i, n = i+1, n+1
			continue
		}
		for ; i+1 < len(s) && s[i] == '\\' && s[i+1] != 'u'; i, n = i+2, n+1 { // line breaks and tabs come in runs
			dst[n] = escaped[s[i+1]]
		}
		if i < len(s) && s[i] == '\\' {
			r, size := parseRune(s[i:])
			i, n = i+size, n+utf8.EncodeRune(dst[n:], r)
		}
	}
	return dst[:n]
}

// escaped is what a backslash and a byte stand for.
var escaped = func() (t [256]byte) {
	for c := range t {
		t[c] = byte(c)
	}
	t['n'], t['t'], t['r'], t['b'], t['f'] = '\n', '\t', '\r', '\b', '\f'
	return t
}()

// parseRune reads an escape of a code, and of a pair of surrogates both. One that stands
// alone is read as U+FFFD.
func parseRune(s []byte) (r rune, size int) {
	r = parseHex(s[2:])
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if len(s) >= 12 && s[6] == '\\' && s[7] == 'u' {
		if pair := utf16.DecodeRune(r, parseHex(s[8:])); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return utf8.RuneError, 6
}

// parseHex reads four hexadecimal digits.
func parseHex(s []byte) (r rune) {
	for _, c := range s[:4] {
		r <<= 4
		if c <= '9' {
			r |= rune(c - '0')
		} else {
			r |= rune(c|0x20-'a') + 10
		}
	}
	return r
}
