package prompt

import (
	"bytes"
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
	for most += len(dst); ; {
		if len(dst) >= most {
			return dst
		}
		i := bytes.IndexByte(s, '\\')
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		c := s[i+1]
		s = s[i+2:]
		switch c {
		case 'n':
			c = '\n'
		case 't':
			c = '\t'
		case 'r':
			c = '\r'
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'u':
			r := parseHex(s)
			s = s[4:]
			if utf16.IsSurrogate(r) { // alone, it is written as U+FFFD
				pair := utf8.RuneError
				if len(s) >= 6 && s[0] == '\\' && s[1] == 'u' {
					pair = utf16.DecodeRune(r, parseHex(s[2:]))
				}
				if r = pair; pair != utf8.RuneError {
					s = s[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
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
