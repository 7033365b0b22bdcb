package httpserver

import (
	"fmt"
	"strings"
	"testing"
)

// Large bodies take at most MaxBodies of memory together; small ones are served beside
// them; and memory is released however a request ends.
func TestBodiesTogetherAreBounded(t *testing.T) {
	const budget, size = 1 << 20, 300 << 10
	forEachServer(t, func(t *testing.T, serve func(Options) *testServer) {
		s := serve(Options{Handler: echoHandler, MaxBodies: budget})
		head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n", size)
		full := func(rest string) {
			t.Helper()
			c := s.dial()
			c.send(rest)
			r, b := c.ok("POST")
			if c.Close(); r.StatusCode != 503 || r.Header.Get("Retry-After") == "" || !strings.Contains(b, "queue_full") || !r.Close {
				t.Errorf("%d %v %s", r.StatusCode, r.Header, b)
			}
		}
		var held []*client
		for i := range 3 {
			c := s.dial()
			c.send(head + strings.Repeat("x", size-1)) // one byte is missing
			held = append(held, c)
			s.await(func(w *conn) bool { return w.s.bodies.Load() == int64(i+1)*size })
		}
		full(head + strings.Repeat("x", size))
		full("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size, strings.Repeat("x", size)))
		small := s.dial()
		for range 2 {
			small.send(postRequest("small"))
			if r, b := small.ok("POST"); r.StatusCode != 200 || !strings.Contains(b, "body=5:") {
				t.Errorf("beside full buffers: %d %s", r.StatusCode, b)
			}
		}
		// One sends the rest, one leaves: their memory is free again.
		held[0].send("x" + get)
		if r, _ := held[0].ok("POST"); r.StatusCode != 200 {
			t.Errorf("a body that was counted: %d", r.StatusCode)
		}
		held[0].ok("GET")
		held[1].Close()
		s.await(func(w *conn) bool { return w.s.bodies.Load() <= budget-2*size })
		c := s.dial()
		c.send(head + strings.Repeat("x", size))
		if r, _ := c.ok("POST"); r.StatusCode != 200 {
			t.Errorf("after room was made: %d", r.StatusCode)
		}
		for _, c := range append(held, c) {
			c.Close()
		}
		s.await(func(w *conn) bool { return w.s.bodies.Load() == 0 })
	})
}
