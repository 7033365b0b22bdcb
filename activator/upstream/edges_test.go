package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/testkit"
)

// pieces is a connection whose reads return pieces of what an engine sent, then the end.
type pieces struct {
	fixedResponse
	left  []byte
	sizes []int // of the next reads; then all at once
}

func (p *pieces) SetReadDeadline(time.Time) error { return nil }

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := min(len(b), len(p.left))
	if len(p.sizes) > 0 {
		n = min(n, p.sizes[0])
		p.sizes = p.sizes[1:]
	}
	copy(b, p.left[:n])
	p.left = p.left[n:]
	return n, nil
}

// readAnswer reads one answer with a buffer of size bytes, as Response does.
func readAnswer(raw string, sizes []int, size int, headOnly bool) (res *Response, body string, left int, err error) {
	nc := &pieces{left: []byte(raw), sizes: sizes}
	k := newConn(New(Options{}), "e", nc)
	res = &Response{k: k}
	if err := k.readHead(res, headOnly); err != nil {
		return res, "", 0, err
	}
	p := make([]byte, size)
	for range len(raw) + 2 {
		var n int
		n, err = k.Read(p)
		body += string(p[:n])
		if err != nil {
			break
		}
	}
	if n, again := k.Read(p); n != 0 || again == nil {
		err = fmt.Errorf("it reads on behind %w", err)
	}
	return res, body, k.answer.in.Buffered() + len(nc.left), err
}

