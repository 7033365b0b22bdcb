package httpserver

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/thaw-dev/thaw/functions/openai"
)

// sumReceiver keeps the size and the checksum of a body, never the body.
type sumReceiver struct {
	stop   int64 // it ends by err after that many bytes; 0: never
	err    error
	size   int64
	sum    uint32
	closed *atomic.Int32
	begun  *atomic.Int32
	gone   chan struct{} // gets a value with each Close
}

func (r *sumReceiver) Receive(body io.Reader) error {
	r.begun.Add(1)
	b := make([]byte, 1000)
	for {
		n, err := body.Read(b)
		r.size += int64(n)
		r.sum = crc32.Update(r.sum, crc32.IEEETable, b[:n])
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("the receiver's own words: %w", err)
		case r.stop > 0 && r.size >= r.stop:
			return r.err
		}
	}
}

func (r *sumReceiver) Close() {
	r.closed.Add(1)
	r.gone <- struct{}{}
}

// A body of a path with a receiver goes there as it comes, whatever its framing, beyond
// MaxBody and up to its own bound; the key is checked before its first byte is read.
func TestReceiver(t *testing.T) {
	const limit = 3 << 20
	for _, f := range fronts {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var begun, closed, handled atomic.Int32
			gone := make(chan struct{}, 100)
			fails := map[string]error{"none": nil, "panic": nil, "refused": openai.New(openai.InvalidValue, "no such purpose"), "broken": errors.New("disk")}
			defer f.serve(Options{
				MaxBody: 1 << 10, Authorize: wantKey,
				Receive: func(q *Request) (Receiver, int64) {
					if !strings.HasPrefix(q.Path, "/files") {
						return nil, 0
					}
					r := &sumReceiver{begun: &begun, closed: &closed, gone: gone}
					if name := q.Header("fails"); name != "" {
						r.stop, r.err = 10, fails[name]
					}
					return r, limit
				},
				Handler: func(q *Request, res *Response) {
					if q.Received == nil {
						res.Body = fmt.Appendf(nil, "memory %d", len(q.Body))
						return
					}
					handled.Add(1)
					r := q.Received.(*sumReceiver)
					if q.Header("fails") == "panic" {
						panic("a bug")
					}
					if len(q.Body) > 0 {
						t.Error("the body lies in memory too")
					}
					res.Body = fmt.Appendf(nil, "%d %08x", r.size, r.sum)
				},
			}, ln)()
			s := &testServer{t: t, addr: ln.Addr().String()}
			head := func(key, more string) string {
				return "POST /files HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + key + "\r\n" + more
			}
			declared := func(b string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(b), b) }
			chunked := func(b string) string {
				var out strings.Builder
				out.WriteString("Transfer-Encoding: chunked\r\n\r\n")
				for len(b) > 0 {
					n := min(len(b), 70_000)
					fmt.Fprintf(&out, "%x\r\n%s\r\n", n, b[:n])
					b = b[n:]
				}
				return out.String() + "0\r\n\r\n"
			}
			large := strings.Repeat("0123456789abcdef", 2<<20/16)
			over := strings.Repeat("x", limit+1)
			for _, c := range []struct {
				name, request string
				code          int
				want          string // of the answer's body
				again         bool   // the connection serves another request
				begun, closed int32
			}{
				{"with its head", head("right", declared("hello")), 200, fmt.Sprintf("5 %08x", crc32.ChecksumIEEE([]byte("hello"))), true, 1, 1},
				{"empty", head("right", "Content-Length: 0\r\n\r\n"), 200, "0 00000000", true, 1, 1},
				{"without a length", head("right", "\r\n"), 200, "0 00000000", true, 1, 1},
				{"declared", head("right", declared(large)), 200, fmt.Sprintf("%d %08x", len(large), crc32.ChecksumIEEE([]byte(large))), true, 1, 1},
				{"chunked", head("right", chunked(large)), 200, fmt.Sprintf("%d %08x", len(large), crc32.ChecksumIEEE([]byte(large))), true, 1, 1},
				{"not read whole", head("right", "fails: none\r\n"+declared(large)), 200, "", true, 1, 1},
				{"wrong key", head("wrong", declared("hello")), 401, "invalid_api_key", false, 0, 0},
				{"declared too large", head("right", declared(over)), 413, "larger than 3145728 bytes", false, 0, 0},
				{"chunks too large", head("right", chunked(over)), 413, "larger than 3145728 bytes", false, 1, 1},
				{"refused on the way", head("right", "fails: refused\r\n"+declared(large)), 400, "no such purpose", false, 1, 1},
				{"broken on the way", head("right", "fails: broken\r\n"+declared(large)), 500, "internal_error", false, 1, 1},
				{"a handler that panics", head("right", "fails: panic\r\n"+declared("hello")), 500, "internal_error", false, 1, 1},
				{"another path", "POST /v1 HTTP/1.1\r\nHost: h\r\n" + declared("hello"), 200, "memory 5", true, 0, 0},
			} {
				begun.Store(0)
				closed.Store(0)
				x := s.dial()
				sent := make(chan struct{})
				go func() { defer close(sent); io.WriteString(x, c.request) }()
				r, b := x.ok("POST")
				if r.StatusCode != c.code || !strings.Contains(b, c.want) || r.Close == c.again {
					t.Errorf("%s: %d %s, connection ends: %v", c.name, r.StatusCode, b, r.Close)
				}
				if begun.Load() != c.begun || closed.Load() != c.closed {
					t.Errorf("%s: received %d times and closed %d times, want %d and %d", c.name, begun.Load(), closed.Load(), c.begun, c.closed)
				}
				if c.again {
					<-sent
					x.send(head("right", declared("again")))
					if r, b := x.ok("POST"); r.StatusCode != 200 || !strings.HasPrefix(b, "5 ") {
						t.Errorf("%s, then another: %d %s", c.name, r.StatusCode, b)
					}
				}
				x.Close()
				<-sent
			}

			// The client leaves in the middle: the receiver is closed, no handler is called.
			handled.Store(0)
			for len(gone) > 0 {
				<-gone
			}
			x := s.dial()
			x.send(head("right", "Content-Length: 1000000\r\n\r\n"+large[:100_000]))
			x.Close()
			<-gone
			if handled.Load() != 0 {
				t.Error("the handler saw a body that did not come whole")
			}
		})
	}
}
