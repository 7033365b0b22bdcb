package prompt

import "bytes"

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