// TestAnswersAtEverySplit: an answer is the same in whatever pieces it comes and is read, ends
// where it ends, and no cut of it is a whole one.
func TestAnswersAtEverySplit(t *testing.T) {
	const head, chunked = "HTTP/1.1 200 OK\r\n", "transfer-encoding: chunked\r\n\r\n"
	for _, x := range []struct {
		raw, body string
		status    int
		length    int64
		fields    string
		toEnd     bool // the end of the connection ends it
		headOnly  bool
	}{
		{raw: head + "content-length: 5\r\n\r\nhello", body: "hello", status: 200, length: 5, fields: "[]"},
		{raw: head + "A-Z: x\r\nContent-Length: \t5 \r\naz09-_!:y:z\r\n\r\nhello", body: "hello", status: 200, length: 5, fields: "[{a-z x} {az09-_! y:z}]"},
		{raw: "HTTP/1.1 100 C\r\na: b\r\n\r\nHTTP/1.1 404 \r\ncontent-length: 2\r\nx: 1\r\n\r\nno", body: "no", status: 404, length: 2, fields: "[{x 1}]"},
		{raw: head + chunked + "5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\n", body: "hello!", status: 200, length: -1, fields: "[]"},
		{raw: head + "x: y\r\n" + chunked + "A \t\r\n0123456789\r\n0b\r\n0123456789a\r\n000\r\na: b\r\nc: d\r\n\r\n", body: "01234567890123456789a", status: 200, length: -1, fields: "[{x y}]"},
		{raw: head + "keep-alive: 5\r\nupgrade: x\r\ntrailer: x\r\nproxy-connection: x\r\nte: x\r\nconnection: x\r\n" + chunked + "1\na\n0\n\n", body: "a", status: 200, length: -1, fields: "[]"},
		{raw: "HTTP/1.1 204 N\r\n\r\n", status: 204, fields: "[]"},
		{raw: "HTTP/1.1 304\r\ncontent-length: 5\r\n\r\n", status: 304, fields: "[]"},
		{raw: "HTTP/1.1 304 N\r\n" + chunked, status: 304, fields: "[]"},
		{raw: head + "content-length: 5\r\n\r\n", status: 200, fields: "[]", headOnly: true},
		{raw: head + chunked, status: 200, fields: "[]", headOnly: true},
		{raw: head + "content-length: 0\r\n\r\n", status: 200, fields: "[]"},
		{raw: head + "x:\r\n\r\nhello", body: "hello", status: 200, length: -1, fields: "[{x }]", toEnd: true},
		{raw: "HTTP/1.0 999 X\r\n\r\nhello", body: "hello", status: 999, length: -1, fields: "[]", toEnd: true},
	} {
		check := func(how string, sizes []int, size int) {
			t.Helper()
			const behind = "HTTP/1.1"
			raw := x.raw
			if !x.toEnd {
				raw += behind
			}
			res, body, left, err := readAnswer(raw, sizes, size, x.headOnly)
			if res.Status != x.status || res.Length != x.length || body != x.body || err != io.EOF || fmt.Sprint(res.Fields) != x.fields ||
				!x.toEnd && left != len(behind) || x.toEnd != res.k.answer.close {
				t.Fatalf("%q, %s: %d, length %d, %v, %q, %v, %d bytes left, closes %v", raw, how,
					res.Status, res.Length, res.Fields, body, err, left, res.k.answer.close)
			}
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range len(x.raw) + 1 {
			check(fmt.Sprint("split at ", i), []int{max(1, i)}, 100)
			var sizes []int
			for range len(x.raw) {
				sizes = append(sizes, 1+rng.IntN(1+i))
			}
			check(fmt.Sprint("in pieces ", sizes), sizes, 1+rng.IntN(1+i))
			if i == len(x.raw) {
				continue
			}
			_, body, _, err := readAnswer(x.raw[:i], nil, 100, x.headOnly)
			cutBody := x.toEnd && i >= strings.Index(x.raw, "\r\n\r\n")+4
			if !strings.HasPrefix(x.body, body) || !cutBody && (err == nil || err == io.EOF && body != "" ||
				errors.Is(err, ErrProtocol)) || cutBody && err != io.EOF {
				t.Fatalf("%q: %q, %v", x.raw[:i], body, err)
			}
		}
	}
}

// TestEdgesOfAnswers: each bound of an answer takes what is just inside, and refuses what is
// just outside.
func TestEdgesOfAnswers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	const body = "content-length: 1\r\n\r\na"
	fields := func(n int) string { return strings.Repeat("a: b\r\n", n) }
	line := func(n int) string { return "x: " + strings.Repeat("y", n-3) + "\r\n" }
	trailers := func(n int) string {
		return ok + "transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + strings.Repeat("a: b\r\n", n) + "\r\n"
	}
	const max = 32 << 10
	for name, x := range map[string]struct{ in, out string }{
		"fields":          {ok + "content-length: 1\r\n" + fields(128) + "\r\na", ok + "content-length: 1\r\n" + fields(129) + "\r\na"},
		"head":            {ok + line(max-15-2-19) + body, ok + line(max-15-2-19+1) + body},
		"informational":   {strings.Repeat("HTTP/1.1 102 P\r\n\r\n", 16) + ok + body, strings.Repeat("HTTP/1.1 102 P\r\n\r\n", 17) + ok + body},
		"trailers":        {trailers(63), trailers(64)},
		"version":         {"HTTP/1.0 200 OK\r\n" + body, "HTTP/1.2 200 OK\r\n" + body},
		"no reason":       {"HTTP/1.1 200\r\n" + body, "HTTP/1.1 20\r\n" + body},
		"four digits":     {"HTTP/1.1 200 \r\n" + body, "HTTP/1.1 2000\r\n" + body},
		"space":           {ok + body, "HTTP/1.1  200 OK\r\n" + body},
		"tab":             {ok + body, "HTTP/1.1\t200 OK\r\n" + body},
		"a letter":        {ok + body, "HTTP/1.1 20a OK\r\n" + body},
		"a slash":         {ok + body, "HTTP/1.1 /00 OK\r\n" + body},
		"a colon":         {ok + body, "HTTP/1.1 2:0 OK\r\n" + body},
		"lowest":          {"HTTP/1.1 100\r\n\r\n" + ok + body, "HTTP/1.1 099\r\n\r\n" + ok + body},
		"lower case":      {ok + body, "http/1.1 200 OK\r\n" + body},
		"no name":         {ok + "!~: b\r\n" + body, ok + ": b\r\n" + body},
		"no colon at all": {ok + body, ok + "a\r\n" + body},
		"space in a name": {ok + "a:b c\r\n" + body, ok + "a b: c\r\n" + body},
		"space behind it": {ok + body, ok + "a : c\r\n" + body},
		"delete":          {ok + "~: b\r\n" + body, ok + "\x7f: b\r\n" + body},
		"folded":          {ok + body, ok + "a: b\r\n c\r\n" + body},
		"two codings": {ok + "Transfer-Encoding: CHUNKED\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
			ok + "transfer-encoding: chunked\r\ntransfer-encoding: gzip\r\n\r\n0\r\n\r\n"},
		"no coding":         {ok + "transfer-encoding: identity\r\n" + body, ok + "transfer-encoding: identity, x\r\n" + body},
		"no body beside it": {ok + body, ok + "content-length: 0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"},
		"coding first":      {ok + body, ok + "transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n0\r\n\r\n"},
		"1.0 with a coding": {"HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"},
		"negative":          {ok + body, ok + "content-length: -1\r\n\r\na"},
		"plus":              {ok + body, ok + "content-length: +1\r\n\r\na"},
		"empty length":      {ok + body, ok + "content-length:\r\n\r\na"},
		"length twice, 0":   {ok + body, ok + "content-length: 0\r\ncontent-length: 1\r\n\r\n"},
		"fifteen digits":    {ok + "content-length: 000000000000001\r\n\r\na", ok + "content-length: 0000000000000001\r\n\r\na"},
		"101":               {"HTTP/1.1 103 E\r\n\r\n" + ok + body, "HTTP/1.1 101 S\r\n\r\n" + ok + body},
		"chunk too short":   {ok + "transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", ok + "transfer-encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n"},
		"end of a chunk": {ok + "transfer-encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n",
			ok + "transfer-encoding: chunked\r\n\r\n1\r\na-\n1\r\nb\r\n0\r\n\r\n"},
		"end of a size": {ok + "transfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
			ok + "transfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r-bc\r\n0\r\n\r\n"},
		"long size": {ok + "transfer-encoding: chunked\r\n\r\n00000001\r\na\r\n0\r\n\r\n",
			ok + "transfer-encoding: chunked\r\n\r\n000000001\r\na\r\n0\r\n\r\n"},
		"no size":      {ok + "transfer-encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n", ok + "transfer-encoding: chunked\r\n\r\n\r\na\r\n0\r\n\r\n"},
		"space before": {ok + "transfer-encoding: chunked\r\n\r\n0\r\n\r\n", ok + "transfer-encoding: chunked\r\n\r\n 0\r\n\r\n"},
	} {
		if _, _, _, err := readAnswer(x.in, nil, 100, false); err != io.EOF {
			t.Errorf("%s: %.80q: %v", name, x.in, err)
		}
		if _, _, _, err := readAnswer(x.out, nil, 100, false); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %.80q: %v", name, x.out, err)
		}
	}
	for _, two := range []string{"content-length: 10\r\ncontent-length: 20\r\n", "content-length: 10, 20\r\n"} {
		_, _, _, err := readAnswer(ok+two+"\r\n", nil, 100, false)
		if err == nil || !strings.Contains(err.Error(), "two different content-lengths, 10 and 20") {
			t.Errorf("%q: %v", two, err)
		}
	}
	for value, closes := range map[string]bool{"close": true, "Close": true, "keep-alive": false, "closed": false} {
		res, _, _, err := readAnswer(ok+"connection: "+value+"\r\nconnection: x\r\n"+body, nil, 100, false)
		if err != io.EOF || res.k.answer.close != closes {
			t.Errorf("connection: %s: closes %v, %v", value, res.k.answer.close, err)
		}
	}
}

