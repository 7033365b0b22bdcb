package httpserver

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/thaw-dev/thaw/activator/http1"
	"github.com/thaw-dev/thaw/functions/openai"
)

const maxFields = 100

// fieldSpan is where one field lies in the head.
type fieldSpan struct{ name, colon, value, end int32 }

// head is what one pass over a raw head finds. Offsets are into the head.
type head struct {
	raw            []byte      // until text has it; it may change behind the exchange
	copied         string      // raw as text, once asked for
	fields         []fieldSpan // in their order
	lengths        uint64      // of the fields' names, one bit for each; see lengthBit
	method, target [2]int32    // the target in origin form
	host           [2]int32
	authority      [2]int32 // of a target in absolute form
	http10         bool
	chunked        bool
	length         int64 // -1 without Content-Length
	expect         bool  // 100-continue
	close          bool
	keepAlive      bool
	encoded        bool // Content-Encoding other than identity
	upgrade        bool // to something that may not be ignored
	webSocket      bool // to that, with a Connection that says so
	whole          bool // all its fields were read
}

// parseHead checks b, a whole head from its request line to its empty line, and appends
// its fields' offsets to fields. The error names the fault and never repeats the head,
// which holds secrets.
func parseHead(b []byte, fields []fieldSpan) (h head, _ *openai.Error) {
	h.raw, h.fields, h.length = b, fields, -1
	var counts fieldCounts
	i, tooMany := 0, false
	for {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 1 || b[i+n-1] != '\r' {
			return h, malformed("a line does not end with CR LF")
		}
		l, start := b[i:i+n-1], int32(i)
		i += n + 1
		if start == 0 {
			if e := h.parseRequestLine(l); e != nil {
				return h, e
			}
			continue
		}
		if len(l) == 0 {
			break
		}
		c := bytes.IndexByte(l, ':')
		if c <= 0 || !isToken(l[:c]) {
			return h, malformed("a field's name is not a token")
		}
		v := l[c+1:]
		if http1.HasControl(v) {
			return h, malformed("a field's value has control characters")
		}
		if len(h.fields) == maxFields {
			tooMany = true
			continue
		}
		from, to := 0, len(v)
		for from < to && (v[from] == ' ' || v[from] == '\t') {
			from++
		}
		for to > from && (v[to-1] == ' ' || v[to-1] == '\t') {
			to--
		}
		f := fieldSpan{start, start + int32(c), start + int32(c+1+from), start + int32(c+1+to)}
		h.fields = append(h.fields, f)
		h.lengths |= lengthBit(c)
		if e := h.addField(l[:c], v[from:to], f, &counts); e != nil {
			return h, e
		}
	}
	if i != len(b) {
		return h, malformed("it goes on behind its end")
	}
	h.whole = true
	if tooMany {
		return h, openai.New(openai.HeadTooLarge, fmt.Sprintf("The request's head has more than %d fields: send fewer.", maxFields))
	}
	if a := b[h.authority[0]:h.authority[1]]; len(a) > 0 && !bytes.Equal(a, b[h.host[0]:h.host[1]]) {
		return h, malformed("the target is of another host than Host")
	}
	return h, h.checkFraming(&counts)
}

func malformed(problem string) *openai.Error {
	return openai.New(openai.InvalidRequest, "The request's head is not well formed: "+problem+".")
}

// fieldCounts counts the fields that may stand once.
type fieldCounts struct {
	hosts, lengths, codings, expects int
	upgrades, webSockets             int
	connectionUpgrade                bool
}

// parseRequestLine reads the first line.
func (h *head) parseRequestLine(l []byte) *openai.Error {
	sp := bytes.IndexByte(l, ' ')
	if sp <= 0 || !isToken(l[:sp]) {
		return malformed("the method is not a token")
	}
	if string(l[:sp]) == "PROXY" {
		return malformed("it begins with the PROXY protocol: turn that off in what forwards to this port")
	}
	h.method = [2]int32{0, int32(sp)}
	last := bytes.LastIndexByte(l, ' ')
	if last == sp {
		return malformed("the request line is incomplete")
	}
	target := l[sp+1 : last]
	h.target = [2]int32{int32(sp + 1), int32(last)}
	for _, c := range target {
		if c <= ' ' || c >= 0x7f || c == '#' {
			return malformed("the target has characters that no target has")
		}
	}
	switch string(l[last+1:]) {
	case "HTTP/1.1":
	case "HTTP/1.0":
		h.http10 = true
	default:
		return malformed("the protocol is not HTTP/1.1 or HTTP/1.0")
	}
	if string(l[:sp]) == "CONNECT" {
		return openai.New(openai.MethodNotAllowed, "CONNECT is not served.")
	}
	if n := bytes.Index(target, []byte("://")); n > 0 && (http1.EqualFold(target[:n], "http") || http1.EqualFold(target[:n], "https")) {
		n += len("://")
		path := bytes.IndexByte(target[n:], '/')
		if path <= 0 {
			return malformed("the target has no path")
		}
		from := h.target[0] + int32(n)
		h.authority = [2]int32{from, from + int32(path)}
		h.target[0] = h.authority[1]
		target = target[n+path:]
	}
	if len(target) == 0 || target[0] != '/' && (string(target) != "*" || string(l[:sp]) != "OPTIONS") {
		return malformed("the target is not a path")
	}
	return nil
}

