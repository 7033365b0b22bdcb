// Package http1 has the parsing rules that the HTTP/1.1 server and client share (Content-Length,
// chunk sizes, control characters in values, fields of one hop only); it parses no whole message
// and reads no connection.
package http1

import "bytes"

// EqualFold compares s with lower, which is in lower case, in ASCII.
func EqualFold[T string | []byte](s T, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// IsFramingField reports whether a field describes one hop's connection or how a
// message lies on it. Each hop writes these itself.
func IsFramingField(name string) bool {
	switch len(name) {
	case 2:
		return EqualFold(name, "te")
	case 7:
		return EqualFold(name, "trailer") || EqualFold(name, "upgrade")
	case 10:
		return EqualFold(name, "connection") || EqualFold(name, "keep-alive")
	case 14:
		return EqualFold(name, "content-length")
	case 16:
		return EqualFold(name, "proxy-connection")
	case 17:
		return EqualFold(name, "transfer-encoding")
	}
	return false
}

// HasControl reports whether a field's value has a control character other than a tab.
func HasControl[T string | []byte](value T) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return true
		}
	}
	return false
}

// ParseLength reads a Content-Length of at most digits digits.
func ParseLength(value []byte, digits int) (n int64, ok bool) {
	if len(value) == 0 || len(value) > digits {
		return 0, false
	}
	for _, d := range value {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + int64(d-'0')
	}
	return n, true
}

// ParseChunkSize reads the line that opens a chunk, without its line end. extension is
// what follows the size, from its ';' on.
func ParseChunkSize(line []byte) (n int64, extension []byte, ok bool) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line, extension = bytes.TrimRight(line[:i], " \t"), line[i:]
	}
	if len(line) == 0 || len(line) > 8 {
		return 0, nil, false
	}
	for _, c := range line {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int64(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | int64(c|0x20-'a'+10)
		default:
			return 0, nil, false
		}
	}
	return n, extension, true
}