// TestRequestBytes: what is sent for a request, byte by byte.
func TestRequestBytes(t *testing.T) {
	got := make(chan string, 1)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	want := make(chan int, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for n := range want {
			b := make([]byte, n)
			m, _ := io.ReadFull(c, b)
			got <- string(b[:m])
			if string(b[:4]) == "HEAD" {
				io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n")
			} else {
				io.WriteString(c, okHello)
			}
		}
	}()
	defer func() {
		close(want)
		ln.Close()
		<-done
	}()
	addr := ln.Addr().String()
	const identity = "accept-encoding: identity\r\n"
	b := func(n int) []byte { return bytes.Repeat([]byte("b"), n) }
	var dials int
	c := client(t, Options{IdleTimeout: time.Hour, Framed: true}) // no connection rests
	dial := c.o.Dial
	c.o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
		dials++
		return dial(ctx, addr)
	}
	for _, x := range []struct {
		r    Request
		want string // HOST is the address
	}{
		{Request{Method: "GET", Path: "/a?b"}, "GET /a?b HTTP/1.1\r\nhost: HOST\r\n" + identity + "\r\n"},
		{Request{Method: "HEAD", Path: "/"}, "HEAD / HTTP/1.1\r\nhost: HOST\r\n" + identity + "\r\n"},
		{Request{Method: "POST", Path: "/"}, "POST / HTTP/1.1\r\nhost: HOST\r\ncontent-length: 0\r\n" + identity + "\r\n"},
		{Request{Method: "DELETE", Path: "/"}, "DELETE / HTTP/1.1\r\nhost: HOST\r\ncontent-length: 0\r\n" + identity + "\r\n"},
		{Request{Method: "GET", Path: "/", Body: [][]byte{b(1)}}, "GET / HTTP/1.1\r\nhost: HOST\r\ncontent-length: 1\r\n" + identity + "\r\nb"},
		{Request{Method: "POST", Prefix: "/replicas/1", Host: "h", Path: "/x", Body: [][]byte{b(2), nil, {}, b(1)}}, "POST /replicas/1/x HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n" + identity + "\r\nbbb"},
		{Request{Method: "GET", Path: "/", Fields: []Field{{"Accept-Encoding", "gzip"}, {"x", "y"}}}, "GET / HTTP/1.1\r\nhost: HOST\r\nAccept-Encoding: gzip\r\nx: y\r\n\r\n"},
		{Request{Method: "GET", Path: "/", Fields: []Field{{"x", "\r\n\x00a\r"}, {"y", ""}, {"z", "\t"}}}, "GET / HTTP/1.1\r\nhost: HOST\r\n" + identity + "x:    a \r\ny: \r\nz: \t\r\n\r\n"},
		{Request{Method: "GET", Path: "/", Fields: []Field{{"HOST", "x"}, {"Expect", "x"}, {"Content-Length", "9"}, {"transfer-encoding", "x"}, {"connection", "x"}, {"hosts", "x"}, {"expects", "x"}, {"abcd", "x"}, {"abcdef", "y"}}},
			"GET / HTTP/1.1\r\nhost: HOST\r\n" + identity + "hosts: x\r\nexpects: x\r\nabcd: x\r\nabcdef: y\r\n\r\n"},
		{Request{Method: "POST", Path: "/", Body: [][]byte{b(oneWrite - 1), b(1)}}, fmt.Sprintf("POST / HTTP/1.1\r\nhost: HOST\r\ncontent-length: %d\r\n"+identity+"\r\n%s", oneWrite, b(oneWrite))},
		{Request{Method: "POST", Path: "/", Body: [][]byte{b(oneWrite), b(1)}}, fmt.Sprintf("POST / HTTP/1.1\r\nhost: HOST\r\ncontent-length: %d\r\n"+identity+"\r\n%s", oneWrite+1, b(oneWrite+1))},
		{Request{Method: "POST", Path: "/", Body: [][]byte{nil, b(5 * oneWrite), nil, b(lastWrite), nil}}, fmt.Sprintf("POST / HTTP/1.1\r\nhost: HOST\r\ncontent-length: %d\r\n"+identity+"\r\n%s", 5*oneWrite+lastWrite, b(5*oneWrite+lastWrite))},
		{Request{Method: "POST", Path: "/", Body: [][]byte{b(3 * oneWrite), b(lastWrite + 1)}}, fmt.Sprintf("POST / HTTP/1.1\r\nhost: HOST\r\ncontent-length: %d\r\n"+identity+"\r\n%s", 3*oneWrite+lastWrite+1, b(3*oneWrite+lastWrite+1))},
	} {
		for range 2 { // the second time on a connection that was used
			sent := strings.Replace(x.want, "HOST", addr, 1)
			r := x.r
			r.Addr, r.Bound = addr, 20*time.Second
			want <- len(sent)
			res, err := c.Do(t.Context(), &r)
			if err != nil {
				t.Fatalf("%.80q: %v", sent, err)
			}
			if read := <-got; read != sent {
				t.Errorf("sent %.300q, want %.300q", read, sent)
			}
			answer, err := io.ReadAll(res)
			if wantBody := map[bool]string{false: "hello"}[r.Method == "HEAD"]; string(answer) != wantBody || err != nil {
				t.Errorf("%.80q: %q, %v", sent, answer, err)
			}
			res.Close()
		}
	}
	if dials != 1 {
		t.Errorf("%d connections", dials)
	}
}