// addField notes a field that frames the message or routes it.
func (h *head) addField(name, v []byte, f fieldSpan, counts *fieldCounts) *openai.Error {
	switch len(name) {
	case 4:
		if http1.EqualFold(name, "host") {
			counts.hosts++
			if !isHost(v) {
				return malformed("Host is not a name or address")
			}
			h.host = [2]int32{f.value, f.end}
		}
	case 6:
		if http1.EqualFold(name, "expect") {
			if counts.expects++; counts.expects > 1 || !http1.EqualFold(v, "100-continue") {
				return malformed("Expect is not 100-continue")
			}
			h.expect = true
		}
	case 7:
		if http1.EqualFold(name, "upgrade") && !http1.EqualFold(v, "h2c") {
			if counts.upgrades++; http1.EqualFold(v, "websocket") {
				counts.webSockets++
			}
			h.upgrade = true
		}
	case 10:
		if http1.EqualFold(name, "connection") {
			for part := range bytes.SplitSeq(v, []byte{','}) {
				switch part = bytes.Trim(part, " \t"); {
				case http1.EqualFold(part, "close"):
					h.close = true
				case http1.EqualFold(part, "keep-alive"):
					h.keepAlive = true
				case http1.EqualFold(part, "upgrade"):
					counts.connectionUpgrade = true
				}
			}
		}
	case 14:
		if http1.EqualFold(name, "content-length") {
			counts.lengths++
			var ok bool
			if h.length, ok = http1.ParseLength(v, 18); !ok {
				return malformed("Content-Length is not a number")
			}
		}
	case 16:
		if http1.EqualFold(name, "content-encoding") && !http1.EqualFold(v, "identity") {
			h.encoded = true
		}
	case 17:
		if http1.EqualFold(name, "transfer-encoding") {
			counts.codings++
			if !http1.EqualFold(v, "chunked") {
				return malformed("Transfer-Encoding is not chunked")
			}
			h.chunked = true
		}
	}
	return nil
}

// checkFraming refuses a head whose fields contradict each other, and what is not served.
func (h *head) checkFraming(counts *fieldCounts) *openai.Error {
	switch {
	case counts.hosts > 1 || counts.hosts == 0 && !h.http10:
		return malformed("exactly one Host is expected")
	case counts.lengths > 1:
		return malformed("Content-Length stands twice")
	case counts.codings > 1:
		return malformed("Transfer-Encoding stands twice")
	case counts.lengths+counts.codings > 1:
		return malformed("it has both Content-Length and Transfer-Encoding")
	case h.chunked && h.http10:
		return malformed("HTTP/1.0 has no Transfer-Encoding")
	case h.encoded:
		return openai.New(openai.UnsupportedEncoding, "")
	}
	h.webSocket = counts.upgrades == 1 && counts.webSockets == 1 && counts.connectionUpgrade &&
		!h.http10 && !h.close && !h.chunked && h.length <= 0
	return nil
}

// setRequest sets what the head says of the request.
func (h *head) setRequest(q *Request) {
	switch method := h.raw[h.method[0]:h.method[1]]; string(method) {
	case "POST":
		q.Method = "POST"
	case "GET":
		q.Method = "GET"
	default:
		setString(&q.Method, method)
	}
	path, query, _ := bytes.Cut(h.raw[h.target[0]:h.target[1]], []byte{'?'})
	setString(&q.Path, path)
	setString(&q.Query, query)
	setString(&q.Host, h.raw[h.host[0]:h.host[1]])
	q.http10, q.webSocket = h.http10, h.upgrade
}

// setString makes *s equal to b, without allocating where it is already.
func setString(s *string, b []byte) {
	if *s != string(b) {
		*s = string(b)
	}
}

// text is the head as a string that outlives the exchange.
func (h *head) text() string {
	if h.raw != nil {
		h.copied, h.raw = string(h.raw), nil
	}
	return h.copied
}

// lengthBit is the bit for names of n bytes: most fields that are asked for are not there, and
// no field has a name of their length.
func lengthBit(n int) uint64 { return 1 << (n & 63) }

// value returns the values of a field as Request.Header does.
func (h *head) value(name string) (value string) {
	if h.lengths&lengthBit(len(name)) == 0 {
		return ""
	}
	text := h.text()
	found := false
	for _, f := range h.fields {
		if int(f.colon-f.name) != len(name) || !strings.EqualFold(text[f.name:f.colon], name) {
			continue
		}
		if found {
			value += ", " + text[f.value:f.end]
			continue
		}
		if value, found = text[f.value:f.end], true; !isThawField(name) {
			break
		}
	}
	return value
}

func isToken(b []byte) bool { return hasOnly(b, "!#$%&'*+.^_`|~") }

// isHost accepts what a host and its port are written with: no user, no path, no list.
func isHost(b []byte) bool { return len(b) > 0 && len(b) <= 255 && hasOnly(b, "._:[]%") }

// hasOnly reports whether b has no characters but letters, digits, '-' and those of others.
func hasOnly(b []byte, others string) bool {
	for _, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-':
		case strings.IndexByte(others, c) < 0:
			return false
		}
	}
	return true
}
