package httpserver

import (
	"bytes"

	"github.com/thaw-dev/thaw/functions/openai"
)

const maxFields = 100

// fieldSpan is where one field lies in the head.
type fieldSpan struct{ name, colon, value, end int32 }

// head is what one pass over a raw head finds. Offsets are into the head.
type head struct {
	method, target [2]int32
	host           [2]int32
	http10         bool
	chunked        bool
	length         int64 // -1 without Content-Length
	expect         bool  // 100-continue
	close          bool
	keepAlive      bool
	encoded        bool // Content-Encoding other than identity
	upgrade        bool // to something we do not speak and may not ignore
}

// parseHead checks b, a whole head from its request line to its empty line, and
// appends where its fields lie. The error says what is not strict; it never
// repeats the head, which holds secrets.
func parseHead(b []byte, fields []fieldSpan) (h head, _ []fieldSpan, _ *openai.Error) {
	h.length = -1
	no := func(what string) (head, []fieldSpan, *openai.Error) {
		return h, fields, openai.New(openai.InvalidRequest, "The request's head is not well formed: "+what+".")
	}

	line := bytes.IndexByte(b, '\n')
	if line < 1 || b[line-1] != '\r' {
		return no("a line does not end with CR LF")
	}
	l := b[:line-1]
	sp := bytes.IndexByte(l, ' ')
	if sp <= 0 || !isToken(l[:sp]) {
		return no("the method is not a token")
	}
	h.method = [2]int32{0, int32(sp)}
	last := bytes.LastIndexByte(l, ' ')
	if last == sp {
		return no("the request line is incomplete")
	}
	target := l[sp+1 : last]
	h.target = [2]int32{int32(sp + 1), int32(last)}
	for _, c := range target {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return no("the target has characters that no target has")
		}
	}
	switch string(l[last+1:]) {
	case "HTTP/1.1":
	case "HTTP/1.0":
		h.http10 = true
	default:
		return no("the protocol is not HTTP/1.1 or HTTP/1.0")
	}
	if string(l[:sp]) == "CONNECT" {
		e := openai.New(openai.MethodNotAllowed, "CONNECT is not served.")
		return h, fields, e
	}
	if len(target) == 0 || target[0] != '/' && (string(target) != "*" || string(l[:sp]) != "OPTIONS") {
		return no("the target is not a path")
	}

	hosts, lengths, codings, expects := 0, 0, 0, 0
	for i := line + 1; ; {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 1 || b[i+n-1] != '\r' {
			return no("a line does not end with CR LF")
		}
		l = b[i : i+n-1]
		start := int32(i)
		i += n + 1
		if len(l) == 0 {
			if i != len(b) {
				return no("it goes on behind its end")
			}
			break
		}
		c := bytes.IndexByte(l, ':')
		if c <= 0 || !isToken(l[:c]) {
			return no("a field's name is not a token")
		}
		v := l[c+1:]
		for _, x := range v {
			if x < ' ' && x != '\t' || x == 0x7f {
				return no("a field's value has control characters")
			}
		}
		if len(fields) == maxFields {
			return h, fields, openai.New(openai.HeadTooLarge, "The request's head has too many fields.")
		}
		from, to := 0, len(v)
		for from < to && (v[from] == ' ' || v[from] == '\t') {
			from++
		}
		for to > from && (v[to-1] == ' ' || v[to-1] == '\t') {
			to--
		}
		f := fieldSpan{start, start + int32(c), start + int32(c+1+from), start + int32(c+1+to)}
		fields = append(fields, f)
		name := l[:c]
		v = v[from:to]
		switch len(name) {
		case 4:
			if equalFold(name, "host") {
				hosts++
				if !isHost(v) {
					return no("Host is not a name or address")
				}
				h.host = [2]int32{f.value, f.end}
			}
		case 6:
			if equalFold(name, "expect") {
				if expects++; expects > 1 || !equalFold(v, "100-continue") {
					return no("Expect is not 100-continue")
				}
				h.expect = true
			}
		case 7:
			if equalFold(name, "upgrade") && !equalFold(v, "h2c") {
				h.upgrade = true
			}
		case 10:
			if equalFold(name, "connection") {
				for part := range bytes.SplitSeq(v, []byte{','}) {
					switch part = bytes.Trim(part, " \t"); {
					case equalFold(part, "close"):
						h.close = true
					case equalFold(part, "keep-alive"):
						h.keepAlive = true
					}
				}
			}
		case 14:
			if equalFold(name, "content-length") {
				lengths++
				if len(v) == 0 || len(v) > 18 {
					return no("Content-Length is not a number")
				}
				h.length = 0
				for _, d := range v {
					if d < '0' || d > '9' {
						return no("Content-Length is not a number")
					}
					h.length = h.length*10 + int64(d-'0')
				}
			}
		case 16:
			if equalFold(name, "content-encoding") && !equalFold(v, "identity") {
				h.encoded = true
			}
		case 17:
			if equalFold(name, "transfer-encoding") {
				codings++
				if !equalFold(v, "chunked") {
					return no("Transfer-Encoding is not chunked")
				}
				h.chunked = true
			}
		}
	}
	switch {
	case hosts != 1:
		return no("exactly one Host is expected")
	case lengths > 1:
		return no("Content-Length stands twice")
	case codings > 1:
		return no("Transfer-Encoding stands twice")
	case lengths+codings > 1:
		return no("it has both Content-Length and Transfer-Encoding")
	case h.chunked && h.http10:
		return no("HTTP/1.0 has no Transfer-Encoding")
	case h.upgrade:
		return h, fields, openai.New(openai.InvalidRequest, "Upgrades are not served on this connection.")
	case h.encoded:
		return h, fields, openai.New(openai.UnsupportedEncoding, "")
	}
	return h, fields, nil
}

// equalFold compares s with lower, which is in lower case, in ASCII.
func equalFold[T string | []byte](s T, lower string) bool {
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

func isToken(b []byte) bool {
	for _, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '!', c == '#', c == '$', c == '%', c == '&', c == '\'', c == '*', c == '+',
			c == '-', c == '.', c == '^', c == '_', c == '`', c == '|', c == '~':
		default:
			return false
		}
	}
	return true
}

// isHost takes what a host and its port are written with: no user, no path, no list.
func isHost(b []byte) bool {
	if len(b) == 0 || len(b) > 255 {
		return false
	}
	for _, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '-', c == '_', c == ':', c == '[', c == ']', c == '%':
		default:
			return false
		}
	}
	return true
}