// Idle connections that have ended are tried a few times, then a new one is opened; the
// others stay until they are swept.
func TestEndedIdleConnections(t *testing.T) {
	const idle = 20
	answered := make(chan struct{}, idle)
	e := newEngine(t, func(c net.Conn, r *http.Request, _ []byte, n int) bool {
		<-answered // all are open
		io.WriteString(c, okHello)
		return n == 0 && r.URL.Path == "/stays"
	})
	c := client(t, Options{IdleTimeout: time.Hour, Framed: true}) // no connection rests
	all := make(chan *Response, idle)
	for range idle {
		go func() {
			r, err := c.Do(t.Context(), postRequest(e.addr, "{}"))
			if err != nil {
				t.Error(err)
			}
			all <- r
		}()
	}
	testkit.Eventually(t, "not every connection is open", func() bool { return e.conns.Load() == idle })
	for range idle {
		answered <- struct{}{}
	}
	for range idle {
		r := <-all
		io.ReadAll(r)
		r.Close()
	}
	for _, k := range c.peers[e.addr].idle {
		testkit.Eventually(t, "an idle connection has not ended", func() bool { return k.transport.look() == ended })
	}
	answered <- struct{}{}
	r, err := c.Do(t.Context(), &Request{Addr: e.addr, Method: "GET", Path: "/stays"})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); string(b) != "hello" || err != nil || r.Unsolicited != 0 {
		t.Errorf("%q, %v, %d unsolicited", b, err, r.Unsolicited)
	}
	r.Close()
	if left := len(c.peers[e.addr].idle); left != idle-maxStale+1 || int(e.conns.Load()) != idle+1 {
		t.Errorf("%d of %d are idle, %d connections", left, idle, e.conns.Load())
	}
}

