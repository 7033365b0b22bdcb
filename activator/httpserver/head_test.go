package httpserver

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

// FuzzHead holds scan against net/http: a head that we take, it takes too and
// reads alike, so that no hop behind us can find another request in it.
func FuzzHead(f *testing.F) {
	for _, x := range refused {
		f.Add([]byte(x.raw))
	}
	f.Add([]byte(get))
	f.Add([]byte("GET http://h:1/a?b HTTP/1.1\r\nHost: h:1\r\n\r\n"))
	f.Add([]byte("GET /readyz HTTP/1.0\r\n\r\n"))
	f.Add([]byte(postRequest("hello")))
	f.Add([]byte("POST /a?b HTTP/1.0\r\nHost: [::1]:8080\r\nContent-Length: 7\r\nX:\t y \r\nConnection: keep-alive, x\r\n\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		i := bytes.Index(raw, []byte("\r\n\r\n"))
		if i < 0 {
			return
		}
		raw = raw[:i+4]
		h, refusal := parseHead(raw, nil)
		if refusal != nil {
			if refusal.Status < 400 || refusal.Status > 499 {
				t.Fatal(refusal)
			}
			for _, secret := range strings.Fields(string(raw)) {
				if len(secret) > 20 && strings.Contains(refusal.Message, secret) {
					t.Fatalf("the answer repeats the head: %s", refusal.Message)
				}
			}
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(raw), strings.NewReader("0\r\n\r\n"))))
		if err != nil {
			if strings.Contains(err.Error(), "parse") { // of the target's escapes: ours goes on as it is
				return
			}
			t.Fatalf("net/http refuses %q: %v", raw, err)
		}
		at := func(x [2]int32) string { return string(raw[x[0]:x[1]]) }
		length := h.length
		if length < 0 && !h.chunked {
			length = 0
		}
		if h.chunked {
			length = -1
		}
		if r.Method != at(h.method) || !isTarget(r.RequestURI, at(h.authority), at(h.target)) || r.ContentLength != length ||
			r.ProtoAtLeast(1, 1) == h.http10 {
			t.Fatalf("%q: %+v, net/http reads %+v", raw, h, r)
		}
		if r.Host != at(h.host) {
			t.Fatalf("%q: host %q, net/http reads %q", raw, at(h.host), r.Host)
		}
		if h.close && !r.Close {
			t.Fatalf("%q: close", raw)
		}
		left := map[string][]string{}
		for _, x := range h.fields {
			k := http.CanonicalHeaderKey(string(raw[x.name:x.colon]))
			left[k] = append(left[k], string(raw[x.value:x.end]))
		}
		for k, v := range r.Header {
			if k != "Host" && strings.Join(left[k], "\x00") != strings.Join(v, "\x00") {
				t.Fatalf("%q: %s is %q, net/http reads %q", raw, k, left[k], v)
			}
		}
	})
}

// isTarget reports whether what net/http has read is our target, in absolute form where that
// has an authority.
func isTarget(read, authority, target string) bool {
	if authority == "" {
		return read == target
	}
	scheme, rest, ok := strings.Cut(read, "://")
	return ok && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https")) && rest == authority+target
}

// FuzzBody holds the chunk reader against net/http's.
func FuzzBody(f *testing.F) {
	f.Add([]byte("3\r\nabc\r\n0\r\n\r\n"), 2)
	f.Add([]byte("3;a=b\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nx: y\r\n\r\n"), 100)
	for _, x := range refused {
		if i := strings.Index(x.raw, "\r\n\r\n"); i > 0 && strings.Contains(x.raw, "chunked") {
			f.Add([]byte(x.raw[i+4:]), 5)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, size int) {
		raw := append([]byte("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"), body...)
		c := newConn(newServer(Options{MaxBody: 1 << 20}), &writeSlowly{raw: raw, size: 1 + min(max(size, 0), 5000)},
			&Slot{all: unboundedConnections()})
		refusal, err := c.readRequest()
		if err != nil || refusal != nil {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(r.Body)
		if err != nil && !strings.Contains(err.Error(), "trailer") && !strings.Contains(err.Error(), "malformed") &&
			!strings.Contains(err.Error(), "invalid") {
			t.Fatalf("net/http refuses %q: %v", body, err)
		}
		if err == nil && !bytes.Equal(c.req.Body, want) {
			t.Fatalf("%q: %q, net/http reads %q", body, c.req.Body, want)
		}
	})
}

// writeSlowly gives its bytes in pieces.
type writeSlowly struct {
	blockedConn
	raw  []byte
	size int
}

func (s *writeSlowly) Read(p []byte) (int, error) {
	if len(s.raw) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.size)], s.raw)
	s.raw = s.raw[n:]
	return n, nil
}