// An engine that writes before each request is given up after a few connections, and the next
// answer of the address reports it.
func TestStrayBeforeEachRequest(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	opened := 0
	c := client(t, Options{Dial: func(ctx context.Context, _ string) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, "tcp", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		engine, err := ln.Accept()
		if err != nil {
			return nil, err
		}
		if opened++; opened <= maxUnsolicited {
			io.WriteString(engine, whole("stray"))
			k := newConn(New(Options{}), "", nc)
			testkit.Eventually(t, "no stray bytes on the connection", func() bool { return k.transport.look() == spoke })
		} else {
			go func() {
				http.ReadRequest(bufio.NewReader(engine))
				io.WriteString(engine, okHello)
			}()
		}
		t.Cleanup(func() { engine.Close() })
		return nc, nil
	}})
	_, err = c.Do(t.Context(), postRequest("e:1", "{}"))
	if x, is := errors.AsType[*Error](err); !is || x.Kind != ErrProtocol || opened != maxUnsolicited || x.Resent || x.Addr != "e:1" {
		t.Errorf("%v after %d connections", err, opened)
	}
	r, err := c.Do(t.Context(), postRequest("e:1", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	if r.Unsolicited != maxUnsolicited || !r.FirstUnsolicited || r.UnsolicitedValue() != "3 first" {
		t.Errorf("%d, first %v", r.Unsolicited, r.FirstUnsolicited)
	}
	io.ReadAll(r)
	r.Close()
	if len(c.peers["e:1"].conns) != 0 {
		t.Error("a connection to an engine that strays is kept")
	}
}

// TestUnsolicitedValue: what a server reports of its engine adds to what was found at the
// server, and is read back as it was written.
func TestUnsolicitedValue(t *testing.T) {
	for _, x := range []struct {
		value string
		found int
		first bool
		want  string
	}{
		{"", 0, false, ""}, {"2", 0, false, "2"}, {"2 first", 0, false, "2 first"}, {"2", 1, true, "3 first"}, {"2 first", 1, false, "3 first"}, {"2 second", 1, false, "3"},
		{"x first", 0, false, ""}, {"-1", 0, false, ""}, {"999999", 1, false, "1000000"}, {"1000000", 1, false, "1"}, {"", 1, true, "1 first"}, {"0", 0, false, ""},
	} {
		r := &Response{Unsolicited: x.found, FirstUnsolicited: x.first,
			Fields: []Field{{"other", "5"}, {UnsolicitedHeader, x.value}, {UnsolicitedHeader, "7"}}}
		r.takeUnsolicited()
		if got := r.UnsolicitedValue(); got != x.want {
			t.Errorf("%q and %d: %q, want %q", x.value, x.found, got, x.want)
		}
	}
	for endpoint, want := range map[string][2]string{
		"http://a:1": {"a:1"}, "https://a:1/": {"a:1"}, "http://a:1/replicas/7": {"a:1", "/replicas/7"}, "http://a:1/b/": {"a:1", "/b"}, "a:1": {"a:1"}, "a:1/x": {"a:1", "/x"},
	} {
		if addr, prefix := SplitEndpoint(endpoint); addr != want[0] || prefix != want[1] {
			t.Errorf("%s: %s and %s", endpoint, addr, prefix)
		}
	}
	for text, times := range map[string]bool{"HTTP/1.1 408": true, "HTTP/1.0 408 Request Timeout": true, "HTTP/1.1 40": false, "": false, "HTTP/1.1 4080": true,
		"HTTP/2.1 408": false, "HTTP/1.1 418": false} {
		if isTimeoutAnswer([]byte(text)) != times {
			t.Errorf("%q is the answer of an end: %v", text, !times)
		}
	}
	o := New(Options{}).o
	if o.DialTimeout != 5*time.Second || o.IdleTimeout != 4*time.Second || o.MaxIdle != 256 || o.MaxHead != 32<<10 ||
		o.Dial == nil || o.Framed {
		t.Errorf("the zero options: %+v", o)
	}
	o = New(Options{DialTimeout: 1, IdleTimeout: 2, MaxIdle: 3, MaxHead: 4}).o
	if o.DialTimeout != 1 || o.IdleTimeout != 2 || o.MaxIdle != 3 || o.MaxHead != 4 {
		t.Errorf("options are overwritten: %+v", o)
	}
	cause := errors.New("why")
	for _, kind := range []error{ErrDial, ErrNoAnswer, io.ErrUnexpectedEOF} {
		err := &Error{Addr: "a:1", Kind: kind, Err: cause}
		if !errors.Is(err, kind) || !errors.Is(err, cause) || err.Error() != kind.Error()+" (a:1): why" {
			t.Errorf("%v", err)
		}
	}
}

// TestClosedAnswer: an answer after Close, one that is filtered, and the traffic of addresses
// that share a client.
func TestClosedAnswer(t *testing.T) {
	e, other := assertAnswer(t, okHello), assertAnswer(t, okHello)
	c := client(t, Options{IdleTimeout: time.Hour, Framed: true}) // no connection rests
	r, err := c.Do(t.Context(), postRequest(e.addr, "{}"))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(nil); n != 0 || err != nil {
		t.Errorf("nothing is read: %d, %v", n, err)
	}
	r.Filter(func(body io.Reader) io.Reader {
		return io.MultiReader(strings.NewReader("<"), body, strings.NewReader(">"))
	})
	if got := c.Traffic(e.addr); got.InFlight != 1 || got.Waiting.IsZero() || c.Traffic(other.addr) != (functions.Traffic{}) {
		t.Errorf("traffic: %+v, of the other %+v", got, c.Traffic(other.addr))
	}
	if b, err := io.ReadAll(r); string(b) != "<hello>" || err != nil || r.Length != -1 {
		t.Errorf("%q, length %d, %v", b, r.Length, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	r.LimitSilence(time.Second)
	if _, err := r.Read(make([]byte, 1)); err != io.ErrClosedPipe {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if got := c.Traffic(e.addr); got.InFlight != 0 || !got.Waiting.IsZero() || got.LastByte.IsZero() {
		t.Errorf("traffic: %+v", got)
	}
	if n := len(c.peers[e.addr].idle); n != 1 || c.count != 1 {
		t.Errorf("%d idle, %d counted", n, c.count)
	}
	c.AbortThrough(e.addr)
	c.AbortThrough("10.0.0.1:1")
	if c.count != 0 {
		t.Errorf("%d counted", c.count)
	}
}

// TestRest: a connection rests for as long as the slowest of late answers took, whose weight
// sinks, but for servers of ours and over TLS.
func TestRest(t *testing.T) {
	p := &peer{}
	p.observe(64 * time.Millisecond)
	if p.rest != 64*time.Millisecond || p.answers != 1 {
		t.Errorf("%v after %d answers", p.rest, p.answers)
	}
	p.observe(time.Millisecond)
	if p.rest != 63*time.Millisecond {
		t.Errorf("%v after a quick answer", p.rest)
	}
	for range 62 {
		p.observe(time.Millisecond)
	}
	if p.rest < 16*time.Millisecond || p.rest > 32*time.Millisecond || p.answers != 64 {
		t.Errorf("%v after %d answers", p.rest, p.answers)
	}
	p.observe(time.Second)
	if p.rest != time.Second {
		t.Errorf("%v after a slow answer", p.rest)
	}
	now := time.Now()
	for name, x := range map[string]struct {
		idle, busy int
		rest       time.Duration
		full       time.Duration
		want       bool
	}{
		"as many idle": {2, 2, maxBesideRest, 0, true}, "more idle": {3, 2, maxBesideRest, 0, false}, "slow": {1, 2, maxBesideRest + 1, 0, false},
		"full until then": {1, 2, time.Millisecond, time.Nanosecond, false}, "full no more": {1, 2, time.Millisecond, -time.Nanosecond, true},
	} {
		p := &peer{conns: map[*conn]struct{}{}, rest: x.rest, fullUntil: now.Add(x.full)}
		for i := range x.idle + x.busy {
			k := &conn{}
			if p.conns[k] = (struct{}{}); i < x.idle {
				p.idle = append(p.idle, k)
			}
		}
		if got := p.grows(now); got != x.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	// Of plain and secure ones each request takes its own kind.
	plain, secure := &conn{}, &conn{transport: transport{under: &pollable{}}}
	for _, want := range []*conn{plain, secure} {
		for _, idle := range [][]*conn{{plain, secure}, {secure, plain}} {
			p := &peer{idle: append([]*conn{}, idle...)}
			if k, rested := p.take(want == secure, false); k != want || !rested || len(p.idle) != 1 || p.idle[0] == want {
				t.Errorf("secure %v: %p of %p, %p", want == secure, k, plain, secure)
			}
			if k, _ := p.take(want == secure, false); k != nil {
				t.Errorf("secure %v: another is taken", want == secure)
			}
		}
	}
}
